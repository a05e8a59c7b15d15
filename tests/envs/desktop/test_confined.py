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
from pathlib import Path

import pytest
from traces import Traces, groups, wait_until

from arpo.envs import confined
from arpo.envs.desktop import delegate
from arpo.envs.desktop.checks import score
from arpo.envs.desktop.checks.reading import Unreadable
from arpo.envs.desktop.delegate import Client
from arpo.envs.desktop.files import Files
from arpo.envs.desktop.sandbox import Sandbox
from arpo.errors import ConfigError, EnvError
from arpo.types import Task

pytestmark = pytest.mark.desktop
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
PYTHON = CACHE / "arpo" / "osworld-client" / "bin" / "python"
BAD = """
import ctypes, os, socket, subprocess, sys, time
def equal(found, wanted): return open(found).read() == open(wanted).read()
def writes(path): return bool(open(path, "w"))
def reads(path): return len(open(path, "rb").read())
def lists(path): return len(os.listdir(path))
def sees_variable(name): return name in os.environ
def is_root(_): return 0 in (os.getuid(), os.geteuid(), os.getgid())
def connects(port): return bool(socket.create_connection(("127.0.0.1", port)))
def reaches(name): return bool(socket.socket(socket.AF_UNIX).connect(name))
def makes_namespaces(_): return subprocess.run(["unshare", "--user", "true"]).returncode == 0
def takes_memory(_): return len(bytearray(8 << 30))
def takes_memory_in_parts(_):
    parts = []
    while True: parts.append(b"x" * (64 << 20))
def fills(path):
    with open(path, "wb") as file:
        while True: file.write(bytes(1 << 20))
def waits(_): time.sleep(1000)
def spins(_):
    while True: pass
def waits_for_a_pipe(path):
    os.mkfifo(path)
    return open(path).read()
def forks(_):
    made = 0
    while True:
        try:
            if not os.fork(): time.sleep(1000)
        except OSError:
            return made
        made += 1
def crashes(_): os.kill(os.getpid(), 11)
def leaves(path):
    if not os.fork():
        os.setsid()
        if os.fork(): os._exit(0)
        while True: time.sleep(1)
    os.makedirs(path + "/a/b")
    os.chdir(path)
    for _ in range(3000):
        os.mkdir("deep"); os.chdir("deep")
    os.chmod(path + "/a", 0)
    return 1
def processes(_): return sum(name.isdigit() for name in os.listdir("/proc"))
def ends_the_parent(_):
    for number in (9, 15, 19): os.kill(1, number)
    return 1
def looks_into_the_parent(_): return len(os.listdir("/proc/1/fd"))
def replies_ahead(_):
    for fd in range(3, 64):
        try: os.write(fd, b'{"id": null, "is": 0}\\n{"id": "1", "is": 1}\\n')
        except OSError: pass
    return 1
def says_no_number(_): return float("nan")
"""
GETTERS = """
import os
def get_leads_out(env, config):
    os.symlink("/etc/passwd", os.path.join(env.cache_dir, "link"))
    open(os.path.join(env.cache_dir, "plain"), "w").write("plain")
    return os.path.join(env.cache_dir, config["name"])
"""
Start = Callable[..., Sandbox]


@pytest.fixture
def bad(tmp_path: Path) -> Iterator[Client]:
    """A client whose metrics are what agents would like them to be."""
    client = client_of(tmp_path)
    yield client
    client.close()


def client_of(folder: Path) -> Client:
    package = folder / "lib" / "desktop_env" / "evaluators"
    package.mkdir(parents=True)
    (package / "metrics.py").write_text(BAD)
    (package / "getters.py").write_text(GETTERS)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder}/lib exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return Client(str(python))


def test_files_are_given_to_a_metric_and_paths_fit(bad: Client, tmp_path: Path) -> None:
    (folder := tmp_path / "files" / "deep").mkdir(parents=True)
    for name in ("a", "b"):
        (folder / name).write_text("same")
    assert bad.metric("equal", [str(folder / "a"), str(folder / "b")], {}, tmp_path / "files") == 1.0
    with pytest.raises(EnvError, match="No such file"):
        bad.metric("equal", [str(folder / "a"), str(folder / "b")], {})


def test_it_writes_nothing_to_the_host(bad: Client, tmp_path: Path) -> None:
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
        with pytest.raises((Unreadable, EnvError)):
            bad.metric("writes", [str(place / "arpo-was-here")], {})
        assert not (place / "arpo-was-here").exists()
    with pytest.raises(Unreadable):  # its own packages
        bad.metric("writes", [str(tmp_path / "lib" / "more.py")], {})
    assert bad.metric("writes", ["/arpo/tmp/a"], {}) == 1.0, "there is one folder for it"


