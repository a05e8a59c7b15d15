"""The engine over vLLM servers: one or many, on this machine or others, all with the same weights.

    engine = VllmEngine(checkpoint, ["http://127.0.0.1:8000"], token, Published(0, …))
    completion = await engine.generate("episode 7", prompt, Sampling(temperature=1.0, stop=(end,)), seed=7)

Token ids go in, with one image token for each screenshot and the screenshots beside them, at the size that the model
sees. A server has each of them sent once. Ids and log-probabilities at the sampling temperature come back, and the
prompt as the server has expanded it: where that is not ours, nothing of the answer is used.

An episode stays with the server that has its beginning in the cache. Where a server ends, hangs or answers nonsense,
its turns are asked of another one, and it is looked at until it answers again; before it is used it gets the weights of
the day. New weights: turns under way end, then every server loads them, then turns go on. Every turn says which weights
it is for, and a server that has others refuses it (guard.py).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import shutil
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

from arpo.beside import beside, large
from arpo.engines.base import Prompt, Sampling, Weights
from arpo.engines.local import sampling as rules
from arpo.engines.vllm.client import Absent, Lost, Published, Rejected, Server, Useless
from arpo.engines.vllm.guard import files_of, name_of, shape_of
from arpo.engines.vllm.serve import Fleet
from arpo.errors import ConfigError, ContextTooLong, EngineError, EnvError
from arpo.images import decode, encode_png
from arpo.model.checkpoint import Checkpoint, empty_model
from arpo.model.images import resized
from arpo.model.qwen import banned_ids
from arpo.types import Completion, Observation

TURN_S = 300.0  # of one turn, from its question to its answer
WAIT_S = 600.0  # for a server, where none answers: one that was lost may be starting
LOOK_S = 2.0  # between two looks at a server
TRIES = 4  # servers that one turn is asked of
HIGHEST, SLACK = 1e4, 1e-3  # between minus the first and the second a log-probability lies
BANNED = -1e30  # added to a score: none is left of it
_log = logging.getLogger(__name__)


class VllmEngine:
    """See the module. `outline`: the model without its weights; `weights`: those of version 0.

    `max_context` counts tokens, those of images included. `own`: servers that end with it.
    """

    def __init__(
        self,
        outline: Checkpoint,
        servers: Sequence[str],
        token: str,
        weights: Published,
        max_context: int,
        turn_s: float = TURN_S,
        wait_s: float = WAIT_S,
        own: Fleet | None = None,
    ) -> None:
        self.checkpoint, self.max_context, self.version = outline, max_context, weights.version
        self.prompt_tokens = self.cached_tokens = 0  # of all turns; how many of them a server did not compute anew
        self._servers = [Server(address, token) for address in servers]
        self._weights, self._turn_s, self._wait_s, self._own = weights, turn_s, wait_s, own
        self._sight, self._pad = outline.model.sight, outline.config.image_token_id
        self._bias = {str(token): BANNED for token in banned_ids(outline.config)}
        self._size = outline.config.text_config.vocab_size
        self._gate = asyncio.Lock()  # held while weights change
        self._running = 0
        self._idle = asyncio.Event()  # set where no turn is under way
        self._idle.set()
        self._changed = asyncio.Condition()  # told where a turn has ended, or a server is there again
        self._watching: list[asyncio.Task[None]] = []

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        """One reply. ContextTooLong where the prompt and the longest reply do not fit; EngineError where we failed."""
        rules.check(sampling)
        expected = self._expanded(prompt, sampling)
        self._watch()
        lost, tried = list[str](), list[Server]()
        while len(lost) < TRIES:
            server = await self._home(session, tried)
            async with self._turn():
                if server.why:
                    continue  # meanwhile; another is looked for
                asking = asyncio.ensure_future(self._ask(server, prompt, sampling, seed))
                server.turns.add(asking)
                try:
                    answer = await asking
                    return self._completion(answer, expected, sampling)
                except Lost as error:
                    await self._lose(server, str(error))
                    lost.append(f"{server.address}: {error}")
                except asyncio.CancelledError:
                    asking.cancel()
                    this = asyncio.current_task()
                    if this is None or this.cancelling():
                        raise  # it is we who are cancelled, not the turns of a server that is gone, or is back by now
                    lost.append(f"{server.address}: {server.why or 'it was lost'}")
                except EngineError as error:  # nonsense; with few sessions for that it would be asked again and again
                    tried.append(server)
                    if all(one.why or one in tried for one in self._servers):
                        raise
                    await self.release(session)
                    lost.append(f"{server.address}: {error}")
                finally:
                    server.turns.discard(asking)
        raise EngineError(f"no server could finish a turn: {'; '.join(lost)}"[:1000])

    async def release(self, session: str) -> None:
        for server in self._servers:
            server.sessions.discard(session)

    async def load(self, version: int, weights: Weights) -> None:
        """Go on with other weights of the same shapes. They are written, and looked at by servers, while turns go on.

        ConfigError for a checkpoint that cannot be used: the old weights stay. EngineError where no server takes it.
        """
        self._watch()
        published = await beside(_publish, version, weights)
        await beside(_refuse_other, published, self.checkpoint)
        await asyncio.gather(*(self._offer(server, published) for server in self._servers if not server.why))
        async with self._gate:
            await self._idle.wait()
            old, self._weights, self.version = self._weights, published, version
            refused = await asyncio.gather(*(self._renew(server) for server in self._servers if not server.why))
        if refused and all(refused):
            raise EngineError(f"version {version} could not be loaded: {refused[0]}")
        await asyncio.to_thread(_forget, old, published.folder)

    async def aclose(self) -> None:
        """End what was started here."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        self._watching = []
        for server in self._servers:
            await server.aclose()
        if self._own is not None:
            await asyncio.to_thread(self._own.close)
        await asyncio.to_thread(_forget, self._weights)

    # ---- turns

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        async with self._gate:
            self._running += 1
            self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()  # at once: a turn that is cancelled below would tell nobody
            async with self._changed:
                self._changed.notify_all()

    async def _home(self, session: str, but: Sequence[Server] = ()) -> Server:
        """The server that holds the session's beginning, or the one with the fewest sessions."""
        ends = time.monotonic() + self._wait_s
        while not (well := [server for server in self._servers if not server.why and server not in but]):
            if (why := self._hopeless()) is not None:
                raise ConfigError(why)
            if self._own is not None and not self._own.ready():
                ends = time.monotonic() + self._wait_s  # it is starting, however long that takes
            if time.monotonic() > ends:
                said = "; ".join(f"{server.address}: {server.why}" for server in self._servers)
                raise EngineError(f"no server answers: {said}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S), self._changed:
                    await self._changed.wait()
        for server in well:
            if session in server.sessions:
                return server
        home = min(well, key=lambda server: len(server.sessions))
        await self.release(session)
        home.sessions.add(session)
        return home

    async def _ask(self, server: Server, prompt: Prompt, sampling: Sampling, seed: int) -> dict[str, Any]:
        """What the server says. Screenshots that it had once are only named, and sent where it has lost them."""
        weights = self._weights.name
        settings = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "stop_token_ids": list(sampling.stop),
            "seed": seed % 2**62,
            "logit_bias": self._bias,
            "logprobs": 0,  # of the sampled token alone
            "ignore_eos": True,  # a checkpoint may name others than those of `stop`
            "detokenize": False,
        }
        question: dict[str, Any] = {"token_ids": prompt.ids, "sampling_params": settings, "return_token_ids": True}
        for known in (set(server.holds), set[str]()):
            parts = [await self._part(image, image.hash in known) for image in prompt.images]
            question["content_parts"] = parts or None
            try:
                answer = await server.call(
                    "POST", "/inference/v1/generate", self._turn_s, json=question, headers={"X-Arpo-Weights": weights}
                )
            except Rejected as error:
                if any(part["url"] is None for part in parts):
                    server.holds.clear()
                    continue
                raise EngineError(f"{server.address} refuses the turn: {error}") from error
            server.holds.update(image.hash for image in prompt.images)
            return answer
        raise AssertionError

    async def _part(self, image: Observation, known: bool) -> dict[str, Any]:
        data = None if known else await asyncio.to_thread(self._png, image) if large(image) else self._png(image)
        url = None if data is None else "data:image/png;base64," + base64.b64encode(data).decode()
        return {"type": "image_url", "url": url, "uuid": image.hash}

    def _png(self, image: Observation) -> bytes:
        """At the size that the model sees, so that the server leaves it as it is."""
        plain = image.image.startswith(b"\x89PNG") and image.image[24:26] == b"\x08\x02"  # 8 bits, red, green and blue
        if plain and self._sight.size(image.height, image.width) == (image.height, image.width):
            return image.image
        try:
            return encode_png(resized(decode(image.image), self._sight))
        except EnvError as error:
            raise EngineError(f"the screenshot {image.hash} cannot be decoded") from error

    def _expanded(self, prompt: Prompt, sampling: Sampling) -> list[int]:
        """The ids as the model sees them, and as a server must see them too."""
        sizes = iter([self._sight.tokens(image.width, image.height) for image in prompt.images])
        if not prompt.ids or prompt.ids.count(self._pad) != len(prompt.images):
            raise ValueError(f"a prompt of {len(prompt.ids)} ids with {len(prompt.images)} images")
        ids = [id for one in prompt.ids for id in ([one] * next(sizes) if one == self._pad else (one,))]
        if len(ids) + sampling.max_tokens > self.max_context:
            raise ContextTooLong(
                f"a prompt of {len(ids)} tokens and a reply of up to {sampling.max_tokens} "
                f"do not fit into a context of {self.max_context}"
            )
        return ids

    def _completion(self, answer: dict[str, Any], expected: list[int], sampling: Sampling) -> Completion:
        """EngineError where it is no answer to what was asked."""
        try:
            (choice,) = answer["choices"]
            tokens = tuple(int(token) for token in choice["token_ids"])
            logprobs = [(one["token_id"], float(one["logprob"])) for one in choice["logprobs"]["content"]]
            seen, cached = answer["prompt_token_ids"], (answer["usage"].get("prompt_tokens_details") or {})
            self.cached_tokens += int(cached.get("cached_tokens") or 0)
            seen = [int(one) for one in seen]
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise EngineError(f"a server's answer has no tokens in it: {type(error).__name__}: {error}") from error
        if seen != expected:
            first = next((i for i, (a, b) in enumerate(zip(seen, expected, strict=False)) if a != b), len(expected))
            raise EngineError(
                f"a server saw another prompt: {len(seen)} tokens for {len(expected)}, the first other one is {first}"
            )
        if any(not 0 <= one < self._size or str(one) in self._bias for one in tokens):
            raise EngineError("a server's reply has tokens that no reply can have")
        possible = all(-HIGHEST < value < SLACK for _, value in logprobs)  # not so NaN
        if tuple(token for token, _ in logprobs) != tokens or not possible:
            raise EngineError("a server's log-probabilities are not those of its tokens, or are no numbers")
        ended = bool(tokens) and tokens[-1] in sampling.stop
        if not ended and len(tokens) != sampling.max_tokens:
            raise EngineError(f"a server broke off after {len(tokens)} tokens: {choice.get('finish_reason')}")
        self.prompt_tokens += len(expected)
        return Completion(
            tokens=tokens,
            # At temperature 0 the distribution is a single token.
            logprobs=tuple(value if sampling.temperature else 0.0 for _, value in logprobs),
            text=self.checkpoint.vocabulary.decode(tokens),
            version=self.version,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            finish="stop" if ended else "length",
        )

    # ---- servers

    def _hopeless(self) -> str | None:
        """Why waiting does not help, in a line for the user."""
        if self._own is not None:
            return self._own.problem()
        final = [server for server in self._servers if server.final]
        return f"engine.servers={final[0].address}: {final[0].why}" if len(final) == len(self._servers) else None

    def _watch(self) -> None:
        if not self._watching:
            if self._own is not None:
                self._own.start()
            self._watching = [asyncio.create_task(self._look_after(server)) for server in self._servers]

    async def _look_after(self, server: Server) -> None:
        """Look at a server for ever: one that hangs loses its turns, one that comes back gets the weights."""
        while True:
            try:
                state = await server.state()
                if state.get("model") != shape_of(self.checkpoint.config):
                    raise Useless(f"serves another model than {self.checkpoint.name}; start one by `arpo serve`")
                if not isinstance(most := state.get("max_context"), int) or most < self.max_context:
                    less = f"serves contexts of {state.get('max_context')} tokens, and agent.context is"
                    raise Useless(f"{less} {self.max_context}; start it with that setting")
                if server.why or state.get("weights") != self._weights.name:
                    await self._renew(server)
            except (Lost, Rejected) as error:
                await self._lose(server, str(error))
                # Where nobody ever was nobody will be; one that was there may come back.
                server.final = isinstance(error, Useless) or (isinstance(error, Absent) and not server.met)
            except Exception as error:  # whatever it made of its answer: it is looked at again
                await self._lose(server, f"answers nonsense: {type(error).__name__}: {error}"[:300])
            await asyncio.sleep(LOOK_S)

    async def _renew(self, server: Server) -> str:
        """Give a server the present weights, where it has others; returns why that failed."""
        async with server.changing:
            try:
                if (await server.state()).get("weights") != self._weights.name:
                    await self._seen_alive(server, server.take(self._weights))
                server.holds.clear()
            except (Lost, Rejected, OSError) as error:
                await self._lose(server, f"version {self._weights.version} could not be loaded: {error}")
                return f"{server.address}: {error}"
            if server.why:
                _log.info("%s answers", server.address)
                server.why, server.met, server.final = "", True, False
        async with self._changed:
            self._changed.notify_all()
        return ""

    async def _offer(self, server: Server, weights: Published) -> None:
        with contextlib.suppress(Lost, Rejected, OSError):  # said where they are to be loaded
            await self._seen_alive(server, server.offer(weights))

    async def _seen_alive(self, server: Server, work: Coroutine[Any, Any, None]) -> None:
        """Wait for work of a server that may take minutes, for as long as it answers beside it."""
        working = asyncio.create_task(work)
        try:
            while not (await asyncio.wait([working], timeout=LOOK_S))[0]:
                await server.state()
            working.result()
        finally:
            working.cancel()

    async def _lose(self, server: Server, why: str) -> None:
        """Ask a server nothing more until it has answered again; what it was asked is asked of others."""
        if not server.why:
            _log.warning("%s: %s", server.address, why)
        server.why = why or "unknown"
        for turn in list(server.turns):
            turn.cancel()
        server.sessions.clear()
        server.holds.clear()
        async with self._changed:
            self._changed.notify_all()


def _publish(version: int, weights: Weights) -> Published:
    """Write them, whole or not at all, to a folder of their own; those that are in a folder stay there."""
    folder = weights.folder
    if weights.save is not None:
        folder = weights.folder / f"version-{version:05d}"
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        weights.save(part)
        shutil.rmtree(folder, ignore_errors=True)
        part.rename(folder)
    files = files_of(folder)
    return Published(version, name_of(files), files, folder.absolute(), ours=weights.save is not None)


def _forget(weights: Published, but: Path | None = None) -> None:
    """Remove what was written for servers, also by a run that was killed: a large model's would fill the disk."""
    for place in weights.folder.parent.glob("version-*") if weights.ours else ():
        if place != but:
            shutil.rmtree(place, ignore_errors=True)


def _refuse_other(published: Published, ours: Checkpoint) -> None:
    if shape_of(empty_model(published.folder).config) != shape_of(ours.config):
        raise ConfigError(f"model={published.folder}: its weights have other shapes than those of {ours.name}")
