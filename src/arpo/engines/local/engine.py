"""The local engine: samples for many episodes at once from one Qwen2.5-VL in this process.

    engine = LocalEngine(load_checkpoint("base"))    # or a folder or a hub name; on a GPU where there is one
    completion = await engine.generate("episode 7", prompt, Sampling(temperature=1.0, stop=(end,)), seed=7)

One task works while there is anything to do. Each of its rounds takes in the turns that wait (their new screenshots
through the vision tower together, then their new tokens), draws one token for every turn under way, and lets the event
loop run. So turns come and go at every token, and the order of work depends on the order of calls, never on the clock:
but for turns with large screenshots, which are taken in when threads have decoded them.

A session is only a cache. What it keeps are the keys and values of the last prompt and reply; a prompt that goes on
from there costs its new tokens, one that differs somewhere is computed anew from the first difference, and a new
session copies what it has in common with another: the instructions, and within a group the first screenshot as well.
Where there are more sessions than slots, the one unused for longest loses its cache. Where memory is too short for all
slots, there are fewer until the next weights come: turns wait for each other, and only one too long for any fails.
"""

from __future__ import annotations

import asyncio
import bisect
import logging
import math
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from arpo.beside import beside, large
from arpo.engines.base import Prompt, Sampling
from arpo.engines.local import sampling
from arpo.engines.local.cache import Cache, OutOfMemory
from arpo.engines.local.screens import Screens
from arpo.errors import ConfigError, ContextTooLong, EngineError
from arpo.images import Pixels
from arpo.model.checkpoint import Checkpoint, load_model
from arpo.model.images import image_grid
from arpo.model.layout import Layout, lay_out
from arpo.model.qwen import QwenVL
from arpo.types import Completion, Observation
from arpo.vocabulary import Vocabulary

LOOK_S = 0.01  # how often to see whether a screenshot is decoded, where there is nothing else to do
CHUNK = 2048  # tokens of a prompt that go through the layers at once: what bounds the memory of a long one
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Session:
    """What the cache holds of an episode."""

    row: int | None = None
    entries: list[int | str] = field(default_factory=list)  # whose keys and values are in the row
    length: int = 0  # tokens in the row, those of images included
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
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def row(self) -> int:
        assert self.session.row is not None, "a turn was run before it had a row"
        return self.session.row

    @property
    def longest(self) -> int:
        """Tokens of its row, once its reply is as long as it may be."""
        return len(self.layout.ids) + self.sampling.max_tokens


