"""Simulated machines: a clock that jumps, computers as slow as real ones, an engine as fast as a real server.

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(hours_of_work())            # takes seconds: nobody waits for real

What is slow is a timer of the event loop, so all of it runs in one thread, and the project's own pool, player and
rollouts are driven as they are. `Latencies` has every number of the simulation, each with where it comes from.
"""

import asyncio
import heapq
import itertools
import random
import selectors
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from arpo.agent.actions import Click, Finish
from arpo.agent.dialects.base import Dialect
from arpo.config import EnvConfig
from arpo.engines.base import Prompt, Sampling, Weights
from arpo.envs.pool import Slot
from arpo.errors import ConfigError, EnvError
from arpo.types import Completion, Observation
from arpo.vocabulary import Vocabulary

SCREEN = (1920, 1080)
LIMITS = EnvConfig(reset_s=600.0)  # as the preset osworld-full; of a step the default, more than the slowest takes
THOUGHT = "The file is open; next the menu, in which I look for the right entry and click on it."


@dataclass(frozen=True, slots=True)
class Latencies:
    """One set for all numbers of environments and both ways. Times are in seconds.

    [client]: the sleeps and limits of OSWorld's own client. [H200]: measured with a model of UI-TARS-1.5-7B's size on
    one H200 (docs/results/gpu.md). [paper]: of the ARPO paper. [fitted]: chosen so that lock-step takes the paper's
    times; two numbers for four wave times. [assumed]: nobody says; the reason stands beside it.
    """

    # An environment.
    start: float = 5.0  # [assumed] a container is made; the machine in it boots at the first reset
    reset: tuple[float, float] = (40.0, 0.35)  # [client] a boot of 30 s to 2 min: median and sigma of a lognormal
    step: tuple[float, float] = (2.8, 0.15)  # [client] a pause of 2 s, a Python that clicks, a screenshot; lognormal
    slow_share: float = 0.025  # [fitted] of steps: a program starts, a page loads, the client tries again
    slow: float = 25.0  # [fitted] what those take longer: exponential, this is the mean
    longest: float = 120.0  # [client] its limit for a command in the machine
    score: tuple[float, float] = (5.0, 0.5)  # [assumed] files are fetched and compared; lognormal
    fails: float = 0.001  # [assumed] of calls: a machine lost, so about one episode in a hundred is played again
    # An episode.
    max_steps: int = 15  # [paper]
    finished: float = 0.687  # [paper] success on its tasks: so many end by themselves, the others at the limit
    shortest: int = 3  # [assumed] steps of those that end by themselves: any number from here to the limit
    reply: tuple[int, int] = (60, 180)  # [H200] tokens of a reply; what was measured had 120
    image: int = 2691  # [paper] tokens of a screenshot of 1920x1080
    prompt: int = 700  # [assumed] tokens of the prompt and the instruction
    # The engine: vLLM's continuous batching, on each GPU a whole model.
    prefill: float = 13_600.0  # [H200] tokens a second, screenshots decoded and encoded: 16 x 2,700 in 3.2 of 4.0 s
    decode: float = 0.0043  # [H200] a step: the weights are read once
    decode_each: float = 0.00016  # [H200] and so much for each sequence in it: 6.9 ms with 16
    chunk: int = 8192  # tokens that are taken in at a time, vLLM's default for a server
    load: float = 5.0  # [assumed] 16.6 GB of weights to every server through 25 Gbit/s, while nothing is sampled
    # The learner.
    learn: float = 0.6  # [H200] GPU-seconds a screenshot: 7.8 s for 15, and log-probs for 3 of 4 optimiser steps
    gpus: int = 16  # [paper] in its released scripts


