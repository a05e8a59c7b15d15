"""A Docker engine of the tests' own and the image of the stand-in machine, where the system allows it.

The engine is Debian's, started by hand without networks of its own, and ended with the tests. The image is a minimal
Debian made by debootstrap, kept in the user's cache folder, with the stand-in's program in it.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from standin import IMAGE

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "arpo" / "standin-root"


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    """`docker` talks to an engine that has the image."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("dockerd", "docker", "debootstrap"))):
        pytest.skip("needs root and `apt-get install docker.io debootstrap`")
    folder = Path(tempfile.mkdtemp(prefix="arpo-docker-"))  # its layers are not for pytest to keep
    before, os.environ["DOCKER_HOST"] = os.environ.get("DOCKER_HOST"), f"unix://{folder}/socket"
    places = [
        "--data-root",
        str(folder / "data"),
        "--exec-root",
        str(folder / "exec"),
        "--pidfile",
        str(folder / "pid"),
    ]
    quiet = ["--iptables=false", "--ip-forward=false", "--bridge=none"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["dockerd", *places, "-H", os.environ["DOCKER_HOST"], *quiet], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        wait_for(process, folder / "log")
        build()
        yield
    finally:
        process.terminate()
        process.wait()
        left = folder / "exec/netns/default"  # the one thing that it leaves behind, if a container was run
        if os.path.ismount(left):  # Path.is_mount knows folders alone
            subprocess.run(["umount", left], check=True)
        shutil.rmtree(folder)
        del os.environ["DOCKER_HOST"]
        if before is not None:
            os.environ["DOCKER_HOST"] = before


def wait_for(process: "subprocess.Popen[bytes]", log: Path) -> None:
    for _ in range(120):
        if subprocess.run(["docker", "info"], capture_output=True).returncode == 0:
            return
        if process.poll() is not None:
            break
        time.sleep(0.25)
    pytest.skip(f"the Docker engine does not start here: {log.read_text().strip().splitlines()[-1:]}")


def build() -> None:
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with CACHE.with_suffix(".lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (CACHE / "etc/arpo").exists():
            shutil.rmtree(CACHE, ignore_errors=True)
            command = ["debootstrap", "--variant=minbase", "--include=python3", "bookworm", str(CACHE)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            (CACHE / "etc/arpo").touch()  # whole
    shutil.copy(Path(__file__).with_name("standin.py"), CACHE / "standin.py")
    with subprocess.Popen(["tar", "-C", str(CACHE), "-c", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(
            ["docker", "import", "--change", 'CMD ["python3", "/standin.py"]', "-", IMAGE],
            stdin=tar.stdout,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    assert tar.returncode == 0
