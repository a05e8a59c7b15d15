"""Learning on a GPU: kernels against plain operations, packed attention, what is kept, the learner against a CPU's."""

from __future__ import annotations

import copy
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from arpo.model import attention, kernels
from arpo.model.checkpoint import load_model, make_model
from arpo.model.qwen import QwenVL
from arpo.model.recompute import NOTHING, Recompute, kept_bytes, tower_bytes
from arpo.model.shapes import config_of
from arpo.model.vision import WIDE, WideLinear
from arpo.training import lora
from tiny_model import make_decided

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
BF16 = torch.bfloat16
LENGTHS = (300, 17, 64, 1, 200)


def random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to("cuda", BF16).requires_grad_()


def off(found: Tensor, expected: Tensor) -> float:
    """As a share of the largest."""
    return float(((found.float() - expected.float()).abs().max() / expected.float().abs().max()).detach())


@pytest.mark.parametrize("dim", [128, 80, 16])
def test_the_kernels_do_what_plain_operations_do(monkeypatch: pytest.MonkeyPatch, dim: int) -> None:
    qkv, angle = random(77, 3, 5, dim), torch.randn(77, 1, dim // 2, device="cuda")
    rope = (torch.cat([angle.cos()] * 2, -1), torch.cat([-angle.sin(), angle.sin()], -1))
    through, x, by = random(77, 3 * dim, seed=1), random(77, 3 * dim, seed=2), random(77, 5, dim, seed=3).detach()
    found: list[list[Tensor]] = []
    for fused in (True, False):
        if not fused:
            monkeypatch.setattr(kernels, "_fused", lambda x: False)
        turned, gated = kernels.rotate(qkv.unbind(1)[1], *rope), kernels.gate(through, x)
        gradients = torch.autograd.grad((turned * by).sum() + gated.square().sum(), (qkv, through, x))
        found.append([turned, gated, *gradients])
    assert all(off(a, b) < 0.01 for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("lengths", [LENGTHS, (512,), (96, 96, 96)])
def test_packed_attention_is_that_of_each_sequence(
    monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...], causal: bool, long: bool
) -> None:
    """Several sequences, one, and equal ones; by either kernel, with grouped heads."""
    monkeypatch.setattr(attention, "LONG", 64 if long else 10**6)
    n = sum(lengths)
    q, k, v = random(n, 28, 128), random(n, 4, 128, seed=1), random(n, 4, 128, seed=2)
    by = random(n, 28, 128, seed=3).detach().float()
    mixed = attention.each(q[None], k[None], v[None], attention.runs_of(lengths), causal)[0]
    parts = []
    for start, end in pairwise(accumulate((0, *lengths))):
        inside = [t[start:end].float().transpose(0, 1)[None] for t in (q, k, v)]
        one = F.scaled_dot_product_attention(inside[0], inside[1], inside[2], is_causal=causal, enable_gqa=True)
        parts.append(one[0].transpose(0, 1))
    expected = torch.cat(parts)
    assert off(mixed, expected) < 0.02
    both = [torch.autograd.grad((one.float() * by).sum(), (q, k, v)) for one in (mixed, expected)]
    assert all(off(a, b) < 0.03 for a, b in zip(*both, strict=True))


def test_queries_at_some_places_see_what_is_before_them() -> None:
    n, wanted = sum(LENGTHS), [3, 4, 5, 299, 300, 350, 351, 581]
    q, k, v = random(n, 8, 64), random(n, 2, 64, seed=1), random(n, 2, 64, seed=2)
    whole = attention.packed(LENGTHS)(0, q, k, v)[wanted]
    some = attention.packed(LENGTHS, wanted)(0, q[wanted], k, v)
    assert off(some, whole) < 0.02
    both = [torch.autograd.grad(one.float().square().sum(), (q, k, v)) for one in (some, whole)]
    assert all(off(a, b) < 0.03 for a, b in zip(*both, strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decided(tmp_path_factory.mktemp("checkpoint"), seed=0)


def batch(model: QwenVL, device: str) -> dict[str, Any]:
    """Two sequences with three screenshots, two of them of one size."""
    torch.manual_seed(0)
    pad, factor = model.config.image_token_id, model.sight.factor
    sizes = [(3, 4), (3, 4), (2, 5)]
    ids = [torch.randint(10, 200, (40,)) for _ in range(2)]
    ids[0][5:17], ids[0][20:32], ids[1][8:18] = pad, pad, pad
    images = {
        str(i): torch.randint(0, 256, (h * factor, w * factor, 3), dtype=torch.uint8) for i, (h, w) in enumerate(sizes)
    }
    return {
        "ids": torch.cat(ids).to(device),
        "positions": torch.arange(40).repeat(2).expand(3, 80).to(device),
        "images": {name: one.to(device) for name, one in images.items()},
        "shown": list(images),
        "lengths": (40, 40),
        "wanted": torch.tensor([33, 34, 35, 70, 71, 78]),
        "temperature": 1.0,
    }


@pytest.mark.parametrize("plan", [NOTHING, Recompute(3), Recompute(3, 3, tower=True)])
def test_a_pass_in_bf16_is_near_that_of_a_cpu_in_fp32(folder: Path, plan: Recompute) -> None:
    """Its values and the gradients of all weights, whatever is computed again."""
    here, there = load_model(folder, "cuda", BF16).requires_grad_(True), load_model(folder, "cpu").requires_grad_(True)
    there.load_state_dict({name: weight.float().cpu() for name, weight in here.state_dict().items()})
    found, expected = here(**batch(here, "cuda"), recompute=plan), there(**batch(there, "cpu"))
    assert off(found.cpu(), expected) < 0.05
    found.sum().backward()
    expected.sum().backward()
    for (name, a), (_, b) in zip(here.named_parameters(), there.named_parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        if b.grad.abs().max() > 1e-3:
            same = F.cosine_similarity(a.grad.float().cpu().flatten(), b.grad.flatten(), dim=0)
            assert same > 0.98, name


def test_adapters_beside_bf16_get_gradients_in_fp32(folder: Path) -> None:
    here, there = load_model(folder, "cuda", BF16), load_model(folder, "cpu")
    there.load_state_dict({name: weight.float().cpu() for name, weight in here.state_dict().items()})
    for model in (here, there):
        lora.add_adapters(model, 4, vision=True, seed=0)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith("lora_B"):
                    weight.copy_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))))
    here(**batch(here, "cuda")).sum().backward()
    there(**batch(there, "cpu")).sum().backward()
    for (name, a), (_, b) in zip(here.named_parameters(), there.named_parameters(), strict=True):
        assert (a.grad is None) == (".lora_" not in name)
        if a.grad is not None and b.grad is not None and b.grad.abs().max() > 1e-3:
            assert a.grad.dtype == torch.float32
            assert F.cosine_similarity(a.grad.cpu().flatten(), b.grad.flatten(), dim=0) > 0.98, name


