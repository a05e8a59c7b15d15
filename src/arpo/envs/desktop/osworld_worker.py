"""Run under the interpreter of OSWorld's client, in a sandbox (../confined.py): its evaluators, asked by JSON lines.

    out {"metrics": ["compare_pptx_files", …], "getters": ["vm_wallpaper", …], …}       what it can do, first of all
    in  {"id": "1f…", "limit_s": 60, "files": {"a.csv": "base64…"}, "metric": "compare_table",
         "arguments": ["/arpo/tmp/files/a.csv", …], "options": {…}}                     out {"id": "1f…", "is": 0.5}
    in  {"id": "2e…", "limit_s": 300, "getter": "shortcuts_on_desktop", "config": {…}}  out {"is": …, "files": {…}, …}
        out {"call": "get_file", "arguments": ["/home/user/a.txt"]}  in {"is": "base64…"}       where it asks back
    out {"over": "…"}       it ran against a wall of the sandbox: memory, time, processes, what it may write
    out {"error": "…"}      what else an evaluator raised

Each is answered by a child of its own, which has limits; when it has ended, so has all that it started, and its files
are gone. So nothing of one agent's file is there when the next one's is read. Standard library and client only.

A getter is offered only where all that it wants of OSWorld's environment can be had by asking back: those that connect
to the machine themselves are not. A metric is offered unless it would run the agent's files as Python, or its package
is only a stand-in (osworld-client/): it would say the same whatever the agent did.
"""

import ast
import base64
import contextlib
import ctypes
import errno
import inspect
import json
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

ASKED_BACK = (
    "get_file", "execute_python_command", "get_vm_screen_size", "get_vm_window_size", "get_vm_directory_tree",
    "get_vm_desktop_path", "get_terminal_output",
)  # fmt: skip
OFFERED = {"env": ("controller", "cache_dir", "vm_platform"), "env.controller": ASKED_BACK}
STOOD_IN = ("easyocr", "librosa")
RUNNING = {"exec", "exec_module"}
SCRATCH = Path("/arpo/tmp")  # all that may be written
FOLDER = SCRATCH / "files"  # of a question
MEMORY, CPU_S = 3 << 30, 60  # of one process
MOST_PROCESSES = 64
WALLS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOMEM, errno.EMFILE,
    errno.EAGAIN,
)  # fmt: skip
DUMPABLE = 4  # PR_SET_DUMPABLE


class Lines:
    """The conversation. Evaluators print, too: that goes nowhere."""

    def __init__(self, fd: int) -> None:
        os.dup2(1, 2)
        self._input, self._output = os.fdopen(fd, "rb", 1 << 20), os.fdopen(os.dup(fd), "wb")
        self.number: str | None = None  # of the question that is being answered

    def say(self, **what: Any) -> None:
        self._output.write(json.dumps({"id": self.number, **what}).encode() + b"\n")
        self._output.flush()

    def hear(self) -> Any:
        line = self._input.readline()
        if not line:
            sys.exit()
        said = json.loads(line)
        self.number = said.get("id", self.number)
        return said

    def ask(self, call: str, *arguments: Any, **named: Any) -> Any:
        self.say(call=call, arguments=[*arguments, *named.values()])
        found = self.hear()["is"]
        return base64.b64decode(found) if call == "get_file" and found is not None else found


class Controller:
    def __init__(self, lines: Lines) -> None:
        self._lines = lines

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **named: self._lines.ask(name, *arguments, **named)


class Environment:
    """What getters see of OSWorld's."""

    vm_platform = "Linux"

    def __init__(self, lines: Lines, cache_dir: str) -> None:
        self.controller = Controller(lines)
        self.cache_dir = cache_dir


