"""A learner of several processes ("ranks"), each with a share of the weights and of the samples: see fsdp.py.

    with make_learner(config, algorithm) as learner:      # train.ranks of them; 1: a LocalLearner in this process
        learner.update(batches, screens)

Here is what stays in the driver. It starts the ranks, tells each what to do through a socket that nobody else has (what
goes through it is pickled), and puts together what they answer. They find each other by a file in a folder that only
this user can read, and talk through the loopback interface. Their environment is that of torchrun. Those on other
machines are in ray_ranks.py.

Ranks live and die together. One that has ended, or does nothing for QUIET_S while it is asked for something, ends all
of them, and the run: it can be resumed, with another number of ranks too. They end with the driver, however that ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import math
import os
import pickle
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from arpo.algorithms.base import Algorithm
from arpo.config import Config
from arpo.engines.base import Weights
from arpo.engines.local.engine import LocalEngine
from arpo.errors import ArpoError, ConfigError
from arpo.machine import cores
from arpo.model.checkpoint import find_device, load_configured
from arpo.training.base import Batch, Learner, LearnerError, NotFinite, RanksLost, Update
from arpo.training.learner import LocalLearner
from arpo.training.memory import one_model
from arpo.training.metrics import update_of
from arpo.training.packing import shared_out
from arpo.types import Observation

if TYPE_CHECKING:
    from arpo.training.fsdp import RankLearner

QUIET_S = 900.0  # without a sign of work; a part of an update, or a weight that is read or written, takes less
GRACE_S = 30.0  # for the others, where one has failed: they fail alike, or wait for it in vain
STORE = "ARPO_STORE"  # where ranks find each other; without it, as torchrun says


@contextlib.contextmanager
def make_learner(config: Config, algorithm: Algorithm, local: LocalEngine | None = None) -> Iterator[Learner]:
    """The learner of a run. `local`: the engine, if it is in this process; it must not sample while weights change."""
    if config.train.ranks == 1:
        one = local is not None and one_model(config)
        checkpoint = local.checkpoint if local and one else load_configured(config.train.model, config.agent)
        yield LocalLearner(checkpoint, config, algorithm, local.screens if local else None)
    else:
        with contextlib.closing(Ranks(config, algorithm)) as ranks:
            yield ranks


class Ranks:
    """See the module."""

    def __init__(self, config: Config, algorithm: Algorithm, quiet_s: float = QUIET_S) -> None:
        self.version, self._quiet_s, self._ended, n = 0, quiet_s, "", config.train.ranks
        if not _importable(algorithm):
            known = f"its processes cannot import {type(algorithm).__name__} from a script or a notebook"
            raise ConfigError(f"train.ranks={n}: {known}; move it to a module of its own, or set train.ranks=1")
        self._store = Path(tempfile.mkdtemp(prefix="arpo-ranks-"))
        self._ranks: list[Pipe] = []
        try:
            self._ranks += self._started(config)
            self._sight, *_ = self._ask("start", [(config, algorithm, quiet_s)] * n)
        except BaseException:
            self._end("they did not start")
            raise

    def _started(self, config: Config) -> Iterator[Pipe]:
        if config.train.rank_resource is not None:
            from arpo.training.ray_ranks import remote_ranks

            return remote_ranks(config)
        n = config.train.ranks
        return (_Process(number, n, self._store / "store") for number in range(n))

    def update(self, batches: Sequence[Batch], screens: Mapping[str, Observation]) -> Update:
        batches = [batch for batch in batches if batch.samples]
        owners = shared_out(batches, screens, self._sight, len(self._ranks))
        shown: list[set[str]] = [set() for _ in self._ranks]
        for sample in (sample for batch in batches for sample in batch.samples):
            shown[owners[id(sample)]].update(sample.images)
        unseen = {name: dataclasses.replace(one, image=b"") for name, one in screens.items()}  # only its size matters
        answers = self._ask(
            "update", [(batches, unseen | {name: screens[name] for name in sorted(mine)}) for mine in shown]
        )
        norms = answers[0][0]
        seen = [list(chain(*of_batch)) for of_batch in zip(*(parts for _, parts in answers), strict=True)]
        return update_of(batches, seen, norms, self.version - 1)

    def publish(self, folder: Path) -> Weights:
        part = folder.with_name(f"{folder.name}.new")  # so an engine never finds half of it
        shutil.rmtree(part, ignore_errors=True)
        self._ask("publish", [(part,)] * len(self._ranks))
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
        return Weights(folder)

    def save(self, folder: Path) -> Callable[[], dict[str, Any]]:
        state: dict[str, Any] = self._ask("save", [(folder,)] * len(self._ranks))[0]
        return lambda: state

    def restore(self, folder: Path, state: dict[str, Any]) -> None:
        self._ask("restore", [(folder, state)] * len(self._ranks))

    def close(self) -> None:
        self._end("they were ended")

    @property
    def pids(self) -> list[int]:
        return [rank.pid for rank in self._ranks]

    def _ask(self, method: str, each: Sequence[tuple[Any, ...]]) -> list[Any]:
        """What each rank answers to a call. What went wrong with it is raised here."""
        if self._ended:
            raise RanksLost(f"the ranks of the learner are gone: {self._ended}")
        try:
            for rank, arguments in zip(self._ranks, each, strict=True):
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended: seen below
                    rank.send((method, arguments), self._quiet_s)
            answers, failed = self._answers(), []
        except BaseException as error:
            self._end(f"{method} broke off")
            if isinstance(error, TimeoutError):
                raise RanksLost(f"a rank of the learner did not listen for {self._quiet_s:g} s") from None
            raise
        for number, answer in enumerate(answers):
            if isinstance(answer, _Gone):
                self._lose(f"rank {number} of the learner {answer.how} (in {method})")
            if answer is not None and not answer[0]:
                failed.append(answer[1])
        failed.sort(key=lambda error: not isinstance(error, ArpoError))  # the cause, before what followed from it
        if failed:
            if None in answers or len({answer[2] for answer in answers}) > 1:
                self._end(f"{method} failed in one of them")
            raise failed[0]
        if None in answers:
            silent = ", ".join(str(number) for number, answer in enumerate(answers) if answer is None)
            self._lose(f"rank {silent} of the learner did nothing for {self._quiet_s:g} s (in {method})")
        self.version = answers[0][2]
        return [answer[1] for answer in answers]

    def _answers(self) -> list[Any]:
        """(whether it went well, result or error, version) of each rank; _Gone; None where there was none in time."""
        answers: list[Any] = [None] * len(self._ranks)
        waiting, deadline = {rank.socket: number for number, rank in enumerate(self._ranks)}, math.inf
        while waiting:
            limit = min(self._quiet_s, deadline - time.monotonic())
            ready: Any = wait(list(waiting), max(0.0, limit))  # not `select`, which knows 1,024 files
            if not ready:
                break
            for one in ready:
                number = waiting[one]
                answer = self._ranks[number].receive(self._quiet_s)
                if answer == "beat":
                    continue
                del waiting[one]
                answers[number] = answer
                if isinstance(answer, _Gone) or not answer[0]:
                    deadline = min(deadline, time.monotonic() + self._ranks[number].grace_s)
            if any(isinstance(answer, _Gone) for answer in answers):
                break
        return answers

    def _lose(self, why: str) -> None:
        self._end(why)
        raise RanksLost(why)

    def _end(self, why: str) -> None:
        self._ended = self._ended or why
        for rank in self._ranks:
            rank.end()
        shutil.rmtree(self._store, ignore_errors=True)


def _importable(algorithm: Algorithm) -> bool:
    """Whether another process finds its class by its name."""
    try:
        return b"__main__" not in pickle.dumps(algorithm)
    except (pickle.PicklingError, AttributeError, TypeError):  # a class in a function, something that is open
        return False


@dataclasses.dataclass(frozen=True)
class _Gone:
    how: str


class Pipe(ABC):
    """A rank as the driver sees it: a socket, and what is at its other end."""

    grace_s = GRACE_S

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.socket, self.pid = connection, pid

    def send(self, value: object, limit: float) -> None:
        self.socket.settimeout(limit)
        self.socket.sendall(framed(pickle.dumps(value)))

    def receive(self, limit: float) -> Any:
        """A message, or _Gone."""
        self.socket.settimeout(limit)
        try:
            return pickle.loads(read_frame(self.socket))
        except (OSError, EOFError):  # also TimeoutError, in the middle of a message
            return _Gone(self.how())

    @abstractmethod
    def how(self) -> str:
        """What became of it, where it does not answer."""

    @abstractmethod
    def end(self) -> None: ...


class _Process(Pipe):
    """One in a process on this machine."""

    def __init__(self, number: int, ranks: int, store: Path) -> None:
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        usual = {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
        usual["OMP_NUM_THREADS"] = str(max(1, cores() // ranks))  # more would fight for the cores
        place = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        environment = usual | os.environ | {name: str(value) for name, value in place.items()}
        environment[STORE] = f"file://{store}"
        ours, theirs = socket.socketpair()
        with theirs:
            call = f"from arpo.training import ranks; ranks.serve({theirs.fileno()})"
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {call}"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,  # Ctrl-C is for the driver alone, which lets an update end
            )
        super().__init__(ours, self.process.pid)

    def how(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self.process.wait(GRACE_S)
            return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return "does not answer"

    def end(self) -> None:
        self.socket.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: of a group that has ended
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


def read_frame(connection: socket.socket) -> bytes:
    return _read(connection, int.from_bytes(_read(connection, 8), "big"))


def _read(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        if not (more := connection.recv(min(count - len(data), 2**20))):
            raise EOFError
        data += more
    return bytes(data)


# ---- in a rank


def serve(fd: int) -> None:
    """Do what is asked through a socket until its other end is closed. The first request is "start"."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # with the driver; also where this process hangs or was stopped
    connection = socket.socket(fileno=fd)
    connection.set_inheritable(False)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, requests), daemon=True).start()
    rank = Rank(lambda: connection.sendall(framed(pickle.dumps("beat"))))
    while True:
        connection.sendall(framed(pickle.dumps(rank.answer(*pickle.loads(requests.get())))))


