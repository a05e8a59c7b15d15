"""Optimiser, handover and checkpoints on a GPU: the same numbers as on the CPU, and no more memory than said."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from arpo.algorithms.base import make_algorithm
from arpo.config import Config
from arpo.engines.local import LocalEngine
from arpo.model.checkpoint import load_checkpoint, load_model
from arpo.training import optimizer
from arpo.training.learner import LocalLearner
from arpo.training.optimizer import Bf16AdamW, Moments, clip_gradients, join
from tiny_model import make_tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


def learned(device: str, moments: Moments, steps: int = 50) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = ((1000, 77), (5000,), (3,))
    weights = [nn.Parameter(torch.randn(shape, generator=random).bfloat16().to(device)) for shape in shapes]
    made = Bf16AdamW(weights, 1e-3, 0.01, moments, seed=0)
    for _ in range(steps):
        for weight in weights:
            weight.grad = (torch.randn(weight.shape, generator=random) + 0.3).bfloat16().to(device)
        clip_gradients(weights, 100.0)
        made.step()
    return [join(weight.detach(), made.state[weight]["lower"]).cpu() for weight in weights]


def test_a_step_is_that_of_the_cpu() -> None:
    for here, there in zip(learned("cuda", "fp32"), learned("cpu", "fp32"), strict=True):
        torch.testing.assert_close(here, there, rtol=1e-5, atol=1e-6)


def test_8_bits_are_as_near_as_on_the_cpu_and_repeat() -> None:
    exact, here = learned("cuda", "fp32"), learned("cuda", "8bit")
    assert all(map(torch.equal, here, learned("cuda", "8bit")))
    for one, other in zip(exact, here, strict=True):
        assert (one - other).abs().mean() < 0.002  # of a way of some 0.05


@pytest.mark.parametrize("shape", [(1000, 77), (256,), (3,)])
def test_the_kernel_of_8_bits_rounds_what_plain_operations_round(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = [nn.Parameter(torch.full(shape, 0.5, dtype=torch.bfloat16, device="cuda")) for _ in range(2)]
    by_kernel, plain = (Bf16AdamW([weight], 1e-3, 0.01, "8bit", seed=0) for weight in weights)
    for number in range(5):
        gradient = torch.randn(shape, device="cuda").bfloat16() * 1e-3
        for weight in weights:
            weight.grad = gradient.clone()
        with monkeypatch.context() as without:
            assert optimizer.kernels is not None, "no Triton here"
            by_kernel.step()
            without.setattr(optimizer, "kernels", None)
            plain.step()
        one, other = (made.state[weight] for made, weight in zip((by_kernel, plain), weights, strict=True))
        if not number:  # both began with zeros: the numbers are the same, and lie between the same neighbours
            for name in ("first_scale", "second_scale"):
                torch.testing.assert_close(one[name], other[name], rtol=1e-6, atol=0)
            for name in ("first", "second"):
                off = one[name].float() - other[name].float()
                assert off.abs().max() <= 1
                assert off.mean().abs() < 5 / off.numel() ** 0.5  # neither up nor down
            torch.testing.assert_close(
                *(join(w.detach(), kept["lower"]) for w, kept in zip(weights, (one, other), strict=True)),
                rtol=1e-6,
                atol=1e-9,
            )
    far = (weights[0] - weights[1]).abs().float().mean()
    assert far < 1e-3  # of a way of some 0.005


def test_a_step_needs_little_beside_what_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "PIECE", 2**20)
    weight = nn.Parameter(torch.zeros(2**26, dtype=torch.bfloat16, device="cuda"))
    weight.grad = torch.ones_like(weight)
    made = Bf16AdamW([weight], 1e-3, 0.0, "8bit", seed=0)
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    made.step()
    assert torch.cuda.max_memory_allocated() - held < 2**20 * 4 * 20


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("moments", ["fp32", "8bit"])
def test_weights_reach_the_engine_and_a_checkpoint_bit_by_bit(rank: int, moments: str, tmp_path: Path) -> None:
    make_tiny(tmp_path / "model", ["some text"])
    config = Config.model_validate({"train": {"lora_rank": rank, "moments": moments}})
    learners = [
        LocalLearner(
            load_checkpoint(tmp_path / "model", "cuda", torch.bfloat16),
            config,
            make_algorithm(config.algorithm, config.seed),
        )
        for _ in range(2)
    ]
    one, other = learners
    engine = LocalEngine(load_checkpoint(tmp_path / "model", "cuda", torch.bfloat16))
    for weight in one.parameters:
        weight.grad = torch.randn_like(weight)
    one.optimizer.step()
    weights = one.publish(tmp_path / "published")
    asyncio.run(engine.load(1, weights))
    file = dict(load_model(weights.path(), "cpu", torch.bfloat16).named_parameters())
    for name, weight in engine.checkpoint.model.named_parameters():
        assert weight.is_cuda and torch.equal(weight.cpu(), file[name])
    (tmp_path / "saved").mkdir()
    write = one.save(tmp_path / "saved")
    kept = [weight.detach().clone() for weight in one.parameters]
    one.optimizer.step()
    state = write()
    other.restore(tmp_path / "saved", state | {"version": 1})
    assert all(map(torch.equal, kept, other.parameters))
