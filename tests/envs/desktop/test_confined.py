"""What an agent's file cannot do through a checker of OSWorld's client that it has got hold of, or that unpacks it."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from bad_client import client_of
from traces import Traces, groups, wait_until

from arpo.envs import client_process, confined, evaluators, memory
from arpo.envs.bubblewrap import NOBODY, USERS
from arpo.envs.client_process import ClientProcess
from arpo.envs.desktop.checks import score
from arpo.envs.desktop.checks.controller import controller
from arpo.envs.desktop.checks.getters import Machine
from arpo.envs.desktop.files import FileSource
from arpo.envs.desktop.sandbox import Sandbox
from arpo.envs.evaluators import Evaluators, Unreadable
from arpo.errors import ConfigError, EnvError
from arpo.types import Task

pytestmark = pytest.mark.desktop
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
PYTHON = CACHE / "arpo" / "osworld-client" / "bin" / "python"
Start = Callable[..., Sandbox]


@pytest.fixture
def bad(tmp_path: Path) -> Iterator[Evaluators]:
    """A client whose metrics are what agents would like them to be."""
    client = client_of(tmp_path)
    yield client
    client.close()


def test_files_are_given_to_a_metric_and_paths_fit(bad: Evaluators, tmp_path: Path) -> None:
    (folder := tmp_path / "files" / "deep").mkdir(parents=True)
    for name in ("a", "b"):
        (folder / name).write_text("same")
    assert bad.metric("equal", [str(folder / "a"), str(folder / "b")], {}, tmp_path / "files") == 1.0
    with pytest.raises(EnvError, match="No such file"):
        bad.metric("equal", [str(folder / "a"), str(folder / "b")], {})


def test_it_writes_nothing_to_the_host(bad: Evaluators, tmp_path: Path) -> None:
    places = [
        tmp_path,
        Path.home(),
        Path("/"),
        Path("/usr"),
        Path("/usr/bin"),
        Path("/dev"),
        Path("/tmp"),
        Path("/arpo"),
    ]
    for place in places:
        with pytest.raises(EnvError, match=r"Read-only|Permission|No such file"):
            bad.metric("writes", [str(place / "arpo-was-here")], {})
        assert not (place / "arpo-was-here").exists()
    with pytest.raises(EnvError, match=r"Read-only|Permission"):  # its own packages
        bad.metric("writes", [str(tmp_path / "lib" / "more.py")], {})
    assert bad.metric("writes", ["/arpo/tmp/a"], {}) == 1.0, "there is one folder for it"


def test_it_reads_nothing_of_the_host_but_programs(bad: Evaluators, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    for path in ("/etc/shadow", "/etc/hostname", tmp_path / "secret", __file__, Path.home() / ".bashrc"):
        with pytest.raises(EnvError, match="No such file"):
            bad.metric("reads", [str(path)], {})
    ways = {path.parts[:3] for path in (tmp_path, Path(sys.prefix)) if path.is_relative_to("/tmp")}
    assert bad.metric("lists", ["/tmp"], {}) == len(ways), "the ways to its interpreter and its packages"


def test_it_sees_no_variables_of_ours_and_is_not_root(bad: Evaluators, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert bad.metric("sees_variable", ["WANDB_API_KEY"], {}) == 0.0
    assert bad.metric("is_root", [""], {}) == 0.0
    assert bad.metric("makes_namespaces", [""], {}) == 0.0
    if os.geteuid() == 0:
        status = [Path(f"/proc/{pid}/status").read_text() for pid in inside(bad)]
        users = {user for text in status for user in text.partition("\nUid:")[2].partition("\n")[0].split()}
        assert len(users) == 1 and int(users.pop()) in (*USERS, NOBODY)


def inside(client: Evaluators) -> list[int]:
    """The processes in its sandbox, as the host sees them: below bubblewrap, which is below the shell."""
    assert client._worker is not None
    found, shell = [], client._worker.process._process.pid
    for bwrap in children(shell):
        found += children(bwrap)
    assert found
    return found


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_it_reaches_no_port_and_no_socket_of_the_host(bad: Evaluators) -> None:
    with socket.create_server(("127.0.0.1", 0)) as port, socket.socket(socket.AF_UNIX) as named:
        named.bind(f"\0arpo-test-{os.getpid()}")
        named.listen()
        with pytest.raises(EnvError, match="refused"):
            bad.metric("connects", [port.getsockname()[1]], {})
        with pytest.raises(EnvError, match="refused"):
            bad.metric("reaches", [f"\0arpo-test-{os.getpid()}"], {})


@pytest.mark.parametrize(
    ("metric", "argument", "reason"),
    [
        ("takes_memory", "", "more memory than it may have"),
        ("takes_memory_in_parts", "", "more memory than it may have"),
        ("fills", "/arpo/tmp/a", "No space left"),
        ("spins", "", "more than 1 s of processor time"),
        ("crashes", "", "ended by SIGSEGV"),
    ],
)
def test_a_file_that_takes_a_metric_over_its_limits_is_the_agents_doing_and_the_next_is_scored(
    bad: Evaluators, metric: str, argument: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bad.metric("is_root", [""], {}) == 0.0  # it is there, and stays: the same process serves the next
    before = inside(bad)
    with monkeypatch.context() as patch:
        patch.setattr(evaluators, "CPU_S", 1 if metric == "spins" else 60)
        with pytest.raises(Unreadable, match=reason):
            bad.metric(metric, [argument], {})
    assert bad.metric("sees_variable", ["HOME"], {}) == 1.0
    assert inside(bad) == before


@pytest.mark.parametrize(
    ("metric", "argument", "reason"),
    [
        ("waits", "", "did not answer within 2 s"),
        ("waits_for_a_pipe", "/arpo/tmp/pipe", "did not answer within 2 s"),
        ("is_killed", "", "ended by SIGKILL"),
        ("exits", "", "ended with status 3"),
        ("writes", "/usr/a", "Read-only"),
        ("reads", "/proc/1/environ", "Permission denied"),
    ],
)
def test_what_a_busy_or_full_or_misconfigured_host_does_too_is_machinery(
    bad: Evaluators, metric: str, argument: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's own OOM killer ends with SIGKILL, and a clock runs on a host without a free processor."""
    if metric.startswith("waits"):
        monkeypatch.setattr(evaluators, "METRIC_S", 2.0)
    with pytest.raises(EnvError, match=reason):
        bad.metric(metric, [argument], {})


