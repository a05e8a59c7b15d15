"""Environments on lease: in this process, or each in a worker process with time limits and restarts; on the nodes of a
cluster: ray_pool.py.

    async with make_pool(config.env, n_envs=8) as pool:
        async with pool.lease() as env:                  # waits for a free one; starts it where it is not running
            observation = await env.reset(task, seed=7)
            observation = await env.step(Click(120, 44))
            score = await env.score()

In this process a call is a plain call: nothing waits, so the order of work never depends on time, and no time limit can
be kept. (Only large screens are encoded in a thread, where an environment lets us: `SeenApart`.) A worker process holds
one environment, talks through a socket that nobody else has, and ends when the other end is closed, however this
process ended.

What is the agent's, the task's or the user's fault comes through as it is: ActionError, Ruined, TaskError, ConfigError.
All else is machinery: a call past its limit, a process that died, any other exception of the backend. It becomes an
EnvError. An environment that failed or was ruined is never used again, and the next lease starts another. A place is
given up where three times in a row no environment could be started in it; where no place is left, every lease is an
EnvError. A place for which there is no memory now (NoRoom) is left empty for a while, and those that run are shared.
"""

import abc
import asyncio
import contextlib
import logging
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, NoReturn, Self

from arpo.agent.actions import Action
from arpo.beside import large_size
from arpo.config import EnvConfig
from arpo.envs.base import Env, SeenApart, backend, build, make, settings_of
from arpo.errors import ActionError, ArpoError, ConfigError, EnvError, NoRoom, Ruined
from arpo.types import Observation, Task

STARTS = 3  # that may fail in a row
GRACE_S = 5.0  # for an environment to close, before its process is killed
HERE = EnvConfig()  # no worker processes

_log = logging.getLogger(__name__)


class Slot(abc.ABC):
    """A place for one environment, and the lease on it: after an EnvError the next `start` makes another."""

    size: tuple[int, int]  # of its screen, known when it has started
    failed_starts = 0  # in a row
    room_s = 30.0  # until one for which there was no room is tried again

    def __init__(self, make_env: Callable[[], Env], settings: EnvConfig) -> None:
        self._make_env, self._settings = make_env, settings

    async def reset(self, task: Task, seed: int) -> Observation:
        observation: Observation = await self._call(self._settings.reset_s, "reset", task, seed)
        return observation

    async def step(self, action: Action) -> Observation:
        observation: Observation = await self._call(self._settings.step_s, "step", action)
        return observation

    async def score(self) -> float:
        score: float = await self._call(self._settings.score_s, "score")
        return score

    @property
    @abc.abstractmethod
    def env(self) -> Env:
        """The environment itself, for scripts that look behind its screen."""

    @property
    @abc.abstractmethod
    def alive(self) -> bool: ...

    @abc.abstractmethod
    async def start(self) -> None: ...

    @abc.abstractmethod
    async def close(self) -> None: ...

    @abc.abstractmethod
    async def _ask(self, limit: float, method: str, *arguments: Any) -> Any: ...

    async def _call(self, limit: float, method: str, *arguments: Any) -> Any:
        try:
            answer = await self._ask(limit, method, *arguments)
            if method != "score" and not isinstance(answer, Observation):
                raise EnvError(f"{method} gave no screenshot but {answer!r:.60}")
            if method == "reset" and (answer.width, answer.height) != tuple(self.size):  # later it is the agent's doing
                raise EnvError(f"its screen has {answer.width}x{answer.height} pixels and not {self.size}")
            return answer
        except EnvError:
            await self.close()
            raise
        except (ActionError, Ruined) as error:
            if method == "step" and isinstance(error, ActionError):
                raise
            await self.close()
            if method != "reset" and isinstance(error, Ruined):
                raise
            raise EnvError(f"{method} blames the agent: {error}") from error  # who has done nothing in it


class _Here(Slot):
    """An environment in this process."""

    _env: Env | None = None

    @property
    def env(self) -> Env:
        assert self._env is not None
        return self._env

    @property
    def alive(self) -> bool:
        return self._env is not None

    async def start(self) -> None:
        self._env = guarded(self._make_env)
        self.size = self.env.size

    async def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            with contextlib.suppress(ArpoError):  # it is given up anyhow
                guarded(env.close)

    async def _ask(self, limit: float, method: str, *arguments: Any) -> Any:
        env = self.env
        if method == "score" or not (large_size(env.size) and isinstance(env, SeenApart)):
            return guarded(getattr(env, method), *arguments)
        guarded(env.load if method == "reset" else env.perform, *arguments)
        return await asyncio.to_thread(guarded, env.observed, guarded(env.pixels))


