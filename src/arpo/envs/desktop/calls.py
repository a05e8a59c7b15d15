"""What OSWorld's server can be asked, and what a native desktop answers: one function for each call, in CALLS.

A call gets the sandbox and what the request brings. It refuses with a status and a line (Refused); a ValueError is what
the desktop refused, an EnvError a desktop that is lost.
"""

import io
import json
import shlex
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from arpo.envs.desktop import setup
from arpo.envs.desktop.checks import getters
from arpo.envs.desktop.checks.getters import HOME
from arpo.envs.desktop.files import FileSource
from arpo.envs.desktop.sandbox import Ran, Sandbox
from arpo.envs.desktop.setup import COMMAND_S
from arpo.envs.desktop.shims import guest
from arpo.envs.desktop.wire import Refused

TREE = guest("accessibility.py")  # it runs inside
VIDEO = "/tmp/recording.mp4"
FRAMES_A_SECOND = 10


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What a call brings: JSON, or the fields of a form."""

    fields: dict[str, Any]

    def text(self, name: str) -> str:
        value = self.fields.get(name)
        if not isinstance(value, str) or not value:
            raise Refused(400, f"{name}: is missing")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 3600:
            raise Refused(400, f"{name}={value!r}: must be a number from 0 to 3600")
        return value

    def path(self, name: str) -> str:
        return _at_home(self.text(name))

    def command(self) -> list[str] | str:
        """Words, or a line for the shell. A list for the shell is a script and its arguments, as subprocess has it."""
        command, shell = self.fields.get("command"), self.fields.get("shell", False) in (True, "true")
        if isinstance(command, str) and command.strip():
            return command if shell else list(map(_at_home, shlex.split(command)))
        if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
            raise Refused(400, "command: must be a text or a list of texts")
        return ["/bin/sh", "-c", *command] if shell else list(map(_at_home, command))


@dataclass(frozen=True, slots=True)
class HttpReply:
    data: bytes
    kind: str = "application/json"
    status: int = 200


Call = Callable[[Sandbox, HttpRequest], HttpReply]


def answer(value: Any, status: int = 200) -> HttpReply:
    return HttpReply(json.dumps(value).encode(), status=status)


def _text(message: str) -> HttpReply:
    return HttpReply(message.encode(), "text/plain; charset=utf-8")


def _at_home(path: str) -> str:
    return f"{HOME}{path[1:]}" if path == "~" or path.startswith("~/") else path


# Commands.


def execute(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    return answer(_ran(sandbox.run(request.command(), COMMAND_S)))


def _ran(ran: Ran) -> dict[str, Any]:
    if ran.late:
        raise Refused(500, f"the command took more than {COMMAND_S:g} s and was ended")
    return {"status": "success", "output": ran.out, "error": ran.err, "returncode": ran.status}


def execute_with_verification(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    wanted = request.fields.get("verification") or {}
    limit_s, pause_s = request.number("max_wait_time", 10.0), request.number("check_interval", 1.0)
    result = _ran(sandbox.run(request.command(), COMMAND_S))
    began = time.monotonic()
    while not _verified(sandbox, wanted):
        if time.monotonic() - began > limit_s:
            return answer({**result, "status": "verification_failed", "wait_time": limit_s}, 500)
        time.sleep(pause_s)
    return answer({**result, "verification": "passed", "wait_time": time.monotonic() - began})


def _verified(sandbox: Sandbox, wanted: dict[str, Any]) -> bool:
    name, command = wanted.get("window_exists"), wanted.get("command_success")
    seen = not name or any(name in window["title"] for window in sandbox.ask("windows"))
    return seen and (not command or sandbox.run(command, COMMAND_S).status == 0)


def launch(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    command = request.command()
    setup.launch(_place(sandbox), command, shell=isinstance(command, str))
    return _text(f"{command if isinstance(command, str) else shlex.join(command)} launched successfully")


def run_python(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    ran = _script(sandbox, "python", request.text("code"), COMMAND_S, None)
    said = {"output": ran.out, "error": ran.err, "returncode": ran.status}
    if ran.status:
        return answer({"status": "error", "message": "the code ended with an error", **said}, 500)
    return answer({"status": "success", "message": "the code was run", **said})


def run_bash_script(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    limit_s, folder = request.number("timeout", 30.0), request.fields.get("working_dir")
    ran = _script(sandbox, "bash", request.text("script"), limit_s, _at_home(folder) if folder else None)
    if ran.late:
        late = f"the script took more than {limit_s:g} s and was ended"
        return answer({"status": "error", "output": ran.out, "error": late, "returncode": -1})
    status = "error" if ran.status else "success"
    return answer({"status": status, "output": ran.out + ran.err, "error": "", "returncode": ran.status})


def _script(sandbox: Sandbox, program: str, text: str, limit_s: float, folder: str | None) -> Ran:
    path = f"/tmp/script-{time.monotonic_ns()}"  # a file: a script may be longer than an argument can be
    sandbox.write(path, text.encode())
    try:
        return sandbox.run([program, path], limit_s, folder)
    finally:
        sandbox.run(["rm", "-f", path])


# Looking.


def screenshot(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    data = io.BytesIO()
    Image.fromarray(sandbox.screenshot()).save(data, "PNG", compress_level=1)
    return HttpReply(data.getvalue(), "image/png")


def accessibility(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    return answer({"AT": _tree(sandbox, "tree")})


def terminal(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    """What the terminal in front tells, or else what an xterm shows; null where there is none."""
    shown = _tree(sandbox, "terminal") or getters.vm_terminal_output(_machine(sandbox))
    return answer({"output": shown, "status": "success"})


def _machine(sandbox: Sandbox) -> getters.Machine:
    return getters.Machine(sandbox, Path(), FileSource(), "")


def _tree(sandbox: Sandbox, what: str) -> str:
    ran = sandbox.run(["/usr/bin/python3", "-I", "-c", TREE, what, json.dumps(sandbox.ask("windows"))], COMMAND_S)
    if ran.status:
        raise Refused(500, f"the accessibility tree cannot be read: {ran.err.strip()[-200:]}")
    return ran.out


def window_size(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    name = request.text("app_class_name")
    size = getters.vm_window_size(_machine(sandbox), name)
    if size is None:
        raise Refused(404, f"app_class_name={name}: no window is of this class")
    return answer(size)


# Files.


def list_directory(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    path = request.path("path")
    tree = getters.list_directory(_machine(sandbox), path)
    if tree is None:
        raise Refused(400, f"path={path}: is no folder that can be listed")
    return answer({"directory_tree": tree})


def file(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    return HttpReply(_read(sandbox, request.path("file_path")), "application/octet-stream")


def _read(sandbox: Sandbox, path: str) -> bytes:
    try:
        return sandbox.read(path)
    except ValueError as error:
        raise Refused(404, f"{path}: cannot be read ({error})") from error


def upload(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    data = request.fields.get("file_data")
    if not isinstance(data, bytes):
        raise Refused(400, "file_data: is missing")
    sandbox.write(request.path("file_path"), data)
    return _text("File Uploaded")


def wallpaper(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    uri = sandbox.run(["gsettings", "get", *BACKGROUND]).out.strip().strip("'")
    return HttpReply(_read(sandbox, urllib.parse.unquote(uri.removeprefix("file://")) or "wallpaper"), "image/png")


def change_wallpaper(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    path = request.path("path")
    _read(sandbox, path)
    sandbox.run(["gsettings", "set", *BACKGROUND, f"file://{urllib.parse.quote(path)}"])
    return _text("Wallpaper changed successfully")


BACKGROUND = ("org.gnome.desktop.background", "picture-uri")


# Windows. A step that fails is told to the client as a bad request.


def open_file(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    setup.open_file(_place(sandbox), request.path("path"))
    return _text("File opened successfully")


def _to_window(step: Callable[[setup.Place, str, bool, bool], None], said: str) -> Call:
    def call(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
        how = (bool(request.fields.get(name)) for name in ("strict", "by_class"))
        step(_place(sandbox), request.text("window_name"), *how)
        return _text(said)

    return call


def _place(sandbox: Sandbox) -> setup.Place:
    return setup.Place(sandbox, FileSource())


# Video.


def start_recording(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    if sandbox.run(["which", "ffmpeg"]).status:
        raise Refused(500, "recording needs ffmpeg: apt-get install ffmpeg")
    if sandbox.run(["pgrep", "-x", "ffmpeg"]).status == 0:
        raise Refused(400, "a recording is going on already")
    size = "{}x{}".format(*sandbox.size)
    source = ["-f", "x11grab", "-framerate", str(FRAMES_A_SECOND), "-video_size", size, "-i", ":0"]
    sandbox.launch(["ffmpeg", "-y", *source, "-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", VIDEO])
    return answer({"status": "success", "message": "recording"})


def end_recording(sandbox: Sandbox, request: HttpRequest) -> HttpReply:
    if sandbox.run("pkill -INT -x ffmpeg && while pgrep -x ffmpeg >/dev/null; do sleep 0.05; done").status:
        raise Refused(400, "no recording is going on")
    return HttpReply(_read(sandbox, VIDEO), "video/mp4")


CALLS: dict[tuple[str, str], Call] = {
    ("GET", "/screenshot"): screenshot,
    ("GET", "/terminal"): terminal,
    ("GET", "/accessibility"): accessibility,
    ("POST", "/execute"): execute,
    ("POST", "/setup/execute"): execute,
    ("POST", "/setup/execute_with_verification"): execute_with_verification,
    ("POST", "/setup/launch"): launch,
    ("POST", "/screen_size"): lambda sandbox, request: answer(getters.vm_screen_size(_machine(sandbox))),
    ("POST", "/window_size"): window_size,
    ("POST", "/desktop_path"): lambda sandbox, request: answer({"desktop_path": f"{HOME}/Desktop"}),
    ("POST", "/wallpaper"): wallpaper,
    ("POST", "/list_directory"): list_directory,
    ("POST", "/file"): file,
    ("POST", "/setup/upload"): upload,
    ("POST", "/setup/open_file"): open_file,
    ("POST", "/setup/change_wallpaper"): change_wallpaper,
    ("POST", "/setup/activate_window"): _to_window(setup.activate_window, "Window activated successfully"),
    ("POST", "/setup/close_window"): _to_window(setup.close_window, "Window closed successfully"),
    ("POST", "/start_recording"): start_recording,
    ("POST", "/end_recording"): end_recording,
    ("POST", "/run_python"): run_python,
    ("POST", "/run_bash_script"): run_bash_script,
}