class LocalEngine:
    """See the module.

    `max_context` counts tokens, those of images included; `slots` is how many sessions keep a cache. `screens` may be
    shared with a learner whose vision tower has the same weights.
    """

    def __init__(
        self, checkpoint: Checkpoint, max_context: int = 8192, slots: int = 64, screens: Screens | None = None
    ) -> None:
        if slots < 1 or max_context < 2:
            raise ConfigError(f"slots={slots}, max_context={max_context}: at least 1 and 2")
        self.checkpoint = checkpoint
        self.max_context = max_context
        self._model = checkpoint.model
        self._text = self._model.model.language_model
        self._device = self._model.lm_head.weight.device
        self._cache = Cache(self._model, most_rows=slots, most_tokens=max_context)
        self.screens = screens or Screens(self._model.model.visual)
        self._image_pad: int = checkpoint.config.image_token_id
        self._slots = slots
        self._rows = slots  # of them, those that there is memory for
        self._free = list(range(slots))
        self._sessions: dict[str, _Session] = {}
        self._waiting: list[_Turn] = []
        self._active: list[_Turn] = []
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

    async def load(self, version: int, place: Path) -> None:
        """Go on with the weights of another checkpoint of the same shape. Turns that still wait will use the new ones.

        While its files are read, turns go on with the old ones; only the change itself waits for those under way.
        A checkpoint that cannot be used is a ConfigError, and the old weights stay.
        """
        new = await asyncio.to_thread(load_model, place, device="cpu", dtype=self._model.lm_head.weight.dtype)
        if [weight.shape for weight in new.parameters()] != [weight.shape for weight in self._model.parameters()]:
            raise ConfigError(f"model={place}: its weights have other shapes than those of {self.checkpoint.name}")
        async with self._loading:  # the task ends when the turns under way have: none is taken in meanwhile
            if self._task is not None and not self._task.done():
                await asyncio.wait([self._task])
            if not await beside(_take_over, self._model, new):
                self.screens.forget()  # a tower that was not trained sees what it saw before
            for session in self._sessions.values():
                self._forget(session)
            if self._rows < self._slots:  # there may be memory for all by now
                self._cache.clear()
                self._rows, self._free = self._slots, list(range(self._slots))
            self.version = version
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
        layout = lay_out(prompt.ids, [image_grid(image.width, image.height) for image in images], self._image_pad)
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
            while self._active or (self._waiting and not self._loading.locked()):
                self._round += 1
                self._waiting = [turn for turn in self._waiting if not turn.future.done()]
                self._active = [turn for turn in self._active if not turn.future.done()]
                if not self._loading.locked():
                    self._take_in()
                self._step()
                # A turn that still waits, and for none under way, waits for a thread.
                await asyncio.sleep(LOOK_S if self._waiting and not self._active else 0)
        except BaseException as error:
            # Half a round may be in the cache: nothing of it is trusted.
            for turn in (*self._waiting, *self._active):
                self._fail(turn, f"{type(error).__name__}: {error}")
            for session in self._sessions.values():
                self._forget(session)
            self._waiting, self._active = [], []
            if not isinstance(error, Exception):
                raise

    @torch.inference_mode()
    def _take_in(self) -> None:
        """The waiting turns that can have a row: their screenshots, their prompts, their first tokens."""
        taken = self._with_room(
            [turn for turn in self._waiting if self._decoded(turn) and self._give_row(turn.session)]
        )
        self._waiting = [turn for turn in self._waiting if turn not in taken and not turn.future.done()]
        if not taken:
            return
        self._active += taken  # from here on a failure of ours reaches them
        features = self.screens.features(image for turn in taken for image in self._new_images(turn))
        for turn in taken:
            turn.decoding = []  # 6 MB each at 1920x1080
            if unreadable := [image.hash for image in self._new_images(turn) if image.hash not in features]:
                self._fail(turn, f"the screenshot {unreadable[0]} cannot be decoded to its size")
        if readable := [turn for turn in taken if not turn.future.done()]:
            self._sample(readable, torch.stack([self._prefill(turn, features) for turn in readable]))

    def _with_room(self, turns: list[_Turn]) -> list[_Turn]:
        """Those of the turns, each with a row, for which the cache has memory. The others go on waiting, or fail."""
        while turns:
            rows = 1 + max(turn.row for turn in turns)
            try:
                self._cache.reserve(rows, max(turn.longest for turn in turns))
                break
            except OutOfMemory as full:
                if rows > max(1, self._cache.rows):
                    self._limit_rows(max(1, self._cache.rows, rows // 2), full)
                    for turn in turns:
                        if turn.row >= self._rows:
                            self._forget(turn.session)
                    turns = [turn for turn in turns if turn.session.row is not None]
                elif self._active:
                    turns = []  # until those under way have ended
                elif self._cache.rows:  # longer rows need the memory of others
                    for session in self._sessions.values():
                        self._forget(session)
                    self._limit_rows(max(1, self._cache.rows // 2), full)
                    self._cache.clear()
                    turns = [turn for turn in turns if self._give_row(turn.session)]
                else:
                    for turn in turns:
                        self._fail(turn, f"{full}; a smaller agent.context needs less")
                    turns = []
        return turns

    def _limit_rows(self, rows: int, full: OutOfMemory) -> None:
        # Its text alone: the error itself would keep tensors alive for as long as somebody keeps the record.
        _log.warning("%s: at most %d turns at a time until the next weights", str(full), rows)
        self._rows, self._free = rows, [row for row in self._free if row < rows]

    def _decoded(self, turn: _Turn) -> bool:
        """Whether the large ones of its new screenshots are decoded. Those that are not, will be."""
        if not any(map(large, turn.prompt.images)):
            return True
        if all(image.done() for image in turn.decoding):  # once more: it may have lost its row, and need older ones
            turn.decoding = self.screens.prepare(self._new_images(turn))
        return all(image.done() for image in turn.decoding)

    def _give_row(self, session: _Session) -> bool:
        """A row of the cache for a session that has none; at worst the one of the session idle for longest."""
        session.used = self._round
        if session.row is None:
            if not self._free:
                idle = [other for other in self._sessions.values() if other.row is not None and other.turn is None]
                if not idle:
                    return False
                self._forget(min(idle, key=lambda other: other.used))
            session.row = self._free.pop(0)
        return True

    def _new_images(self, turn: _Turn, session: _Session | None = None) -> tuple[Observation, ...]:
        """The screenshots of a prompt that a session's row, by default its own, does not hold."""
        held = turn.prompt.ids[: _shared(session or turn.session, turn)]
        return turn.prompt.images[held.count(self._image_pad) :]

    def _prefill(self, turn: _Turn, features: dict[str, Tensor]) -> Tensor:
        """Run what is new of a prompt. The result is the hidden state that the first token is drawn from."""
        session, layout = turn.session, turn.layout
        donor = session
        if _shared(session, turn) == 0:
            donor = max(self._sessions.values(), key=lambda other: _shared(other, turn), default=session)
        begin = int(layout.starts[_shared(donor, turn)])
        if donor.row is not None and donor is not session:
            self._cache.copy(donor.row, turn.row, begin)
        visual = [features[image.hash] for image in self._new_images(turn, donor)]
        unseen, hidden = torch.cat(visual) if visual else torch.empty(0), torch.empty(0)
        for start in range(begin, len(layout.ids), CHUNK):
            ids, positions = layout.ids[start : start + CHUNK], layout.positions[:, start : start + CHUNK]
            n = int((ids == self._image_pad).sum())
            seen, unseen = unseen[:n] if n else None, unseen[n:]
            attend = self._cache.extend(turn.row, start, len(ids))
            last = torch.tensor([len(ids) - 1], device=self._device)
            hidden = self._text(ids.to(self._device), positions.to(self._device), seen, attend, wanted=last)
        session.entries, session.length = list(turn.entries), len(layout.ids)
        return hidden[-1]

    @torch.inference_mode()
    def _step(self) -> None:
        """Run the last token of every turn under way and sample its next one."""
        turns = sorted((turn for turn in self._active if not turn.future.done()), key=lambda turn: turn.row)
        if not turns:
            return
        last = torch.tensor([turn.tokens[-1] for turn in turns], device=self._device)
        places = torch.tensor([turn.layout.end + len(turn.tokens) - 1 for turn in turns], device=self._device)
        attend = self._cache.step([turn.row for turn in turns], [turn.session.length for turn in turns])
        hidden = self._text(last, places.expand(3, -1), attend=attend)
        for turn in turns:
            turn.session.entries.append(turn.tokens[-1])
            turn.session.length += 1
        self._sample(turns, hidden)

    def _sample(self, turns: list[_Turn], hidden: Tensor) -> None:
        """One token for each turn; those that are complete answer their callers."""
        tokens, logprobs = sampling.sample(
            self._model.scores(hidden),
            [turn.sampling for turn in turns],
            [turn.uniforms[len(turn.tokens)] for turn in turns],
        )
        for turn, token, logprob in zip(turns, tokens, logprobs, strict=True):
            if math.isnan(logprob):
                self._fail(turn, "the model gave values that are not numbers")
                continue
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

    def _fail(self, turn: _Turn, reason: str) -> None:
        """Answer a caller with an error. What its row holds is not trusted."""
        if not turn.future.done():
            turn.future.set_exception(EngineError(f"the local engine: {reason}"))
        self._forget(turn.session)

    def _forget(self, session: _Session) -> None:
        if session.row is not None and session.row < self._rows:
            bisect.insort(self._free, session.row)
        session.row, session.entries, session.length = None, [], 0


def _take_over(model: QwenVL, new: QwenVL) -> bool:
    """Give a model the weights of another; returns whether those of the vision tower are what they were."""
    tower, new_tower = model.model.visual.parameters(), new.model.visual.parameters()
    same = all(torch.equal(b.to(a.device), a) for a, b in zip(tower, new_tower, strict=True))
    model.load_state_dict(new.state_dict())
    return same


def _shared(session: _Session, turn: _Turn) -> int:
    """How many entries of the prompt's beginning a session's row holds. The last never counts: it must be run."""
    held, asked = session.entries, turn.entries
    most = min(len(held), len(asked) - 1)
    if held[:most] == asked[:most]:
        return most
    return bisect.bisect_left(range(1, most + 1), True, key=lambda n: held[:n] != asked[:n])  # at the speed of C
