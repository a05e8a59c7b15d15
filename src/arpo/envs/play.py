"""Plays tasks in front of people: by the scripted expert or by hand from a terminal, recorded as pictures.

record(env, make_expert("pocket", task), task, seed=0)      the expert's episode
play_by_hand(env, task, 0, sys.stdin, Path("play.gif"))     a person's, an action a line
play_demo("pocket", (448, 280), 10, 0, Path("demo"))        ten tasks, a strip and an animation for each
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from arpo.agent.grammar import parse
from arpo.envs.base import Env, Expert, make, make_expert
from arpo.envs.images import decode
from arpo.envs.pictures import FORMATS, Recording, Shot, describe, save_animation, save_strip
from arpo.errors import ActionError, ConfigError, ParseError
from arpo.tasks.load import load_tasks, spread
from arpo.types import Task

HELP = """One action a line, points in screen pixels; an empty line or wait() only looks, the end of input stops:
  click(start_box='(120,44)')   left_double(…)   right_single(…)   drag(start_box='(1,2)', end_box='(3,4)')
  type(content='hello\\n')   hotkey(key='ctrl s')   scroll(start_box='(200,140)', direction='down')
  finished(content='an answer')   fail()"""


class Control(Protocol):
    """One thing on the screen."""

    @property
    def kind(self) -> str: ...

    @property
    def label(self) -> str: ...

    @property
    def box(self) -> tuple[int, int, int, int]: ...

    @property
    def state(self) -> tuple[str, ...]: ...


@runtime_checkable
class Parses(Protocol):
    """An environment that can say what is on its screen."""

    def parse(self) -> Sequence[Control]: ...


def picture_path(out: str) -> Path:
    """Where an animation is to be written, or a ConfigError for an ending or a folder that cannot be."""
    path = Path(out)
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"out={out}: must end in {' or '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise ConfigError(f"out={out}: there is no folder {path.parent}")
    return path


def record(env: Env, expert: Expert, task: Task, seed: int) -> Recording:
    """The expert's episode, ended by itself or by the task's step limit."""
    screen = env.reset(task, seed)
    shots: list[Shot] = []
    while not env.ended and len(shots) < task.max_steps:
        thought, action = expert.act(env)
        shots.append(Shot(decode(screen.image), thought, action))
        screen = env.step(action)
    shots.append(Shot(decode(screen.image), "", None))
    return Recording(task, tuple(shots), env.score())


def play_demo(env_name: str, size: tuple[int, int], source: str, count: int, seed: int, out: Path) -> bool:
    """The expert solves `count` tasks, as different as there are; pictures go to `out`. Whether it solved all."""
    tasks = spread(load_tasks(env_name, source))[:count]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"out={out}: {error.strerror}") from None
    console = Console(stderr=True)
    env = make(env_name, size=size)
    recordings: list[Recording] = []
    for task in track(tasks, "The expert at work", console=console):
        recording = record(env, make_expert(env_name, task), task, seed)
        recordings.append(recording)
        colour = "green" if recording.solved else "red"
        console.print(f"  [{colour}]{recording.verdict:<20}[/] {escape(task.instruction)}", highlight=False)
        save_animation(recording, out / f"{task.id}.gif")
    env.close()
    save_strip(recordings, out / "strip.png")
    solved = sum(recording.solved for recording in recordings)
    print(f"{solved} of {len(recordings)} tasks solved. Look at {out / 'strip.png'}; each episode moves in {out}/*.gif")
    return solved == len(recordings)


def play_by_hand(env: Env, task: Task, seed: int, lines: Iterable[str], out: Path, console: Console) -> Recording:
    """An episode by a person at a terminal. A line that is no action is answered and changes nothing."""
    picture = out.with_name(f"{out.stem}-screen.png")
    screen = env.reset(task, seed)
    shots: list[Shot] = []
    console.print(f"[bold]{escape(task.instruction)}[/]\n{escape(HELP)}")
    _show(env, screen.image, picture, console)
    for line in lines:
        call = re.sub(r"^\s*Action\s*:", "", line).strip() or "wait()"
        try:
            action = parse(f"Action: {call}", lambda x, y: (round(x), round(y))).action
            after = env.step(action)
        except (ParseError, ActionError) as error:
            console.print(f"[red]error:[/] {escape(str(error))}")
            continue
        shots.append(Shot(decode(screen.image), "", action))
        screen = after
        console.print(f"{len(shots)}. {escape(describe(action))}", highlight=False)
        if env.ended:
            break
        _show(env, screen.image, picture, console)
    shots.append(Shot(decode(screen.image), "", None))
    recording = Recording(task, tuple(shots), env.score())
    console.print(recording.verdict)
    return recording


def _show(env: Env, image: bytes, picture: Path, console: Console) -> None:
    picture.write_bytes(image)
    if isinstance(env, Parses):
        table = Table("at", "kind", "label", "state", box=None, pad_edge=False)
        for control in env.parse():
            x0, y0, x1, y1 = control.box
            at = f"({(x0 + x1) // 2},{(y0 + y1) // 2})"
            table.add_row(at, escape(control.kind), escape(control.label), escape(" ".join(control.state)))
        console.print(table, highlight=False)
    console.print(f"The screen is in {escape(str(picture))}", highlight=False)
