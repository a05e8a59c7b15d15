"""OSWorld itself: its virtual machines in Docker containers, one fresh container an episode.

    make("osworld", size=(1920, 1080), osworld_disk="Ubuntu.qcow2", osworld_python="client/bin/python")

The machine is booted, removed and looked at here; preparing a task and scoring it is left to OSWorld's own client, in
an interpreter of its own (osworld_client.py). The next machine boots while an episode is played. Nothing sleeps for a
fixed time: a machine is ready when its server shows a screen, a screen is settled when it stays the same.

What the agent does goes to the machine's server as Python source, as OSWorld has it; the source is one of the fixed
templates below, and the model's text only ever stands in it as a base64 literal.

Containers do not outlive this process, however it ends: beside each waits a shell for the end of a pipe, to remove it.
"""

import base64
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

from arpo.agent.actions import ENDING, Action, CallUser, Click, Drag, Fail, Finish, Hotkey, Scroll, Type, Wait
from arpo.envs.base import refuse_bad_action
from arpo.envs.conversation import Conversation, clipped, number
from arpo.envs.desktop import delegate
from arpo.envs.desktop.checks import asked_for, listed
from arpo.envs.desktop.checks.reading import Unreadable
from arpo.envs.desktop.memory import reserved
from arpo.errors import ActionError, ConfigError, EnvError, NoRoom, TaskError
from arpo.images import decode, pixel_hash
from arpo.tasks.osworld import did_you_mean, refuse_malformed
from arpo.types import Observation, Task

READY_S = 300.0  # the limit for a boot, as OSWorld's own provider has it
CALL_S, SETUP_S, DOCKER_S = 120.0, 600.0, 60.0
SETTLE_S, LOOK_S = 2.0, 0.15  # at most so long after an action; two equal screens so far apart are settled
WAIT_S = 2.0
NOTCHES = 5  # of the wheel, for one gesture
IMAGE = "happysixd/osworld-docker"  # OSWorld's own
# A line says that it has been made, the end of the pipe that it is to go. One that was not yet made when its owner died
# may still come: for a minute it is tried again. What is removed is named.
REMOVE = """
if read _; then tries=10; read _; else tries=120; fi
for _ in $(seq $tries); do
  [ -z "$(docker rm --force "$0" 2>/dev/null)" ] || exit 0
  sleep 0.5
done
"""
# What pyautogui writes for "<" is ">", here and in press: https://github.com/asweigart/pyautogui/issues/198
WRITE = """
for i, part in enumerate(t.split('<')):
    if i: pyautogui.hotkey('shift', ',')
    pyautogui.write(part, interval=0.01)
"""
PASTE = "__import__('pyperclip').copy(t); pyautogui.hotkey('ctrl', 'v')"  # what pyautogui cannot write at all
KEYS = {"super": ("win",), "print": ("printscreen",), "<": ("shift", ",")}  # that pyautogui calls otherwise
PORTS = {"server": 5000, "chromium": 9222, "vnc": 8006, "vlc": 8080}  # inside a container


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
        found = ["--rm", "--label", "arpo", "--cap-add", "NET_ADMIN"]
        found += ["-e", f"RAM_SIZE={self.memory_gb:g}G", "-e", "CPU_CORES=4", "-e", "DISK_SIZE=32G"]
        if self.kvm:
            found += ["--device", "/dev/kvm"]
        if self.disk is not None:
            found += ["-v", f"{self.disk.resolve()}:/System.qcow2:ro"]
        if self.host_network:
            found += ["--network", "host", *(f"--env={name.upper()}_PORT={port}" for name, port in ports.items())]
        else:
            found += [f"--publish=127.0.0.1:{port}:{PORTS[name]}" for name, port in ports.items()]
        return [*found, self.image]

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
        line = f"import pyautogui; import time; pyautogui.FAILSAFE = False; {source}"
        reply = json.loads(self._call("POST", "execute", {"command": ["python", "-c", line], "shell": False}))
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
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.ports['server']}/{path}"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=CALL_S) as answer:
                found: bytes = answer.read()
                return found
        except (OSError, http.client.HTTPException) as error:
            raise EnvError(f"/{path}: {error}") from error


