"""Ranks of a learner on the nodes of a Ray cluster, each an actor that holds a `Rank`.

    arpo train … env.ray=auto train.ranks=16 train.rank_resource=GPU       on 16 GPUs, wherever the cluster has them

To the driver (`Ranks`) each looks like a process of this machine: what goes into its socket is brought to the actor by
a thread, and back comes what it answers, and "beat" while it gets on with its work. Ray restarts nothing: a rank that
is lost, alone or with its node, ends all of them and the run, which can be resumed.

Ranks find each other as torchrun's do, at the address of the first one's node, and talk by gloo or NCCL: without a
token, so they belong into the network of the cluster. All of them write to the run's folder, which all nodes must see.
"""

import fcntl
import os
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, RayError
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from arpo.config import Config
from arpo.envs.ray_pool import HERE, alive, connect, why
from arpo.errors import ConfigError
from arpo.training.ranks import Pipe, Rank, framed, read_frame

ROOM_S = 120.0  # for all of them to have a process
LOOK_S = 2.0  # between two looks at one that works
ADDRESS_OF = 0x8915  # Linux's number for the question which address an interface has


@dataclass(frozen=True, slots=True)
class Seen:
    """A rank's process, and the node that it is on."""

    versions: str
    address: str
    port: int  # that it keeps for the store
    pid: int
    sees: bool  # whether the run's folder is there


class Working:
    """What an actor does. Its work has a thread of its own: so it can be asked how that goes."""

    def __init__(self) -> None:
        self._beats = 0
        self._rank = Rank(self._beat)

    def _beat(self) -> None:
        self._beats += 1

    def look(self, folder: Path | None) -> Seen:
        address = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._door = socket.create_server((address, 0), family=family)  # kept: nobody else can take the port
        port = int(self._door.getsockname()[1])
        return Seen(HERE, address, port, os.getpid(), folder is None or folder.is_dir())

    def settle(self, place: dict[str, str], address: str) -> None:
        """Take its place among the ranks, as torchrun would tell it. They meet at a store of the first one's.

        One that torch makes by itself would listen on every interface of the node.
        """
        os.environ.update(place, TORCHELASTIC_USE_AGENT_STORE="True")  # so that all are clients of the first one's
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(place["LOCAL_WORLD_SIZE"])))  # Ray allows one
        if place["RANK"] == "0":
            fd, world = self._door.detach(), int(place["WORLD_SIZE"])
            port = int(place["MASTER_PORT"])
            self._store = TCPStore(address, port, world, True, wait_for_workers=False, master_listen_fd=fd)
        else:
            self._door.close()
        if (interface := interface_with(address)) is not None:
            for library in ("GLOO", "NCCL"):
                os.environ.setdefault(f"{library}_SOCKET_IFNAME", interface)

    def beats(self) -> int:
        return self._beats

    def answer(self, request: bytes) -> bytes:
        return pickle.dumps(self._rank.answer(*pickle.loads(request)))


def interface_with(address: str) -> str | None:
    """The network interface here that has the address. By itself gloo takes what the host's name leads to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # one without an address
                found = fcntl.ioctl(any_socket.fileno(), ADDRESS_OF, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


class RemoteRank(Pipe):
    """A rank on some node, as the driver sees it."""

    grace_s = 120.0  # the others fail at once where a node is lost; Ray takes up to a minute to be sure of it

    def __init__(self, actor: Any, seen: Seen) -> None:
        ours, self._theirs = socket.socketpair()
        super().__init__(ours, seen.pid)
        self._actor, self._where, self._how = actor, seen.address, "does not answer"
        threading.Thread(target=self._carry, daemon=True, name=f"rank on {seen.address}").start()

    def _carry(self) -> None:
        """Bring it what is asked, and back what it answers, until it is lost or the driver has enough of it."""
        answer = self._actor.answer.options(concurrency_group="work")
        with self._theirs, suppress(OSError, EOFError):
            try:
                while True:
                    asked, beats = answer.remote(read_frame(self._theirs)), -1
                    while not ray.wait([asked], timeout=LOOK_S)[0]:
                        if (now := ray.get(self._actor.beats.remote())) != beats:
                            beats = now
                            self._theirs.sendall(framed(pickle.dumps("beat")))
                    self._theirs.sendall(framed(ray.get(asked)))
            except RayError as error:
                self._how = f"on node {self._where} ended: {why(error)}"

    def how(self) -> str:
        return self._how

    def end(self) -> None:
        self.socket.close()
        with suppress(RayError):  # the cluster is gone
            ray.kill(self._actor)


def remote_ranks(config: Config) -> Iterator[RemoteRank]:
    """All of them, those of a node beside each other. ConfigError where there is no room, or a node does not do."""
    n, name = config.train.ranks, str(config.train.rank_resource)
    connect(config.env)
    if (room := sum(node["Resources"].get(name, 0.0) for node in alive())) < n:
        raise ConfigError(f"train.ranks={n}: each takes one {name}, and the nodes of env.ray offer {room:g}")
    kinds: dict[str, dict[str, Any]] = {"GPU": {"num_cpus": 0, "num_gpus": 1}, "CPU": {"num_cpus": 1}}
    takes = kinds.get(name, {"num_cpus": 0, "resources": {name: 1}})
    try:
        actors = [_WORKING.options(**takes).remote() for _ in range(n)]
    except ValueError as error:  # a name that Ray keeps for itself
        raise ConfigError(f"train.rank_resource={name}: {why(error)}") from None
    try:
        try:
            looked = ray.get([actor.look.remote(config.run_dir) for actor in actors], timeout=ROOM_S)
        except GetTimeoutError:
            raise ConfigError(f"train.ranks={n}: no room for so many; do others use {name} of the cluster?") from None
        for seen in looked:
            if seen.versions != HERE:
                raise ConfigError(f"train.rank_resource={name}: {seen.address} has {seen.versions}, here is {HERE}")
            if not seen.sees:
                raise ConfigError(
                    f"run_dir={config.run_dir}: {seen.address} does not see it; put it where all nodes do"
                )
        ranks = sorted(zip(looked, actors, strict=True), key=lambda one: one[0].address)
        addresses = [seen.address for seen, _ in ranks]
        common = {"WORLD_SIZE": n, "MASTER_ADDR": addresses[0], "MASTER_PORT": ranks[0][0].port}
        for number, (seen, actor) in enumerate(ranks):
            local = number - addresses.index(seen.address)
            own = {"RANK": number, "LOCAL_WORLD_SIZE": addresses.count(seen.address)}
            own["LOCAL_RANK"] = 0 if name == "GPU" else local  # Ray shows each its GPU alone
            place = {key: str(value) for key, value in (common | own).items()}
            ray.get(actor.settle.remote(place, seen.address), timeout=ROOM_S)
    except BaseException as error:
        for actor in actors:
            ray.kill(actor)
        if isinstance(error, RayError):
            raise ConfigError(f"train.rank_resource={name}: a rank did not start: {why(error)}") from None
        raise
    for seen, actor in ranks:
        yield RemoteRank(actor, seen)


_WORKING: Any = ray.remote(concurrency_groups={"work": 1})(Working)
