"""The Makefile keeps to what is its own."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parent.parent / "Makefile"
# Stands in for `arpo`: what the demo's commands leave behind.
ARPO = """#!/bin/sh
mkdir -p demo/base demo/run
touch demo/base/run.sqlite demo/run/summary.json demo/success.gif demo/failure.gif
[ "$1" != report ] || touch "$4"
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_users_own_files_in_the_demos_folder_survive(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "arpo").write_text(ARPO)
    (tmp_path / "bin" / "arpo").chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "installed").touch()
    os.utime(tmp_path / "pyproject.toml", (0, 0))
    os.utime(tmp_path / "constraints.txt", (0, 0))
    (tmp_path / "demo" / "run").mkdir(parents=True)
    (tmp_path / "demo" / "mine.txt").write_text("mine")
    (tmp_path / "demo" / "run" / "old").touch()

    def make(target: str) -> None:
        subprocess.run(["make", "-f", MAKEFILE, target, "BIN=bin"], cwd=tmp_path, check=True, capture_output=True)

    make("demo")
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == [
        "base",
        "failure.gif",
        "mine.txt",
        "report.html",
        "run",
        "success.gif",
    ]
    assert not (tmp_path / "demo" / "run" / "old").exists()  # of an earlier demo
    make("clean")
    assert [path.name for path in (tmp_path / "demo").iterdir()] == ["mine.txt"]
    (tmp_path / "demo" / "mine.txt").unlink()
    make("clean")
    assert not (tmp_path / "demo").exists()
