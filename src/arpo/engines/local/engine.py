"""The local engine: samples for many episodes at once from one Qwen2.5-VL in this process.

    engine = LocalEngine(load_checkpoint("base"))    # or a folder or a hub name; on a GPU where there is one
    completion = await engine.generate("episode 7", prompt, Sampling(temperature=1.0, stop=(end,)), seed=7)

One task works while there is anything to do. Each of its rounds takes in the turns that wait (their new screenshots
through the vision tower, then a chunk of their new tokens through the layers), draws one token for every turn under
way, and lets the event loop run. So turns come and go at every token, none waits for more than a chunk of another, and
the order of work depends on the order of calls, never on the clock: but for turns with large screenshots, which are
taken in when threads have decoded them. A GPU takes in one chunk a round, of as many turns as fit, and is not waited
for: while it draws a token the one before is read. A CPU takes in a chunk of every turn, one after the other.

A session is only a cache. What it keeps are the keys and values of the last prompt and reply; a prompt that goes on
from there costs its new tokens, one that differs somewhere is computed anew from the first difference, and a new
session takes over what it has in common with another: the instructions, and within a group the first screenshot as
well. Where there is no room for all, sessions lose their cache, the one unused for longest first; then turns wait for
each other, and only one too long for any room fails.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import math
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from torch import Tensor

from arpo.beside import beside, large
from arpo.engines.base import Prompt, Sampling, Weights
from arpo.engines.local import sampling
from arpo.engines.local.blocks import Blocks
from arpo.engines.local.cache import Cache, OutOfMemory, Piece, Rows
from arpo.engines.local.decode import Drawn, Next, steps_for
from arpo.engines.local.screens import Screens
from arpo.errors import ArpoError, ConfigError, ContextTooLong, EngineError, device_error
from arpo.images import Pixels
from arpo.model.checkpoint import Checkpoint, load_model
from arpo.model.layout import Layout, lay_out
from arpo.model.qwen import QwenVL
from arpo.types import Completion, Observation
from arpo.vocabulary import Vocabulary

LOOK_S = 0.01  # how often to see whether a screenshot is decoded, where there is nothing else to do
WORTH = 2**30  # bytes of a cache that are given back while nobody samples
CHUNK = 2048  # tokens of prompts that go through the layers at once: what bounds their memory, and how long others wait


@dataclass(slots=True, eq=False)
class _Session:
    """What the cache holds of an episode."""

    entries: list[int | str] = field(default_factory=list)  # whose keys and values it holds
    turn: _Turn | None = None
    used: int = 0  # the round of its last turn, for throwing out the oldest


@dataclass(slots=True, eq=False)
class _Turn:
    """A reply in the making."""

    session: _Session
    prompt: Prompt
    entries: list[int | str]  # of the prompt: its ids, in the places of images the hashes of the screenshots
    layout: Layout
    sampling: Sampling
    uniforms: list[float]
    future: asyncio.Future[Completion]
    decoding: list[Future[Pixels | None]] = field(default_factory=list)  # its new screenshots, the large ones
    visual: Tensor | None = None  # what the layers have not seen yet of the tower's tokens
    seen: int = 0  # tokens of the prompt that the cache holds
    run: int = 0  # tokens of the reply that were run, or are being
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def longest(self) -> int:
        """Tokens of prompt and reply, if that is as long as it may be."""
        return len(self.layout.ids) + self.sampling.max_tokens

    def next(self) -> Next:
        """What is to be run for one more token."""
        token = self.tokens[self.run] if self.run < len(self.tokens) else None
        place, position = len(self.layout.ids) + self.run, self.layout.end + self.run
        self.run += 1
        return Next(self.session, token, place, position, self.sampling, self.uniforms[self.run])


class LocalEngine:
    """See the module.

    `max_context` counts tokens, those of images included; `slots` is how many sessions keep a cache. `screens` may be
    shared with a learner whose vision tower has the same weights. `cache`: one of another kind than the device wants.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        max_context: int = 8192,
        slots: int = 64,
        screens: Screens | None = None,
        cache: Cache | None = None,
    ) -> None:
        if slots < 1 or max_context < 2:
            raise ConfigError(f"slots={slots}, max_context={max_context}: at least 1 and 2")
        self.checkpoint = checkpoint
        self.max_context = max_context
        self._model = checkpoint.model
        self._text = self._model.model.language_model
        self._device = self._model.lm_head.weight.device
        kind = Blocks if self._device.type == "cuda" else Rows
        self._cache: Cache = cache or kind(self._model, slots, max_context)
        self._packs = isinstance(self._cache, Blocks)  # a chunk may be of several turns, and there is one a round
        self._steps = steps_for(self._model, self._cache, slots)
        self.screens = screens or Screens(self._model.model.visual)
        self._image_pad: int = checkpoint.config.image_token_id
        self._slots = slots
        self._sessions: dict[str, _Session] = {}
        self._waiting: list[_Turn] = []  # for room
        self._filling: list[_Turn] = []  # prompts in the middle of the layers
        self._active: list[_Turn] = []  # with a first token
        self._drawing: tuple[list[_Turn], Drawn] | None = None  # the step whose tokens were not read yet
        self._spoiled = False  # whether the cache may hold values that are not numbers
        self._task: asyncio.Task[None] | None = None
        self._loading = asyncio.Lock()
        self._round = 0
        self.version = 0

    @property
    def vocabulary(self) -> Vocabulary:
        return self.checkpoint.vocabulary

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        """One reply. ContextTooLong where the prompt and the longest reply do not fit; EngineError where we failed."""
        state = self._sessions.get(session, _Session())
        turn = self._new_turn(state, prompt, sampling, seed)
        self._sessions[session] = state
        self._waiting.append(turn)
        self._start()
        try:
            return await turn.future
        finally:  # also where the caller was cancelled: then the next round finds the turn done and drops it
            state.turn = None

    async def release(self, session: str) -> None:
        """Forget a session. A turn of it that is under way ends in EngineError."""
        gone = self._sessions.pop(session, None)
        if gone is not None and gone.turn is not None:
            self._fail(gone.turn, f"the session {session!r} was released during its turn")
        elif gone is not None:
            self._forget(gone)

    async def load(self, version: int, weights: Weights) -> None:
        """Go on with other weights of the same shapes. Turns that still wait will use the new ones.

        Those of this process are copied from where they are, if they are not the engine's own. While files are read,
        turns go on with the old ones; only the change itself waits for those under way. A checkpoint that cannot be
        used is a ConfigError, and the old weights stay.
        """
        if (tensors := weights.tensors) is None:
            place, dtype = weights.path(), self._model.lm_head.weight.dtype
            new = await asyncio.to_thread(load_model, place, device="cpu", dtype=dtype)
            if [weight.shape for weight in new.parameters()] != [weight.shape for weight in self._model.parameters()]:
                raise ConfigError(f"model={place}: its weights have other shapes than those of {self.checkpoint.name}")
            tensors = new.named_parameters
        async with self._alone():
            self._forget_all(give_back=self._spoiled)  # also where it fails: some weights may be new by then
            self._spoiled = False
            if not await beside(_take_over, self._model, tensors()):
                self.screens.forget()  # a tower that was not trained sees what it saw before
            self.version = version

    async def rest(self) -> None:
        """Give the memory of the cache back, once the turns under way have ended; the next turn takes it again."""
        if not isinstance(self._cache, Blocks) or self._cache.size < WORTH:  # to take it again would cost more
            return
        async with self._alone():
            self._forget_all(give_back=True)

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """When the turns under way have ended. None is taken in meanwhile; those that wait go on after it."""
        try:
            async with self._loading:
                if self._task is not None and not self._task.done():
                    await asyncio.wait([self._task])
                yield
        finally:
            self._start()

    def _new_turn(self, session: _Session, prompt: Prompt, settings: Sampling, seed: int) -> _Turn:
        sampling.check(settings)
        if session.turn is not None:
            raise ValueError("a session takes one turn at a time")
        pads, images = prompt.ids.count(self._image_pad), prompt.images
        if not prompt.ids or pads != len(images):
            raise ValueError(f"a prompt of {len(prompt.ids)} ids with {pads} image tokens, {len(images)} images")
        hashes = iter(image.hash for image in images)
        entries = [next(hashes) if one == self._image_pad else one for one in prompt.ids]
        sizes = [self._model.sight.grid(image.width, image.height) for image in images]
        layout = lay_out(prompt.ids, sizes, self._image_pad)
        if len(layout.ids) + settings.max_tokens > self.max_context:
            raise ContextTooLong(
                f"a prompt of {len(layout.ids)} tokens and a reply of up to {settings.max_tokens} "
                f"do not fit into a context of {self.max_context}"
            )
        uniforms = sampling.stream(seed, prompt, settings.max_tokens)
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        session.turn = _Turn(session, prompt, entries, layout, settings, uniforms, future)
        return session.turn

    def _start(self) -> None:
        if (self._task is None or self._task.done()) and self._waiting and not self._loading.locked():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        """Rounds, as long as there is something to do."""
        try:
            while self._active or self._filling or (self._waiting and not self._loading.locked()):
                self._round += 1
                for turns in (self._waiting, self._filling, self._active):
                    turns[:] = [turn for turn in turns if not turn.future.done()]
                self._take_in()
                before = self._drawing
                self._drawing = self._step()
                if before is not None:
                    while not before[1].done():
                        await asyncio.sleep(0)
                    self._append(before[0], *before[1].result())
                if self._drawing is not None and not self._drawing[1].later:
                    self._append(self._drawing[0], *self._drawing[1].result())
                    self._drawing = None
                # A turn that still waits, and for none under way, waits for a thread.
                await asyncio.sleep(LOOK_S if self._waiting and not (self._active or self._filling) else 0)
        except BaseException as error:
            # Half a round may be in the cache: nothing of it is trusted.
            lost = device_error(error)  # no turn of any session would fare better
            for turn in (*self._waiting, *self._filling, *self._active):
                self._fail(turn, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}", lost)
            self._forget_all()
            self._waiting, self._filling, self._active, self._drawing = [], [], [], None
            if not isinstance(error, Exception):
                raise

    @torch.inference_mode()
    def _take_in(self) -> None:
        """Chunks of the prompts, and the first tokens of those that are through."""
        ready: list[tuple[_Turn, Tensor]] = []
        for chunk in self._chunks():
            fresh = [turn for turn, _ in chunk if turn.visual is None]
            features = self.screens.features(image for turn in fresh for image in self._new_images(turn))
            for turn in fresh:
                turn.decoding = []  # 6 MB each at 1920x1080
                self._show(turn, features)
            ready += self._run([(turn, end) for turn, end in chunk if not turn.future.done()])
        if ready:
            turns = [turn for turn, _ in ready]
            scores = self._model.scores(torch.stack([hidden for _, hidden in ready]))
            drawn = sampling.sample(scores, [turn.sampling for turn in turns], [turn.uniforms[0] for turn in turns])
            self._append(turns, *drawn)

    def _chunks(self) -> Iterator[list[tuple[_Turn, int]]]:
        """Turns, and how far their prompts go this time; those that wait join where there is room."""
        chunk: list[tuple[_Turn, int]] = []
        left = CHUNK
        for turn in (*self._filling, *self._waiting):
            if turn in self._waiting and not self._admit(turn):
                continue
            end = min(turn.seen + left, len(turn.layout.ids))
            chunk.append((turn, end))
            left -= end - turn.seen
            if not self._packs:
                yield chunk
                chunk, left = [], CHUNK
            elif not left:
                break
        if chunk:
            yield chunk

    def _admit(self, turn: _Turn) -> bool:
        """Room for a turn, where there is, and in it the beginning that it shares with another."""
        if self._loading.locked() or not self._decoded(turn):
            return False
        if len(self._filling) + len(self._active) >= self._slots:
            return False
        session = turn.session
        session.used = self._round
        coming = max((_common(other.entries, turn.entries) for other in self._filling), default=0)
        while True:
            donor = session
            if _common(session.entries, turn.entries) == 0:
                donor = max(
                    self._sessions.values(), key=lambda other: _common(other.entries, turn.entries), default=session
                )
            kept = _common(donor.entries, turn.entries)
            if kept < coming:
                return False  # until that is computed
            begin = int(turn.layout.starts[kept])
            try:
                if self._cache.room(session, turn.longest, donor, begin):
                    break
            except OutOfMemory as full:
                self._fail(turn, str(full))
                return False
            idle = [other for other in self._sessions.values() if self._cache.holds(other) and other.turn is None]
            if not idle and not self._filling and not self._active and self._cache.holds(session):
                idle = [session]  # room of another shape may need the place where it is
            if not idle:
                return False
            self._forget(min(idle, key=lambda other: (other is donor, other.used)))
        session.entries, turn.seen = turn.entries[:kept], begin
        self._waiting.remove(turn)
        self._filling.append(turn)
        return True

    def _decoded(self, turn: _Turn) -> bool:
        """Whether the large ones of its new screenshots are decoded. Those that are not, will be."""
        if not any(map(large, turn.prompt.images)):
            return True
        if all(image.done() for image in turn.decoding):  # once more: it may have lost its room, and need older ones
            turn.decoding = self.screens.prepare(self._new_images(turn))
        return all(image.done() for image in turn.decoding)

    def _new_images(self, turn: _Turn) -> tuple[Observation, ...]:
        """The screenshots of a prompt that its session does not hold."""
        held = turn.prompt.ids[: _common(turn.session.entries, turn.entries)]
        return turn.prompt.images[held.count(self._image_pad) :]

    def _show(self, turn: _Turn, features: dict[str, Tensor]) -> None:
        images = self._new_images(turn)
        if unreadable := [image.hash for image in images if image.hash not in features]:
            self._fail(turn, f"the screenshot {unreadable[0]} cannot be decoded to its size")
        else:
            turn.visual = torch.cat([features[image.hash] for image in images]) if images else torch.empty(0)

    def _run(self, chunk: list[tuple[_Turn, int]]) -> list[tuple[_Turn, Tensor]]:
        """Run prompts up to there. The result: those that are through, and what their first tokens are drawn from."""
        if not chunk:
            return []
        ids = torch.cat([turn.layout.ids[turn.seen : end] for turn, end in chunk])
        positions = torch.cat([turn.layout.positions[:, turn.seen : end] for turn, end in chunk], dim=1)
        features = []
        for turn, end in chunk:
            n = int((turn.layout.ids[turn.seen : end] == self._image_pad).sum())
            if n and turn.visual is not None:
                features.append(turn.visual[:n])
                turn.visual = turn.visual[n:]
        attend = self._cache.extend([Piece(turn.session, turn.seen, end) for turn, end in chunk])
        last = torch.tensor([end - turn.seen for turn, end in chunk]).cumsum(0) - 1
        hidden = self._text(
            ids.to(self._device),
            positions.to(self._device),
            torch.cat(features) if features else None,
            attend,
            wanted=last.to(self._device),
        )
        ready = []
        for (turn, end), state in zip(chunk, hidden, strict=True):
            turn.seen = end
            whole = bisect.bisect_right(turn.layout.starts, end) - 1  # entries all of whose tokens were run
            turn.session.entries = turn.entries[:whole]
            if end == len(turn.layout.ids):
                ready.append((turn, state))
                self._filling.remove(turn)
                self._active.append(turn)
        return ready

    @torch.inference_mode()
    def _step(self) -> tuple[list[_Turn], Drawn] | None:
        """Run the last token of every turn under way and draw its next one."""
        turns = [turn for turn in self._active if not turn.future.done() and turn.run + 1 < turn.sampling.max_tokens]
        if not turns:
            return None
        return turns, self._steps.step([turn.next() for turn in turns])

    def _append(self, turns: list[_Turn], tokens: list[int], logprobs: list[float]) -> None:
        """One token for each turn; those that are complete answer their callers."""
        for turn, token, logprob in zip(turns, tokens, logprobs, strict=True):
            if turn.future.done():
                continue  # a step too much
            if math.isnan(logprob):
                self._spoiled = True  # what is masked counts with weight 0, and 0 times NaN is NaN
                self._fail(turn, "the model gave values that are not numbers")
                continue
            if turn.tokens:
                turn.session.entries.append(turn.tokens[-1])  # which was run for this one
            turn.tokens.append(token)
            turn.logprobs.append(logprob)
            if token in turn.sampling.stop or len(turn.tokens) == turn.sampling.max_tokens:
                completion = Completion(
                    tokens=tuple(turn.tokens),
                    logprobs=tuple(turn.logprobs),
                    text=self.vocabulary.decode(tuple(turn.tokens)),
                    version=self.version,
                    temperature=turn.sampling.temperature,
                    top_p=turn.sampling.top_p,
                    finish="stop" if token in turn.sampling.stop else "length",
                )
                turn.future.set_result(completion)

    def _fail(self, turn: _Turn, reason: str, error: ArpoError | None = None) -> None:
        """Answer a caller with an error. What its session holds is not trusted."""
        if not turn.future.done():
            turn.future.set_exception(error or EngineError(f"the local engine: {reason}"))
        self._forget(turn.session)

    def _forget(self, session: _Session) -> None:
        self._cache.drop(session)
        session.entries = []

    def _forget_all(self, give_back: bool = False) -> None:
        for session in self._sessions.values():
            session.entries = []
        self._cache.reset(give_back)
        if give_back:
            self._steps.reset()


