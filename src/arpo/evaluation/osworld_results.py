"""An evaluation in OSWorld's folder layout, for those who have tools for it.

    DIR/pyautogui/screenshot/MODEL/TRIAL/DOMAIN/ID/traj.jsonl     a line for each step
                                                   step_0.png     the first screen; step_3.png: what step 3 left behind
                                                   result.txt     the score; none where a machine broke the trial off

OSWorld's show_result.py takes a model's name and looks below it, so it is given `MODEL/TRIAL`. It leaves out what has
no result.txt, as `arpo eval` leaves it out of every rate. With eval.protocol=hard infeasible tasks are in a trial of
their own, `TRIAL-infeasible`. Unlike OSWorld's, names of files have no time in them: all is made from the run's store,
so that a resumed evaluation gives the same folder.

Ids, domains and models are names from anywhere. One that does as a folder's name is used as it is; of another one the
harmless letters and a part of its hash. No link in DIR is followed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from arpo.agent.actions import ENDING, Action, CallUser, Fail, Finish, Wait
from arpo.errors import ConfigError, EnvError
from arpo.evaluation.run import Evaluation, Trial
from arpo.files import no_link, read_bytes
from arpo.images import decode, encode_png
from arpo.runs.progress import counted
from arpo.runs.store import Run, damaged
from arpo.types import Trajectory

SPACE, SEEN = "pyautogui", "screenshot"  # OSWorld's words for how the agent acts and what it sees
WORDS = {Wait: "WAIT", Finish: "DONE", Fail: "FAIL", CallUser: "CALL_USER"}
OURS = re.compile(r"(traj\.jsonl|result\.txt|step_[0-9]+\.png)(\.part)?")  # what may be replaced
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+=-]{0,99}")
LINES = 2**26  # bytes of a traj.jsonl that is looked at again


@dataclass(frozen=True, slots=True)
class Results:
    """Where they go."""

    folder: Path
    model: str
    trial: str | None = None  # the name of the only trial; None: they have their numbers

    @property
    def of_model(self) -> Path:
        return self.folder / SPACE / SEEN / as_name(self.model)

    def prepare(self) -> None:
        """Make the folder: a place where it cannot be is said before the work."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ConfigError(f"{self.folder}: is not a folder") from None

    def write(self, run: Run, evaluation: Evaluation) -> None:
        """Every trial that was played, and shows how far it is. What is there already and is the same stays."""
        kinds = ((evaluation.trials, ""), (evaluation.infeasible, "-infeasible"))
        played = [(trial, trial.trajectory, kind) for trials, kind in kinds for trial in trials if trial.trajectory]
        with counted(Console(stderr=True, highlight=False), "in OSWorld's layout", len(played)) as advance:
            for trial, trajectory, kind in played:
                name = (str(trial.index) if self.trial is None else self.trial) + kind
                place = self._folder(as_name(self.model), as_name(name), trial)
                _write(run, trial, run.trajectory(trajectory), place)
                advance(f"in {self.folder}")

    def _folder(self, model: str, name: str, trial: Trial) -> Path:
        place = self.folder
        for part in (SPACE, SEEN, model, name, as_name(trial.task.domain), as_name(trial.task.id)):
            place = place / part
            with contextlib.suppress(FileExistsError):
                place.mkdir()
            if not stat.S_ISDIR(place.lstat().st_mode):
                raise ConfigError(f"{place}: is a link or a file; put a folder in its place")
        return place


def as_name(text: str) -> str:
    """As the name of one folder: never a path, and never the same for two texts."""
    if PLAIN.fullmatch(text):  # which allows no ~
        return text
    harmless = re.sub(r"[^A-Za-z0-9_+=-]+", "-", text)[:60].strip("-") or "name"
    return f"{harmless}~{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:12]}"


def _write(run: Run, trial: Trial, trajectory: Trajectory, place: Path) -> None:
    lines = "".join(json.dumps(line) + "\n" for line in _lines(trajectory)).encode()
    result = None if trial.score is None else f"{trial.score}\n".encode()
    if result is not None and _holds(place / "result.txt", result) and _holds(place / "traj.jsonl", lines):
        return  # result.txt is written last, so the screens are there too
    for old in sorted(place.iterdir()):  # result.txt first: while it is there, all else is
        if OURS.fullmatch(old.name):
            old.unlink()
    for number, screen in enumerate(_screens(trajectory)):
        if screen:  # else the environment failed before there was one
            _keep(place / f"step_{number}.png", _png(run, screen))
    _keep(place / "traj.jsonl", lines)
    if result is not None:
        _keep(place / "result.txt", result)


def _screens(trajectory: Trajectory) -> list[str]:
    """The first screen, and after each step the one that it left: the same one where nothing was looked at again."""
    screens = [trajectory.start]
    for step in trajectory.steps:
        screens.append(step.observation or screens[-1])
    return screens


def _lines(trajectory: Trajectory) -> Iterator[dict[str, object]]:
    screens = _screens(trajectory)
    for number, step in enumerate(trajectory.steps, start=1):
        # The hashes make two episodes with the same words but other pixels different.
        info = {"saw": screens[number - 1], "left": screens[number]}
        yield {
            "step_num": number,
            "action": None if step.action is None else _as_word(step.action),
            "response": step.completion.text,
            "reward": 0,
            "done": isinstance(step.action, ENDING),
            "info": info if step.parse_error is None else {**info, "error": step.parse_error},
            "screenshot_file": f"step_{number}.png",
        }
    if not trajectory.outcome.valid:
        yield {"Error": f"{trajectory.outcome}: a machine failed, so there is no score"}


def _as_word(action: Action) -> str | dict[str, object]:
    """OSWorld's word where it has one. Others are Python source there; here they are values."""
    return WORDS.get(type(action)) or dataclasses.asdict(action)


def _png(run: Run, screen: str) -> bytes:
    try:
        return encode_png(decode(run.image(screen).image))
    except KeyError:
        raise damaged(run.folder, f"it lacks the screenshot {screen:.40}") from None
    except EnvError as error:
        raise damaged(run.folder, str(error)) from None


def _holds(path: Path, data: bytes) -> bool:
    try:
        return not path.is_symlink() and read_bytes(path, LINES) == data
    except (FileNotFoundError, ValueError):
        return False


def _keep(path: Path, data: bytes) -> None:
    """Whole or not there."""
    part = path.with_name(f"{path.name}.part")
    with open(part, "wb", opener=no_link) as file:
        file.write(data)
    part.replace(path)