@pytest.mark.parametrize("metric", ["touches_memory", "forks_and_touches_memory"])
def test_a_file_that_fills_the_sandboxs_own_control_group_is_the_agents_doing(
    bad: Evaluators, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (group := memory.new_group(1)) is None:
        pytest.skip("control groups cannot be made here")
    group.rmdir()
    monkeypatch.setattr(client_process, "MEMORY_MB", 256)
    with pytest.raises(Unreadable, match="more memory than its sandbox has"):
        bad.metric(metric, [""], {})
    assert bad.metric("is_root", [""], {}) == 0.0


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"memory.events": "low 0\nmax 7\noom 2\noom_kill 3\n"}, (3, 2)),
        ({"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "memory.failcnt": "9\n"}, (3, 9)),
    ],
)
def test_both_versions_of_control_groups_say_what_their_limit_has_cost(
    tmp_path: Path, files: dict[str, str], found: tuple[int, int]
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert memory.overruns(tmp_path) == found


def test_a_fork_bomb_stays_inside_its_limit_and_is_gone_with_its_metric(bad: Evaluators) -> None:
    assert 0 < bad.metric("forks", [""], {}) < 64
    assert bad.metric("processes", [""], {}) == 2.0


def test_nothing_of_one_agents_files_is_there_for_the_next(bad: Evaluators) -> None:
    assert bad.metric("leaves", ["/arpo/tmp/left"], {}) == 1.0
    assert bad.metric("lists", ["/arpo/tmp"], {}) == 1.0, "the next one's own folder"
    assert bad.metric("processes", [""], {}) == 2.0


@pytest.mark.parametrize(
    "metric", ["leaves_shared_memory", "leaves_semaphores", "leaves_a_queue", "leaves_a_posix_queue"]
)
def test_what_outlives_its_processes_is_not_there_for_the_next(bad: Evaluators, metric: str) -> None:
    assert bad.metric(metric, [""], {}) == float(metric != "leaves_a_posix_queue")  # those cannot be made at all
    assert bad.metric("left", [""], {}) == 0.0


def test_a_metric_cannot_lower_the_limits_of_its_parent(bad: Evaluators) -> None:
    with pytest.raises(EnvError, match="not permitted"):
        bad.metric("lowers_limits_of_the_parent", [""], {})
    assert bad.metric("writes_a_byte", ["/arpo/tmp/a"], {}) == 1.0


def test_a_metric_cannot_end_or_look_into_the_process_that_answers(bad: Evaluators) -> None:
    assert bad.metric("ends_the_parent", [""], {}) == 1.0
    assert bad.metric("takes_from_the_parent", [""], {}) == 0.0
    for metric in ("looks_into_the_parent", "opens_memory_of_the_parent"):
        with pytest.raises(EnvError, match="Permission"):
            bad.metric(metric, [""], {})


def test_a_metric_has_no_hold_of_the_conversation(bad: Evaluators) -> None:
    assert bad.metric("sockets", [""], {}) == 1.0, "the one to its parent, for this question alone"
    for metric in ("replies_to_the_next", "replies_ahead"):
        assert bad.metric(metric, [""], {}) == 0.5, "its own reply, whatever it says after that"
        assert bad.metric("is_root", [""], {}) == 0.0


def test_what_is_no_number_is_never_a_score(bad: Evaluators) -> None:
    for metric, reason in (
        ("says_no_number", "gives no number: nan"),
        ("says_a_long_number", "gives no number: 1000"),
        ("says_no_object", "no JSON object"),
    ):
        with pytest.raises(EnvError, match=reason):
            bad.metric(metric, [""], {})
    assert bad.metric("is_root", [""], {}) == 0.0


def test_a_long_reply_is_not_taken_and_an_error_is_cut_short(bad: Evaluators) -> None:
    assert bad.metric("is_root", [""], {}) == 0.0
    before = inside(bad)
    with pytest.raises(EnvError, match=r"says more than 65536 bytes$"):
        bad.metric("says_much", [1 << 20], {})
    with pytest.raises(EnvError, match=r"ValueError: x+$") as raised:
        bad.metric("raises_much", [1 << 20], {})
    assert len(str(raised.value)) < 1200
    assert inside(bad) == before, "the same process goes on"


def test_a_line_is_read_only_where_it_is_short_and_has_few_values() -> None:
    """The program may itself have been got hold of: the host looks, too."""
    with socket.socket() as unused:
        process = object.__new__(ClientProcess)
        process._name, process._socket = "it", unused
        for line, longest, reason in (
            (b"x" * 101, 100, "more than 100 bytes"),
            (b"x" * 101 + b"\n", 100, "more than 100 bytes"),
            (b"[" + b"[]," * client_process.MOST_VALUES + b"0]\n", 1 << 30, "values in one line"),
            (b"[]\n", 100, "no JSON object"),
        ):
            process._rest = bytearray(line)
            with pytest.raises(EnvError, match=reason):
                process.hear(1.0, longest)


def test_files_of_more_than_fits_are_the_agents_doing(bad: Evaluators, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    with (tmp_path / "files" / "a").open("wb") as file:
        file.truncate((confined.SCRATCH_MB << 20) + 1)
    with pytest.raises(Unreadable, match="more than 512 MB"):
        bad.metric("reads", [str(tmp_path / "files" / "a")], {}, tmp_path / "files")


def get(client: Evaluators, name: str, machine: Machine, config: dict[str, object]) -> object:
    return client.get(name, config, machine.cache, partial(controller, machine))


def test_files_that_a_getter_made_come_out_and_links_do_not(start: Start, bad: Evaluators, tmp_path: Path) -> None:
    machine = Machine(start(), tmp_path / "cache", FileSource(), "")
    machine.cache.mkdir()
    assert get(bad, "leads_out", machine, {"name": "plain"}) == str(machine.cache / "plain")
    assert get(bad, "leads_out", machine, {"name": "../../../etc/shadow"}) != str(machine.cache / "../../../etc/shadow")
    assert [path.name for path in machine.cache.iterdir()] == ["plain"]
    for name in ("../out", "/tmp/arpo-out", "a/../../out", "plain/below", "a\0"):
        with pytest.raises(EnvError, match="cannot be kept"):
            evaluators._keep({name: ""}, machine.cache)


def test_what_a_getter_asks_back_comes_to_it(start: Start, bad: Evaluators, tmp_path: Path) -> None:
    (sandbox := start()).write("/home/user/a", b"text of ")
    machine = Machine(sandbox, tmp_path, FileSource(), "")
    assert get(bad, "asks", machine, {"path": "/home/user/a"}) == "text of /home/user/Desktop"
    assert get(bad, "is_long", machine, {"length": 1 << 20}) == "x" * (1 << 20)


def test_what_a_getter_gives_has_bounds(
    start: Start, bad: Evaluators, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(start(), tmp_path, FileSource(), "")
    for deep in (970, 5000):  # for the host, and for the client already
        with pytest.raises(EnvError, match=r"lists in lists|no JSON object|RecursionError"):
            get(bad, "nests", machine, {"deep": deep})
    monkeypatch.setattr(evaluators, "GETTER_BYTES", 1 << 20)
    with pytest.raises(EnvError, match="says more than 1048576 bytes"):
        get(bad, "is_long", machine, {"length": 1 << 20})


def test_nothing_is_left_of_it_when_it_is_closed(bad: Evaluators, traces: Traces) -> None:
    def things() -> list[object]:
        return [traces.things()["files"], groups(os.getpid())]

    before = things()
    bad.has_metric("equal")
    shell, (first,) = bad._worker.process._process.pid, inside(bad)  # type: ignore[union-attr]
    assert things() != before
    assert " - tmpfs arpo " not in Path("/proc/self/mountinfo").read_text(), "its mounts are its own"
    bad.close()
    assert things() == before
    assert not any(Path(f"/proc/{pid}").exists() for pid in (shell, first))


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_confined import client_of, inside
client = client_of(Path(sys.argv[2]))
client.known("metrics")
print(client._worker.process._process.pid, *inside(client), flush=True)
sys.stdin.read()
"""


def test_it_ends_with_the_process_that_asked(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        pids = asking.stdout.readline().split()
        assert len(pids) == 2 and all(Path("/proc", pid).exists() for pid in pids)
        os.kill(asking.pid, signal.SIGKILL)
    wait_until(lambda: not any(Path("/proc", pid).exists() for pid in pids))
    wait_until(lambda: groups(asking.pid) == [])


def test_without_bubblewrap_one_line_says_what_to_install(bad: Evaluators, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined.shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"bubblewrap is missing; apt-get install .* bubblewrap$"):
        bad.has_metric("equal")


def test_what_is_no_interpreter_is_said_in_one_line(tmp_path: Path) -> None:
    (mute := tmp_path / "mute").write_text("#!/bin/sh\n")
    mute.chmod(0o755)
    for python, reason in (
        (str(mute), "is no Python 3.11 or newer"),
        ("/bin/false", "is no Python 3.11 or newer"),
        ("/etc/passwd", "Permission denied"),
        ("no-such-python", "No such file or directory"),
    ):
        with pytest.raises(ConfigError, match=f"^env.osworld_python={python}: {reason}") as refused:
            Evaluators(python).has_metric("equal")
        assert "\n" not in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes nobody")
def test_packages_that_nobody_may_read_are_named_with_what_to_do(tmp_path: Path) -> None:
    client = client_of(tmp_path)
    (tmp_path / "lib").chmod(0o700)
    with pytest.raises(ConfigError, match=rf"runs as nobody, who may not read {tmp_path}/lib: chmod -R o\+rX"):
        client.has_metric("equal")


def test_an_interpreter_that_only_root_may_reach_is_shown_to_nobody(tmp_path: Path) -> None:
    """As `make osworld-client` makes it for root, in its home."""
    (closed := tmp_path / "closed").mkdir(mode=0o700)
    client = client_of(closed / "client")
    try:
        assert client.metric("is_root", [""], {}) == 0.0
    finally:
        client.close()


# The real thing: metrics of OSWorld's client as they are.


def packed(**members: bytes) -> bytes:
    """A tar file whose members have these names, ready to be run as who owns them."""
    with tarfile.open(fileobj=(made := io.BytesIO()), mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.uid, info.gid = len(data), 0o6755, 0, 0
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def bound(**members: bytes) -> bytes:
    with zipfile.ZipFile(made := io.BytesIO(), "w") as book:
        for name, data in members.items():
            book.writestr(name, data)
    return made.getvalue()


@pytest.fixture(scope="module")
def real() -> Iterator[Evaluators]:
    client = Evaluators(str(PYTHON))
    client.has_metric("compare_epub")  # it is there before what a test may leave behind is counted
    yield client
    client.close()


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="OSWorld's client is not installed: `make osworld-client` does it")
@pytest.mark.parametrize("metric", ["compare_archive", "compare_epub"])
def test_an_archive_that_leads_out_writes_nothing_to_the_host(
    real: Evaluators, start: Start, tmp_path: Path, metric: str
) -> None:
    sandbox, up = start(), "../" * 20
    pack, name = (packed, "a.tar") if metric == "compare_archive" else (bound, "a.epub")
    good = pack(**{"page.html": b"<p>same</p>"})
    file = {"type": "vm_file", "path": f"/home/user/{name}", "dest": name}
    gold = {"type": "vm_file", "path": f"/home/user/gold-{name}", "dest": name}
    evaluator = {"func": metric, "result": file, "expected": gold}
    task = Task("t-1", "os", "Pack it.", "desktop", {"config": []}, evaluator, "mine")
    sandbox.write(f"/home/user/gold-{name}", good)
    sandbox.write(f"/home/user/{name}", good)
    assert score(sandbox, task, "", osworld=real) == 1.0
    absolute, upwards = str(tmp_path / "absolute.html"), up + str(tmp_path / "upwards.html").lstrip("/")
    for place in (absolute, upwards):
        sandbox.write(f"/home/user/{name}", pack(**{place: b"<p>same</p>"}))
        if metric == "compare_archive":
            assert score(sandbox, task, "", osworld=real) == 0.0
            continue
        with pytest.raises(EnvError, match=rf"{metric} failed: .*(Read-only|Permission|No such file)"):
            score(sandbox, task, "", osworld=real)  # no reward and no score: docs/sandbox.md says why
    assert list(tmp_path.iterdir()) == []
    sandbox.write(f"/home/user/{name}", good)
    assert score(sandbox, task, "", osworld=real) == 1.0, "nothing is left of the others"
