"""The local engine on a GPU: its kernel, its recorded steps, its log-probabilities against those of a plain pass."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import plain
from arpo.engines.base import Prompt, Sampling
from arpo.engines.local import LocalEngine, decode
from arpo.engines.local import engine as local
from arpo.engines.local.blocks import BLOCK, Blocks
from arpo.errors import ArpoError
from arpo.model.checkpoint import FAMILIES, Checkpoint, load_checkpoint
from arpo.model.layout import lay_out
from arpo.types import Completion
from tiny_model import make_decided

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
FREE = Sampling(max_tokens=24)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decided(tmp_path_factory.mktemp("checkpoint"), 0, request.param)


@pytest.fixture(scope="module")
def tiny(folder: Path) -> Checkpoint:
    return load_checkpoint(folder, "cuda", torch.float32)


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 300))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(28, 4, 128), (3, 1, 64), (14, 2, 80), (4, 2, 16), (1, 1, 8), (32, 8, 128)]
)
@pytest.mark.parametrize("batch", [1, 5, 33])
def test_the_kernel_equals_plain_attention(heads: int, kv_heads: int, dim: int, batch: int, dtype: torch.dtype) -> None:
    from arpo.engines.local import kernels

    make = torch.Generator("cuda").manual_seed(0)
    places = torch.tensor([(0, 1, 63, 64, 65, 700, 2999)[i % 7] for i in range(batch)], device="cuda")
    width = 3000 // BLOCK + 1
    tables = (torch.randperm(batch * width, generator=make, device="cuda") + 1).view(batch, width).int()
    shape = (batch * width + 1, BLOCK, kv_heads, dim)
    keys, values = (torch.randn(shape, generator=make, device="cuda").to(dtype) for _ in range(2))
    q = torch.randn(batch, heads, dim, generator=make, device="cuda").to(dtype)
    k, v = (torch.randn(batch, kv_heads, dim, generator=make, device="cuda").to(dtype) for _ in range(2))
    found = kernels.decode(q, k, v, keys, values, tables, places)
    for i, place in enumerate(places.tolist()):
        held = [part[tables[i].long()].flatten(0, 1)[: place + 1].double() for part in (keys, values)]
        assert torch.equal(held[0][place], k[i].double()) and torch.equal(held[1][place], v[i].double())
        expected = F.scaled_dot_product_attention(
            q[i, :, None].double()[None],
            held[0].transpose(0, 1)[None].repeat_interleave(heads // kv_heads, 1),
            held[1].transpose(0, 1)[None].repeat_interleave(heads // kv_heads, 1),
        )[0, :, 0]
        limit = 2e-2 if dtype is torch.bfloat16 else 2e-5
        assert float((found[i] - expected).abs().max()) < limit


async def episode(
    engine: LocalEngine, name: str, seed: int, settings: Sampling = FREE
) -> list[tuple[Prompt, Completion]]:
    done: list[tuple[Prompt, Completion]] = []
    words = engine.checkpoint
    for turn in range(3):
        begun = Prompt((*done[-1][0].ids, *done[-1][1].tokens), done[-1][0].images) if done else Prompt((5, 6, 7), ())
        prompt = plain.add_screen(words, begun, "\n", plain.screen(100 * seed + turn))
        done.append((prompt, await engine.generate(name, prompt, settings, seed)))
    return done


def whole_logprobs(checkpoint: Checkpoint, prompt: Prompt, reply: Completion) -> np.ndarray[Any, Any]:
    """Of the reply's tokens, by one pass over all of it on the same device."""
    model, pad = checkpoint.model, checkpoint.config.image_token_id
    sizes = [model.sight.grid(image.width, image.height) for image in prompt.images]
    layout = lay_out((*prompt.ids, *reply.tokens), sizes, pad)
    seen = LocalEngine(checkpoint).screens.features(prompt.images)
    features = torch.cat([seen[image.hash] for image in prompt.images])
    # Attention of the sequence on itself: as one piece of a cache that holds nothing yet.
    from arpo.engines.local.cache import Piece, Rows

    n = len(layout.ids)
    cache = Rows(model, 1, n)
    with torch.inference_mode():
        assert cache.room("whole", n, "whole", 0)
        attend = cache.extend([Piece("whole", 0, n)])
        hidden = model.model.language_model(layout.ids.cuda(), layout.positions.cuda(), features, attend)
        scores = model.scores(hidden[-len(reply.tokens) - 1 : -1]) / reply.temperature
        chosen = torch.tensor(reply.tokens, device="cuda")[:, None]
        return scores.log_softmax(-1).gather(1, chosen)[:, 0].cpu().numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_are_those_of_the_whole_sequence(folder: Path, dtype: torch.dtype) -> None:
    checkpoint = load_checkpoint(folder, "cuda", dtype)
    engine = LocalEngine(checkpoint, 2000, 8)

    async def several() -> list[list[tuple[Prompt, Completion]]]:
        return await asyncio.gather(*(episode(engine, str(i), i) for i in range(5)))

    differences = []
    for turns in run(several()):
        for prompt, reply in turns:
            differences.append(np.abs(whole_logprobs(checkpoint, prompt, reply) - reply.logprobs))
    found = np.concatenate(differences)
    # The weights are made so large that in bf16 a rounding is worth tenths.
    assert found.max() < 1e-3 if dtype is torch.float32 else np.median(found) < 0.2
    assert isinstance(engine._steps, decode.Replay) and engine._steps._record and engine._steps._runs