@pytest.mark.parametrize("plan", [NOTHING, Recompute(4), Recompute(4, 2), Recompute(4, 4, tower=True)])
def test_as_much_is_kept_on_a_gpu_as_is_said(plan: Recompute) -> None:
    config = copy.deepcopy(config_of("qwen2.5-vl-7b"))
    config.text_config.update({"num_hidden_layers": 4, "vocab_size": 1000})
    config.vision_config.update({"depth": 4, "fullatt_block_indexes": [3]})
    for i, name in enumerate(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")):
        setattr(config, name, 5 + i)
    with torch.device("cuda"):
        model = make_model(config).to(BF16)
    n, side = 9000, 28 * 40
    ids, positions = torch.randint(10, 900, (n,), device="cuda"), torch.arange(n, device="cuda").expand(3, n)
    images = {str(i): torch.randint(0, 256, (side, side, 3), dtype=torch.uint8, device="cuda") for i in range(2)}
    text, wanted = model.model.language_model, torch.arange(100, n, 100)
    for _ in range(2):  # the first one makes what is made once
        hidden = tokens = None
        before = torch.cuda.memory_allocated()
        hidden = text(ids, positions, wanted=wanted, recompute=plan)
        between = torch.cuda.memory_allocated()
        tokens = model.model.visual(images, plan.tower)
        after = torch.cuda.memory_allocated()
    assert between - before == pytest.approx(kept_bytes(config, plan, n, 2, len(wanted)), rel=0.05)
    assert hidden is not None and tokens is not None
    kept = after - between - sum(one.nbytes for _, one in tokens)
    if not plan.tower:  # weights that were filled up are kept with what they were multiplied with
        wide = [one for one in model.model.visual.modules() if isinstance(one, WideLinear)]
        kept -= 2 * sum(_filled(one.in_features) * _filled(one.out_features) for one in wide)
    assert kept == pytest.approx(tower_bytes(config, plan, 2 * 4 * 40 * 40, 2), rel=0.05)


def _filled(row: int) -> int:
    return row + -row % WIDE
