"""Which form of AdamW's moments is nearest to fp32 for its bytes: a table of docs/results/gpu.md.

    OMP_NUM_THREADS=2 python benchmarks/moments.py [--steps 400]

A small transformer learns to predict the bytes of this repository's documents. Its weights are rounded to bf16, as a
7B's are, its masters are exact in all rows, and every row sees the same batches: only the moments differ. Compared with
fp32: `path`: how far the masters end from those of fp32, as a share of the way that those have gone; `curve`: how far
the losses lie apart, the mean over all steps; `loss`: the mean of the last 50; `largest`: the largest step of a weight
in the second half, in learning rates. The last row has fp32 moments and other batches: what differences mean.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from arpo.training import optimizer as optimizers
from arpo.training.optimizer import BETA1, BETA2, EPS, Bf16AdamW, clip_gradients, join, split

WIDTH, LAYERS, LENGTH, BATCH, LR = 128, 2, 96, 12, 1e-3


class Small(nn.Module):
    """Bytes in, scores of the next one out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        x = self.embed(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.layers(x, mask=mask, is_causal=True))


class Factored(Bf16AdamW):
    """The first moment in bf16; of the second, for a matrix, the means of its rows and of its columns."""

    def __init__(self, weights: list[Tensor], lr: float, weight_decay: float, moments: Any, seed: int) -> None:
        super().__init__(weights, lr, weight_decay, "fp32", seed)
        for weight, state in self.state.items():
            state["first"] = state["first"].bfloat16()
            if weight.ndim == 2:
                state["second"] = torch.zeros(sum(weight.shape))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.steps += 1
        lr = self.param_groups[0]["lr"]
        for weight, state in self.state.items():
            assert weight.grad is not None
            gradient = weight.grad.float()
            square = gradient.square() + 1e-30
            if weight.ndim == 2:
                rows, columns = state["second"].split(list(weight.shape))
                rows.lerp_(square.mean(1), 1 - BETA2)
                columns.lerp_(square.mean(0), 1 - BETA2)
                second = rows[:, None] * columns / rows.mean()
            else:
                second = state["second"].lerp_(square, 1 - BETA2)
            first = state["first"].float().lerp_(gradient, 1 - BETA1)
            state["first"].copy_(first)
            size = second.sqrt().div_(math.sqrt(1 - BETA2**self.steps)).add_(EPS)
            master = join(weight, state["lower"]).addcdiv_(first, size, value=-lr / (1 - BETA1**self.steps))
            split(master, weight, state["lower"])


def batches(steps: int, seed: int) -> list[Tensor]:
    """The same for the same seed."""
    files = sorted(Path(__file__).parents[1].glob("docs/*.md"))
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8).long()
    random = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - LENGTH - 1, (steps, BATCH), generator=random)
    return [torch.stack([text[start : start + LENGTH + 1] for start in row.tolist()]) for row in starts]


def train(make: Callable[[list[Tensor]], Bf16AdamW], steps: int, order: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Small()
    weights = {name: nn.Parameter(weight.detach().bfloat16()) for name, weight in model.named_parameters()}
    optimizer = make(list(weights.values()))

    def masters() -> Tensor:
        every = (join(one.detach(), optimizer.state[one]["lower"]).flatten() for one in weights.values())
        return torch.cat(list(every))

    begin = before = masters()
    losses, largest = [], 0.0
    began = time.monotonic()
    for step, ids in enumerate(batches(steps, order)):
        lr = LR * min(1.0, (step + 1) / 20)
        optimizer.param_groups[0]["lr"] = lr
        scores = functional_call(model, {name: weight.float() for name, weight in weights.items()}, ids[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        clip_gradients(optimizer.weights, 1.0)
        optimizer.step()
        losses.append(loss.item())
        after = masters()
        if step >= steps // 2:
            largest = max(largest, float((after - before).abs().max()) / lr)
        before = after
    kept = [one for state in optimizer.state.values() for name, one in state.items() if name != "lower"]
    a_weight = sum(one.nbytes for one in kept) / len(begin)
    return {
        "begin": begin, "end": before, "losses": losses, "largest": largest, "bytes": a_weight,
        "s": time.monotonic() - began, "weights": len(begin),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps

    def of(kind: type[Bf16AdamW], moments: Any) -> Callable[[list[Tensor]], Bf16AdamW]:
        return lambda weights: kind(weights, LR, 0.0, moments, 0)

    def nearest(chance: Tensor, random: torch.Generator) -> Tensor:
        return chance > 0.5

    exact = train(of(Bf16AdamW, "fp32"), steps, 0)
    with patch.object(optimizers, "_chosen", nearest):
        rounded = train(of(Bf16AdamW, "8bit"), steps, 0)
    rows = {
        "fp32": exact,
        "8bit": train(of(Bf16AdamW, "8bit"), steps, 0),
        "8bit, rounded to the nearest": rounded,
        "first in bf16, second factored": train(of(Factored, None), steps, 0),
        "fp32, other batches": train(of(Bf16AdamW, "fp32"), steps, 1),
    }
    print(f"{exact['weights']:,} weights, {steps} steps, torch {torch.__version__}\n")
    print("| moments | bytes a weight | path | curve | loss | largest |\n|---|---|---|---|---|---|")
    for name, row in rows.items():
        path = float((row["end"] - exact["end"]).norm() / (exact["end"] - exact["begin"]).norm())
        curve = fmean(abs(a - b) for a, b in zip(row["losses"], exact["losses"], strict=True))
        loss, largest = fmean(row["losses"][-50:]), row["largest"]
        print(f"| {name} | {row['bytes']:.2f} | {path:.3f} | {curve:.4f} | {loss:.4f} | {largest:.1f} |")


if __name__ == "__main__":
    main()
