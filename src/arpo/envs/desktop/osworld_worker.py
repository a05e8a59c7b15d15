"""Run under the interpreter of OSWorld's client: its evaluators, asked by JSON lines. Standard library and client only.

    out {"metrics": ["compare_pptx_files", …], "getters": ["vm_wallpaper", …]}          what it can do, first of all
    in  {"metric": "compare_table", "arguments": [found, wanted], "options": {…}}       out {"is": 0.5}
    in  {"getter": "shortcuts_on_desktop", "config": {…}, "cache": "/tmp/…"}            out {"is": …}
        out {"call": "get_file", "arguments": ["/home/user/a.txt"]}  in {"is": "base64…"}       where it asks back
    out {"error": "…"}                                                                  what an evaluator raised

A getter is offered only where all that it wants of OSWorld's environment can be had by asking back: those that connect
to the machine themselves are not. A metric is offered unless it would run the agent's files as Python, here, or its
package is only a stand-in (osworld-client/): it would say the same whatever the agent did.
"""

import ast
import base64
import inspect
import json
import os
import sys
import textwrap
from collections.abc import Callable
from typing import Any

ASKED_BACK = (
    "get_file", "execute_python_command", "get_vm_screen_size", "get_vm_window_size", "get_vm_directory_tree",
    "get_vm_desktop_path", "get_terminal_output",
)  # fmt: skip
OFFERED = {"env": ("controller", "cache_dir", "vm_platform"), "env.controller": ASKED_BACK}
STOOD_IN = ("easyocr", "librosa")
RUNNING = {"exec", "exec_module"}


class Lines:
    """The conversation. Evaluators print: what they say goes to the other output."""

    def __init__(self) -> None:
        self.output = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def say(self, **what: Any) -> None:
        self.output.write(json.dumps(what) + "\n")
        self.output.flush()

    def hear(self) -> Any:
        line = sys.stdin.readline()
        if not line:
            sys.exit()
        return json.loads(line)

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


def main() -> None:
    lines = Lines()
    try:
        from desktop_env.evaluators import getters, metrics  # type: ignore[import-not-found]
    except Exception as error:  # whatever it is, it cannot be used
        lines.say(error=f"{type(error).__name__}: {error}")
        return
    compare = usable(metrics)
    fetch = {
        name.removeprefix("get_"): one
        for name, one in vars(getters).items()
        if name.startswith("get_") and inspect.isfunction(one) and fits(one)
    }
    lines.say(metrics=sorted(compare), getters=sorted(fetch))
    while True:
        request = lines.hear()
        try:
            if "metric" in request:
                found = float(compare[request["metric"]](*request["arguments"], **request["options"]))
            else:
                found = fetch[request["getter"]](Environment(lines, request["cache"]), request["config"])
            lines.say(**{"is": found})
        except Exception as error:  # the outside decides what it means
            lines.say(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