@torch.no_grad()
def _take_over(model: QwenVL, new: Iterable[tuple[str, Tensor]]) -> bool:
    """Give a model other weights, one by one; returns whether those of the vision tower are what they were.

    Where they are the model's own, which a learner has changed in place, the tower is what it was if none trains it.
    """
    old, same = dict(model.named_parameters()), True
    for name, weight in new:
        mine = old.pop(name)
        if mine.shape != weight.shape:
            raise EngineError(f"the local engine: {name} is {tuple(weight.shape)} there and {tuple(mine.shape)} here")
        own = weight.data_ptr() == mine.data_ptr()
        if ".visual." in name:
            same = same and (not mine.requires_grad if own else torch.equal(weight.to(mine.device, mine.dtype), mine))
        if not own:
            mine.copy_(weight)
    if old:
        raise EngineError(f"the local engine: got no {min(old)}")
    if mine.is_cuda:
        torch.cuda.synchronize(mine.device)  # who samples does so in another stream, maybe
    return same


def _common(held: list[int | str], asked: list[int | str]) -> int:
    """How many entries of the prompt's beginning are held. The last never counts: it must be run."""
    most = min(len(held), len(asked) - 1)
    if held[:most] == asked[:most]:
        return most
    return bisect.bisect_left(range(1, most + 1), True, key=lambda n: held[:n] != asked[:n])  # at the speed of C
