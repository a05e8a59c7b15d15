"""What checkers look at: a getter takes the machine and the rest of `{"type": …}`. None: there is nothing.

A file of the machine is copied into a folder of the getter's own, and its path there is the value. What an agent made
is handed on as it is: to get a value out of it is the work of READERS, which judge.py calls in a process with limits.
"""

import math
import posixpath
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.envs.desktop.checks.reading import reader
from arpo.envs.desktop.checks.tables import rows_of
from arpo.envs.desktop.files import FileSource
from arpo.envs.desktop.sandbox import SURROUNDINGS, Ran, Sandbox
from arpo.envs.desktop.setup import CLEAN, NO_BUS, awake_for, limit_of, words_of
from arpo.envs.desktop.shims import FOLDER, SHOWN, files, mounts
from arpo.envs.evaluators import Unreadable
from arpo.envs.task_format import listed
from arpo.errors import EnvError

HOME = "/home/user"
VIDEO = """3gp 3gpp 3gpp2 avi divx dv fli flv mp2t mp4 mp4v-es mpeg mpeg-system msvideo ogg quicktime vnd.divx
vnd.mpegurl vnd.rn-realvideo webm x-anim x-avi x-flc x-fli x-flv x-m4v x-matroska x-mpeg x-mpeg-system x-mpeg2 x-ms-asf
x-ms-asf-plugin x-ms-asx x-ms-wm x-ms-wmv x-ms-wmx x-ms-wvx x-msvideo x-nsv x-ogm x-theora""".split()
MOST_ENTRIES = 100_000  # of a folder and those in it
MOST_SHOWN = 1_000_000  # bytes of a terminal
NEEDED = {"default_video_player": ["xdg-mime"]}  # what a getter runs by a shell


@dataclass(frozen=True, slots=True)
class Machine:
    """What getters work on."""

    sandbox: Sandbox
    cache: Path  # a folder of this getter's own, in that of the rollout
    files: FileSource
    answer: str  # what the agent said when it finished
    until: float = math.inf  # by time.monotonic: commands end then

    def read(self, path: str) -> bytes | None:
        """A file inside; None where it cannot be read."""
        try:
            return self.sandbox.read(_at_home(path))
        except ValueError:
            return None

    def run(self, command: list[str] | str, shell: bool = False) -> Ran | None:
        """A command inside; None where it cannot be run or takes too long."""
        if why := not_installed(words := words_of(command, shell)):
            raise EnvError(f"the checker {why}")
        # A schema in the user's own folder would go before the program's.
        more = {"XDG_DATA_HOME": "/arpo"} if "gsettings" in " ".join(listed(command)) else {}
        try:
            ran = self.sandbox.run(words, limit_of(self.until), None, True, **CLEAN, **NO_BUS, **more)
        except ValueError:
            return None
        return None if ran.late else ran

    def copy(self, path: str, name: str | None = None) -> str | None:
        """A file inside, put into the cache folder under this name or its own; None where it cannot be read."""
        data = self.read(path)
        return None if data is None else self.keep(name or posixpath.basename(path), data)

    def keep(self, name: str, data: bytes) -> str:
        """Put it into the cache folder; its path."""
        place = self.cache / name
        assert place.is_relative_to(self.cache) and ".." not in place.parts, name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        return str(place)


def not_installed(words: list[str] | str) -> str:
    """What to say where no sandbox has the program. One with a path may be the agent's, and is not looked for."""
    if isinstance(words, str) or not words or "/" in words[0]:
        return ""
    shims = {*files(), *(mount[-1] for mount in mounts())}
    known = f"{FOLDER}/{words[0]}" in shims or shutil.which(words[0], path=SURROUNDINGS["PATH"])
    return "" if known else f"needs the program {words[0]}, which is not installed"


def _at_home(path: str) -> str:
    return posixpath.join(HOME, path[2:] if path.startswith("~/") else path)


def vm_command_line(machine: Machine, command: list[str] | str, shell: bool = False) -> str | None:
    ran = machine.run(command, shell)
    return None if ran is None else ran.out


def vm_command_error(machine: Machine, command: list[str] | str, shell: bool = False) -> str | None:
    ran = machine.run(command, shell)
    return None if ran is None else ran.err


def vm_file(
    machine: Machine, path: Any, dest: Any = None, multi: bool = False, gives: list[int] | None = None
) -> str | list[str | None] | None:
    """`dest`: its name in the cache folder, else its own. `multi`: several; `gives` says which are the value."""
    paths = path if multi else [path]
    names = dest if multi and dest is not None else [dest] * len(paths)
    return _given([machine.copy(one, name) for one, name in zip(paths, names, strict=True)], gives)


def cloud_file(
    machine: Machine, path: Any, dest: Any, multi: bool = False, gives: list[int] | None = None
) -> str | list[str | None] | None:
    paths, names = (path, dest) if multi else ([path], [dest])
    pairs = zip(paths, names, strict=True)
    return _given([machine.keep(name, machine.files.read(url)) for url, name in pairs], gives)


def _given(places: list[Any], gives: list[int] | None) -> Any:
    chosen = [places[i] for i in sorted(set(gives or [0]))]
    return chosen[0] if len(chosen) == 1 else chosen


def cache_file(machine: Machine, path: str) -> str | None:
    """What a step of `postconfig` kept of its output."""
    place = machine.cache.parent / path
    return str(place) if place.is_file() else None


