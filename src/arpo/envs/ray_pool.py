"""Environments on the nodes of a Ray cluster, by the rules of pool.py: each is an actor in a process of its own.

    ray start --head --resources='{"desktop": 16}'          a node that has room for 16 desktops
    arpo train desktop env.ray=auto env.workers=16

An environment takes one unit of what its node offers for it (Backend.resource, `env.resource`): of `desktop`, or of
`docker:ADDRESS`, each node's own name. One that needs nothing runs on any node. Nodes are chosen here, the one with the
most room first, and not by Ray: so it is known what is lost with a node, and how many fit. Nodes may join and leave at
any time. What ran on a lost one is an EnvError, and its place is filled on another or, where there is no room, as soon
as a node joins. Ray restarts nothing, for the rules of the pool decide that.

A screenshot is encoded and hashed in the actor and travels once, to the process that stores it and shows it to the
engine (docs/scaling.md has what that costs). Ray's processes trust each other fully: whoever can talk to them can run
any program as their user. So a cluster has a token (RAY_AUTH_MODE=token), and a `local` one listens on loopback alone.
"""

import asyncio
import atexit
import importlib.metadata
import itertools
import logging
import os
import platform
import secrets
import shutil
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a change to come
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # else any call after the end would start a cluster

import ray
from ray._private import ray_constants
from ray._raylet import AuthenticationTokenLoader, Config
from ray.exceptions import ActorUnschedulableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from arpo.config import EnvConfig
from arpo.envs.base import Env, backend
from arpo.envs.pool import GRACE_S, Apart, SlotPool, guarded
from arpo.errors import ArpoError, ConfigError, EnvError, NoRoom, printable
from arpo.machine import cores

CONNECT_S = 10.0  # for the head to answer
LOOK_S = 1.0  # between two looks at which nodes there are
SHORT = "/tmp" if os.path.isdir("/tmp") else None  # Ray's sockets lie in it, whose names must not be long
STORE_MB, SCREEN_MB = 256, 8  # of a local cluster's memory for what travels: at least, and for each environment
DEAD = 4  # Ray's number for the state of an actor that has ended
ARPO = importlib.metadata.version("arpo")
HERE = f"arpo {ARPO}, Python {platform.python_version()}"

_log = logging.getLogger(__name__)