class _Jumping(selectors.DefaultSelector):
    """Instead of waiting for a time, it is that time."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everybody waits for something that nobody will do")
            self.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer. Nothing in it may use threads."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def run_in_executor(self, *_: Any) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("a thread takes time that a virtual clock does not see")


class SimulatedSlot(Slot):
    """A place for a virtual machine: all that it does is to take its time, and to fail now and then."""

    _names = itertools.count()

    def __init__(self, latencies: Latencies, seed: int) -> None:
        self._latencies, self._rng, self._running = latencies, random.Random(seed), False
        self._settings = LIMITS
        self.size = SCREEN

    @property
    def env(self) -> NoReturn:
        raise ConfigError("a simulated machine has nothing behind its screen")

    @property
    def alive(self) -> bool:
        return self._running

    async def start(self) -> None:
        await asyncio.sleep(self._latencies.start)
        self._running = True

    async def close(self) -> None:
        self._running = False

    async def _ask(self, limit: float, method: str, *arguments: Any) -> Any:
        rng, times = self._rng, self._latencies
        median, sigma = getattr(times, method)
        seconds = median * rng.lognormvariate(0.0, sigma)
        if method == "step" and rng.random() < times.slow_share:
            seconds += min(rng.expovariate(1 / times.slow), times.longest)
        lost = rng.random() < times.fails
        try:
            await asyncio.sleep(min(seconds, limit))
        except asyncio.CancelledError:  # as a worker process: nobody knows what state it is in
            self._running = False
            raise
        if lost or seconds > limit:
            raise EnvError(f"{method}: the machine was lost, as they are now and then")
        if method == "score":
            return float(rng.random() < times.finished)
        return Observation(b"", *self.size, hash=f"{next(self._names):032x}")


@dataclass(slots=True)
class _Turn:
    """A turn on a GPU."""

    tokens: float  # that are still to be taken in
    reply: int
    done: asyncio.Future[None]


class _Gpu:
    """One server. Each step takes in up to `chunk` tokens of prompts, first come first served, and makes one token of
    every reply under way. Between two events all goes at a constant rate, so only events are computed."""

    def __init__(self, latencies: Latencies) -> None:
        self._latencies, self._loop = latencies, asyncio.get_running_loop()
        self._waiting: deque[_Turn] = deque()  # prompts
        self._replies: list[tuple[float, int, _Turn]] = []  # a heap, by when they end, in tokens of `_made`
        self._made, self._then, self._order = 0.0, self._loop.time(), itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self.busy_s = 0.0
        self.sessions = 0

    async def turn(self, tokens: int, reply: int) -> None:
        done = self._loop.create_future()
        self._advance()
        self._waiting.append(_Turn(tokens, reply, done))
        self._plan()
        await done

    def _rates(self) -> tuple[float, float]:
        """Tokens a second: of prompts, and of each reply."""
        times = self._latencies
        step = times.decode + times.decode_each * len(self._replies)
        if self._waiting:
            step += times.chunk / times.prefill
        return times.chunk / step, 1 / step

    def _advance(self) -> None:
        """To now: since the last call nothing has begun or ended."""
        seconds, self._then = self._loop.time() - self._then, self._loop.time()
        if not self._waiting and not self._replies:
            return
        self.busy_s += seconds
        prompts, replies = self._rates()
        self._made += seconds * replies
        if self._waiting:
            self._waiting[0].tokens -= seconds * prompts

    def _plan(self) -> None:
        """End what has ended, and come back when the next thing does."""
        while self._waiting and self._waiting[0].tokens < 1e-3:
            turn = self._waiting.popleft()
            heapq.heappush(self._replies, (self._made + turn.reply, next(self._order), turn))
        while self._replies and self._replies[0][0] < self._made + 1e-6:
            turn = heapq.heappop(self._replies)[2]
            if not turn.done.done():  # else its episode was cancelled
                turn.done.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        prompts, replies = self._rates()
        ends = [self._waiting[0].tokens / prompts] if self._waiting else []
        ends += [(self._replies[0][0] - self._made) / replies] if self._replies else []
        if ends:
            self._timer = self._loop.call_later(min(ends), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._advance()
        self._plan()


@dataclass(slots=True)
class _Session:
    """An episode as the engine sees it."""

    gpu: _Gpu
    turns: int  # after which it says that it is done
    made: int = 0
    cached: int = 0  # tokens whose keys and values its GPU has
    version: int = 0  # of the weights that they are of


@dataclass
class SimulatedEngine:
    """Servers, an episode always on the same one. `caches`: whether one keeps what it has computed of an episode."""

    latencies: Latencies
    gpus: int
    caches: bool
    seed: int
    replies: Mapping[bool, tuple[tuple[int, ...], str]] = field(default_factory=dict)  # tokens and text, by the last
    version: int = 0

    def __post_init__(self) -> None:
        self._gpus = [_Gpu(self.latencies) for _ in range(self.gpus)]
        self._sessions: dict[str, _Session] = {}
        self._rng = random.Random(self.seed)
        self._under_way = 0
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._idle.set()

    @property
    def busy_s(self) -> float:
        """GPU-seconds so far."""
        return sum(gpu.busy_s for gpu in self._gpus)

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        last, version = await self.turn(session, len(prompt.images))
        tokens, text = self.replies[last]
        return Completion(
            tokens, (-0.5,) * len(tokens), text, version, sampling.temperature, sampling.top_p, finish="stop"
        )

    async def turn(self, name: str, images: int) -> tuple[bool, int]:
        """A turn that sees so many screenshots. Returns whether its episode ends with it, and the version."""
        times, rng = self.latencies, self._rng
        await self._open.wait()
        session = self._sessions.get(name)
        if session is None:
            session = _Session(min(self._gpus, key=lambda gpu: gpu.sessions), self._length())
            session.gpu.sessions += 1
            self._sessions[name] = session
        if not self.caches or session.version != self.version:
            session.cached = 0
        reply, version = rng.randint(*times.reply), self.version
        context = times.prompt + images * times.image + (images - 1) * sum(times.reply) // 2
        self._under_way += 1
        self._idle.clear()
        try:
            await session.gpu.turn(context - session.cached, reply)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
        session.cached, session.version, session.made = context + reply, version, session.made + 1
        return session.made >= session.turns, version

    async def release(self, session: str) -> None:
        if known := self._sessions.pop(session, None):
            known.gpu.sessions -= 1

    async def load(self, version: int, weights: Weights | None = None) -> None:
        """Turns under way end first; those to come wait; all that was kept is of the old weights."""
        self._open.clear()
        await self._idle.wait()
        await asyncio.sleep(self.latencies.load)
        self.version = version
        self._open.set()

    def _length(self) -> int:
        times, rng = self.latencies, self._rng
        ends = rng.random() < times.finished
        return rng.randrange(times.shortest, times.max_steps) if ends else times.max_steps + 1


def replies_of(dialect: Dialect, vocabulary: Vocabulary) -> dict[bool, tuple[tuple[int, ...], str]]:
    """What an episode's turns say: the last one that it is done, the others a click."""
    said = {
        last: dialect.format(THOUGHT, action, SCREEN)
        for last, action in ((False, Click(960, 540)), (True, Finish("done")))
    }
    return {last: (tokens, vocabulary.decode(tokens)) for last, tokens in said.items()}