def _listen(connection: socket.socket, requests: queue.SimpleQueue[bytes]) -> None:
    """Hear of the driver's end also while there is work: what that would bring is of no use to anybody."""
    with contextlib.suppress(OSError, EOFError):
        while True:
            requests.put(read_frame(connection))
    os._exit(0)


class Rank:
    """The work of a rank, however it was started and whoever asks: `serve`, or an actor of Ray's (ray_ranks.py).

    Who starts it sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and MASTER_ADDR, MASTER_PORT, as torchrun does.
    """

    def __init__(self, beat: Callable[[], object] = lambda: None) -> None:
        self._beat = beat
        self._learner: RankLearner | None = None

    def answer(self, method: str, arguments: tuple[Any, ...]) -> tuple[bool, Any, int]:
        """Whether it went well, the result or the error, and the version."""
        try:
            result, good = getattr(self, f"_{method}")(*arguments), True
        except Exception as error:
            result, good = _sendable(error), False
        return good, result, self._learner.version if self._learner else 0

    def _start(self, config: Config, algorithm: Algorithm, quiet_s: float) -> Any:
        """How the model sees a screenshot: then the driver can tell who needs which."""
        from arpo.training.fsdp import RankLearner  # not at the top: FSDP2 takes a second, and the driver needs none

        device = find_device(config.agent.device)
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        torch.distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=os.environ.get(STORE) or "env://",
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            timeout=timedelta(seconds=2 * quiet_s),  # the driver is to notice first
        )
        self._learner = RankLearner(config.train.model, config, algorithm, device, self._beat)
        return self._learner.model.sight

    @property
    def learner(self) -> RankLearner:
        assert self._learner is not None
        return self._learner

    def _update(self, batches: Sequence[Batch], screens: Mapping[str, Observation]) -> Any:
        norms, seen = self.learner.take_steps(batches, screens)
        return norms, [[_on_host(part) for part in of_batch] for of_batch in seen]

    def _publish(self, folder: Path) -> None:
        self.learner.save_weights(folder)

    def _save(self, folder: Path) -> dict[str, Any]:
        return self.learner.save(folder)()

    def _restore(self, folder: Path, state: dict[str, Any]) -> None:
        self.learner.restore(folder, state)


