"""What macOS and Windows need: no Unix-only module where pocket is used, one line where an environment cannot work."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from arpo import doctor, machine
from arpo.config import EnvConfig
from arpo.envs import pool
from arpo.envs.base import BACKENDS, make, refuse_size
from arpo.errors import ConfigError

# As on Windows: the modules that it has not got cannot be imported, and `msvcrt` locks byte ranges of files.
# Standard modules that ask for them to know where they are have done so before.
WINDOWS = """
import asyncio, importlib.abc, os, platform, shutil, subprocess, sys, tempfile, types
GONE = {"curses", "fcntl", "grp", "posix_ipc", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}

class Gone(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in GONE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in GONE:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Gone())
msvcrt = sys.modules["msvcrt"] = types.ModuleType("msvcrt")
msvcrt.LK_NBLCK = os.F_TLOCK
def locking(file, mode, n):
    try:
        os.lockf(file, mode, n)
    except OSError:
        raise PermissionError(13, "Permission denied") from None
msvcrt.locking = locking
platform.system = lambda: "Windows"
def unknown(*_): raise AttributeError
os.sysconf = unknown
def no_handlers(*_): raise NotImplementedError
asyncio.SelectorEventLoop.add_signal_handler = no_handlers
"""


def on_windows(code: str, where: Path, first: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-c", first + WINDOWS + code],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def arpo(arguments: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    return on_windows(f"sys.argv = ['arpo', *{arguments!r}]\nfrom arpo import cli\ncli.main()", where)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["envs", "list"], "subset32"),
        (["envs", "play", "--task", "shell-open-000", "--out", "play.gif"], "solved"),
        (["eval", "expert", "--tasks", "demo"], "100.0%"),
        (["train", "--dry-run"], "What would be done"),
    ],
)
def test_pocket_needs_no_module_that_only_unix_has(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = arpo(arguments, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout


def test_training_and_comparing_need_no_module_that_only_unix_has(tmp_path: Path) -> None:
    # Imported before: the libraries around torch take a Unix without these modules for a broken one.
    first = "from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration\n"
    code = "import arpo.training.command, arpo.bench.compare, arpo.bench.envs\nprint(arpo.machine.peak_rss_mb())"
    done = on_windows(code, tmp_path, first)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "0.0\n")


def test_doctor_says_what_needs_another_system(tmp_path: Path) -> None:
    done = arpo(["doctor"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert any(line.startswith("works environment pocket") for line in lines)
    for name in ("desktop", "osworld"):
        assert f"missing environment {name} env.name={name}: works on Linux only, and this is Windows" in lines
    assert any(line.startswith("works processor") and line.endswith("cores") for line in lines)  # no word of memory


def test_one_process_at_a_time_writes_to_a_run_on_windows_too(tmp_path: Path) -> None:
    writer = "from pathlib import Path\nfrom arpo.runs.store import Run\nwith Run.write(Path('run'), ''):\n    "
    second = json.dumps([sys.executable, "-c", f"{WINDOWS}{writer}print('mine')"])
    first = f"print(os.getpid(), subprocess.run({second}, capture_output=True, text=True))"
    done = on_windows(f"{writer}{first}", tmp_path)
    assert done.returncode == 0, done.stderr
    pid = done.stdout.split()[0]
    assert f"ConfigError: run: process {pid} is writing to this run; wait, or choose another" in done.stdout
    assert on_windows(f"{writer}print('mine')", tmp_path).stdout == "mine\n"  # it has let go


@pytest.mark.parametrize("name", ["desktop", "osworld"])
def test_an_environment_of_another_system_is_refused_in_one_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    said = rf"env.name={name}: works on Linux only, and this is Darwin$"
    with pytest.raises(ConfigError, match=said):
        make(name)
    with pytest.raises(ConfigError, match=said):
        refuse_size(name, (1280, 720))
    make("pocket").close()


def test_worker_processes_are_refused_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "killpg")
    with pytest.raises(ConfigError, match=r"env.workers=2: Windows has no worker processes; set it to 0"):
        pool.make_pool(EnvConfig(workers=2), 4)
    pool.make_pool(EnvConfig(), 4)


def test_the_peak_of_memory_is_in_megabytes_on_linux_and_on_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    for system, peak in (("linux", 300 << 10), ("darwin", 300 << 20)):
        monkeypatch.setattr(resource, "getrusage", lambda who, peak=peak: Mock(ru_maxrss=peak))
        monkeypatch.setattr(sys, "platform", system)
        assert machine.peak_rss_mb() == 300.0


def findings(monkeypatch: pytest.MonkeyPatch) -> dict[str, doctor.Finding]:
    for name in [name for name in reversed(BACKENDS) if name != "pocket"]:
        monkeypatch.delitem(BACKENDS, name)
    return {finding.what: finding for finding in doctor.diagnose(EnvConfig())}


def test_doctor_knows_the_processor_the_disk_and_pytorch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    found = findings(monkeypatch)
    assert found["processor"].detail.startswith(f"{machine.cores()} cores")
    assert found["disk"].detail.endswith(f"GB free in {tmp_path}")
    assert found["PyTorch"].detail.startswith(torch.__version__)
    assert found["device"].works
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert findings(monkeypatch)["disk"].detail == "cannot be asked: No such file or directory"


def test_doctor_names_gpus_with_their_memory_and_those_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def memory(number: int) -> tuple[int, int]:
        if number:
            raise RuntimeError("out of memory\nmore of it")
        return 3 << 30, 8 << 30

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: "Fast")
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    assert findings(monkeypatch)["device"].detail == (
        "cuda:0 Fast, 8.0 GB, 3.0 GB of it free; cuda:1 cannot be used: out of memory"
    )


def test_doctor_goes_on_where_pytorch_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = findings(monkeypatch)
    assert not found["PyTorch"].works and "torch" in found["PyTorch"].detail
    assert found["environment pocket"].works