def test_it_reads_nothing_of_the_host_but_programs(bad: Client, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    for path in ("/etc/shadow", "/etc/hostname", tmp_path / "secret", __file__, Path.home() / ".bashrc"):
        with pytest.raises(EnvError, match="No such file"):
            bad.metric("reads", [str(path)], {})
    assert bad.metric("lists", ["/tmp"], {}) == 1.0, "the way to its interpreter"


def test_it_sees_no_variables_of_ours_and_is_not_root(bad: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert bad.metric("sees_variable", ["WANDB_API_KEY"], {}) == 0.0
    assert bad.metric("is_root", [""], {}) == 0.0
    assert bad.metric("makes_namespaces", [""], {}) == 0.0
    if os.geteuid() == 0:
        assert {Path(f"/proc/{pid}").stat().st_uid for pid in inside(bad)} <= {0, 65534}
        status = [Path(f"/proc/{pid}/status").read_text() for pid in inside(bad)]
        assert all("\nUid:\t65534\t65534\t65534\t65534\n" in text for text in status)


def inside(client: Client) -> list[int]:
    """The processes in its sandbox, as the host sees them: below bubblewrap, which is below the shell."""
    assert client._talk is not None
    found, shell = [], client._talk._process.pid
    for bwrap in children(shell):
        found += children(bwrap)
    assert found
    return found


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_it_reaches_no_port_and_no_socket_of_the_host(bad: Client) -> None:
    with socket.create_server(("127.0.0.1", 0)) as port, socket.socket(socket.AF_UNIX) as named:
        named.bind(f"\0arpo-test-{os.getpid()}")
        named.listen()
        with pytest.raises(EnvError, match="refused"):
            bad.metric("connects", [port.getsockname()[1]], {})
        with pytest.raises(EnvError, match="refused"):
            bad.metric("reaches", [f"\0arpo-test-{os.getpid()}"], {})


@pytest.mark.parametrize(
    ("metric", "argument"),
    [
        ("takes_memory", ""),
        ("takes_memory_in_parts", ""),
        ("fills", "/arpo/tmp/a"),
        ("waits", ""),
        ("spins", ""),
        ("waits_for_a_pipe", "/arpo/tmp/pipe"),
        ("crashes", ""),
    ],
)
def test_a_file_that_takes_a_metric_over_its_limits_is_the_agents_doing_and_the_next_is_scored(
    bad: Client, metric: str, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bad.metric("is_root", [""], {}) == 0.0  # it is there, and stays: the same process serves the next
    monkeypatch.setattr(delegate, "METRIC_S", 60.0 if metric in ("takes_memory_in_parts", "fills") else 2.0)
    before = inside(bad)
    with pytest.raises(Unreadable):
        bad.metric(metric, [argument], {})
    monkeypatch.setattr(delegate, "METRIC_S", 60.0)
    assert bad.metric("sees_variable", ["HOME"], {}) == 1.0
    assert inside(bad) == before


def test_a_fork_bomb_stays_inside_its_limit_and_is_gone_with_its_metric(bad: Client) -> None:
    assert 0 < bad.metric("forks", [""], {}) < 64
    assert bad.metric("processes", [""], {}) == 2.0


def test_nothing_of_one_agents_files_is_there_for_the_next(bad: Client) -> None:
    assert bad.metric("leaves", ["/arpo/tmp/left"], {}) == 1.0
    assert bad.metric("lists", ["/arpo/tmp"], {}) == 1.0, "the next one's own folder"
    assert bad.metric("processes", [""], {}) == 2.0


def test_a_metric_cannot_end_or_look_into_the_process_that_answers(bad: Client) -> None:
    assert bad.metric("ends_the_parent", [""], {}) == 1.0
    with pytest.raises(Unreadable, match="Permission"):
        bad.metric("looks_into_the_parent", [""], {})


def test_a_reply_to_another_question_and_what_is_no_number_are_never_a_score(bad: Client) -> None:
    with pytest.raises(EnvError, match="answers what it was not asked"):
        bad.metric("replies_ahead", [""], {})
    with pytest.raises(EnvError, match="gives no number"):
        bad.metric("says_no_number", [""], {})
    assert bad.metric("is_root", [""], {}) == 0.0


def test_files_of_more_than_fits_are_the_agents_doing(bad: Client, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    with (tmp_path / "files" / "a").open("wb") as file:
        file.truncate((confined.SCRATCH_MB << 20) + 1)
    with pytest.raises(Unreadable, match="more than 512 MB"):
        bad.metric("reads", [str(tmp_path / "files" / "a")], {}, tmp_path / "files")


def test_files_that_a_getter_made_come_out_and_links_do_not(start: Start, bad: Client, tmp_path: Path) -> None:
    machine = delegate.Machine(start(), tmp_path / "cache", Files(), "")
    machine.cache.mkdir()
    assert bad.get("leads_out", machine, {"name": "plain"}) == str(machine.cache / "plain")
    assert bad.get("leads_out", machine, {"name": "../../../etc/shadow"}) != str(machine.cache / "../../../etc/shadow")
    assert [path.name for path in machine.cache.iterdir()] == ["plain"]
    for name in ("../out", "/tmp/arpo-out", "a/../../out", "plain/below", "a\0"):
        with pytest.raises(EnvError, match="cannot be kept"):
            delegate._keep({name: ""}, machine.cache)


def test_nothing_is_left_of_it_when_it_is_closed(bad: Client, traces: Traces) -> None:
    def things() -> list[object]:
        return [traces.things()["files"], groups(os.getpid())]

    before = things()
    bad.has_metric("equal")
    shell, (first,) = bad._talk._process.pid, inside(bad)  # type: ignore[union-attr]
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
print(client._talk._process.pid, *inside(client), flush=True)
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


def test_without_bubblewrap_one_line_says_what_to_install(bad: Client, monkeypatch: pytest.MonkeyPatch) -> None:
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
            Client(python).has_metric("equal")
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
def real() -> Iterator[Client]:
    client = Client(str(PYTHON))
    client.has_metric("compare_epub")  # it is there before what a test may leave behind is counted
    yield client
    client.close()


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason="OSWorld's client is not installed: `make osworld-client` does it")
@pytest.mark.parametrize("metric", ["compare_archive", "compare_epub"])
def test_an_archive_that_leads_out_writes_nothing_to_the_host(
    real: Client, start: Start, tmp_path: Path, metric: str
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
        try:
            found = score(sandbox, task, "", osworld=real)
        except EnvError:
            found = 0.0
        assert found < 1.0
    assert list(tmp_path.iterdir()) == []
    sandbox.write(f"/home/user/{name}", good)
    assert score(sandbox, task, "", osworld=real) == 1.0, "nothing is left of the others"