class Apart(Slot):
    """An environment in another process, which may die or hang. Its answers are (True, value) or (False, error)."""

    LOST: tuple[type[Exception], ...]  # what `_answer` raises where the process has ended
    _busy = False

    @property
    def env(self) -> NoReturn:
        raise ConfigError("env.workers: a script looks behind the screen, for which it needs env.workers=0")

    @abc.abstractmethod
    async def _answer(self, method: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]: ...

    @abc.abstractmethod
    def _kill(self) -> object:
        """End the process and all that it started; returns what is known of its end."""

    def _ended(self, method: str, error: Exception) -> str:
        return f"the worker process ended in {method}, status {self._kill()}"

    async def _ask(self, limit: float, method: str, *arguments: Any) -> Any:
        self._busy = True
        answer = asyncio.ensure_future(self._answer(method, arguments))
        try:
            # In two parts: this process may have been busy itself for so long, and the answer is there but not read.
            if not (await asyncio.wait([answer], timeout=limit))[0]:
                await asyncio.wait([answer], timeout=GRACE_S / 5)
            if not answer.done():
                raise EnvError(f"{method} took more than {limit:g} s")
            good, value = answer.result()
        except self.LOST as error:
            raise EnvError(self._ended(method, error)) from None
        except ArpoError:
            self._kill()
            raise
        except Exception as error:  # an exception that pickle cannot put together again
            self._kill()
            raise EnvError(f"{method}: its answer cannot be read: {error}") from error
        except BaseException:  # nobody knows what state it is in
            self._kill()
            raise
        finally:
            self._busy = False
            answer.cancel()
        if good:
            return value
        raise value


