"""OSWorld's virtual machines, each in a Docker container.

    machine = Container(Docker(disk=Path("Ubuntu.qcow2")))
    machine.wait()                  it has booted
    machine.python("pyautogui.click(120, 44)")
    machine.close()

Containers do not outlive this process, however it ends: beside each waits a shell for the end of a pipe, to remove it.
"""

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import time
import urllib.request
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.envs.memory import reserved
from arpo.errors import EnvError

READY_S = 300.0  # the limit for a boot, as OSWorld's own provider has it
CALL_S, DOCKER_S = 120.0, 60.0
IMAGE = "happysixd/osworld-docker"  # OSWorld's own
PORTS = {"server": 5000, "chromium": 9222, "vnc": 8006, "vlc": 8080}  # inside a container
# A line says that it has been made, the end of the pipe that it is to go. One that was not yet made when its owner died
# may still come: for a minute it is tried again. What is removed is named.
REMOVE = """
if read _; then tries=10; read _; else tries=120; fi
for _ in $(seq $tries); do
  [ -z "$(docker rm --force "$0" 2>/dev/null)" ] || exit 0
  sleep 0.5
done
"""


@dataclass(frozen=True, slots=True)
class Docker:
    """How machines are made. The engine is the one that the `docker` command talks to."""

    image: str = IMAGE
    disk: Path | None = None  # the virtual machine's disk, a .qcow2 that all share and none writes to
    memory_gb: float = 4  # of each, as OSWorld's own provider
    kvm: bool = True
    host_network: bool = False  # where the engine has no bridge: the machine's server is told its port

    def arguments(self, ports: dict[str, int]) -> list[str]:
        """Of `docker run`."""
        words = ["--rm", "--label", "arpo", "--cap-add", "NET_ADMIN"]
        words += ["-e", f"RAM_SIZE={self.memory_gb:g}G", "-e", "CPU_CORES=4", "-e", "DISK_SIZE=32G"]
        if self.kvm:
            words += ["--device", "/dev/kvm"]
        if self.disk is not None:
            words += ["-v", f"{self.disk.resolve()}:/System.qcow2:ro"]
        if self.host_network:
            words += ["--network", "host", *(f"--env={name.upper()}_PORT={port}" for name, port in ports.items())]
        else:
            words += [f"--publish=127.0.0.1:{port}:{PORTS[name]}" for name, port in ports.items()]
        return [*words, self.image]

    def missing(self) -> list[tuple[str, str]]:
        """What this machine lacks, and what to do about it."""
        lacking = []
        if shutil.which("docker") is None:
            lacking.append(("docker", "install Docker: apt-get install docker.io"))
        elif _docker("info", check=False).returncode:
            lacking.append(("the Docker engine", "start it (systemctl start docker), or set DOCKER_HOST"))
        elif _docker("image", "inspect", self.image, check=False).returncode:
            lacking.append((f"the image {self.image}", f"docker pull {self.image}"))
        if self.kvm and not Path("/dev/kvm").exists():
            lacking.append(("/dev/kvm", "it takes a host with hardware virtualisation; without, boots are slow"))
        if self.disk is None and self.image == IMAGE:
            lacking.append(("a disk", "OSWorld's README says where its disk image is; set env.osworld_disk to it"))
        if self.disk is not None and not self.disk.is_file():
            lacking.append((str(self.disk), "OSWorld's README says where its disk image is; unpack it there"))
        return lacking


class Container:
    """One machine. It boots while nobody waits; `wait` says when it is ready. NoRoom where its memory is not there."""

    def __init__(self, docker: Docker) -> None:
        self._held = contextlib.ExitStack()
        self._held.enter_context(reserved(docker.memory_gb * 1024, "machine"))
        self.ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
        self.id = f"arpo-{uuid.uuid4().hex}"
        # Before the container: there is no moment in which nobody would remove it.
        self._watch = subprocess.Popen(
            ["sh", "-c", REMOVE, self.id],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,  # not ours: who reads that would wait for it too
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not for it
        )
        assert self._watch.stdin is not None
        try:
            _docker("run", "--detach", "--name", self.id, *docker.arguments(self.ports))
            self._watch.stdin.write(b"\n")
            self._watch.stdin.flush()
        except BaseException:
            self.close(wait=False)
            raise

    def wait(self, limit_s: float = READY_S) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            try:
                self.screenshot()
            except EnvError as error:
                if time.monotonic() > deadline:
                    raise EnvError(f"the machine did not come up within {limit_s:g} s: {error}") from error
                if _docker("inspect", "-f", "{{.State.Running}}", self.id, check=False).stdout.strip() != "true":
                    raise EnvError("the machine's container ended while it was starting") from error
                time.sleep(0.25)
            else:
                return

    def screenshot(self) -> bytes:
        return self._call("GET", "screenshot")

    def python(self, source: str) -> None:
        """Run source in the machine, as OSWorld's client does. EnvError where it failed."""
        program = f"import pyautogui; import time; pyautogui.FAILSAFE = False; {source}"
        reply = json.loads(self._call("POST", "execute", {"command": ["python", "-c", program], "shell": False}))
        if reply.get("returncode"):
            raise EnvError(f"the machine could not do it: {str(reply.get('error')).strip()[-200:]}")

    def close(self, wait: bool = True) -> None:
        """Remove it; or only see to it that it will be. May be called twice."""
        assert self._watch.stdin is not None
        self._watch.stdin.close()
        self._held.close()
        if wait:
            with contextlib.suppress(subprocess.TimeoutExpired):  # the engine hangs: the shell tries on without us
                self._watch.wait(DOCKER_S)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        sent = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.ports['server']}/{path}"
        request = urllib.request.Request(url, sent, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=CALL_S) as answer:
                data: bytes = answer.read()
                return data
        except (OSError, http.client.HTTPException) as error:
            raise EnvError(f"/{path}: {error}") from error


def _docker(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    try:
        ran = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=DOCKER_S)
    except subprocess.TimeoutExpired:
        raise EnvError(f"docker {arguments[0]} did not answer within {DOCKER_S:g} s: is its engine well?") from None
    if check and ran.returncode:
        raise EnvError(f"docker {arguments[0]}: {(ran.stderr.strip().splitlines() or ['failed'])[-1]}")
    return ran


def _free_ports(n: int) -> list[int]:
    """Ports that nobody has now. Where another is faster the container does not start; the next attempt has others."""
    sockets = [socket.socket() for _ in range(n)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
