"""What other users of the machine can put in the way of desktops, and that buffers of connections are counted."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from arpo.envs import memory, private
from arpo.envs.desktop import home
from arpo.errors import ConfigError

STRANGER = 54321


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(memory, "free_mb", lambda: 10.5 * memory.DESKTOP_MB)
    return tmp_path


def foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's, where this process may give it away; else this process is the other user."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, STRANGER)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)


def one_line(error: pytest.ExceptionInfo[ConfigError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.attack("local user")
def test_a_socket_name_that_another_user_has_bound_keeps_nobody_from_starting(runtime: Path) -> None:
    with socket.socket(socket.AF_UNIX) as name, contextlib.suppress(OSError):  # another test may have it
        name.bind("\0arpo-desktop-lock")
        with memory.reserved():
            assert memory.fitting() == 9


@pytest.mark.attack("local user")
def test_a_place_that_another_user_forges_as_a_socket_name_counts_nothing(runtime: Path) -> None:
    with socket.socket(socket.AF_UNIX) as name:
        name.bind(f"\0arpo-desktop/{memory.time.monotonic_ns()}/{os.getpid()}/0/999999")
        assert memory.fitting() == 10


@pytest.mark.attack("local user")
def test_a_prepared_folder_of_another_user_is_refused(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setattr(private.os, "access", lambda *_: False)  # as where /run cannot be written
    monkeypatch.setattr(private.tempfile, "gettempdir", lambda: str(runtime))
    prepared = private._place()
    assert prepared == runtime / f"arpo-{os.geteuid()}"
    prepared.mkdir(0o700)
    with memory.reserved():
        pass
    foreign(prepared, monkeypatch)
    monkeypatch.setattr(private, "_place", lambda: prepared)
    with pytest.raises(ConfigError) as refused, memory.reserved():
        pass
    assert one_line(refused) == (
        f"{prepared}: is not a folder of yours; remove it, or set XDG_RUNTIME_DIR to a folder that is"
    )


@pytest.mark.attack("local user")
def test_a_link_in_the_folders_place_is_refused_and_its_target_left_alone(runtime: Path) -> None:
    target = runtime / "target"
    target.mkdir(0o700)
    (runtime / "arpo").symlink_to(target)
    with pytest.raises(ConfigError) as refused, memory.reserved():
        pass
    assert "is not a folder of yours" in one_line(refused) and not list(target.iterdir())


@pytest.mark.attack("local user")
def test_a_file_in_the_folders_place_is_refused(runtime: Path) -> None:
    (runtime / "arpo").write_text("")
    with pytest.raises(ConfigError, match="is not a folder of yours"):
        memory.fitting()


@pytest.mark.attack("local user")
def test_a_folder_that_others_can_use_is_refused(runtime: Path) -> None:
    (runtime / "arpo").mkdir()
    (runtime / "arpo").chmod(0o755)
    with pytest.raises(ConfigError) as refused:
        memory.fitting()
    assert one_line(refused).endswith(f"chmod go-rwx {runtime}/arpo")


@pytest.mark.attack("local user")
@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_runtime_folder_that_others_can_write_to_is_not_used(runtime: Path, mode: int) -> None:
    runtime.chmod(mode)
    assert private._place() != runtime / "arpo"
    runtime.chmod(0o700)
    assert private._place() == runtime / "arpo"


@pytest.mark.attack("local user")
def test_a_link_in_the_place_of_the_lock_is_not_followed(runtime: Path) -> None:
    target = runtime / "target"
    (private.folder() / "places.lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"), memory.reserved():
        pass
    assert not target.exists()


def test_others_can_open_nothing_of_it(runtime: Path) -> None:
    with memory.reserved():
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (runtime / "arpo", *(runtime / "arpo").iterdir())]
    assert modes == [0o700, 0o600, 0o600]


HOLDER = """
import sys
from arpo.envs import memory
memory.free_mb = lambda: 10.5 * memory.DESKTOP_MB
with memory.reserved():
    print("in", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_place_goes_with_its_process_however_that_ends(runtime: Path, end: signal.Signals) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLDER], text=True, **pipes) as holder:  # type: ignore[call-overload]
        assert holder.stdout.readline() == "in\n"
        assert memory.fitting() == 9
        holder.send_signal(end)
    assert memory.fitting() == 10
    assert len(list((runtime / "arpo").iterdir())) == 2, "the lock, and what it left"
    with memory.reserved():
        assert len(list((runtime / "arpo").iterdir())) == 2, "the lock, and the new one"


def test_what_an_earlier_life_of_the_machine_left_counts_nothing(runtime: Path) -> None:
    left = private.folder() / f"place-{memory.time.monotonic_ns() + 10**15}-1-0-300"
    left.touch()
    assert memory.fitting() == 10
    with memory.reserved():
        assert not left.exists()


@pytest.mark.attack("local user")
@pytest.mark.parametrize("how", ["foreign", "link", "open"])
def test_a_home_that_another_user_has_prepared_is_not_used(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache, real = tmp_path / "arpo", tmp_path / "real"
    (real if how == "link" else cache).mkdir(mode=0o700)
    if how == "link":
        cache.symlink_to(real)
    (cache / f"home-640x480-{home._key()}.tar").write_text("theirs")
    if how == "foreign":
        foreign(cache, monkeypatch)
    elif how == "open":
        cache.chmod(0o777)
    with pytest.raises(ConfigError) as refused:
        home.template((640, 480))
    assert ("chmod go-w" if how == "open" else "XDG_CACHE_HOME") in one_line(refused)


BUFFERS = """
import socket, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as group:
    group.write("0")
listening, kept = socket.create_server(("127.0.0.1", 0)), []
for _ in range(40):
    there = socket.create_connection(listening.getsockname())
    kept += [there, listening.accept()[0]]
    for one in kept[-2:]:
        one.setblocking(False)
        try:
            while True:
                one.send(bytes(1 << 16))
        except BlockingIOError:
            pass
print("full", flush=True)
sys.stdin.readline()
"""


@pytest.mark.attack("agent")
def test_buffers_of_connections_take_no_more_than_the_groups_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first version of control groups counts them; the second counts them with all other memory."""
    monkeypatch.setattr(memory, "TCP_MB", 4)
    group = memory.new_group(256)
    if group is None or not (group / "memory.kmem.tcp.limit_in_bytes").exists():
        memory.remove(group)
        pytest.skip("no control group of the first version can be made here")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    try:
        command = [sys.executable, "-c", BUFFERS, str(group)]
        with subprocess.Popen(command, text=True, **pipes) as attack:  # type: ignore[call-overload]
            assert attack.stdout.readline() == "full\n"
            taken = int((group / "memory.kmem.tcp.usage_in_bytes").read_text())
            attack.stdin.close()
        assert 0 < taken < 16 << 20, "of some 300 MB that they would take; each end may always send one piece of 64 kB"
    finally:
        memory.remove(group)
