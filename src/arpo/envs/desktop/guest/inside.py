"""The resident process of a sandbox: starts its desktop, then acts, looks and runs commands there on request.

It runs under the system's own Python with the standard library and Xlib, as the sandbox's ordinary user, and is the
only thing that the outside talks to: JSON lines through one socket, answered in any order by their "id". When the
socket closes it ends, and with it the whole process namespace.

    {"id": 1, "do": "click", "with": {"x": 120, "y": 44, "button": 1, "count": 1}}       {"id": 1, "is": null}
    {"id": 2, "do": "run", "with": {"argv": ["ls"], "shell": false, "limit_s": 120}}     {"id": 2, "is": {…}}
    {"id": 3, "do": "press", "with": {"keysyms": [0]}}                 {"id": 3, "error": "…", "fatal": false}

"fatal": the desktop is lost, and not only this request refused.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from Xlib import error

from . import programs
from .screen import Screen

REQUESTS = "/run/arpo/requests"  # a socket through which programs here ask: pyautogui does
REQUEST_S = 5.0  # for one to say what it wants
SET_DUMPABLE = 4  # of prctl


def main() -> None:
    try:
        serve()
    finally:
        with contextlib.suppress(ProcessLookupError):  # there are none
            os.kill(-1, signal.SIGKILL)  # all others here: the namespace ends when its last process does


def serve() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    pixels, home, width, height, most_processes = map(int, sys.argv[2:7])
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # where the whole machine has no memory left, desktops go first
    ctypes.CDLL(None).prctl(SET_DUMPABLE, 0)  # programs here have the same user: they shall not look into this process
    resource.setrlimit(resource.RLIMIT_NPROC, (most_processes, most_processes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(programs.HOME)
    bus, server = programs.start_bus(), programs.start_x(pixels, width, height)
    if home >= 0:
        programs.unpack(home)
    os.makedirs("Desktop", exist_ok=True)
    manager, screen = programs.start_manager(), Screen(server)
    programs.wait_for_bus(bus)
    programs.wait_for_manager(manager)
    requests = socket.socket(socket.AF_UNIX)
    requests.bind(REQUESTS)
    requests.listen()
    threading.Thread(target=accept, args=(requests, screen), daemon=True).start()
    connection.sendall(b"\n")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # from now on nobody reads what is said there
    converse(connection, screen)


def accept(requests: socket.socket, screen: Screen) -> None:
    """What programs here ask of the screen: one after the other, so that no number of them takes all threads."""
    while True:
        with requests.accept()[0] as connection, contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            connection.settimeout(REQUEST_S)
            request = json.loads(connection.makefile("rb").readline(programs.LARGEST_FILE))
            if request["do"] in SCREEN_CALLS:
                handle(connection, threading.Lock(), screen, request)


def converse(connection: socket.socket, screen: Screen) -> None:
    answer = threading.Lock()
    for text in connection.makefile("rb"):
        request = json.loads(text)
        if request["do"] == "run":  # it may take long, and others must not wait
            threading.Thread(target=handle, args=(connection, answer, screen, request), daemon=True).start()
        else:
            handle(connection, answer, screen, request)


def handle(connection: socket.socket, answer: threading.Lock, screen: Screen, request: dict[str, Any]) -> None:
    reply: dict[str, Any] = {"id": request["id"], "is": None}
    passed: list[socket.socket] = []
    try:
        result = perform(screen, request["do"], request["with"])
        if isinstance(result, socket.socket):
            passed.append(result)
            reply["passed"] = True
        else:
            reply["is"] = result
    except error.ConnectionClosedError:
        screen.lost = True
        reply |= {"error": "the X server is gone", "fatal": True}
    except Exception as failure:  # the outside decides what it means
        reply |= {"error": f"{type(failure).__name__}: {failure}", "fatal": False}
    text = json.dumps(reply).encode() + b"\n"
    with answer:
        if passed:
            socket.send_fds(connection, [text], [passed[0].fileno()])
            passed[0].close()
        else:
            connection.sendall(text)


def perform(screen: Screen, do: str, arguments: dict[str, Any]) -> Any:
    if screen.lost or screen.server.poll() is not None:
        raise error.ConnectionClosedError("X server")
    if do in CALLS:
        return CALLS[do](**arguments)
    if do not in SCREEN_CALLS:
        raise ValueError("unknown request")
    with screen.lock:
        return getattr(screen, do)(**arguments)


CALLS: dict[str, Callable[..., Any]] = {
    "run": programs.run,
    "launch": programs.launch,
    "status": programs.status,
    "read": programs.read,
    "write": programs.write,
    "connect": programs.connect,
}
SCREEN_CALLS = "click drag scroll move hold size pointer type press windows activate close_window settle".split()
