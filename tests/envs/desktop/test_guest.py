"""What runs under another interpreter has none of ours, and the rooms of real machines are closed to each other."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import arpo.envs
from arpo.envs.desktop import sandbox, shims

ENVS = Path(arpo.envs.__file__).parent
GUEST = ENVS / "desktop" / "guest"
BESIDES = {"Xlib", "gi", "desktop_env"}  # what those interpreters have
OURS = {"arpo", "PIL"}  # the one that runs under arpo's own


def imported(path: Path) -> Iterator[str]:
    """Whole names; a relative one begins with a dot."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{'.' * node.level}{node.module or ''}"
            yield from (f"{'.' * node.level}{node.module or ''}.{name.name}" for name in node.names)


@pytest.mark.parametrize("path", sorted(GUEST.rglob("*.py")), ids=lambda path: path.name)
def test_a_guest_needs_only_the_standard_library_and_what_its_interpreter_has(path: Path) -> None:
    tops = {name.partition(".")[0] for name in imported(path)} - {""}
    assert tops <= sys.stdlib_module_names | (OURS if path.name == "judge_worker.py" else BESIDES)
    beside = {name.split(".")[1] for name in imported(path) if name.startswith(".")} - {""}
    assert {f"{name}.py" for name in beside} <= {*sandbox.RESIDENT, "serving.py"}, "what it imports travels with it"


def test_nothing_of_a_guest_is_imported_here() -> None:
    ours = [path for path in ENVS.parent.rglob("*.py") if GUEST not in path.parents]
    assert not [path for path in ours for name in imported(path) if "guest" in name.split(".")[:-1]]


def test_all_that_travels_is_there() -> None:
    assert {path.name for path in (GUEST / "bin").iterdir()} == {"google-chrome", "sudo", "apt"}
    assert all(text for text in [*shims.files().values(), *map(shims.guest, sandbox.RESIDENT)])


def test_the_rooms_of_real_machines_do_not_import_each_other() -> None:
    shared = [path for path in ENVS.glob("*.py") if path.name not in ("base.py", "cli.py")]
    for room, others in (("osworld", ["desktop"]), ("desktop", ["osworld"])):
        for path in (ENVS / room).rglob("*.py"):
            assert not [name for name in imported(path) for other in others if name.startswith(f"arpo.envs.{other}.")]
    for path in shared:
        assert not [name for name in imported(path) if name.startswith(("arpo.envs.desktop", "arpo.envs.osworld"))]


def test_no_module_has_the_name_of_a_real_package() -> None:
    files = [*(ENVS / "desktop").rglob("*.py"), *(ENVS / "osworld").rglob("*.py")]
    assert not {path.stem for path in files} & {*sys.stdlib_module_names, *BESIDES, "pyautogui"}
