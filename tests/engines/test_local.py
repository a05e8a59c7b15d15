"""The local engine: its log-probabilities are those of a plain forward pass, whatever was cached or sampled beside."""

from __future__ import annotations

import asyncio
import math
import weakref
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

import plain
from arpo.engines.base import Engine, Prompt, Sampling, Weights
from arpo.engines.local import LocalEngine, cache, sampling, screens
from arpo.engines.local import engine as local
from arpo.engines.local.blocks import Blocks
from arpo.errors import ConfigError, ContextTooLong, DeviceError, EngineError
from arpo.model.checkpoint import FAMILIES, Checkpoint, load_checkpoint
from arpo.model.qwen import banned_ids
from arpo.model.vision import Tower
from arpo.types import Completion

T = TypeVar("T")
FREE = Sampling(max_tokens=12)


@pytest.fixture(autouse=True, params=["rows", "blocks"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test is with the cache of a CPU and with that of a GPU."""
    if request.param == "blocks":
        monkeypatch.setattr(local, "Rows", Blocks)
    return str(request.param)


rows_only = pytest.mark.parametrize("kind", ["rows"], indirect=True)
both = pytest.mark.parametrize("family", FAMILIES, indirect=True, scope="session")


@pytest.fixture
def engine(tiny: Checkpoint) -> LocalEngine:
    return LocalEngine(tiny, max_context=600, slots=4)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def first(tiny: Checkpoint, seed: int = 0, words: str = "some words to learn from") -> Prompt:
    return plain.add_screen(tiny, Prompt(tiny.vocabulary.encode(words), ()), "", plain.screen(seed))


def onward(tiny: Checkpoint, prompt: Prompt, reply: Completion, seed: int, size: tuple[int, int] = (84, 112)) -> Prompt:
    """The next turn's context: what was, the reply, another screenshot."""
    return plain.add_screen(tiny, Prompt((*prompt.ids, *reply.tokens), prompt.images), "\n", plain.screen(seed, size))


async def episode(
    engine: LocalEngine, session: str, seed: int, turns: int = 3, settings: Sampling = FREE
) -> list[tuple[Prompt, Completion]]:
    done: list[tuple[Prompt, Completion]] = []
    for turn in range(turns):
        tiny = engine.checkpoint
        prompt = onward(tiny, *done[-1], 100 * seed + turn) if done else first(tiny, 100 * seed)
        done.append((prompt, await engine.generate(session, prompt, settings, seed)))
    return done


async def uncached(tiny: Checkpoint, prompt: Prompt, settings: Sampling, seed: int) -> Completion:
    return await LocalEngine(tiny, max_context=600).generate("alone", prompt, settings, seed)


def assert_same(a: Completion, b: Completion) -> None:
    assert a.tokens == b.tokens
    assert np.allclose(a.logprobs, b.logprobs, atol=2e-5)


@pytest.fixture
def prefilled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each prefill computed."""
    lengths: list[int] = []
    for owner in (cache.Rows, Blocks):

        def counting(self: Any, pieces: list[cache.Piece], extend: Any = owner.extend) -> Any:
            lengths.extend(piece.end - piece.start for piece in pieces)
            return extend(self, pieces)

        monkeypatch.setattr(owner, "extend", counting)
    return lengths


def test_it_is_an_engine(engine: LocalEngine) -> None:
    contract: Engine = engine  # types are checked in tests too
    assert contract is engine and engine.version == 0


@both
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_a_plain_forward_pass_over_three_turns(engine: LocalEngine, temperature: float) -> None:
    for prompt, reply in run(episode(engine, "a", 1, settings=replace(FREE, temperature=temperature))):
        expected = plain.reference_logprobs(engine.checkpoint, prompt, reply.tokens, temperature)
        picked = expected.gather(1, torch.tensor(reply.tokens)[:, None])[:, 0]
        assert np.allclose(reply.logprobs, picked, atol=2e-5)
        assert reply.temperature == temperature and reply.version == 0 and reply.finish == "length"


@both
def test_logprobs_are_those_of_the_nucleus_that_was_drawn_from(engine: LocalEngine) -> None:
    for prompt, reply in run(episode(engine, "a", 2, settings=replace(FREE, top_p=0.5, temperature=0.7))):
        for logprobs, token, ours in zip(
            plain.reference_logprobs(engine.checkpoint, prompt, reply.tokens, 0.7),
            reply.tokens,
            reply.logprobs,
            strict=True,
        ):
            ordered = sorted(logprobs.exp().tolist(), reverse=True)
            sums = np.cumsum(ordered)
            kept = ordered[: int(np.searchsorted(sums, 0.5)) + 1]
            assert logprobs[token].exp() >= kept[-1] - 1e-6
            assert math.isclose(ours, float(logprobs[token]) - math.log(sum(kept)), abs_tol=1e-4)


@both
def test_greedy_takes_the_likeliest_token_at_logprob_0(engine: LocalEngine) -> None:
    for prompt, reply in run(episode(engine, "a", 2, settings=replace(FREE, temperature=0))):
        expected = plain.reference_logprobs(engine.checkpoint, prompt, reply.tokens)
        assert reply.tokens == tuple(expected.argmax(-1).tolist())
        assert set(reply.logprobs) == {0.0}


@rows_only
def test_draws_follow_the_probabilities() -> None:
    scores = torch.tensor([[math.log(0.5), -math.inf, math.log(0.3), math.log(0.2)]]).expand(4000, -1)
    uniforms = np.random.default_rng(0).random(4000).tolist()
    for top_p, expected in ((1.0, [0.5, 0, 0.3, 0.2]), (0.7, [0.625, 0, 0.375, 0])):
        tokens, _ = sampling.sample(scores, [Sampling(top_p=top_p)] * 4000, uniforms)
        assert np.allclose(np.bincount(tokens, minlength=4) / 4000, expected, atol=0.03)


@rows_only
def test_a_macs_gpu_which_has_no_doubles_leaves_the_drawing_to_the_processor() -> None:
    scores = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))

    class OnMps:
        device = torch.device("mps")

        def cpu(self) -> torch.Tensor:
            return scores

    kinds = [Sampling(temperature=1.0), Sampling(temperature=0.7, top_p=0.9), Sampling(temperature=0.0)]
    uniforms = [0.3, 0.6, 0.9]
    assert sampling.sample(OnMps(), kinds, uniforms) == sampling.sample(scores, kinds, uniforms)  # type: ignore[arg-type]


@rows_only
def test_a_token_of_probability_0_is_never_drawn_at_either_end_of_the_stream() -> None:
    scores = torch.tensor([[-math.inf, 0.0, 0.0, -math.inf]]).expand(2, -1)
    assert sampling.sample(scores, [Sampling()] * 2, [0.0, (2**32 - 1) / 2**32])[0] == [1, 2]


@both
def test_cached_turns_equal_uncached_ones_and_cost_only_what_is_new(
    engine: LocalEngine, tiny: Checkpoint, prefilled: list[int]
) -> None:
    turns = run(episode(engine, "a", 3, turns=4))
    # A turn: the last token of the reply before, a line end, vision start, image tokens, vision end, "go".
    seen = tiny.model.sight.tokens(84, 112)
    new = 1 + len(tiny.vocabulary.encode("\n")) + 2 + seen + len(tiny.vocabulary.encode("go"))
    assert prefilled[1:] == [new] * 3
    for prompt, reply in turns:
        assert_same(reply, run(uncached(tiny, prompt, FREE, 3)))


@both
def test_perturbing_a_screenshot_moves_the_logprobs(engine: LocalEngine, tiny: Checkpoint) -> None:
    prompt = first(tiny)
    pixels = screens.decode(prompt.images[0].image).copy()
    pixels[30:50, 30:60] ^= 255
    changed = Prompt(prompt.ids, (plain.observe(pixels),))

    async def both() -> tuple[list[float], list[float]]:
        one = await engine.generate("a", prompt, replace(FREE, max_tokens=1, top_p=1e-6), 0)
        token = one.tokens[0]
        scores = [plain.reference_logprobs(tiny, p, (token,))[0, token] for p in (prompt, changed)]
        plain_draw = replace(FREE, max_tokens=1)
        seen = [await engine.generate("b", p, plain_draw, 0) for p in (prompt, changed)]
        assert abs(float(scores[0] - scores[1])) > 1e-4
        return list(seen[0].logprobs), list(seen[1].logprobs)

    before, after = run(both())
    assert abs(before[0] - after[0]) > 1e-4


@both
def test_what_else_is_in_the_batch_does_not_change_an_episode(tiny: Checkpoint) -> None:
    async def together(seeds: list[int]) -> dict[int, list[tuple[Prompt, Completion]]]:
        engine = LocalEngine(tiny, max_context=600, slots=8)
        mixed = [FREE, replace(FREE, top_p=0.8), replace(FREE, max_tokens=5), replace(FREE, temperature=0.0)]
        settings = [mixed[seed % 4] for seed in seeds]
        runs = [episode(engine, str(s), s, settings=one) for s, one in zip(seeds, settings, strict=True)]
        return dict(zip(seeds, await asyncio.gather(*runs), strict=True))

    many = run(together([3, 0, 6, 1, 5, 2, 4]))
    for seed in (0, 1, 2, 3):
        alone = run(together([seed]))[seed]
        for (prompt, reply), (other_prompt, other) in zip(alone, many[seed], strict=True):
            assert prompt == other_prompt
            assert_same(reply, other)


def test_the_same_question_gets_the_same_answer_and_another_seed_another(engine: LocalEngine, tiny: Checkpoint) -> None:
    async def ask() -> list[Completion]:
        return [await engine.generate("a", first(tiny), FREE, seed) for seed in (5, 5, 6)]

    one, again, other = run(ask())
    assert_same(one, again)
    assert one.tokens != other.tokens


@both
@pytest.mark.parametrize("what", ["word", "image", "shorter", "all"])
def test_a_changed_beginning_is_computed_anew(
    engine: LocalEngine, tiny: Checkpoint, prefilled: list[int], what: str
) -> None:
    async def ask() -> tuple[Prompt, Completion]:
        (one, _), (two, _) = await episode(engine, "a", 1, turns=2)
        changed = {
            "word": Prompt((*two.ids[:3], two.ids[3] + 1, *two.ids[4:]), two.images),
            "image": Prompt(two.ids, (two.images[0], plain.screen(77, (84, 112)))),
            "shorter": one,
            "all": first(tiny, 9, "click"),
        }[what]
        prefilled.clear()
        return changed, await engine.generate("a", changed, FREE, 4)

    prompt, reply = run(ask())
    again = prefilled.pop()
    assert_same(reply, run(uncached(tiny, prompt, FREE, 4)))
    whole = prefilled.pop()
    image = tiny.model.sight.tokens(84, 112) + 1 + len(tiny.vocabulary.encode("go"))
    assert again == {"word": whole - 3, "image": image, "shorter": 1}.get(what, whole)


@both
def test_a_new_session_takes_over_what_it_shares_with_another(
    engine: LocalEngine, tiny: Checkpoint, prefilled: list[int]
) -> None:
    async def group() -> list[list[tuple[Prompt, Completion]]]:
        prompt = first(tiny)
        return [
            [(prompt, reply)]
            for reply in await asyncio.gather(*(engine.generate(str(i), prompt, FREE, i) for i in range(3)))
        ]

    replies = run(group())
    assert prefilled[1:] == [1, 1]
    for seed, [(prompt, reply)] in enumerate(replies):
        assert_same(reply, run(uncached(tiny, prompt, FREE, seed)))


@both
def test_vision_ids_are_never_sampled(tiny_folder: Path) -> None:
    checkpoint = load_checkpoint(tiny_folder, "cpu")
    banned = banned_ids(checkpoint.config)
    with torch.no_grad():  # make them by far the likeliest
        checkpoint.model.lm_head.weight[list(banned)] *= 100
    engine = LocalEngine(checkpoint)
    for settings in (FREE, replace(FREE, temperature=0), replace(FREE, top_p=0.9), replace(FREE, temperature=50)):
        for _, reply in run(episode(engine, "a", 0, turns=2, settings=replace(settings, max_tokens=64))):
            assert not set(reply.tokens) & set(banned)
            assert all(math.isfinite(value) for value in reply.logprobs)


def test_a_reply_ends_with_a_stop_token_or_is_cut_off(engine: LocalEngine, tiny: Checkpoint) -> None:
    prompt = first(tiny)
    free = run(engine.generate("a", prompt, FREE, 0))
    assert free.finish == "length" and len(free.tokens) == len(free.logprobs) == 12
    stop = free.tokens[6]
    ended = run(engine.generate("a", prompt, replace(FREE, stop=(299, stop)), 0))
    assert ended.finish == "stop" and ended.tokens == free.tokens[: free.tokens.index(stop) + 1]
    assert ended.text == tiny.vocabulary.decode(ended.tokens)
    at_the_end = run(engine.generate("a", prompt, replace(FREE, max_tokens=len(ended.tokens), stop=(stop,)), 0))
    assert at_the_end.finish == "stop"


def test_a_context_that_does_not_fit_is_told_before_anything_is_decoded(tiny: Checkpoint) -> None:
    engine = LocalEngine(tiny, max_context=100)
    huge = replace(plain.screen(0), width=1920, height=1080, image=b"not an image")
    with pytest.raises(ContextTooLong, match=r"do not fit into a context of 100"):
        run(engine.generate("a", plain.add_screen(tiny, Prompt((1,), ()), "", huge), FREE, 0))
    n = 100 - FREE.max_tokens
    assert len(run(engine.generate("a", Prompt((5,) * n, ()), FREE, 0)).tokens) == 12
    with pytest.raises(ContextTooLong):
        run(engine.generate("a", Prompt((5,) * (n + 1), ()), FREE, 0))


@both
def test_a_long_prompt_goes_in_pieces(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = first(tiny)
    whole = run(uncached(tiny, prompt, FREE, 0))
    monkeypatch.setattr(local, "CHUNK", 7)
    assert_same(run(uncached(tiny, prompt, FREE, 0)), whole)


@rows_only
@both
def test_the_cache_grows_without_losing_anything(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "FIRST_CAPACITY", 64)
    engine = LocalEngine(tiny, max_context=600, slots=3)

    async def growing() -> list[list[tuple[Prompt, Completion]]]:
        one = await episode(engine, "0", 0, turns=2)
        more = await asyncio.gather(*(episode(engine, str(i), i, turns=4) for i in (1, 2)))
        prompt = onward(tiny, *one[-1], 7)
        return [[*one, (prompt, await engine.generate("0", prompt, FREE, 0))], *more]

    for seed, turns in enumerate(run(growing())):
        for prompt, reply in turns:
            assert_same(reply, run(uncached(tiny, prompt, FREE, seed)))


def test_more_sessions_than_slots_take_turns_and_lose_only_their_cache(tiny: Checkpoint) -> None:
    engine = LocalEngine(tiny, max_context=600, slots=2)

    async def five() -> list[list[tuple[Prompt, Completion]]]:
        return await asyncio.gather(*(episode(engine, str(i), i, turns=2) for i in range(5)))

    for seed, turns in enumerate(run(five())):
        for prompt, reply in turns:
            assert_same(reply, run(uncached(tiny, prompt, FREE, seed)))


def test_a_short_reply_does_not_wait_for_a_long_one(engine: LocalEngine, tiny: Checkpoint) -> None:
    async def order() -> list[str]:
        done: list[str] = []

        async def one(name: str, tokens: int, turns: int) -> None:
            await episode(engine, name, 0, turns=turns, settings=replace(FREE, max_tokens=tokens))
            done.append(name)

        await asyncio.gather(one("long", 80, 1), one("short", 5, 3))
        return done

    assert run(order()) == ["short", "long"]


@rows_only
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA"), RuntimeError("DefaultCPUAllocator: can't allocate")])
def test_a_failure_that_is_not_for_memory_is_told_as_it_is(error: RuntimeError) -> None:
    assert cache.no_memory(error) == isinstance(error, torch.OutOfMemoryError)


class Memory:
    """So many numbers of caches' tensors fit, all of them together; tensors that were given up count no more."""

    def __init__(self, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = most
        self._made: list[weakref.ref[torch.Tensor]] = []
        self._empty = cache.Rows._empty
        monkeypatch.setattr(cache.Rows, "_empty", lambda owner, rows, tokens: self.empty(owner, rows, tokens))

    def empty(self, owner: cache.Rows, rows: int, tokens: int) -> torch.Tensor:
        made = self._empty(owner, rows, tokens)
        if self.used + made.numel() > self.most:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you …")
        self._made.append(weakref.ref(made))
        return made

    @property
    def used(self) -> int:
        return sum(tensor.numel() for made in self._made if (tensor := made()) is not None)


def size_of(tiny: Checkpoint, rows: int, tokens: int) -> int:
    """Numbers in a cache of that size."""
    text = tiny.config.text_config
    dim = text.hidden_size // text.num_attention_heads
    return 2 * int(text.num_hidden_layers * text.num_key_value_heads * dim) * rows * tokens


@rows_only
@pytest.mark.parametrize("fits", [1, 2, 3])
def test_where_memory_is_short_turns_wait_for_each_other_and_none_fails(
    tiny: Checkpoint, fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "FIRST_CAPACITY", 640)
    Memory(size_of(tiny, fits, 640) + size_of(tiny, 1, 640) // 2, monkeypatch)  # in the middle of the next it runs out
    engine = LocalEngine(tiny, max_context=600, slots=4)

    async def five() -> list[list[tuple[Prompt, Completion]]]:
        return await asyncio.gather(*(episode(engine, str(i), i, turns=2) for i in range(5)))

    found = run(five())
    monkeypatch.undo()
    for seed, turns in enumerate(found):
        for prompt, reply in turns:
            assert_same(reply, run(uncached(tiny, prompt, FREE, seed)))


@rows_only
def test_where_rows_grow_longer_than_memory_allows_there_are_fewer_of_them(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First all rows with short contexts, then every context grows: each turn waits until there is memory for it."""
    monkeypatch.setattr(cache, "FIRST_CAPACITY", 64)
    Memory(size_of(tiny, 4, 128) + size_of(tiny, 1, 64), monkeypatch)
    engine = LocalEngine(tiny, max_context=600, slots=4)

    async def growing() -> list[list[tuple[Prompt, Completion]]]:
        return await asyncio.gather(*(episode(engine, str(i), i, turns=6) for i in range(6)))

    found = run(growing())
    assert isinstance(engine._cache, cache.Rows)
    assert engine._cache.capacity > 128 and engine._cache.rows < 4  # they did grow, and gave way
    monkeypatch.undo()
    for seed, turns in enumerate(found):
        for prompt, reply in turns:
            assert_same(reply, run(uncached(tiny, prompt, FREE, seed)))


@rows_only
def test_a_turn_too_long_for_the_memory_fails_alone_and_the_engine_goes_on(
    tiny: Checkpoint, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of growing it runs out: layers of two sizes were left, and every later turn failed."""
    expected = run(uncached(tiny, first(tiny), FREE, 0))
    monkeypatch.setattr(cache, "FIRST_CAPACITY", 64)
    memory = Memory(size_of(tiny, 1, 64) * 2, monkeypatch)
    engine = LocalEngine(tiny, max_context=600, slots=2)
    long = replace(FREE, max_tokens=400)
    for name in "abc":
        with pytest.raises(EngineError, match=r"no memory for a cache of 1 x 448 tokens; a smaller agent.context"):
            run(engine.generate("long", first(tiny), long, 0))
        assert_same(run(engine.generate(name, first(tiny), FREE, 0)), expected)
    memory.most = 10**9
    run(engine.load(1, Weights(tiny_folder)))
    assert len(run(engine.generate("long", first(tiny), long, 0)).tokens) == 400


def test_screenshots_are_encoded_one_by_one_on_a_cpu_and_known_ones_not_again(
    engine: LocalEngine, tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    encode = Tower.forward

    def counting(tower: Tower, images: torch.Tensor) -> torch.Tensor:
        batches.append(len(images))
        return encode(tower, images)

    monkeypatch.setattr(Tower, "forward", counting)

    async def together() -> None:
        await asyncio.gather(*(engine.generate(str(i), first(tiny, i), FREE, i) for i in range(4)))
        await asyncio.gather(*(engine.generate(str(i), first(tiny, 0), FREE, i) for i in range(4)))

    run(together())
    assert batches == [1, 1, 1, 1]


@rows_only
def test_remembered_screenshots_are_bounded(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = screens.Screens(tiny.model.model.visual)
    size = seen.features([plain.screen(0)])[plain.screen(0).hash].nbytes
    monkeypatch.setattr(screens, "REMEMBERED", 3 * size)
    for i in range(1, 6):
        seen.features([plain.screen(i), plain.screen(0)])
    assert plain.screen(0).hash in seen._known and len(seen._known) == 3


@both
def test_new_weights_change_the_answer_and_raise_the_version(
    tiny_folder: Path, other_folder: Path, prefilled: list[int]
) -> None:
    engine = LocalEngine(load_checkpoint(tiny_folder, "cpu"), max_context=600)
    other = load_checkpoint(other_folder, "cpu")

    async def swap() -> tuple[Completion, Completion, Completion]:
        prompt = first(other)
        loading = asyncio.create_task(engine.load(7, Weights(other_folder)))
        old = await engine.generate("a", prompt, FREE, 0)
        while not engine._loading.locked():  # while the files are read, turns go on
            old = await engine.generate("a", prompt, FREE, 0)
        late = await engine.generate("b", prompt, FREE, 0)
        await loading
        return old, late, await engine.generate("a", prompt, FREE, 0)

    old, late, new = run(swap())
    prompt = first(other)
    assert (old.version, late.version, new.version, engine.version) == (0, 7, 7, 7)
    assert_same(old, run(uncached(load_checkpoint(tiny_folder, "cpu"), prompt, FREE, 0)))
    for reply in (late, new):
        assert_same(reply, run(uncached(other, prompt, FREE, 0)))
    assert not np.allclose(old.logprobs, new.logprobs, atol=1e-3)


def test_weights_that_cannot_be_used_leave_the_old_ones_in_place(tiny_folder: Path, tmp_path: Path) -> None:
    from tiny_model import make_tiny

    engine = LocalEngine(load_checkpoint(tiny_folder, "cpu"))
    prompt = first(engine.checkpoint)
    before = run(engine.generate("a", prompt, FREE, 0))
    make_tiny(tmp_path, ["other shapes"], vocabulary=300)
    with pytest.raises(ConfigError, match="other shapes"):
        run(engine.load(1, Weights(tmp_path)))
    with pytest.raises(ConfigError, match="no such folder"):
        run(engine.load(1, Weights(tmp_path / "nowhere")))
    assert engine.version == 0
    assert_same(run(engine.generate("a", prompt, FREE, 0)), before)


def test_a_cancelled_caller_frees_its_slot(tiny: Checkpoint) -> None:
    engine = LocalEngine(tiny, max_context=600, slots=1)

    async def cancel() -> tuple[Completion, Completion]:
        endless = asyncio.create_task(engine.generate("a", first(tiny), replace(FREE, max_tokens=400), 0))
        for _ in range(5):
            await asyncio.sleep(0)
        queued = asyncio.create_task(engine.generate("b", first(tiny, 1), FREE, 1))
        gone = asyncio.create_task(engine.generate("c", first(tiny, 2), FREE, 1))
        await asyncio.sleep(0)
        endless.cancel()
        gone.cancel()
        return await queued, await engine.generate("a", first(tiny), FREE, 0)

    for seed, reply in zip((1, 0), run(cancel()), strict=True):
        assert_same(reply, run(uncached(tiny, first(tiny, seed), FREE, seed)))


def test_releasing_frees_the_slot_and_ends_a_running_turn(tiny: Checkpoint) -> None:
    engine = LocalEngine(tiny, max_context=600, slots=1)

    async def release() -> Completion:
        await engine.release("never seen")
        running = asyncio.create_task(engine.generate("a", first(tiny), replace(FREE, max_tokens=400), 0))
        for _ in range(5):
            await asyncio.sleep(0)
        await engine.release("a")
        with pytest.raises(EngineError, match="released during its turn"):
            await running
        return await engine.generate("a", first(tiny), FREE, 0)

    assert_same(run(release()), run(uncached(tiny, first(tiny), FREE, 0)))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("odd shapes", EngineError("the local engine: RuntimeError: odd shapes")),
        ("out of memory\nby much", DeviceError("out of memory", True)),
    ],
)
def test_a_failure_inside_reaches_every_caller_and_the_engine_goes_on(
    engine: LocalEngine, tiny: Checkpoint, words: str, expected: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = engine._steps.step, 0

    def failing(batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError(words)
        return step(batch)

    monkeypatch.setattr(engine._steps, "step", failing)

    async def ask() -> list[Completion | BaseException]:
        asked = (engine.generate(str(i), first(tiny, i), FREE, i) for i in range(6))  # two of them wait for a slot
        return await asyncio.gather(*asked, return_exceptions=True)

    for error in run(ask()):
        assert type(error) is type(expected) and str(error) == str(expected)
    assert_same(run(engine.generate("0", first(tiny), FREE, 0)), run(uncached(tiny, first(tiny), FREE, 0)))


@pytest.mark.parametrize("size", [(112, 84), (84, 112)], ids=["no image", "another size"])
def test_a_screenshot_that_cannot_be_read_fails_its_own_turn_only(
    engine: LocalEngine, tiny: Checkpoint, size: tuple[int, int]
) -> None:
    good = plain.screen(1)
    bad = replace(good, hash="bad", width=size[0], height=size[1])
    bad = bad if size == (84, 112) else replace(bad, image=good.image[:60])

    async def ask() -> list[Completion | BaseException]:
        prompts = [plain.add_screen(tiny, Prompt((1, 2), ()), "", image) for image in (bad, good)]
        asked = (engine.generate(str(i), prompt, FREE, 0) for i, prompt in enumerate(prompts))
        return await asyncio.gather(*asked, return_exceptions=True)

    broken, fine = run(ask())
    assert isinstance(broken, EngineError) and "the screenshot bad cannot be decoded" in str(broken)
    assert isinstance(fine, Completion)


def test_numbers_that_are_none_are_an_error_not_a_reply(tiny_folder: Path) -> None:
    checkpoint = load_checkpoint(tiny_folder, "cpu")
    with torch.no_grad():
        checkpoint.model.model.language_model.norm.weight[0] = float("nan")
    for settings in (FREE, replace(FREE, temperature=0), replace(FREE, top_p=0.5)):
        with pytest.raises(EngineError, match="not numbers"):
            run(LocalEngine(checkpoint).generate("a", Prompt((1, 2), ()), settings, 0))


def test_calls_that_mean_nothing_are_refused(engine: LocalEngine, tiny: Checkpoint) -> None:
    for settings in (
        replace(FREE, temperature=-1),
        replace(FREE, temperature=math.nan),
        replace(FREE, top_p=0),
        replace(FREE, max_tokens=0),
    ):
        with pytest.raises(ValueError, match="it takes temperature"):
            run(engine.generate("a", Prompt((1,), ()), settings, 0))
    for prompt in (Prompt((), ()), Prompt((1,), (plain.screen(0),)), Prompt((tiny.config.image_token_id,), ())):
        with pytest.raises(ValueError, match="a prompt of"):
            run(engine.generate("a", prompt, FREE, 0))

    async def twice() -> None:
        await asyncio.gather(*(engine.generate("a", Prompt((1,), ()), FREE, 0) for _ in range(2)))

    with pytest.raises(ValueError, match="one turn at a time"):
        run(twice())


@rows_only
def test_the_stream_of_a_prompt_depends_on_seed_ids_and_screenshots(tiny: Checkpoint) -> None:
    prompt = first(tiny)
    others = [Prompt((*prompt.ids, 5), prompt.images), Prompt(prompt.ids, (plain.screen(5),))]
    streams = [sampling.stream(0, prompt, 4), sampling.stream(1, prompt, 4)]
    streams += [sampling.stream(0, other, 4) for other in others]
    assert len({tuple(stream) for stream in streams}) == 4
    assert sampling.stream(0, prompt, 8)[:4] == streams[0]
    assert all(0 <= value < 1 for stream in streams for value in stream)


def test_values_that_are_not_numbers_do_not_outlive_their_weights(tiny: Checkpoint, tmp_path: Path) -> None:
    """What is masked counts with weight 0, and 0 times NaN is NaN."""
    good = {name: weight.clone() for name, weight in tiny.model.named_parameters()}
    engine = LocalEngine(tiny, max_context=600, slots=2)
    bad = {name: torch.full_like(weight, float("nan")) for name, weight in good.items()}

    async def work() -> Completion:
        await engine.load(1, Weights(tmp_path, lambda: iter(bad.items())))
        with pytest.raises(EngineError, match="not numbers"):
            await engine.generate("a", first(tiny), FREE, 0)
        await engine.load(2, Weights(tmp_path, lambda: iter(good.items())))
        return await engine.generate("b", first(tiny), FREE, 0)

    assert_same(run(work()), run(uncached(tiny, first(tiny), FREE, 0)))
