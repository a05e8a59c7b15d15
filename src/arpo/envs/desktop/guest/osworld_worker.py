"""Run under the interpreter of OSWorld's client, in a sandbox (envs/confined.py): its evaluators, asked by JSON lines.

    out {"metrics": ["compare_pptx_files", …], "getters": ["vm_wallpaper", …], …}       what it can do, first of all
    in  {"metric": "compare_table", "arguments": ["/arpo/tmp/files/a.csv", …], "options": {…}, …}   out {"is": 0.5, …}
    in  {"getter": "shortcuts_on_desktop", "config": {…}, …}                            out {"is": …, "files": {…}, …}

What is around that is in serving.py. Standard library and client only.

A getter is offered only where all that it wants of OSWorld's environment can be had by asking back: those that connect
to the machine themselves are not. A metric is offered unless it would run the agent's files as Python, or its package
is only a stand-in (osworld-client/): it would say the same whatever the agent did.
"""

import ast
import base64
import inspect
import pickle
import secrets
import shutil
import sys
import tarfile
import textwrap
from collections.abc import Callable
from typing import Any

from .serving import FOLDER, SCRATCH, Lines, attend, kept, text_of

ASKED_BACK = (
    "get_file", "execute_python_command", "get_vm_screen_size", "get_vm_window_size", "get_vm_directory_tree",
    "get_vm_desktop_path", "get_terminal_output",
)  # fmt: skip
OFFERED = {"env": ("controller", "cache_dir", "vm_platform"), "env.controller": ASKED_BACK}
STOOD_IN = ("easyocr", "librosa")
RUNNING = {"exec", "exec_module"}
MOST_PROCESSES = 64
# Of a tar file come only files, folders and links inside it: no named pipe, for which who opens it waits for ever. Some
# interpreters are too old to know how.
FILTER = getattr(tarfile, "data_filter", None)
LEADS_OUT: tuple[type[Exception], ...] = () if FILTER is None else (tarfile.FilterError,)


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
    functions = {name: one for name, one in vars(metrics).items() if inspect.isfunction(one)}
    for one in functions.values():
        one.__globals__["eval"] = ast.literal_eval  # what they evaluate is a list of names, as the machine says it
    return {name: one for name, one in functions.items() if not _names(one) & unwanted}


def _names(function: Callable[..., Any]) -> set[str]:
    """What its source names: variables and attributes."""
    nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))))
    variables = {node.id for node in nodes if isinstance(node, ast.Name)}
    return variables | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def apart(arguments: tuple[Any, ...]) -> list[Any]:
    """The same, each with the files of the question in a folder of its own, whose name nobody can guess.

    What unpacks an agent's archive follows its links and its "..". If they led to the expected file, that would be
    compared with itself, or be written over before it is read.
    """
    moved = []
    for argument in arguments:
        folder = SCRATCH / secrets.token_hex(16)
        shutil.copytree(FOLDER, folder)
        moved.append(_elsewhere(argument, f"{FOLDER}/", f"{folder}/"))
    shutil.rmtree(FOLDER)
    return moved


def _elsewhere(value: Any, old: str, new: str) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_elsewhere(one, old, new) for one in value)
    if type(value) is dict:
        return {key: _elsewhere(one, old, new) for key, one in value.items()}
    return new + value.removeprefix(old) if isinstance(value, str) and value.startswith(old) else value


def scored(request: dict[str, Any], compare: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    if "pickled" in request:  # of OSWorld's own getters, which give whatever they like; here it can do no harm
        arguments, options = pickle.loads(base64.b64decode(request["pickled"]))
        arguments = apart(arguments)
    else:  # each file is in a folder of its getter's own already
        arguments, options = request["arguments"], request["options"]
    try:
        return {"is": float(compare[request["metric"]](*arguments, **options))}
    except LEADS_OUT as error:
        return {"over": f"an archive with more than files in it: {text_of(error)}"}


def main() -> None:
    lines = Lines(int(sys.argv[1]))
    try:
        from desktop_env.evaluators import getters, metrics  # type: ignore[import-not-found]
    except Exception as error:  # whatever it is, it cannot be used
        lines.say(error=text_of(error))
        return
    if FILTER is not None:
        tarfile.TarFile.extraction_filter = staticmethod(FILTER)
    known = {name for name, one in vars(metrics).items() if inspect.isfunction(one)}
    compare = usable(metrics)
    every = {
        name.removeprefix("get_"): one
        for name, one in vars(getters).items()
        if name.startswith("get_") and inspect.isfunction(one)
    }
    fetch = {name: one for name, one in every.items() if fits(one)}

    def answer(own: Lines, request: dict[str, Any]) -> dict[str, Any]:
        if "metric" in request:
            return scored(request, compare)
        value = fetch[request["getter"]](Environment(own, str(FOLDER)), request["config"])
        return {"is": value, "files": kept()}

    refused = sorted(known - compare.keys())
    offer = {"metrics": sorted(compare), "getters": sorted(fetch), "every_getter": sorted(every), "refused": refused}
    attend(lines, answer, MOST_PROCESSES, **offer)
