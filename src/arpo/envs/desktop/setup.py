"""The steps of an OSWorld task that prepare its machine: `{"type": "launch", "parameters": {…}}`, one function each.

    prepare(sandbox, task, files)           all steps of a task, in order
    finish(sandbox, task, cache, files)     those that its checker wants first ("postconfig")
    unknown_steps(task)                     the kinds that nothing here can do: the task is refused by them

A step that fails or hangs is machinery (EnvError): the agent has not begun. In `finish` it has, and a step that fails
may be its doing: there a failure is let be, as OSWorld does, and the checker sees what there is.
"""

import contextlib
import json
import math
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.envs.desktop.files import FileSource
from arpo.envs.desktop.sandbox import Sandbox
from arpo.errors import EnvError
from arpo.types import Task

COMMAND_S = 120.0  # the limit of a command, as OSWorld's server has it
CHECKING_S = 60.0  # of all commands of a checker: an agent can make each hang, and a score that never comes is none
WINDOW_S = 60.0  # the limit for a program's first window, on a busy machine
IDLE_S, SERVER_S, BUSY = 2.0, 0.1, 0.05  # nothing drawn and the processor at rest for so long: no window will come
WAIT_S = 15.0  # for a window to appear, to come to the front or to go away, and for a program to end
LONGEST_SLEEP_S = 300.0
PASSWORD = "password"
GLANCE_S = 0.03  # between two looks
SERVERS = ("socat", "pulseaudio")  # no window is waited for
KILLERS = ("pkill", "killall")  # they fail where there is nothing to end
BROWSER = "google-chrome"
OPENERS = {
    "libreoffice --norestore": "csv doc docx odp ods odt ppt pptx rtf xls xlsx".split(),
    "mousepad": "c cfg css ini js json log md py sh tex txt xml yaml".split(),
    "gimp": "bmp gif jpeg jpg png tiff webp xcf".split(),
    "vlc": "avi flac m4a mkv mov mp3 mp4 ogg ogv wav webm".split(),
    BROWSER: "htm html pdf svg".split(),
}  # so that it depends on nothing that this machine happens to have installed
DEBUGGING = 1337  # the port with which OSWorld's tasks start their browser
LONGEST_ANSWER = 1 << 18  # bytes: a list of tabs is short
HEAD_ENDS, LENGTH = b"\r\n\r\n", re.compile(rb"(?i)\r\ncontent-length: *(\d{1,6})\r?$", re.MULTILINE)
# What an agent leaves in its home does not change what a checker's command says: no module beside it is imported.
NO_BUS = {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/arpo/none"}  # where programs stand still it would not answer
SOUND = ("/usr/bin/pulseaudio",)  # what these two ask, and nothing else needs to be awake for them
ASKS_SOUND = re.compile(r"(?<![\w./-])(pactl|pulseaudio)(?![\w./-])")
CLEAN = {"PYTHONSAFEPATH": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


@dataclass(frozen=True, slots=True)
class Place:
    """What steps work on."""

    sandbox: Sandbox
    files: FileSource
    cache: Path | None = None  # where a step may keep its output for the checker; only in `finish`
    until: float = math.inf  # by time.monotonic: commands end then


def prepare(sandbox: Sandbox, task: Task, files: FileSource | None = None) -> None:
    place = Place(sandbox, files or FileSource())
    for step in task.setup["config"]:
        # That a command fails may be what makes a task infeasible: there is no user Charles.
        may_fail = contextlib.nullcontext() if task.feasible else contextlib.suppress(CommandFailed)
        with _failing(task, step), may_fail:
            STEPS[step["type"]](place, **_filled(step["parameters"], sandbox.size))


def finish(sandbox: Sandbox, task: Task, cache: Path, files: FileSource, until: float = math.inf) -> None:
    """`until`: no step begins after it. An agent can make each of them take as long as it may."""
    place = Place(sandbox, files, cache, until)
    for step in task.evaluator.get("postconfig", []):
        if time.monotonic() > until:
            break
        with contextlib.suppress(StepFailed), _failing(task, step):
            STEPS[step["type"]](place, **_filled(step["parameters"], sandbox.size))
    sandbox.ask("pointer")  # a lost machine is no failed step


def unknown_steps(task: Task) -> list[str]:
    steps = [*task.setup["config"], *task.evaluator.get("postconfig", [])]
    return sorted({step["type"] for step in steps} - STEPS.keys())


class CommandFailed(ValueError):
    """A command ended with another status than 0."""


class StepFailed(EnvError):
    """A step did not do what it should; the machine is as well as it was."""


@contextlib.contextmanager
def _failing(task: Task, step: dict[str, Any]) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError) as error:  # refused inside, or parameters that the step does not have
        raise StepFailed(f"{task.id}: the setup step {step['type']} failed: {error}") from error


def _filled(value: Any, size: tuple[int, int]) -> Any:
    """OSWorld's placeholders in the texts of a step."""
    if isinstance(value, dict):
        return {key: _filled(one, size) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, size) for one in value]
    if not isinstance(value, str):
        return value
    width, height = size
    values = {"CLIENT_PASSWORD": PASSWORD, "SCREEN_WIDTH": width, "SCREEN_HEIGHT": height}
    values |= {"SCREEN_WIDTH_HALF": width // 2, "SCREEN_HEIGHT_HALF": height // 2}
    for name, filling in values.items():
        value = value.replace(f"{{{name}}}", str(filling))
    return value


def words_of(command: list[str] | str, shell: bool | str) -> list[str] | str:
    """A line for the shell, or words. OSWorld writes shell as a truth value or as text."""
    if shell in (True, "true"):
        return " ".join(command) if isinstance(command, list) else command
    return command.split() if isinstance(command, str) else command


def limit_of(until: float) -> float:
    """How long a command may take that has to end by then."""
    return min(COMMAND_S, max(1.0, until - time.monotonic()))


def _one_command(words: list[str] | str) -> list[str]:
    """The words of a command, also where it is a line for the shell; none of a line that is more than one command."""
    if not isinstance(words, str):
        return words
    return [] if set(words) & set(";&|<>\n") else shlex.split(words)


# Programs and commands.


def launch(place: Place, command: list[str] | str, shell: bool | str = False) -> None:
    """Until it shows a window, has ended, or waits for something without one."""
    words = words_of(command, shell)
    sandbox, before = place.sandbox, _windows(place)
    program, *arguments = _one_command(words) or [""]
    if program in KILLERS:
        return _end(place, [program, *arguments])
    pid = sandbox.launch(words)
    deadline, rested_s = time.monotonic() + WINDOW_S, 0.0
    idle_s = SERVER_S if program in SERVERS else IDLE_S
    while _windows(place) <= before:
        status = sandbox.ask("status", pid=pid)
        if status:
            raise ValueError(f"{words} ended with status {status}")
        if rested_s >= idle_s or status is not None:
            return
        if time.monotonic() > deadline:
            raise ValueError(f"{words}: neither a window nor rest within {WINDOW_S:g} s")
        rest = sandbox.ask("settle", limit_s=2 * GLANCE_S, quiet_s=GLANCE_S, busy=BUSY)
        rested_s = rested_s + rest["settle_s"] if rest["settled"] else 0.0


def _end(place: Place, words: list[str]) -> None:
    """End programs, and go on when they have: the next step may start them again."""
    place.sandbox.run(words, COMMAND_S)
    _wait(lambda: place.sandbox.run(["pgrep", *words[1:]]).status != 0, " ".join(words))


def execute(place: Place, command: list[str] | str, shell: bool | str = False, stdout: str = "") -> None:
    """`stdout`: keep the output under this name for the checker."""
    checking, kept = place.cache is not None, bool(stdout and place.cache is not None)
    words = words_of(command, shell)
    with place.sandbox.frozen(awake_for(words)) if kept else contextlib.nullcontext():  # no other writes what is read
        more = {**CLEAN, **NO_BUS} if kept else CLEAN if checking else {}
        ran = place.sandbox.run(words, limit_of(place.until), None, checking, **more)
    if stdout and place.cache is not None:
        (place.cache / Path(stdout).name).write_text(ran.out)
    if ran.late:
        raise ValueError(f"{command}: took too long")
    if ran.status:
        raise CommandFailed(f"{command}: status {ran.status}: {' '.join(ran.err.split())[-200:]}")


def awake_for(command: list[str] | str) -> tuple[str, ...]:
    """The programs that a check's command asks, and that must not stand still."""
    return SOUND if ASKS_SOUND.search(command if isinstance(command, str) else " ".join(command)) else ()


def open_file(place: Place, path: str) -> None:
    """With the program that is its kind's, until a window has its name; an address with the browser."""
    if "://" in path:
        return launch(place, [BROWSER, path])
    if place.sandbox.run(["test", "-e", path]).status:
        raise ValueError(f"{path}: there is no such file")
    program = next((words for words, kinds in OPENERS.items() if path.rpartition(".")[2].lower() in kinds), "xdg-open")
    launch(place, [*program.split(), path])
    if not program.startswith((BROWSER, "vlc")):  # a page and a film have titles of their own
        name = Path(path).stem
        _wait(lambda: any(name in window["title"] for window in place.sandbox.ask("windows")), path, WINDOW_S)


def sleep(place: Place, seconds: float) -> None:
    if not 0 <= seconds <= LONGEST_SLEEP_S:
        raise ValueError(f"{seconds} s: must be from 0 to {LONGEST_SLEEP_S:g}")
    time.sleep(seconds)


def download(place: Place, files: list[dict[str, str]]) -> None:
    for file in files:
        place.sandbox.write(file["path"], place.files.read(file["url"]))


# Windows.


def activate_window(place: Place, window_name: str, strict: bool = False, by_class: bool = False) -> None:
    number = _window(place, window_name, strict, by_class)
    place.sandbox.ask("activate", window=number)
    _wait(lambda: any(one["active"] for one in place.sandbox.ask("windows") if one["id"] == number), window_name)


def close_window(place: Place, window_name: str, strict: bool = False, by_class: bool = False) -> None:
    number = _window(place, window_name, strict, by_class)
    place.sandbox.ask("close_window", window=number)
    _wait(lambda: number not in _windows(place), window_name)


def _window(place: Place, name: str, strict: bool, by_class: bool) -> int:
    """The highest that is called so; it may be about to appear."""
    numbers: list[int] = []

    def there() -> bool:
        for window in place.sandbox.ask("windows"):
            names = [".".join(window["class"]), *window["class"]] if by_class else [window["title"]]
            if any(one == name if strict else name in one for one in names):
                numbers.append(window["id"])
        return bool(numbers)

    _wait(there, f"there is no window {name!r}")
    return numbers[-1]


def _windows(place: Place) -> set[int]:
    return {window["id"] for window in place.sandbox.ask("windows")}


def _wait(done: Callable[[], bool], what: str, limit_s: float | None = None) -> None:
    limit_s = WAIT_S if limit_s is None else limit_s
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            raise ValueError(f"{what}: nothing happened within {limit_s:g} s")
        time.sleep(0.02)


# The browser's tabs.


def chrome_open_tabs(place: Place, urls_to_open: list[str]) -> None:
    """And the page that it started with goes."""
    before = open_pages(place.sandbox)
    for url in urls_to_open:
        ask_browser(place.sandbox, f"new?{url}", "PUT")
    empty = ("chrome://newtab", "chrome://new-tab-page", "about:blank")
    _close_tabs(place.sandbox, [page["id"] for page in before if page["url"].startswith(empty)])


def chrome_close_tabs(place: Place, urls_to_close: list[str]) -> None:
    urls = {url.rstrip("/") for url in urls_to_close}
    _close_tabs(place.sandbox, [page["id"] for page in open_pages(place.sandbox) if page["url"].rstrip("/") in urls])


def _close_tabs(sandbox: Sandbox, tabs: list[str]) -> None:
    """And go on when they have gone."""

    def gone() -> bool:
        try:
            return not any(page["id"] in tabs for page in open_pages(sandbox))
        except ValueError:
            return True  # with its last tab the browser goes

    for tab in tabs:
        ask_browser(sandbox, f"close/{tab}")
    _wait(gone, "tabs that were closed")


def open_pages(sandbox: Sandbox) -> list[dict[str, str]]:
    """What its tabs show: title, url, id. ValueError where it does not answer, or the agent does in its place."""
    return pages_of(ask_browser(sandbox, "list"))


def pages_of(answer: bytes) -> list[dict[str, str]]:
    """The same of its answer. ValueError where that is something else."""
    try:
        pages = [page for page in json.loads(answer) if page["type"] == "page"]
        return [{key: str(page[key]) for key in ("title", "url", "id")} for page in pages]
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"the browser's debugging port {DEBUGGING} answers with something else") from error


