"""Keys and values in blocks: what is shared is held once, what is written to belongs to one, and turns make room.

That replies are those of a plain forward pass is in test_local.py, for both kinds of cache. Here plain torch does what
a kernel does on a GPU, whose own tests are in tests/gpu.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_local import FREE, assert_same, episode, first, onward, run, uncached

import plain
from arpo.engines.base import Prompt, Weights
from arpo.engines.local import LocalEngine, decode
from arpo.engines.local import engine as local
from arpo.engines.local.blocks import BLOCK, Blocks
from arpo.engines.local.cache import OutOfMemory, Piece
from arpo.errors import EngineError
from arpo.model.checkpoint import Checkpoint
from arpo.types import Completion

LONG = 3 * BLOCK + 10  # tokens of a prompt


def engine_with(tiny: Checkpoint, blocks: int | None = None, slots: int = 8) -> LocalEngine:
    return LocalEngine(tiny, 600, slots, cache=Blocks(tiny.model, slots, 600, blocks))


def blocks_of(engine: LocalEngine) -> Blocks:
    assert isinstance(engine._cache, Blocks)
    return engine._cache


def long_prompt(seed: int = 0, n: int = LONG) -> Prompt:
    return Prompt(tuple(random.Random(seed).choices(range(3, 250), k=n)), ())


async def release_all(engine: LocalEngine) -> None:
    for name in list(engine._sessions):
        await engine.release(name)


def test_a_group_holds_its_common_beginning_once(tiny: Checkpoint) -> None:
    engine = engine_with(tiny)

    async def group() -> list[Completion]:
        replies = await asyncio.gather(*(engine.generate(str(i), long_prompt(), FREE, i) for i in range(8)))
        assert blocks_of(engine).used == 3 + 8  # three whole ones, and of the fourth a copy each
        tables = [blocks_of(engine).table(session) for session in engine._sessions.values()]
        assert len({tuple(table[:3]) for table in tables}) == 1 and len({table[3] for table in tables}) == 8
        await release_all(engine)
        return replies

    for seed, reply in enumerate(run(group())):
        assert_same(reply, run(uncached(tiny, long_prompt(), FREE, seed)))
    assert blocks_of(engine).used == 0


def test_members_that_arrive_together_compute_their_beginning_once(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where that takes several rounds, in which the others wait for it."""
    engine, new = engine_with(tiny), []
    extend = Blocks.extend

    def counting(cache: Blocks, pieces: list[Piece]) -> Any:
        new.append([piece.end - piece.start for piece in pieces])
        return extend(cache, pieces)

    monkeypatch.setattr(Blocks, "extend", counting)
    monkeypatch.setattr(local, "CHUNK", 64)

    async def groups() -> list[Completion]:
        asked = (engine.generate(f"{g}.{i}", long_prompt(g), FREE, i) for i in range(3) for g in range(2))
        return await asyncio.gather(*asked)

    replies = run(groups())
    assert sum(map(sum, new)) == 2 * LONG + 2 * 2  # and of the others the last token
    assert max(map(sum, new)) <= 64 and len(new) == 8
    for i, reply in enumerate(replies):
        assert_same(reply, run(uncached(tiny, long_prompt(i % 2), FREE, i // 2)))


def test_what_is_written_to_belongs_to_one(tiny: Checkpoint) -> None:
    cache = Blocks(tiny.model, 4, 600, blocks=12)
    assert cache.room("a", 150, "a", 0)
    a = cache.table("a")
    pool = cache._pool
    assert pool is not None and len(a) == 3
    pool[:, :, a] = torch.randn_like(pool[:, :, a])
    assert cache.room("b", 150, "a", 140)
    b = cache.table("b")
    assert b[:2] == a[:2] and b[2] != a[2]
    assert torch.equal(pool[:, :, b[2]], pool[:, :, a[2]])
    assert cache.room("a", 200, "a", 70)  # it goes on from the middle of a block that b names too
    again = cache.table("a")
    assert again[0] == a[0] and again[1] != a[1] and cache.table("b") is b
    assert torch.equal(pool[:, :, again[1]], pool[:, :, a[1]])
    before = cache.table("b")
    assert cache.room("b", 180, "b", 140) and cache.table("b") == before  # nobody else names its last block
    cache.drop("a")
    cache.drop("b")
    assert cache.used == 0


def test_any_order_of_calls_leaves_every_block_counted(tiny: Checkpoint) -> None:
    cache, choose = Blocks(tiny.model, 6, 600, blocks=20), random.Random(0)
    held: dict[str, int] = {}
    refused = 0
    for _ in range(2000):
        name = choose.choice("abcdef")
        if choose.random() < 0.2:
            cache.drop(name)
            held.pop(name, None)
        else:
            source = choose.choice([name, *held])
            kept = choose.randrange(held.get(source, 0) + 1)
            tokens = kept + choose.randrange(1, 200)
            free = 20 - cache.used
            if tokens <= 20 * BLOCK and cache.room(name, tokens, source, kept):
                held[name] = tokens
            elif tokens <= 20 * BLOCK:
                refused += 1
                assert free < -(-tokens // BLOCK)
        named = Counter(block for each in held for block in cache.table(each))
        assert {i: n for i, n in enumerate(cache._uses) if n} == named and 0 not in named
        assert sorted([*cache._free, *named]) == list(range(1, 21))
        assert all(len(cache.table(each)) == -(-tokens // BLOCK) for each, tokens in held.items())
    assert refused > 20


def test_idle_sessions_lose_theirs_oldest_first(tiny: Checkpoint) -> None:
    engine = engine_with(tiny, blocks=9)  # two turns of four blocks

    async def one_by_one() -> list[Completion]:
        replies = [await engine.generate(str(i), long_prompt(i), FREE, i) for i in (0, 1)]
        replies += [
            await engine.generate("0", long_prompt(0), FREE, 0),
            await engine.generate("2", long_prompt(2), FREE, 2),
        ]
        assert [bool(session.entries) for session in engine._sessions.values()] == [True, False, True]
        return replies

    for seed, reply in zip((0, 1, 0, 2), run(one_by_one()), strict=True):
        assert_same(reply, run(uncached(tiny, long_prompt(seed), FREE, seed)))


@pytest.mark.parametrize("blocks", [7, 12])
def test_where_blocks_are_short_turns_wait_for_each_other_and_none_fails(tiny: Checkpoint, blocks: int) -> None:
    engine = engine_with(tiny, blocks)

    async def five() -> list[list[tuple[Prompt, Completion]]]:
        return await asyncio.gather(*(episode(engine, str(i), i, turns=5) for i in range(5)))

    for seed, turns in enumerate(run(five())):
        for prompt, reply in turns:
            assert_same(reply, run(uncached(tiny, prompt, FREE, seed)))


def test_a_turn_too_long_for_the_pool_fails_alone_and_says_what_would_fit(tiny: Checkpoint) -> None:
    engine = engine_with(tiny, blocks=4)

    async def ask() -> list[Completion | BaseException]:
        long, short = long_prompt(0, 5 * BLOCK), long_prompt(1, 20)
        asked = (engine.generate(name, prompt, FREE, 0) for name, prompt in (("a", short), ("b", long), ("c", short)))
        return await asyncio.gather(*asked, return_exceptions=True)

    one, error, other = run(ask())
    assert isinstance(error, EngineError) and "agent.context=256 would fit" in str(error)
    assert "\n" not in str(error) and isinstance(one, Completion) and isinstance(other, Completion)


def test_a_release_in_the_middle_gives_its_blocks_back(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "CHUNK", 50)
    engine = engine_with(tiny, blocks=8)

    async def release(rounds: int) -> None:
        running = asyncio.create_task(engine.generate("a", long_prompt(), replace(FREE, max_tokens=60), 0))
        beside = asyncio.create_task(engine.generate("b", long_prompt(1, 30), FREE, 1))
        for _ in range(rounds):
            await asyncio.sleep(0)
        await engine.release("a")
        with pytest.raises(EngineError, match="released during its turn"):
            await running
        assert_same(await beside, await uncached(tiny, long_prompt(1, 30), FREE, 1))
        await engine.release("b")
        assert blocks_of(engine).used == 0

    for rounds in (1, 3, 6, 12):  # it waits, its prompt is being run, its reply
        run(release(rounds))


def test_turns_under_way_go_on_while_a_long_prompt_is_taken_in(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "CHUNK", 16)
    engine = engine_with(tiny)

    async def work() -> None:
        early = asyncio.create_task(engine.generate("early", long_prompt(1, 10), replace(FREE, max_tokens=60), 0))
        while not engine._active:
            await asyncio.sleep(0)
        late = asyncio.create_task(engine.generate("late", long_prompt(2), FREE, 0))
        while not engine._filling:
            await asyncio.sleep(0)
        filling, before = engine._filling[0], len(engine._active[0].tokens)
        while engine._filling:
            assert engine._filling == [filling]
            await asyncio.sleep(0)
        assert len(engine._active[0].tokens) - before >= LONG // 16 - 2  # a token for every chunk, but for the ends
        assert_same(await early, await uncached(tiny, long_prompt(1, 10), replace(FREE, max_tokens=60), 0))
        assert_same(await late, await uncached(tiny, long_prompt(2), FREE, 0))

    run(work())


def test_resting_gives_the_memory_back_until_the_next_turn(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "WORTH", 1)
    engine = engine_with(tiny)

    async def work() -> tuple[list[Prompt], list[Completion]]:
        prompts = [first(tiny)]
        asked = asyncio.create_task(engine.generate("a", prompts[0], FREE, 0))
        while not engine._active:
            await asyncio.sleep(0)
        await engine.rest()  # the turn under way ends first
        assert asked.done() and blocks_of(engine)._pool is None
        replies = [await asked]
        prompts.append(onward(tiny, prompts[0], replies[0], 5))
        replies.append(await engine.generate("a", prompts[1], FREE, 0))
        assert blocks_of(engine)._pool is not None
        return prompts, replies

    for prompt, reply in zip(*run(work()), strict=True):
        assert_same(reply, run(uncached(tiny, prompt, FREE, 0)))


def test_a_small_cache_is_kept_while_the_engine_rests(tiny: Checkpoint) -> None:
    engine = engine_with(tiny)
    run(engine.generate("a", first(tiny), FREE, 0))
    run(engine.rest())
    assert blocks_of(engine)._pool is not None


def test_a_step_that_cannot_be_recorded_is_run_as_it_is(tiny: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_with(tiny)
    assert isinstance(engine._steps, decode.Replay)
    engine._steps._record = True  # as on a GPU; here there is none
    expected = [run(uncached(tiny, first(tiny, i), FREE, i)) for i in range(3)]

    async def ask() -> list[Completion]:
        return await asyncio.gather(*(engine.generate(str(i), first(tiny, i), FREE, i) for i in range(3)))

    for reply, other in zip(run(ask()), expected, strict=True):
        assert_same(reply, other)
    assert [record.getMessage()[:26] for record in caplog.records] == ["decoding is not recorded, "]


def test_a_token_that_nobody_has_read_is_run_from_where_it_is(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU the next step begins before the last one's tokens are known; what follows a stop is dropped."""
    engine = engine_with(tiny)
    given: list[int | None] = []
    assert isinstance(engine._steps, decode.Replay)
    step = engine._steps.step

    def watching(batch: list[decode.Next]) -> decode.Drawn:
        given.extend(one.token for one in batch)
        return step(batch)

    monkeypatch.setattr(engine._steps, "step", watching)
    free = run(uncached(tiny, first(tiny), FREE, 0))
    stop = next(token for i, token in enumerate(free.tokens[3:], 3) if token not in free.tokens[:i])
    settings = replace(FREE, stop=(stop,))

    async def work() -> tuple[Prompt, Completion, Prompt, Completion]:
        one = first(tiny)
        reply = await engine.generate("a", one, settings, 0)
        two = onward(tiny, one, reply, 5)
        return one, reply, two, await engine.generate("a", two, FREE, 0)

    one, reply, two, then = run(work())
    assert given[0] == reply.tokens[0] and given[1] is None
    assert reply.finish == "stop" and len(given) > len(reply.tokens) - 1 + 11  # a step too much
    assert_same(reply, run(uncached(tiny, one, settings, 0)))
    assert_same(then, run(uncached(tiny, two, FREE, 0)))


def test_the_pool_is_smaller_where_memory_is_short(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    zeros = torch.zeros
    most = [9]

    def short(shape: Any, *given: Any, **named: Any) -> torch.Tensor:
        if isinstance(shape, tuple) and len(shape) == 6 and shape[2] > most[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return zeros(shape, *given, **named)

    monkeypatch.setattr(torch, "zeros", short)
    engine = engine_with(tiny)
    reply = run(engine.generate("a", long_prompt(), FREE, 0))
    assert len(blocks_of(engine)._uses) <= 9
    assert_same(reply, run(uncached(tiny, long_prompt(), FREE, 0)))
    most[0] = 0
    with pytest.raises(OutOfMemory, match="no memory for"):
        blocks_of(engine_with(tiny)).room("a", 10, "a", 0)


# What was found by attack


def test_a_greedy_turn_beside_others_does_not_mix_up_their_tokens(tiny: Checkpoint) -> None:
    """A step that is read at once comes after the one before it, which nobody has read yet."""
    engine = engine_with(tiny)

    async def work() -> Completion:
        plain = asyncio.create_task(engine.generate("a", long_prompt(1, 20), FREE, 1))
        for _ in range(5):
            await asyncio.sleep(0)
        await engine.generate("b", long_prompt(2, 20), replace(FREE, temperature=0.0, max_tokens=4), 2)
        return await plain

    assert_same(run(work()), run(uncached(tiny, long_prompt(1, 20), FREE, 1)))


def test_after_a_rest_empty_rows_write_to_nobodys_block(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "WORTH", 0)
    engine = engine_with(tiny)

    async def work() -> list[Completion]:
        await asyncio.gather(*(engine.generate(f"x{i}", long_prompt(i, 20), FREE, i) for i in range(4)))
        await engine.rest()
        return await asyncio.gather(*(engine.generate(f"y{i}", long_prompt(10 + i, 100), FREE, i) for i in range(3)))

    for i, reply in enumerate(run(work())):
        assert_same(reply, run(uncached(tiny, long_prompt(10 + i, 100), FREE, i)))


def test_where_new_weights_fail_the_turns_that_wait_go_on(tiny: Checkpoint, tmp_path: Path) -> None:
    engine = engine_with(tiny)

    def failing() -> Iterator[tuple[str, torch.Tensor]]:
        raise RuntimeError("no weights")
        yield

    async def work() -> Completion:
        under_way = asyncio.create_task(engine.generate("a", long_prompt(1, 20), FREE, 1))
        await asyncio.sleep(0)
        loading = asyncio.create_task(engine.load(1, Weights(tmp_path, failing)))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(engine.generate("b", long_prompt(2, 20), FREE, 1))
        with pytest.raises(RuntimeError, match="no weights"):
            await loading
        await under_way
        return await asyncio.wait_for(waiting, 60)

    assert_same(run(work()), run(uncached(tiny, long_prompt(2, 20), FREE, 1)))
    assert engine.version == 0


def test_a_gpu_that_is_full_at_the_first_turn_is_tried_again_later(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_with(tiny, blocks=-1)
    with pytest.raises(EngineError, match="no memory for a cache; fewer"):
        run(engine.generate("a", long_prompt(1, 20), FREE, 1))
    monkeypatch.setattr(engine._cache, "_given", 20)
    assert_same(
        run(engine.generate("b", long_prompt(1, 20), FREE, 1)), run(uncached(tiny, long_prompt(1, 20), FREE, 1))
    )


def test_a_turn_that_is_cancelled_within_its_first_picture_leaves_its_room_to_others(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "CHUNK", 4)
    engine = engine_with(tiny, blocks=4)

    async def work() -> Completion:
        begins = Prompt((tiny.config.image_token_id, *long_prompt(1, 150).ids), (plain.screen(1),))
        cancelled = asyncio.create_task(engine.generate("a", begins, FREE, 1))
        for _ in range(3):
            await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        return await asyncio.wait_for(engine.generate("b", long_prompt(2, 150), FREE, 1), 60)

    assert_same(run(work()), run(uncached(tiny, long_prompt(2, 150), FREE, 1)))