class Client:
    """OSWorld's own client: prepares a task on a machine and scores it there. Started when it is first needed.

    It has the host's network, to reach the machine and to fetch what tasks need, and is held in a sandbox otherwise.
    Metrics are asked of another one without a network (desktop/delegate.py).
    """

    def __init__(self, python: str) -> None:
        self._python, self._metrics = python, delegate.client(python)
        self._talk: Conversation | None = None

    def setup(self, ports: dict[str, int], size: tuple[int, int], task: Task) -> None:
        if self._talk is None:
            programs = [Path(__file__).with_name("osworld_client.py"), delegate.WORKER]
            try:
                self._talk = Conversation(self._python, programs, "OSWorld's client", network=True)
            except (OSError, EnvError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise ConfigError(f"env.osworld_python={self._python}: {reason}") from None
        address = ":".join(["127.0.0.1", *(str(ports[name]) for name in PORTS)])
        data = {"id": task.id, "instruction": task.instruction, "evaluator": task.evaluator, **task.setup}
        self._ask({"do": "setup", "address": address, "size": size, "task": data})

    def evaluate(self) -> float:
        return number(self._ask({"do": "evaluate"}), "OSWorld's client")

    def close(self) -> None:
        """May be called twice."""
        if self._talk is not None:
            talk, self._talk = self._talk, None
            talk.close()

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._talk is not None
        try:
            reply = self._talk.ask(request, SETUP_S, self._metric)
        except BaseException:
            self.close()
            raise
        if "is" not in reply:
            raise EnvError(f"OSWorld's client: {clipped(reply.get('error'))}")
        return reply["is"]

    def _metric(self, call: str, arguments: list[Any]) -> float:
        """What it asks back. What the agent's file took over the limits of its checker scores 0."""
        if call != "metric":
            raise ValueError(f"there is no {call!r:.80}")
        name, pickled, files = arguments
        try:
            return self._metrics.score({"metric": name, "pickled": pickled, "files": files})
        except Unreadable:
            return 0.0


class OsworldEnv:
    """See the module."""

    def __init__(
        self,
        size: tuple[int, int] = (1920, 1080),
        osworld_image: str = IMAGE,
        osworld_disk: str | None = None,
        osworld_python: str | None = None,
        docker: Docker | None = None,
    ) -> None:
        docker = docker or Docker(osworld_image, Path(osworld_disk) if osworld_disk else None)
        if osworld_python is None:
            raise ConfigError("env.osworld_python is not set: the interpreter of OSWorld's client; make osworld-client")
        if lacking := docker.missing():
            what, how = lacking[0]
            raise ConfigError(f"env.name=osworld: {what} is missing; {how}")
        self.size, self._docker, self._client = size, docker, Client(osworld_python)
        self._settings = {"osworld_python": osworld_python}
        self.ended = True
        self._task: Task | None = None
        self._last: Action | None = None
        self._machine: Container | None = None
        self._spare: Container | None = Container(docker)
        self._leaving: list[Container] = []  # being removed while the next episode is played

    def reset(self, task: Task, seed: int) -> Observation:
        """A fresh machine, prepared for the task. The seed changes nothing."""
        refuse(task, self._settings)
        self.ended = True
        for machine in self._leaving:
            machine.close()
        self._leaving = [self._machine] if self._machine is not None else []
        for machine in self._leaving:
            machine.close(wait=self._spare is None)  # where there was no room for two it makes room for the next
        self._machine, self._spare = self._spare or Container(self._docker), None
        self._machine.wait()
        with contextlib.suppress(NoRoom):
            self._spare = Container(self._docker)
        self._client.setup(self._machine.ports, self.size, task)
        self._task, self._last, self.ended = task, None, False
        return self._settled()

    def step(self, action: Action) -> Observation:
        refuse_bad_action(action, self.size, self.ended)
        assert self._machine is not None
        self._last = action
        if isinstance(action, ENDING):
            self.ended = True
            return _observation(self._machine.screenshot())
        self._machine.python(source(action))
        return self._settled()

    def score(self) -> float:
        assert self._machine is not None and self._task is not None, "reset first"
        self._machine.screenshot()  # a dead machine is no score: to OSWorld's client it is one without files
        failed = isinstance(self._last, Fail)
        if failed or not self._task.feasible:
            return float(failed and not self._task.feasible)
        score = self._client.evaluate()
        self._machine.screenshot()
        return score

    def close(self) -> None:
        self.ended = True
        for machine in (self._machine, self._spare, *self._leaving):
            if machine is not None:
                machine.close()
        self._machine, self._spare, self._leaving = None, None, []
        self._client.close()

    def _settled(self) -> Observation:
        """The screen when it has not changed between two looks; after SETTLE_S as it is."""
        assert self._machine is not None
        deadline = time.monotonic() + SETTLE_S
        seen = _observation(self._machine.screenshot())
        while time.monotonic() < deadline:
            time.sleep(LOOK_S)
            now = _observation(self._machine.screenshot())
            if now.hash == seen.hash:
                break
            seen = now
        return seen


def refuse(task: Task, settings: dict[str, Any]) -> None:
    """TaskError for one that could not be scored, before a machine boots. It takes a client to know that."""
    refuse_malformed(task)
    python = settings.get("osworld_python")
    if python is None or not task.feasible:
        return
    client = delegate.client(python)
    wanted = {name: client.known("metrics") for name in listed(task.evaluator["func"])}
    if refused := sorted(wanted.keys() & client.known("refused")):
        raise TaskError(f"{task.id}: the metric {', '.join(refused)} is not used here: docs/osworld-tasks.md says why")
    wanted |= {what["type"]: client.known("every_getter") for what in asked_for(task.evaluator)}
    for name, known in wanted.items():
        if name not in known:
            raise TaskError(f"{task.id}: OSWorld's client has no checker {name}{did_you_mean([name], known)}")


def source(action: Action) -> str:
    """An action as Python source for the machine. Numbers and known names stand as they are, text as base64."""
    match action:
        case Click(x, y, button, count):
            return f"pyautogui.click({x:d}, {y:d}, clicks={count:d}, interval=0.05, button={button!r})"
        case Drag(x, y, to_x, to_y):
            return f"pyautogui.moveTo({x:d}, {y:d}); pyautogui.dragTo({to_x:d}, {to_y:d}, duration=0.5, button='left')"
        case Scroll(x, y, "up" | "down" as direction):
            notches = NOTCHES if direction == "up" else -NOTCHES
            return f"pyautogui.scroll({notches:d}, x={x:d}, y={y:d})"
        case Scroll(x, y, direction):
            notches = NOTCHES if direction == "right" else -NOTCHES
            return f"pyautogui.hscroll({notches:d}, x={x:d}, y={y:d})"
        case Type(text):
            literal = base64.b64encode(text.encode("utf-8", "ignore")).decode()
            how = WRITE if text.isascii() else PASTE
            return f"t = __import__('base64').b64decode('{literal}').decode()\n{how}"
        case Hotkey(keys, phase):
            names = [repr(name) for key in keys for name in _key(key)]
            if phase == "press":
                return f"pyautogui.hotkey({', '.join(names)})"
            return "; ".join(f"pyautogui.key{phase.capitalize()}({name})" for name in names)
        case Wait():
            return f"time.sleep({WAIT_S:g})"
        case Finish() | Fail() | CallUser():
            raise ValueError("an ending action is not done by the machine")


def _key(name: str) -> tuple[str, ...]:
    """A key for pyautogui. Only letters, digits and single printable characters get through."""
    if name.isascii() and (name.isalnum() or (len(name) == 1 and name.isprintable())):
        return KEYS.get(name, (name,))
    raise ActionError(f"unknown key {name!r}")


def _observation(image: bytes) -> Observation:
    try:
        pixels = decode(image)
    except OSError as error:
        raise EnvError(f"the machine's screenshot is no picture: {error}") from error
    height, width, _ = pixels.shape
    return Observation(image=image, width=width, height=height, hash=pixel_hash(pixels))


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
