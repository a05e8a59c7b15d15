"""The wheel holds all that arpo needs, and works outside the checkout."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

import arpo

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "arpo"

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools would put into it what an earlier build left in the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir")
    run(*pip, "--wheel-dir", folder, source, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Iterator[Path]:
    """A virtual environment with the wheel in it. It has our packages too, but no editable install of the checkout."""
    folder = wheel.parent / "venv"
    venv.create(folder, symlinks=os.name != "nt")
    python = folder / "bin" / "python"
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--no-cache-dir")
    run(*install, wheel, cwd=wheel.parent)
    (own,) = folder.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    # Where a .pth file leads, other .pth files are not read: so the editable install is not in reach.
    (own / "ours.pth").write_text("\n".join(ours))
    yield folder
    shutil.rmtree(folder)


def test_it_holds_every_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    there = {path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*") if path.is_file()}
    assert packed == {str(PurePosixPath(path)) for path in there if "__pycache__" not in path.parts}
    assert {"arpo/py.typed", "arpo/configs/pocket.yaml", "arpo/models/base/model.safetensors"} <= packed


def test_it_is_the_only_arpo_in_reach(installed: Path, tmp_path: Path) -> None:
    code = """if True:
        import arpo, importlib.metadata, json, pathlib, sys
        places = [path for path in sys.path if (pathlib.Path(path) / "arpo").is_dir()]
        print(json.dumps([arpo.__file__, importlib.metadata.version("arpo"), places]))"""
    file, version, places = json.loads(run(installed / "bin" / "python", "-c", code, cwd=tmp_path))
    assert Path(file).is_relative_to(installed)
    assert version == arpo.__version__
    assert places == [str(Path(file).parents[1])]


def test_its_command_works_in_any_folder(installed: Path, tmp_path: Path) -> None:
    def command(*arguments: str) -> str:
        return run(installed / "bin" / "arpo", *arguments, cwd=tmp_path)

    assert "arpo doctor" in command("--help")
    assert command("--version").split()[-1] == arpo.__version__
    environments = json.loads(command("envs", "list", "--json"))["environments"]
    assert {"pocket", "desktop"} <= {environment["name"] for environment in environments}
    assert "base learns by arpo on the 12 tasks of demo" in command("train", "pocket", "--dry-run")
    expert = json.loads(command("eval", "expert", "--tasks", "demo", "--trials", "1", "--json"))
    assert expert["success"] == 1.0


def test_the_agent_that_comes_with_it_can_be_loaded(installed: Path, tmp_path: Path) -> None:
    arguments = ("eval", "base", "--tasks", "shell-open-000", "--trials", "1", "tasks.max_steps=1", "--json")
    report = json.loads(run(installed / "bin" / "arpo", *arguments, cwd=tmp_path))
    assert report["errors"] == 0 and report["n_trials"] == 1
