"""Which of OSWorld's metrics are asked: none that says the same of everything, none that runs what an agent wrote."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from arpo.envs.evaluators import Evaluators
from arpo.errors import EnvError

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
PYTHON = CACHE / "arpo" / "osworld-client" / "bin" / "python"
METRICS = """
import easyocr, librosa, setup
from importlib import util
def hears(found): return librosa.load(found)
def reads(found): return [easyocr.Reader for _ in found]
def imports(found): return util.spec_from_file_location("found", found).loader.exec_module(None)
def evaluates(found): return len(eval(found))  # exec is only named here
def setup_is_its_own(found): return float("lib" in setup.__file__)
"""
Make = Callable[..., Evaluators]
pytestmark = pytest.mark.desktop  # it runs in a sandbox


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A stand-in for OSWorld's client: these metrics, and packages of one line."""
    made: list[Evaluators] = []

    def client(**packages: str) -> Evaluators:
        for name, text in (packages | {"setup": "", "desktop_env/evaluators/metrics": METRICS}).items():
            file = tmp_path / "lib" / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (tmp_path / "lib/desktop_env/evaluators/getters.py").touch()
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/lib exec {sys.executable} -S "$@"\n')
        python.chmod(0o755)
        made.append(Evaluators(str(python)))
        return made[-1]

    yield client
    for one in made:
        one.close()


def offered(client: Evaluators) -> list[str]:
    return [name for name in ("hears", "reads", "imports", "evaluates") if client.has_metric(name)]


def test_a_metric_without_its_package_is_not_offered(make: Make) -> None:
    ours = Path(__file__).parents[3] / "osworld-client"
    standins = {name: (ours / f"{name}.py").read_text() for name in ("librosa", "easyocr")}
    assert offered(make(**standins)) == ["evaluates"]
    assert offered(make(**standins | {"librosa": "__version__ = '1'"})) == ["hears", "evaluates"]


def test_what_an_agent_wrote_is_never_run_outside(make: Make, tmp_path: Path) -> None:
    client = make(librosa="", easyocr="")
    assert not client.has_metric("imports")
    assert client.metric("evaluates", ["['a', 'b']"], {}) == 2.0
    with pytest.raises(EnvError, match="malformed"):
        client.metric("evaluates", [f"[open('{tmp_path}/made', 'w')]"], {})
    assert not (tmp_path / "made").exists()


def test_files_of_ours_are_no_packages_of_the_clients(make: Make) -> None:
    assert make(librosa="", easyocr="").metric("setup_is_its_own", [""], {}) == 1.0


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="OSWorld's client is not installed: `make osworld-client` does it")
def test_of_osworlds_own_the_same_are_left_out() -> None:
    client = Evaluators(str(PYTHON))
    try:
        assert client.has_metric("check_gnome_favorite_apps") and client.has_metric("compare_pptx_files")
        for name in ("compare_audios", "compare_image_text", "check_python_file_by_test_suite"):
            assert not client.has_metric(name)
    finally:
        client.close()
