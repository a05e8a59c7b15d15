"""Makes the pages of docs/reference from the code: the settings, the command line, the Python API.

    .venv/bin/python docs/make_reference.py            writes them
    .venv/bin/python docs/make_reference.py --check    exit status 1 and a line for each that is out of date

Nothing of it depends on the machine: the terminal counts as 100 columns wide, and the API is read from its source.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import os
import sys
import types
import typing
from collections.abc import Iterator
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import yaml
from pydantic.fields import FieldInfo

FOLDER = Path(__file__).parent / "reference"
MADE = "<!-- Made by docs/make_reference.py: change the code, then run that. -->"

# ---- the settings

CONFIGURATION = """# Configuration

Every setting, as `arpo train --dry-run` prints them too. On the command line they are `key=value` words after the name
of a preset or a YAML file, in Python the same words: `arpo.train("pocket", "train.updates=4")`. A file has the sections
as mappings; what it leaves out has the default below. Unknown keys and values out of bounds are refused in one line.

    arpo train pocket train.updates=40 algorithm.name=grpo run_dir=runs/g
    arpo train mine.yaml seed=3
"""
WORDS = {int: "whole number", float: "number", str: "text", Path: "path", bool: "true, false", type(None): "null"}
SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def configuration() -> str:
    from arpo.config import Config, Section, presets

    top, sections = list[str](), list[str]()
    for name, field in Config.model_fields.items():
        if inspect.isclass(field.annotation) and issubclass(field.annotation, Section):
            sections += [f"\n## {name}\n", f"{str(field.description).capitalize()}.\n", *_table(name, field.annotation)]
        else:
            top.append(_row(name, field))
    parts = [CONFIGURATION, *HEAD, *top, *sections, "\n## Presets"]
    for name in presets():
        text = (resources.files("arpo") / "configs" / f"{name}.yaml").read_text(encoding="utf-8")
        parts.append(f"\n### {name}\n\n```yaml\n{text.rstrip()}\n```")
    return "\n".join(parts)


HEAD = ("| key | default | allowed | meaning |", "|---|---|---|---|")


def _table(name: str, section: Any) -> Iterator[str]:
    yield from HEAD
    for key, field in section.model_fields.items():
        yield _row(f"{name}.{key}", field)


def _row(key: str, field: FieldInfo) -> str:
    default = field.default
    size = isinstance(default, tuple)
    shown = "{}x{}".format(*default) if size else yaml.safe_dump(default, default_flow_style=True).split("\n")[0]
    allowed = ["WIDTHxHEIGHT" if size else _registered(key) or _allowed(field.annotation)]
    for part in field.metadata:
        allowed += [f"{sign} {getattr(part, bound)}" for bound, sign in SIGNS.items() if hasattr(part, bound)]
    cells = [f"`{key}`", f"`{shown}`", ", ".join(allowed), str(field.description)]
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _registered(key: str) -> str:
    """The names that arpo itself has behind a door."""
    from arpo.agent.dialects.base import DIALECTS
    from arpo.algorithms.base import METHODS
    from arpo.engines.base import ENGINES
    from arpo.envs.base import BACKENDS

    doors: dict[str, Any] = {"env.name": BACKENDS, "agent.dialect": DIALECTS, "engine.name": ENGINES}
    return ", ".join(f"`{name}`" for name in (doors | {"algorithm.name": METHODS}).get(key, ()))


def _allowed(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _allowed(inner[0])
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_allowed(one) for one in inner)
    if origin is list:
        return f"list of {_allowed(inner[0])}"
    return "mapping" if origin is dict else WORDS[kind]


# ---- the command line

CLI = """# Command line

What each command's `--help` says. What a user did wrong ends in one line and exit status 2; a promise or a task that
failed in status 1. Settings (`key=value`) are those of the [configuration](configuration.md).
"""


def command_line() -> str:
    import typer

    from arpo.cli import app

    root = typer.main.get_command(app)
    parts = [CLI]
    for words in _commands(root, ()):
        parts.append(f"## {' '.join(['arpo', *words])}\n\n```text\n{_help(root, words)}\n```\n")
    return "\n".join(parts)


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*words, name))


def _help(root: Any, words: tuple[str, ...]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        root.main([*words, "--help"], prog_name="arpo")
    return "\n".join(line.rstrip() for line in said.getvalue().strip().splitlines())


# ---- the Python API

API = """# Python API

