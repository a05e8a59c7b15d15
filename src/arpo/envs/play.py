"""Plays a task, by the scripted expert or by hand from a terminal, and records it as a picture.

    play_task(config, "mail-reply-002", "expert", None)     as mail-reply-002.gif

That is what `arpo envs play` calls.
"""

import io
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arpo.agent.grammar import parse
from arpo.config import Config
from arpo.envs.base import Env, make, make_expert, settings_of
from arpo.envs.pictures import FORMATS, Recording, Shot, describe, record, save_animation
from arpo.errors import ActionError, ConfigError, ParseError, printable
from arpo.images import decode
from arpo.tasks.load import load_tasks
from arpo.types import Task

HELP = """One action a line, points in screen pixels; an empty line or wait() only looks, the end of input stops:
  click(start_box='(120,44)')   left_double(…)   right_single(…)   drag(start_box='(1,2)', end_box='(3,4)')
  type(content='hello\\n')   hotkey(key='ctrl s')   scroll(start_box='(200,140)', direction='down')
  finished(content='an answer')   fail()"""


@runtime_checkable
class Parses(Protocol):
    """An environment that can say what is on its screen: controls with kind, label, box, state, value and window."""

    def parse(self) -> Sequence[Any]: ...


def play_task(config: Config, task_id: str | None, by: str, out: str | None) -> bool:
    """One task, by the expert or by hand, written as a moving picture. False where the expert did not solve it."""
    if by not in ("expert", "hand"):
        raise ConfigError(f"by={by}: must be expert or hand")
    spec = config.tasks.source if task_id is None else task_id
    task = load_tasks(config.env.name, spec, settings_of(config.env), config.tasks.max_steps)[0]
    env = make(config.env.name, **settings_of(config.env))
    path = Path(f"{re.sub('[^A-Za-z0-9._-]', '_', task.id).lstrip('.-')[:100] or 'task'}.gif" if out is None else out)
    if path.suffix.lower() not in FORMATS:
        raise ConfigError(f"out={out}: must end in {' or '.join(FORMATS)}")
    if out is None and path.is_symlink():
        raise ConfigError(f"{path}: is a link; --out names another file")
    _make_sure_of(path)
    console = Console(highlight=False)
    if by == "hand":
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # bytes that are no text make a bad line and not a crash
        recording = play_by_hand(env, task, config.seed, sys.stdin or (), path, console)
    else:
        recording = record(env, make_expert(config.env.name, task), task, config.seed)
        console.print(printable(f"{task.id}: {task.instruction}"), markup=False, soft_wrap=True)
        for number, shot in enumerate(recording.shots[:-1], 1):
            assert shot.action is not None
            console.print(
                f"{number:3}. {escape(describe(shot.action))}    [dim]{escape(shot.thought)}[/]", soft_wrap=True
            )
    env.close()
    save_animation(recording, path)
    console.print(f"{recording.verdict}. Look at {path}", markup=False, soft_wrap=True)
    return recording.solved or by == "hand"


def play_by_hand(env: Env, task: Task, seed: int, lines: Iterable[str], out: Path, console: Console) -> Recording:
    """An episode by a person at a terminal. A line that is not an action gets an error message and changes nothing."""
    picture = out.with_name(f"{out.stem}-screen.png")
    screen = env.reset(task, seed)
    shots: list[Shot] = []
    console.print(f"[bold]{escape(printable(task.instruction))}[/]\n{escape(HELP)}", soft_wrap=True)
    _show(env, screen.image, picture, console)
    for line in lines:
        call = re.sub(r"^\s*Action\s*:", "", line).strip() or "wait()"
        try:
            action = parse(f"Action: {call}", lambda x, y: (round(x), round(y))).action
            after = env.step(action)
        except (ParseError, ActionError) as error:
            console.print(f"[red]error:[/] {escape(str(error))}", soft_wrap=True)
            continue
        shots.append(Shot(decode(screen.image), "", action))
        screen = after
        console.print(f"{len(shots)}. {escape(describe(action))}", soft_wrap=True)
        if env.ended:
            break
        _show(env, screen.image, picture, console)
    shots.append(Shot(decode(screen.image), "", None))
    return Recording(task, tuple(shots), env.score())


def _show(env: Env, image: bytes, picture: Path, console: Console) -> None:
    picture.write_bytes(image)
    if isinstance(env, Parses):
        table = Table("at", "kind", "label", "value", "state", "in", box=None, pad_edge=False)
        for control in env.parse():
            x0, y0, x1, y1 = control.box
            at = f"({(x0 + x1) // 2},{(y0 + y1) // 2})"
            cells = (control.kind, control.label, control.value, " ".join(control.state), control.window)
            table.add_row(at, *(escape(printable(cell)) for cell in cells))
        console.print(table)
    console.print(f"The screen is in {escape(str(picture))}", soft_wrap=True)


def _make_sure_of(path: Path) -> None:
    """ConfigError if the file cannot be written: before the episode, and not after it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        existed = path.exists()
        path.open("ab").close()
        if not existed:
            path.unlink()  # an empty picture would be left behind if the episode were broken off
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"out={path}: {error.filename} is a file and not a folder") from None
    except OSError as error:
        raise ConfigError(f"out={path}: {error.strerror}") from None