class Place:
    """What the actor of one environment does, in a process on its node."""

    def __init__(self) -> None:
        self._env: Env | None = None
        # A process that is told to end would kill all that it has started, also those that wait for its end to tidy up
        # after it (osworld/machine.py). What is in its process group the node kills even so.
        Config.initialize('{"kill_child_processes_on_worker_exit": false}')

    def versions(self) -> str:
        return HERE

    def answer(self, method: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        try:
            if method == "start":
                self._env = guarded(*arguments)
                assert self._env is not None
                return True, self._env.size
            return True, guarded(getattr(self._env, method), *arguments)
        except ArpoError as error:
            return False, error

    def close(self) -> None:
        if self._env is not None:
            self._env.close()


@dataclass(frozen=True, slots=True)
class Node:
    """One that environments can run on."""

    id: str
    address: str
    takes: dict[str, float]  # what an environment takes of it, as Ray is told
    room: float  # for so many


class Cluster:
    """The nodes, and what runs on them of ours. ConfigError where there is none, or none that would do."""

    def __init__(self, settings: EnvConfig) -> None:
        self.resource = settings.resource or backend(settings.name).resource
        self.settings = settings
        self.held = Counter[str]()  # how many environments of ours a node has
        self.unfit: dict[str, str] = {}  # nodes that cannot be used, and why
        self.slots: list[_Remote] = []
        self._nodes: list[Node] = []
        self._looked = -LOOK_S
        connect(settings, self.resource)
        if not self.nodes():
            offered = {name for node in alive() for name in node["Resources"] if not name.startswith("node:")}
            example = f"{self.resource}:ADDRESS" if self.resource == "docker" else self.resource
            raise ConfigError(
                f"env.ray={settings.ray}: no node offers {self.resource}, of which an environment takes one; they "
                f"offer {', '.join(sorted(offered))}. On a node: ray start … --resources='{{\"{example}\": 16}}'"
            )

    def nodes(self) -> list[Node]:
        """Those that environments can run on now."""
        if time.monotonic() - self._looked >= LOOK_S:
            self._looked = time.monotonic()
            self._nodes = [
                node for one in alive() if one["NodeID"] not in self.unfit and (node := usable(one, self.resource))
            ]
        return self._nodes

    def room(self) -> float:
        """For how many there is, in all."""
        return sum(node.room for node in self.nodes())

    def take(self) -> Node | None:
        """The node with the most room, which has one place less now. None: no node has any."""
        free = [node for node in self.nodes() if node.room > self.held[node.id]]
        if not free:
            return None
        # Of those with endless room the one with the fewest.
        node = max(free, key=lambda node: (node.room - self.held[node.id], -self.held[node.id]))
        self.held[node.id] += 1
        return node

    def lose(self, node: Node) -> None:
        """It is gone, and never comes back under this id. Until Ray's list says so it seems to have the most room."""
        self.unfit[node.id], self._looked = "it was lost", -LOOK_S

    def refuse(self, node: Node, why: str) -> NoReturn:
        """Never use it again. ConfigError where no other has ever been used, for the user must have meant another."""
        why = f"node {node.address} cannot be used: {why}"
        self.unfit[node.id], self._looked = why, -LOOK_S
        if not self.nodes():
            raise ConfigError(f"env.ray={self.settings.ray}: {why}")
        _log.warning("%s; going on with the others", why)
        raise EnvError(why)


class _Remote(Apart):
    """An environment on some node."""

    LOST = (RayError,)
    room_s = 5.0  # a node may have joined
    _actor: Any = None
    _node: Node | None = None

    def __init__(self, make_env: Callable[[], Env], cluster: Cluster) -> None:
        super().__init__(make_env, cluster.settings)
        self._cluster = cluster
        cluster.slots.append(self)

    @property
    def env(self) -> NoReturn:
        raise ConfigError("env.ray: a script looks behind the screen, for which it needs env.ray=null env.workers=0")

    @property
    def alive(self) -> bool:
        return self._actor is not None and self._actor._get_local_state() != DEAD

    async def start(self) -> None:
        self._kill()  # what is left of one that died while nobody used it
        self._node = node = await self._room()
        self._actor = _PLACE.options(
            resources={name: n for name, n in node.takes.items() if name != "CPU"},
            num_cpus=node.takes.get("CPU", 0),
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        ).remote()
        try:
            if (there := await self._ask(self._settings.reset_s, "versions")) != HERE:
                self._cluster.refuse(node, f"it has {there}, and this machine {HERE}")
            self.size = await self._ask(self._settings.reset_s, "start", self._make_env)
        except ArpoError as error:
            await self.close()
            if str(error).startswith("versions took"):
                what = f"{' and '.join(node.takes)} there" if node.takes else "it"
                raise EnvError(f"node {node.address} starts nothing; do others use {what}?") from None
            if "No module named 'arpo" in str(error):
                self._cluster.refuse(node, f"it has no arpo as it is here; on it: pip install 'arpo[ray]=={ARPO}'")
            raise

    async def _room(self) -> Node:
        """A place on a node. Where nothing runs at all, one is waited for: nodes come back."""
        deadline = time.monotonic() + self._settings.reset_s
        while (node := self._cluster.take()) is None:
            has = f"the cluster has {self._cluster.room():g} {self._cluster.resource or 'nodes'} and no room for more"
            if any(slot.alive for slot in self._cluster.slots):
                raise NoRoom(has)
            if time.monotonic() > deadline:
                raise EnvError(f"{has}; start nodes (docs/scaling.md)")
            await asyncio.sleep(LOOK_S)
        return node

    async def close(self) -> None:
        """Let it close its environment, which may be more than a process, and end."""
        if self._actor is None:
            return
        try:
            if not self._busy:
                async with asyncio.timeout(GRACE_S):
                    await self._actor.close.remote()
        except (RayError, TimeoutError):
            pass
        finally:
            self._kill()

    async def _answer(self, method: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        if method == "versions":
            return True, await self._actor.versions.remote()
        good, value = await self._actor.answer.remote(method, arguments)
        return good, value

    def _ended(self, method: str, error: Exception) -> str:
        where = self._node.address if self._node else "?"
        if self._node and (isinstance(error, ActorUnschedulableError) or "its node has died" in str(error)):
            self._cluster.lose(self._node)
        self._kill()
        return f"its process on node {where} ended in {method}: {why(error)}"

    def _kill(self) -> None:
        actor, self._actor = self._actor, None
        node, self._node = self._node, None
        if node is not None:
            self._cluster.held[node.id] -= 1
        if actor is not None:
            ray.kill(actor)


class RayPool(SlotPool):
    """Environments on the nodes of a cluster."""

    def __init__(self, make_env: Callable[[], Env], n_envs: int, settings: EnvConfig) -> None:
        cluster = Cluster(settings)
        n = settings.workers or n_envs
        if (room := cluster.room()) < n:
            _log.warning(
                "the cluster has room for %g of %d environments; the others start when nodes with %s join",
                room,
                n,
                cluster.resource,
            )
        super().__init__([_Remote(make_env, cluster) for _ in range(n)])

    async def __aexit__(self, *error: object) -> None:
        try:
            await super().__aexit__(*error)
        finally:
            disconnect()


def placed(settings: EnvConfig, n_envs: int) -> list[str]:
    """Where so many environments would run on the cluster as it is now, for people."""
    cluster = Cluster(settings)
    try:
        taken = list(itertools.takewhile(bool, (cluster.take() for _ in range(n_envs))))
    finally:
        disconnect()
    nodes = {node.id: node for node in taken if node is not None}
    lines = [f"node {nodes[one].address}: {n}" for one, n in Counter(node.id for node in taken if node).items()]
    if (left := n_envs - len(taken)) > 0:
        lines.append(f"no node yet: {left}; they start when nodes with {cluster.resource} join")
    return lines


# ---- Ray itself


def alive() -> list[dict[str, Any]]:
    """The nodes of the cluster, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def usable(node: dict[str, Any], resource: str | None) -> Node | None:
    """The node as one that environments can run on; None where it does not offer what they take."""
    room, takes = float("inf"), {}
    if resource is not None:
        offered = node["Resources"]
        named = [name for name in offered if name == resource or name.startswith(f"{resource}:")]
        if not named or (room := offered[named[0]]) < 1:
            return None
        takes = {named[0]: 1.0}
    return Node(node["NodeID"], node["NodeManagerAddress"], takes, room)


_ours: list[str] = []  # the folder of a local cluster, or "": what `disconnect` has to undo


def connect(settings: EnvConfig, resource: str | None = None) -> None:
    """Join the cluster that the settings name, where this process has not. ConfigError where that cannot be."""
    if ray.is_initialized():
        return
    if "://" in str(settings.ray):
        raise ConfigError(f"env.ray={settings.ray}: run arpo on a node of the cluster, and give HOST:PORT or auto")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    try:
        if settings.ray != "local":
            host, colon, port = str(settings.ray).rpartition(":")
            if colon and port.isdigit():  # Ray itself would try for minutes
                socket.create_connection((host, int(port)), CONNECT_S).close()
            ray.init(address=settings.ray, **quiet)
            _ours.append("")
            return
        # Ray's own switch for loopback, meant for other systems; it is read in this process and in those of Ray.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"], ray_constants.ENABLE_RAY_CLUSTER = "0", False
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray writes one to a file
        Config.initialize("")  # Ray has read them already
        AuthenticationTokenLoader.instance().reset_cache()
        _ours.append(tempfile.mkdtemp(prefix="ray-", dir=SHORT))
        atexit.register(disconnect)
        ray.init(
            address="local",
            num_cpus=cores(),
            num_gpus=0,
            resources={resource: settings.workers or 4096} if resource else {},
            object_store_memory=(STORE_MB + SCREEN_MB * settings.workers) << 20,
            include_dashboard=False,
            _temp_dir=_ours[-1],
            **quiet,
        )
    except (ConnectionError, RayError, RuntimeError, ValueError, OSError) as error:
        disconnect()
        where = "" if settings.ray == "local" else "; on its head: ray start --head. Its token must be here too"
        raise ConfigError(f"env.ray={settings.ray}: no cluster: {why(error)}{where}") from None


def disconnect() -> None:
    """Leave the cluster that `connect` joined, and end it where it was made here."""
    if _ours:
        ray.shutdown()
        if folder := _ours.pop():
            shutil.rmtree(folder, ignore_errors=True)


def why(error: Exception) -> str:
    """What Ray says, in a line: its own texts are pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    said = next((line for line in lines if "is dead because" in line or "No module named" in line), lines[0])
    return printable(said.partition(" Some common causes")[0][:200])


_PLACE = ray.remote(max_restarts=0, max_task_retries=0)(Place)
