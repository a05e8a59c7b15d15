"""Runs to look at, made by hand in a moment: a training with a replayed success, one with hostile text, a long episode.

`python viewer_runs.py FOLDER` adds an episode and a line of metrics, as a training in another process does.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from arpo.agent.actions import Action, Click, Drag, Finish, Hotkey, Scroll, Type
from arpo.config import Config, to_yaml
from arpo.engines.scripted import byte_vocabulary
from arpo.images import observe
from arpo.runs.record import TokenRecord
from arpo.runs.store import Run, write_whole
from arpo.tasks.load import to_text
from arpo.types import Completion, Image, Observation, Outcome, Provenance, Reply, Step, Task, Tokens, Trajectory

TASKS = ("press-1", "press-2")
ACTIONS: tuple[Action, ...] = (
    Click(20, 10),
    Click(60, 40, count=2),
    Click(30, 30, button="right"),
    Drag(10, 10, 80, 50),
    Scroll(48, 32, "down"),
    Type("hello"),
    Hotkey(("ctrl", "s")),
    Finish(),
)
EVIL = """<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">"'`--></script>\u202e"""
SUCCESS, FAILURES = "u0.0-press-1-0-0", ("u1.0-press-1-0-0", "u1.0-press-1-1-0")
REPLAYED = f"{FAILURES[1]}-replay"
_VOCABULARY = byte_vocabulary()


def screen(seed: int) -> Observation:
    pixels = np.full((64, 96, 3), 200, np.uint8)
    pixels[8:56, 8 + seed % 60 : 24 + seed % 60] = (20, 90, 200)
    pixels[0, 0] = (seed % 256, seed // 256, 0)
    return observe(pixels)


def completion(text: str, version: int = 0) -> Completion:
    tokens = (*_VOCABULARY.encode(text), _VOCABULARY.special("<|im_end|>"))
    logprobs = tuple(-0.01 * (i % 100) for i in range(len(tokens)))
    return Completion(tokens, logprobs, _VOCABULARY.decode(tokens), version, 1.0, 1.0, "stop")


def episode(
    run: Run,
    name: str,
    task: str = "press-1",
    update: int = 0,
    actions: Sequence[Action | None] = (Click(20, 10), Finish()),
    *,
    source: str = "rollout",
    score: float | None = 1.0,
    outcome: Outcome = Outcome.FINISHED,
    thought: str = "There is the button.",
) -> Trajectory:
    """Added to the run, with its screens. None among the actions: a reply that is none."""
    segments: list[Tokens | Image | Reply] = []
    steps = []
    for i, action in enumerate(actions):
        before = screen(i)
        run.add_image(before)
        segments += [Tokens((1, 2)), Image(before.hash, 96, 64), Reply(i)]
        ended = i == len(actions) - 1
        said = completion(f"Thought: {thought}\nAction: number {i}", version=update)
        error = "no action" if action is None else None
        after = None if ended else screen(i + 1).hash
        steps.append(Step((3 * i, 3 * i + 1), said, action, error, "", after, 0.5, 0.25))
    origin = Provenance(source, run.folder.name, update)  # type: ignore[arg-type]
    start = screen(0).hash
    made = Trajectory(name, task, 0, 7, start, tuple(segments), tuple(steps), outcome, score, score, origin)
    run.add(made)
    return made


def record_of(trajectory: Trajectory, advantage: float, name: str | None = None) -> TokenRecord:
    logprobs = [value for step in trajectory.steps for value in step.completion.logprobs]
    old = np.array(logprobs, np.float32)
    new = old + np.linspace(-0.3, 0.3, len(old), dtype=np.float32)
    clipped = new - old > 0.25
    repeats = trajectory.id if name else None
    return TokenRecord(name or trajectory.id, repeats, np.full(len(old), advantage, np.float32), old, old, new, clipped)


def metrics(update: int, success: float) -> dict[str, float]:
    line = {"update": update, "success": success, "reward": success, "failed_groups": 0.5, "replayed_groups": 0.25}
    return line | {"lag": 0.0, "sampler_gap": 1e-7, "sampled_tokens": 500, "sample_s": 1.0, "learn_s": 1.5}


def begun(folder: Path, tasks: dict[str, str]) -> Run:
    """A training of these tasks, by id and instruction."""
    run = Run.write(folder, to_yaml(Config().with_values({"run_dir": folder})))
    made = [Task(name, "buttons", text, "pocket", {}, {}, "train") for name, text in tasks.items()]
    write_whole(folder / "tasks.json", to_text({"train": made}))
    return run


def make_training(folder: Path) -> Path:
    """Two updates. In the second all attempts failed, and the success of the first took part again."""
    with begun(folder, {name: f"Press button {name[-1]}." for name in TASKS}) as run:
        episode(run, "eval0-press-1-0-0", source="evaluation", score=0.0)
        success = episode(run, SUCCESS, actions=ACTIONS)
        failure = episode(run, "u0.0-press-1-1-0", actions=(Click(5, 5), None), score=0.0, outcome=Outcome.UNPARSABLE)
        episode(run, "u0.0-press-2-0-0", "press-2", score=None, outcome=Outcome.ENV_ERROR)
        failed = [episode(run, name, update=1, actions=(Click(1, 1),) * 3, score=0.0) for name in FAILURES]
        episode(run, "eval2-press-1-0-0", update=2, source="evaluation")
        asyncio.run(run.keep_record(0, [record_of(success, 1.0), record_of(failure, -1.0)]))
        asyncio.run(run.keep_record(1, [record_of(failed[0], -1.0), record_of(success, 2.5, name=REPLAYED)]))
        run.log(metrics(0, 0.5))
        run.log(metrics(1, 0.0))
    return folder


def make_hostile(folder: Path) -> Path:
    """Whatever a model, a task file or a sender can write, as a script would like to find it."""
    task = f"task{EVIL}"
    with begun(folder, {"press-1": EVIL}) as run:
        made = episode(run, f"id{EVIL}", task, actions=(Type(EVIL), Hotkey((EVIL,)), Finish(EVIL)), thought=EVIL)
        asyncio.run(run.keep_record(0, [record_of(made, 1.0)]))
        run.log(metrics(0, 1.0) | {EVIL: 1.0})
    text = (folder / "tasks.json").read_text().replace("press-1", "other")
    write_whole(folder / "tasks.json", text)
    return folder


def make_long(folder: Path, steps: int) -> Path:
    """One episode of so many steps, none of which needs all that went before."""
    with begun(folder, {"press-1": "Press and press."}) as run:
        episode(run, "long", actions=[Click(i % 96, 10) for i in range(steps)])
    return folder


def grow(folder: Path) -> None:
    with Run.write(folder, "") as run:
        number = sum(1 for _ in run.summaries())
        episode(run, f"u2.0-press-1-{number}-0", update=2)
        run.log(metrics(2, 1.0))


if __name__ == "__main__":
    grow(Path(sys.argv[1]))
