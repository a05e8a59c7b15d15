"""The rooms of the package and who may import whom, read from the source. CONTRIBUTING says where new code goes.

A module imports what is in a lower layer or in its own room, nothing else. Rooms of one layer stand side by side and do
not import each other. Modules of an open layer may. Every import counts, also one inside a function or under
TYPE_CHECKING: it says as much about who needs whom. An environment (`pocket`, `desktop`, `osworld`) is a closed room:
others get at it by its name, through the registry.
"""

import ast
import graphlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"


@dataclass(frozen=True)
class Layer:
    rooms: tuple[str, ...]  # modules or packages; the longest name that fits is a module's room
    open: bool = False  # the rooms may import each other


def layer(rooms: str, open: bool = False) -> Layer:
    return Layer(tuple(f"arpo.{room}" for room in rooms.split()), open)


LAYERS = (  # from the bottom
    layer(
        "types errors files yaml_text seeds machine event_loops beside images fonts resize vocabulary "
        "agent.actions agent.random_actions",
        open=True,
    ),
    # The contracts. What is behind one of them is not known here.
    layer("config sections registry envs.base engines.base agent.dialects.base algorithms.base", open=True),
    layer("model"),
    layer("agent envs engines algorithms runs"),
    layer("tasks"),
    layer("evaluation"),
    layer("training tasks.select"),
    layer("teaching"),
    # What people use: commands, what they print, measurements. The Python API is `arpo` itself.
    Layer(
        ("arpo", *layer("api cli arguments doctor bench export viewer envs.cli envs.listing envs.play").rooms),
        open=True,
    ),
)
ENVIRONMENTS = ("pocket", "desktop", "osworld")
ABOUT_ENVIRONMENTS = ("arpo.bench", "arpo.teaching", "arpo.envs.cli")  # these are about particular environments

Imports = dict[str, set[str]]
"""The modules that each module imports."""


def belongs(module: str, room: str) -> bool:
    return module == room or (room != "arpo" and module.startswith(f"{room}."))


def place(module: str) -> tuple[int, str] | None:
    """The layer and the room of a module; None: it has none."""
    fitting = [(i, room) for i, layer in enumerate(LAYERS) for room in layer.rooms if belongs(module, room)]
    return max(fitting, key=lambda place: len(place[1]), default=None)


def environment(module: str) -> str | None:
    """The environment that a module is of: `envs.osworld`, all below it, and `envs.osworld_…` are of `osworld`."""
    part = module.removeprefix("arpo.envs.").partition(".")[0] if module.startswith("arpo.envs.") else ""
    return next((env for env in ENVIRONMENTS if part == env or part.startswith(f"{env}_")), None)


def allowed(importer: str, imported: str) -> bool:
    place_of_importer, place_of_imported = place(importer), place(imported)
    assert place_of_importer and place_of_imported, (importer, imported)
    closed = environment(imported)
    if closed and environment(importer) != closed and not any(belongs(importer, room) for room in ABOUT_ENVIRONMENTS):
        return False
    (high, room), (low, other_room) = place_of_importer, place_of_imported
    return low < high or room == other_room or (low == high and LAYERS[low].open)


def against_the_rules(imports: Imports) -> set[tuple[str, str]]:
    pairs = ((importer, imported) for importer, named in imports.items() for imported in named)
    return {(importer, imported) for importer, imported in pairs if not allowed(importer, imported)}


# Reading the source.


def modules(src: Path) -> dict[str, Path]:
    """Every module by its full name."""
    paths = {path.relative_to(src).with_suffix("").parts: path for path in (src / "arpo").rglob("*.py")}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for parts, path in paths.items()}


def read_imports(src: Path, at_import: bool = False) -> Imports:
    """What each module imports. `at_import`: only what is imported as soon as the module is."""
    known = modules(src)
    imports: Imports = {}
    for name, path in known.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        statements = run_at_import(tree.body) if at_import else ast.walk(tree)
        named = chain.from_iterable(names(statement, package, known) for statement in statements)
        imports[name] = {module for module in named if module in known} - {name}
    return imports