def fits(function: Callable[..., Any], seen: tuple[str, ...] = ()) -> bool:
    """Whether a getter wants only what is here: of `env`, its controller, and the functions that it gives `env` to."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr not in OFFERED.get(ast.unparse(node.value), (node.attr,)):
            return False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and _gives_env(node):
            called = inspect.unwrap(function).__globals__.get(node.func.id)
            if called is None or (node.func.id not in seen and not fits(called, (*seen, node.func.id))):
                return False
    return True


def _gives_env(call: ast.Call) -> bool:
    return any(isinstance(argument, ast.Name) and argument.id == "env" for argument in call.args)


def usable(metrics: Any) -> dict[str, Callable[..., Any]]:
    """The metrics that are offered, by their names."""
    unwanted = RUNNING | {name for name in STOOD_IN if not hasattr(sys.modules.get(name), "__version__")}
    found = {name: one for name, one in vars(metrics).items() if inspect.isfunction(one)}
    for one in found.values():
        one.__globals__["eval"] = ast.literal_eval  # what they evaluate is a list of names, as the machine says it
    return {name: one for name, one in found.items() if not _names(one) & unwanted}


def _names(function: Callable[..., Any]) -> set[str]:
    """What its source names: variables and attributes."""
    nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))))
    variables = {node.id for node in nodes if isinstance(node, ast.Name)}
    return variables | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def put(files: dict[str, str]) -> None:
    FOLDER.mkdir()
    for name, data in files.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_bytes(base64.b64decode(data))


def kept(folder: Path = FOLDER) -> dict[str, str]:
    """The files that are there; nothing that only leads to one."""
    paths = [Path(place) / name for place, _, names in os.walk(folder) for name in names]
    plain = [path for path in paths if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): base64.b64encode(path.read_bytes()).decode() for path in plain}


def watch_over(own: bool) -> None:
    """Others cannot look into this process, or they may."""
    ctypes.CDLL(None).prctl(DUMPABLE, int(own), 0, 0, 0)


def confine(processes: int) -> None:
    """For this process and its children."""
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def empty() -> None:
    """What a question left. Folders that may not be entered, and trees of thousands, are no hindrance."""
    if any(SCRATCH.iterdir()):
        line = 'chmod -R u+rwX "$0"; find "$0" -mindepth 1 -delete'
        subprocess.run(["sh", "-c", line, SCRATCH], stderr=subprocess.DEVNULL, check=True)


def serve(lines: Lines, request: dict[str, Any], answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer it in a child, and see the end of that."""
    assert os.getpid() == 1, "what is ended below is every other process that it sees"
    child = os.fork()
    if not child:
        status = 1
        try:
            watch_over(own=True)
            Path("/proc/self/oom_score_adj").write_text("1000")  # it goes before its parent
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
            lines.say(**_outcome(answer, request))
            status = 0
        finally:
            os._exit(status)
    in_time = select.select([pidfd := os.pidfd_open(child)], [], [], request["limit_s"])[0]
    os.close(pidfd)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    if not in_time:
        lines.say(over=f"it takes more than {request['limit_s']:g} s")
    elif os.WIFSIGNALED(status):
        lines.say(over=f"it was ended by {signal.Signals(os.WTERMSIG(status)).name}")
    elif status:
        lines.say(error=f"it ended with status {os.WEXITSTATUS(status)}")
    empty()


def _outcome(answer: Callable[[dict[str, Any]], dict[str, Any]], request: dict[str, Any]) -> dict[str, Any]:
    try:
        put(request.get("files", {}))
        found = answer(request)
        json.dumps(found)
        return found
    except MemoryError:
        return {"over": "it wants more memory than it may have"}
    except OSError as error:
        return {"over" if error.errno in WALLS else "error": f"{type(error).__name__}: {error}"}
    except Exception as error:  # the outside decides what it means
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    lines = Lines(int(sys.argv[1]))
    try:
        from desktop_env.evaluators import getters, metrics  # type: ignore[import-not-found]
    except Exception as error:  # whatever it is, it cannot be used
        lines.say(error=f"{type(error).__name__}: {error}")
        return
    known = {name for name, one in vars(metrics).items() if inspect.isfunction(one)}
    compare = usable(metrics)
    every = {
        name.removeprefix("get_"): one
        for name, one in vars(getters).items()
        if name.startswith("get_") and inspect.isfunction(one)
    }
    fetch = {name: one for name, one in every.items() if fits(one)}

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "metric" in request:
            if "pickled" in request:  # of OSWorld's own getters, which give whatever they like; here it can do no harm
                arguments, options = pickle.loads(base64.b64decode(request["pickled"]))
            else:
                arguments, options = request["arguments"], request["options"]
            return {"is": float(compare[request["metric"]](*arguments, **options))}
        found = fetch[request["getter"]](Environment(lines, str(FOLDER)), request["config"])
        return {"is": found, "files": kept()}

    watch_over(own=False)
    confine(MOST_PROCESSES)
    refused = sorted(known - compare.keys())
    lines.say(metrics=sorted(compare), getters=sorted(fetch), every_getter=sorted(every), refused=refused)
    while True:
        serve(lines, lines.hear(), answer)


if __name__ == "__main__":
    main()