def _on_host(record: Any) -> Any:
    """The same record, its tensors in the host's memory."""
    moved = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            moved[field.name] = value.cpu()
        elif dataclasses.is_dataclass(value):
            moved[field.name] = _on_host(value)
    return dataclasses.replace(record, **moved)


def _sendable(error: Exception) -> Exception:
    """The same, or what can be told of it."""
    if isinstance(error, NotFinite):
        error.old = [values.cpu() for values in error.old]
    if not isinstance(error, ArpoError | OSError):
        error.add_note("in a rank of the learner:\n" + "".join(traceback.format_exception(error)))
    error.__traceback__ = error.__cause__ = error.__context__ = None
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception whose arguments are not those that it is made of
        return LearnerError(f"{type(error).__name__}: {error}")
    return error


def refuse_ranks(config: Config) -> None:
    """ConfigError where so many ranks cannot run here."""
    n, device, resource = config.train.ranks, config.agent.device, config.train.rank_resource
    if n == 1:
        if resource is not None:
            told = "one rank is this process; set train.ranks to 2 or more, or this to null"
            raise ConfigError(f"train.rank_resource={resource}: {told}")
        return
    if resource is not None:  # on other machines, with devices of their own
        if config.env.ray is None:
            raise ConfigError(f"train.rank_resource={resource}: needs a cluster; set env.ray to it")
        return
    kind = find_device(device)
    if not hasattr(os, "killpg") or kind.type not in ("cpu", "cuda") or kind.index is not None:
        raise ConfigError(f"train.ranks={n}: not on {sys.platform} with agent.device={device}; set it to 1")
    if kind.type == "cuda" and (here := torch.cuda.device_count()) < n:
        raise ConfigError(f"train.ranks={n}: each has a GPU of its own, and this machine has {here}; set it to {here}")