def names(node: ast.AST, package: str, known: Iterable[str]) -> Iterator[str]:
    """The modules of ours that an import statement names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        module = ".".join([*parents, *([node.module] if node.module else [])])
        for alias in node.names:
            submodule = f"{module}.{alias.name}"
            yield submodule if submodule in known else module


def run_at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported: none in functions, none for the type checker alone."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING"):
            yield from run_at_import(statement.orelse)
            continue
        for part in ("body", "orelse", "finalbody"):
            yield from run_at_import(getattr(statement, part, []))
        for handler in getattr(statement, "handlers", []):
            yield from run_at_import(handler.body)


def cycle(imports: Imports) -> list[str]:
    """Modules that need each other to be imported, in a ring; empty: there is none."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


# The package.


def test_every_module_has_a_layer() -> None:
    assert [name for name in modules(SRC) if place(name) is None] == []


def test_every_import_goes_down_or_stays_in_its_room() -> None:
    wrong = against_the_rules(read_imports(SRC))
    assert not wrong, "\n".join(f"{importer} must not import {imported}" for importer, imported in sorted(wrong))


def test_no_module_needs_itself_to_be_imported() -> None:
    assert cycle(read_imports(SRC, at_import=True)) == []


def test_no_module_has_the_name_of_a_package_that_we_use() -> None:
    taken = set("gym gymnasium pyautogui torch numpy PIL transformers tokenizers peft wandb yaml rich".split())
    assert {name for name in modules(SRC) if name.rpartition(".")[2] in taken} == set()


# That the tests above can fail.


def package(folder: Path, **sources: str) -> Path:
    """A package `arpo` of these modules; two underscores stand for a dot."""
    for name, source in sources.items():
        path = folder.joinpath("arpo", *name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        (path.parent / "__init__.py").touch()
    (folder / "arpo" / "__init__.py").touch()
    return folder


@pytest.mark.parametrize(
    "source",
    [
        "from arpo.runs.store import Run",
        "import arpo.runs.store",
        "from arpo.runs import store",
        "from ..runs.store import Run",
        "from ..runs import store",
        "def later():\n    from arpo.runs.store import Run",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from arpo.runs.store import Run",
    ],
)
def test_an_import_from_the_room_next_door_is_seen_however_it_is_written(source: str, tmp_path: Path) -> None:
    src = package(tmp_path, agent__episode=source, runs__store="")
    assert against_the_rules(read_imports(src)) == {("arpo.agent.episode", "arpo.runs.store")}


@pytest.mark.parametrize(
    ("importer", "imported", "may"),
    [
        ("training.loop", "types", True),
        ("types", "training.loop", False),
        ("types", "agent.actions", True),
        ("envs.base", "agent.actions", True),
        ("envs.base", "agent.episode", False),
        ("engines.local.engine", "engines.base", True),
        ("engines.local.engine", "agent.episode", False),
        ("training.loop", "evaluation.run", True),
        ("evaluation.run", "training.loop", False),
        ("cli", "training.loop", True),
        ("tasks.select", "evaluation.run", True),
        ("tasks.load", "evaluation.run", False),
        ("training.loop", "cli", False),
        ("envs.pool", "envs.pocket.env", False),
        ("envs.desktop.env", "envs.pool", True),
        ("envs.desktop.env", "envs.pocket.env", False),
        ("envs.pocket.env", "envs.pocket.ui", True),
        ("envs.pocket.env", "envs.play", False),
        ("training.loop", "envs.pocket.env", False),
        ("cli", "envs.desktop.serve", False),
        ("teaching.lessons", "envs.pocket.env", True),
        ("bench.desktop", "envs.desktop.env", True),
    ],
)
def test_who_may_import_whom(importer: str, imported: str, may: bool) -> None:
    assert allowed(f"arpo.{importer}", f"arpo.{imported}") is may


def test_a_module_without_a_layer_is_seen() -> None:
    assert place("arpo.shed") is None
    assert place("arpo") is not None


def test_a_ring_of_imports_is_seen_and_one_that_is_put_off_is_none(tmp_path: Path) -> None:
    ring = package(
        tmp_path / "ring", agent__a="import arpo.agent.b", agent__b="try:\n    from arpo.agent import a\nfinally: 0"
    )
    assert set(cycle(read_imports(ring, at_import=True))) == {"arpo.agent.a", "arpo.agent.b"}
    put_off = package(tmp_path / "off", agent__a="import arpo.agent.b", agent__b="def f():\n    import arpo.agent.a")
    assert cycle(read_imports(put_off, at_import=True)) == []
    assert set(cycle(read_imports(put_off))) == {"arpo.agent.a", "arpo.agent.b"}