All of it is in `import arpo`; [extending](../extending.md) has whole examples.
"""
GROUPS = {
    "Train, evaluate, look": "train evaluate load_agent load_tasks make_env play read_run",
    "Add your own": "register_environment register_dialect register_algorithm Reward Env Expert Dialect Algorithm",
    "What an agent can do": "Action Click Drag Scroll Type Hotkey Wait Finish Fail CallUser",
    "Records": "Task Observation Step Outcome Trajectory Group Agent Run Evaluation ArpoError",
}


def python_api() -> str:
    import arpo

    listed = [name for names in GROUPS.values() for name in names.split()]
    if set(listed) != set(arpo.__all__):  # type: ignore[attr-defined]  # it is made when it is asked for
        strange = ", ".join(sorted(set(listed) ^ set(arpo.__all__)))  # type: ignore[attr-defined]
        sys.exit(f"docs/make_reference.py: GROUPS and arpo.__all__ differ in {strange}")
    parts = [API]
    for title, names in GROUPS.items():
        parts += [f"## {title}\n", *(_described(name) for name in names.split())]
    return "\n".join(parts)


def _described(name: str) -> str:
    """A name of the API with its signature and its docstring, from the module that defines it."""
    module, original = _home("arpo.api", name)
    source = inspect.getsource(import_module(module))
    body = ast.parse(source).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == original:
            told = _function(node, name) if isinstance(node, ast.FunctionDef) else _class(node, source.splitlines())
            return f"### {name}\n\n{told}\n"
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == original and node.value is not None:
            said = after.value if isinstance(after, ast.Expr) else None
            text = f"\n{said.value!s}\n" if isinstance(said, ast.Constant) else ""
            return f"### {name}\n\n```python\n{name} = {ast.unparse(node.value)}\n```\n{text}"
    raise LookupError(f"{module} does not define {original}")


def _home(module: str, name: str) -> tuple[str, str]:
    """Where a name is defined, and what it is called there."""
    for node in ast.parse(inspect.getsource(import_module(module))).body:
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            if (alias.asname or alias.name) == name and isinstance(node, ast.ImportFrom) and node.module:
                return _home(node.module, alias.name)
    return module, name


def _function(node: ast.FunctionDef, name: str) -> str:
    return f"```python\n{_signature(node, name)}\n```\n\n{ast.get_docstring(node) or ''}"


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    """On one line, or with an argument a line where that would be long."""
    arguments = [one for one in _split(ast.unparse(node.args)) if one not in ("self", "cls")]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if len(whole := f"{name}({', '.join(arguments)}){returns}") <= 88:
        return whole
    return "\n".join([f"{name}(", *(f"    {argument}," for argument in arguments), f"){returns}"])


def _split(arguments: str) -> list[str]:
    """One by one, with spaces around the default as in source."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += " = " if character == "=" and depth == 0 and ": " in parts[-1] else character
    return [part.strip() for part in parts]


def _class(node: ast.ClassDef, lines: list[str]) -> str:
    told = [ast.get_docstring(node) or "", ""]
    for item in node.body:
        match item:
            case ast.AnnAssign(target=ast.Name(id=field)) if field not in ("kind",) and not field.startswith("_"):
                comment = lines[item.lineno - 1].partition("  # ")[2]
                told.append(f"- `{ast.unparse(item)}`{f': {comment}' if comment else ''}")
            case ast.Assign(targets=[ast.Name(id=field)], value=ast.Constant(value=str(text))):
                told.append(f"- `{field}`: `{text}`")
            case ast.FunctionDef(name=method) | ast.AsyncFunctionDef(name=method) if not method.startswith("_"):
                told.append(_method(item))
    return "\n".join(told).rstrip()


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    decorated = {ast.unparse(decorator) for decorator in node.decorator_list}
    awaited = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    call = node.name if "property" in decorated else " ".join(_signature(node, node.name).split())
    said = " ".join((ast.get_docstring(node) or "").split())
    return f"- `{awaited}{call}`{f': {said}' if said else ''}"


PAGES = {"configuration.md": configuration, "cli.md": command_line, "api.md": python_api}


def main() -> None:
    os.environ["COLUMNS"] = "100"
    FOLDER.mkdir(exist_ok=True)
    stale = list[str]()
    for name, make in PAGES.items():
        page, text = FOLDER / name, f"{make().rstrip()}\n\n{MADE}\n"
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                page.write_text(text, encoding="utf-8", newline="\n")
    for name in stale:
        print(f"docs/reference/{name}: {'is out of date; make docs' if '--check' in sys.argv else 'written'}")
    sys.exit(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    main()