def test_recorded_steps_equal_those_that_are_not(tiny: Checkpoint) -> None:
    async def several(record: bool) -> list[list[tuple[Prompt, Completion]]]:
        engine = LocalEngine(tiny, 2000, 8)
        assert isinstance(engine._steps, decode.Replay)
        engine._steps._record = engine._steps._record and record
        mixed = [FREE, replace(FREE, temperature=0.7, max_tokens=9), replace(FREE, temperature=0.5)]
        asked = (episode(engine, str(i), i, mixed[i % 3]) for i in range(7))
        return await asyncio.gather(*asked)

    for recorded, plainly in zip(run(several(True)), run(several(False)), strict=True):
        for (_, one), (_, other) in zip(recorded, plainly, strict=True):
            assert one.tokens == other.tokens
            assert np.allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_every_kind_of_sampling_equals_that_of_the_cpu(folder: Path, tiny: Checkpoint) -> None:
    mixed = [FREE, replace(FREE, top_p=0.8), replace(FREE, temperature=0.0), replace(FREE, max_tokens=5)]

    async def several(checkpoint: Checkpoint) -> list[list[tuple[Prompt, Completion]]]:
        engine = LocalEngine(checkpoint, 2000, 3)  # they wait for each other too
        return await asyncio.gather(*(episode(engine, str(i), i, mixed[i % 4]) for i in range(8)))

    same = total = 0
    for here, there in zip(run(several(tiny)), run(several(load_checkpoint(folder, "cpu"))), strict=True):
        for (prompt, one), (other_prompt, other) in zip(here, there, strict=True):
            total += 1
            if prompt == other_prompt and one.tokens == other.tokens:
                same += 1
                assert np.allclose(one.logprobs, other.logprobs, atol=2e-3)
    assert same >= 0.8 * total  # another rounding may draw another token, and then all that follows is another


def test_resting_frees_the_gpu_and_the_next_turn_is_as_before(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "WORTH", 1)
    engine = LocalEngine(tiny, 100_000, 64)

    async def work() -> None:
        before = await episode(engine, "a", 1)
        held = torch.cuda.memory_allocated()
        await engine.rest()
        assert held - torch.cuda.memory_allocated() > 100 * 2**20
        again = await episode(engine, "b", 1)
        assert [reply.tokens for _, reply in again] == [reply.tokens for _, reply in before]

    run(work())


def test_a_turn_that_runs_out_of_memory_fails_in_one_line_and_the_next_goes_on(
    tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LocalEngine(tiny, 2000, 8)
    expected = run(episode(engine, "a", 1))
    with monkeypatch.context() as patched:

        def full(*given: Any) -> Any:
            torch.empty(2**50, dtype=torch.uint8, device="cuda")

        patched.setattr(Blocks, "extend", full)
        with pytest.raises(ArpoError, match="out of memory") as failed:
            run(episode(engine, "b", 2))
        assert "\n" not in str(failed.value)
    again = run(episode(engine, "c", 1))
    assert [reply.tokens for _, reply in again] == [reply.tokens for _, reply in expected]
