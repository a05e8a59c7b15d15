"""Pictures of episodes while a training runs: one success and one failure of each time that the agent is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from guesser import Guesser
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from arpo.agent.actions import Click, Finish, Wait
from arpo.agent.dialects.base import DIALECTS, DialectEntry
from arpo.config import load_config
from arpo.envs.pictures import CELL, ROW, STRIP, film_strip
from arpo.images import decode
from arpo.runs import track
from arpo.runs.store import Run
from arpo.training import command
from arpo.training.command import run_training
from arpo.types import Completion, Observation, Outcome, Provenance, Reply, Segment, Step, Tokens, Trajectory
from fake_env import FakeEnv, make_task


def pictures(folder: Path) -> dict[str, list[tuple[int, bytes]]]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {
        name: [(one.step, one.encoded_image_string) for one in events.Images(name)] for name in events.Tags()["images"]
    }


def train(folder: Path, model: Path, *more: str) -> None:
    words = ["train.rollout_tasks=2", "train.optimizer_tasks=1", "train.max_tokens=16", "train.track=[tensorboard]"]
    words += ["algorithm.name=grpo", "algorithm.group=2", "train.lr=5e-5", "eval.trials=2", "eval.temperature=1.0"]
    words += ["env.name=fake", "env.size=96x64", "tasks.source=train", "eval.held_out=0"]
    run_training(load_config("pocket", [*words, f"train.model={model}", f"run_dir={folder}", *more]))


def test_each_time_that_the_agent_is_judged_a_success_and_a_failure_are_shown_once(
    guesser_folder: Path, fake_backend: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(DIALECTS, "uitars", DialectEntry("uitars", Guesser))
    train(folder := tmp_path / "run", guesser_folder, "train.updates=2")
    shown = pictures(folder)
    with Run.read(folder) as run:
        for who, update in (("base", 0), ("trained", 2)):
            scores = {one.score for one in run.summaries(source="evaluation", update=update)}
            for kind, there in (("success", 1.0 in scores), ("failure", 0.0 in scores)):
                assert (f"{who} agent/{kind}" in shown) == there
    assert shown, "no episode of the tiny agent was scored"
    for images in shown.values():
        ((step, image),) = images
        assert step in (0, 1) and decode(image).shape[1] <= ROW * (CELL + 8) + 8
    train(folder, guesser_folder, "train.updates=2")  # all of it is there: nothing is shown again
    assert pictures(folder) == shown
    train(folder, guesser_folder, "train.updates=3")
    later = pictures(folder)
    assert {name: later[name][:1] for name in shown} == shown
    assert all(step == 2 for images in later.values() for step, _ in images[1:])


def test_a_run_of_an_older_arpo_keeps_what_it_has_logged(
    guesser_folder: Path, fake_backend: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(DIALECTS, "uitars", DialectEntry("uitars", Guesser))
    folder = tmp_path / "run"
    with monkeypatch.context() as older:
        older.setattr(command._Training, "_show", lambda self, who, update: None)
        train(folder, guesser_folder, "train.updates=1")
    train(folder, guesser_folder, "train.updates=2")
    assert {step for images in pictures(folder).values() for step, _ in images} == {1}
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("success")] == [0, 1]


def test_without_a_tracker_nothing_is_drawn(
    guesser_folder: Path, fake_backend: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(DIALECTS, "uitars", DialectEntry("uitars", Guesser))
    monkeypatch.setattr(track.Track, "show", None)
    train(tmp_path / "run", guesser_folder, "train.updates=0", "train.track=[]")
    assert not (tmp_path / "run" / "tensorboard").exists()


def episode(n_steps: int, instruction: str = "Press it.") -> tuple[Any, Trajectory, dict[str, Observation]]:
    """One that waits, clicks in between and ends."""
    env, task = FakeEnv(), make_task("press-1", instruction=instruction)
    screens = [env.reset(task, 0)]
    actions = [Click(i % 90, 5) if i % 2 else Wait() for i in range(n_steps - 1)] + [Finish()] * min(1, n_steps)
    for action in actions:
        screens.append(env.step(action))
    said = Completion((1,), (0.0,), "Thought: t\nAction: a", 0, 1.0, 1.0, "stop")
    steps = tuple(
        Step((0,), said, action, None, "", screen.hash, 0, 0)
        for action, screen in zip(actions, screens[1:], strict=True)
    )
    where = Provenance("evaluation", "r", 0)
    segments: tuple[Segment, ...] = (Tokens((1,)), *(Reply(i) for i in range(n_steps)))
    whole = Trajectory("a", task.id, 0, 0, screens[0].hash, segments, steps, Outcome.STEP_LIMIT, 0.0, 0.0, where)
    return task, whole, {screen.hash: screen for screen in screens}


@pytest.mark.parametrize("n_steps", [0, 1, 7, 8, 10_000])
def test_a_film_strip_is_small_however_long_the_episode_is(n_steps: int) -> None:
    task, whole, screens = episode(n_steps, "<b>\n\x1b[31m“É” 你\n" * 1000)
    read: list[str] = []

    def screenshot(name: str) -> Observation:
        read.append(name)
        return screens[name]

    strip = film_strip(task, whole, screenshot)
    shown = min(STRIP, n_steps + 1)
    assert len(read) == shown and read[0] == whole.start
    assert read[-1] == (whole.steps[-1].observation if whole.steps else whole.start)
    assert strip.size[0] == min(ROW, shown) * (CELL + 8) + 8 and strip.size[1] < 700


def test_a_very_tall_screen_is_cut() -> None:
    env = FakeEnv((60, 5000))
    task = make_task("press-1")
    screen = env.reset(task, 0)
    where = Provenance("evaluation", "r", 0)
    whole = Trajectory("a", task.id, 0, 0, screen.hash, (), (), Outcome.STEP_LIMIT, 0.5, 0.5, where)
    assert film_strip(task, whole, lambda name: screen).size[1] < 2 * CELL + 100