def ask_browser(sandbox: Sandbox, what: str, method: str = "GET") -> bytes:
    """What its debugging port answers, within a time and of a length that no agent in its place can extend."""
    deadline = time.monotonic() + WAIT_S
    request = f"{method} /json/{what} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    try:
        with sandbox.connect(DEBUGGING) as browser:
            browser.settimeout(WAIT_S)
            browser.sendall(request.encode())
            head, rest = _received(browser, deadline, lambda said: HEAD_ENDS in said).split(HEAD_ENDS, 1)
            length = LENGTH.search(head)
            if not head.startswith(b"HTTP/1.1 200 ") or length is None:
                raise ValueError("it does not say 200 and a length")
            wanted = int(length[1]) - len(rest)
            return rest + _received(browser, deadline, lambda said: len(said) >= wanted)
    except (OSError, ValueError) as error:
        raise ValueError(f"the browser's debugging port {DEBUGGING} does not answer: {error}") from error


def _received(connection: socket.socket, deadline: float, enough: Callable[[bytearray], bool]) -> bytes:
    said = bytearray()
    while not enough(said):
        if len(said) > LONGEST_ANSWER:
            raise ValueError(f"it says more than {LONGEST_ANSWER} bytes")
        if (left_s := deadline - time.monotonic()) <= 0:
            raise ValueError(f"it has not come to an end within {WAIT_S:g} s")
        connection.settimeout(left_s)
        if not (read := connection.recv(1 << 16)):
            raise ValueError("it ended before its end")
        said += read
    return bytes(said)


STEPS: dict[str, Callable[..., None]] = {
    "launch": launch,
    "execute": execute,
    "command": execute,
    "open": open_file,
    "sleep": sleep,
    "download": download,
    "activate_window": activate_window,
    "close_window": close_window,
    "chrome_open_tabs": chrome_open_tabs,
    "chrome_close_tabs": chrome_close_tabs,
}