class _Worker(Apart):
    """An environment in a process of its own."""

    LOST = (OSError, EOFError)
    _process: subprocess.Popen[bytes] | None = None
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter

    @property
    def alive(self) -> bool:
        return self._process is not None and not self._reader.at_eof()

    async def start(self) -> None:
        self._kill()  # what is left of one that died while nobody used it
        ours, theirs = socket.socketpair()
        with theirs:
            self._reader, self._writer = await asyncio.open_connection(sock=ours)
            main = f"import sys; sys.path[:] = {sys.path!r}; from arpo.envs import pool; pool.serve({theirs.fileno()})"
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", main],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # Ctrl-C is for this process alone, and its group can be killed as a whole
                )
            except OSError as error:
                self._writer.close()
                raise EnvError(f"no worker process can be started: {error.strerror}") from error
        try:
            self.size = await self._ask(self._settings.reset_s, "start", self._make_env)
        except ArpoError:
            await self.close()
            raise

    async def close(self) -> None:
        """Let it close its environment, which may be more than a process, and end."""
        if self._process is None:
            return
        try:
            if not self._busy:
                self._writer.write_eof()
                async with asyncio.timeout(GRACE_S):
                    await self._reader.read()
        except OSError:  # also TimeoutError
            pass
        finally:
            self._kill()

    async def _answer(self, method: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        self._writer.write(_frame((method, arguments)))
        length = int.from_bytes(await self._reader.readexactly(8), "big")
        reply: tuple[bool, Any] = pickle.loads(await self._reader.readexactly(length))
        return reply

    def _kill(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        self._writer.transport.abort()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: of a group that has ended
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


class SlotPool:
    """So many places for environments, each started when it is needed first."""

    def __init__(self, places: Sequence[Slot]) -> None:
        self._places = places
        self._idle: asyncio.LifoQueue[Slot | None] = asyncio.LifoQueue()  # None: there is no place any more
        for place in self._places:
            self._idle.put_nowait(place)
        self._n_open = len(places)
        self._why = ""
        self._users: set[asyncio.Task[Any]] = set()  # who has a lease

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Stop whoever still has a lease, and close everything."""
        self._n_open, self._why = 0, "the pool is closed"
        self._idle.put_nowait(None)
        users = [task for task in self._users if task is not asyncio.current_task()]
        for task in users:
            task.cancel()
        await asyncio.gather(*users, return_exceptions=True)
        await asyncio.gather(*(place.close() for place in self._places))

    @contextlib.asynccontextmanager
    async def lease(self) -> AsyncIterator[Slot]:
        """A running environment for the time of the block. EnvError where none can be started any more."""
        user = asyncio.current_task()
        assert user is not None
        place = await self._take()
        self._users.add(user)
        try:
            yield place
        finally:
            self._users.discard(user)
            self._idle.put_nowait(place)

    async def _take(self) -> Slot:
        while (place := await self._idle.get()) is not None and self._n_open:
            try:
                if not place.alive:
                    await place.start()
            except (EnvError, ActionError, Ruined) as error:  # no agent has done anything yet
                if isinstance(error, NoRoom) and any(other.alive for other in self._places):
                    _log.info("%s", error)
                    asyncio.get_running_loop().call_later(place.room_s, self._idle.put_nowait, place)
                else:
                    self._start_failed(place, str(error))
            except BaseException:
                self._idle.put_nowait(place)
                raise
            else:
                place.failed_starts = 0
                return place
        self._idle.put_nowait(None)
        raise EnvError(f"there is no environment any more: {self._why}")

    def _start_failed(self, place: Slot, why: str) -> None:
        place.failed_starts += 1
        if place.failed_starts < STARTS:
            self._idle.put_nowait(place)
            return
        self._n_open -= 1
        if self._n_open:
            _log.warning("an environment cannot be started: %s; going on with %d others", why, self._n_open)
        else:
            self._why = why
            self._idle.put_nowait(None)


class LocalPool(SlotPool):
    """Environments on this machine."""

    def __init__(self, make_env: Callable[[], Env], n_envs: int, settings: EnvConfig = HERE) -> None:
        kind, n = (_Worker, settings.workers) if settings.workers else (_Here, n_envs)
        super().__init__([kind(make_env, settings) for _ in range(n)])


def try_settings(settings: EnvConfig) -> None:
    """ConfigError where these settings can make no environment: said before a model is loaded."""
    if settings.ray is None:
        make(settings.name, **settings_of(settings)).close()
    else:
        on_ray().Cluster(settings)


def make_pool(settings: EnvConfig, n_envs: int) -> SlotPool:
    """The pool of a run: so many environments in this process, or as many workers as the settings say."""
    if settings.workers and not hasattr(os, "killpg"):
        raise ConfigError(f"env.workers={settings.workers}: Windows has no worker processes; set it to 0")
    known = backend(settings.name)
    known.refuse_system()
    if (settings.workers or settings.ray) and not _importable(known.factory):
        raise ConfigError(
            f"env.workers={settings.workers}: worker processes cannot import {settings.name} from a script or a "
            "notebook; move it to a module of its own, or set env.workers=0"
        )
    make_env = partial(build, known.factory, **settings_of(settings))
    return (
        LocalPool(make_env, n_envs, settings) if settings.ray is None else on_ray().RayPool(make_env, n_envs, settings)
    )


def on_ray() -> Any:
    """The module of environments on Ray, which is imported only where somebody wants them."""
    try:
        from arpo.envs import ray_pool
    except ImportError as error:
        if error.name != "ray":
            raise
        raise ConfigError(f"env.ray: Ray is not installed; {sys.executable} -m pip install 'arpo[ray]'") from None
    return ray_pool


def _importable(factory: object) -> bool:
    """Whether another process finds it by its name."""
    try:
        return b"__main__" not in pickle.dumps(factory)
    except (pickle.PicklingError, AttributeError, TypeError):  # a lambda, a class in a function
        return False


def guarded(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a backend. Whatever it raises by mistake is machinery."""
    try:
        return call(*arguments)
    except (ActionError, ConfigError, EnvError, Ruined):
        raise
    except Exception as error:
        _log.warning("an environment failed", exc_info=True)
        raise EnvError(f"{type(error).__name__}: {error}") from error


# ---- in the worker process


def serve(fd: int) -> None:
    """Do what is asked through a socket until its other end is closed. The first request is "start"."""
    connection = socket.socket(fileno=fd)
    connection.set_inheritable(False)  # what the environment starts must not keep it open
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, requests), daemon=True).start()
    env: Env | None = None
    while (request := requests.get()) is not None:
        try:
            method, arguments = guarded(pickle.loads, request)
            if method == "start":
                env = guarded(*arguments)
                assert env is not None
                reply = _frame((True, env.size))
            else:
                reply = _frame((True, guarded(getattr(env, method), *arguments)))
        except ArpoError as error:
            reply = _frame((False, error))
        with contextlib.suppress(OSError):  # nobody listens any more: the end comes next
            connection.sendall(reply)
    if env is not None:
        env.close()


def _listen(connection: socket.socket, requests: queue.SimpleQueue[bytes | None]) -> None:
    """Hear of the end also while the environment is busy, and see to it that it does not hang for ever."""
    with contextlib.suppress(OSError), connection.makefile("rb") as stream:
        while header := stream.read(8):
            requests.put(stream.read(int.from_bytes(header, "big")))
    requests.put(None)
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


def _frame(value: object) -> bytes:
    data = pickle.dumps(value)
    return len(data).to_bytes(8, "big") + data