def content_from_vm_file(machine: Machine, path: str, file_type: str, file_content: str) -> str | None:
    """Of a spreadsheet, its last row as text."""
    if (file_type, file_content) != ("xlsx", "last_row"):
        raise ValueError(f"content_from_vm_file has no {file_type}, {file_content}")
    return machine.copy(path)


def _last_row(place: str | None, **_: Any) -> list[str] | None:
    rows = rows_of(place) if place is not None else []
    return [str(value) for value in rows[-1]] if rows else None


def list_directory(machine: Machine, path: str) -> dict[str, Any] | None:
    """{"type": "directory", "name": …, "children": [{"type": "file", "name": …}, …]}, or None where there is none."""
    try:
        return _tree(_listing(machine, path), path)
    except Unreadable:
        return None


def _listing(machine: Machine, path: str) -> str | None:
    ran = machine.run(["find", _at_home(path), "-mindepth", "1", "-printf", r"%y/%P\0"])
    return None if ran is None or ran.status else ran.out


@reader
def _tree(listing: str | None, path: str) -> dict[str, Any] | None:
    if listing is None:
        return None
    if listing.count("\0") > MOST_ENTRIES:
        raise Unreadable(f"{path}: has more than {MOST_ENTRIES} files")
    root: dict[str, Any] = {"type": "directory", "name": posixpath.basename(path.rstrip("/")), "children": []}
    folders = {"": root}
    for entry in sorted(listing.split("\0")[:-1], key=lambda entry: entry[2:]):
        kind, _, below = entry.partition("/")
        parent, _, name = below.rpartition("/")
        node: dict[str, Any] = {"type": "directory" if kind == "d" else "file", "name": name}
        if kind == "d":
            node["children"] = []
            folders[below] = node
        folders[parent]["children"].append(node)
    return root


def vm_screen_size(machine: Machine) -> dict[str, int]:
    width, height = machine.sandbox.size
    return {"width": width, "height": height}


def vm_window_size(machine: Machine, app_class_name: str) -> dict[str, int] | None:
    """Of the highest window of that class, in letters of any size."""
    try:
        windows = machine.sandbox.ask("windows")
    except ValueError:  # what cannot be listed is the agent's
        return None
    for window in reversed(windows):
        if app_class_name.lower() in (name.lower() for name in window["class"]):
            return {"width": window["box"][2], "height": window["box"][3]}
    return None


def vm_terminal_output(machine: Machine) -> str | None:
    """What the terminal shows that was written to last."""
    ask = "printf '\\033[i' > $(ls -t /dev/pts/[0-9]* | head -n 1)"  # "print the screen"
    show = f"exec head -c {MOST_SHOWN} {SHOWN}"
    wait = f"for i in $(seq 100); do [ -e {SHOWN} ] && {show}; sleep 0.05; done; false"
    ran = machine.run(f"rm -f {SHOWN}; {ask} && {{ {wait}; }}", shell=True)
    return None if ran is None or ran.status else "\n".join(line.rstrip() for line in ran.out.splitlines()).rstrip()


def answer(machine: Machine) -> str:
    """What the agent said when it finished."""
    return machine.answer


def rule(machine: Machine, rules: Any) -> Any:
    return rules


def vlc_config(machine: Machine, dest: str = "vlcrc") -> str | None:
    return machine.copy("~/.config/vlc/vlcrc", dest)


def gimp_config_file(machine: Machine, file_name: str, dest: str | None = None) -> str | None:
    return machine.copy(f"~/.config/GIMP/2.10/{file_name}", dest)


def default_video_player(machine: Machine) -> str:
    """The application that most kinds of video open with."""
    kinds = " ".join(f"video/{kind}" for kind in VIDEO)
    ran = machine.run(f"for kind in {kinds}; do xdg-mime query default $kind; done", shell=True)
    return ran.out if ran else ""


def _most_frequent(said: str) -> str:
    players = Counter(said.split("\n")) - Counter({"": said.count("\n") + 1})
    return players.most_common(1)[0][0] if players else "unknown"


COMMON_GETTERS: dict[str, Callable[..., Any]] = {
    getter.__name__: getter
    for getter in (
        vm_command_line, vm_command_error, vm_file, cloud_file, cache_file, content_from_vm_file,
        vm_terminal_output, vm_screen_size, vm_window_size, answer, rule,
        vlc_config, gimp_config_file, default_video_player,
    )
} | {"list_directory": _listing}  # fmt: skip
COMMON_READERS: dict[str, Callable[..., Any]] = {
    "content_from_vm_file": _last_row,
    "list_directory": _tree,
    "default_video_player": _most_frequent,
}
# What has to be asked of programs that run; all else is seen as well when they have been stopped.
LIVE = {"vm_terminal_output", "open_tabs_info", "vscode_config"}
LIVE_PROGRAMS = re.compile(r"(?<![\w./-])xsel(?![\w./-])")  # the program that has the selection must give it


def is_live(what: dict[str, Any]) -> bool:
    return what["type"] in LIVE or LIVE_PROGRAMS.search(_line(what)) is not None


def asked_by(what: dict[str, Any]) -> tuple[str, ...]:
    """Programs that must go on while others stand still."""
    return awake_for(_line(what))


def _line(what: dict[str, Any]) -> str:
    return " ".join(listed(what.get("command")))
