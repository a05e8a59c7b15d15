"""What a 7B's states cost on one GPU: an optimiser step, new weights for the engine, a checkpoint. JSON, a line each.

    python benchmarks/gpu_states.py                     # qwen2.5-vl-7b in bf16, on a GPU
    python benchmarks/gpu_states.py --tiny              # a rehearsal on the CPU
    python benchmarks/gpu_states.py --only step,publish --layers 8

Weights are random tensors of the real shapes, no model is run. `gib` is the most memory of the device that the
measured part had beyond what was there before it; `bound_s`: what a copy of the same bytes would take at BANDWIDTH.

step      all weights with 8-bit moments; the first LAYERS with fp32 ones; the norm of gradients
publish   every weight into an engine's copy; the same with LoRA of rank 16 merged, layer by layer
save      a snapshot of weights and states in the host's memory (plain, and through page-locked memory), then its files
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from arpo.model.qwen import QwenVL
from arpo.model.shapes import config_of
from arpo.model.tensorfiles import write_tensors
from arpo.training import optimizer as optimizers
from arpo.training.optimizer import Bf16AdamW, clip_gradients, named_tensors

GIB = 2**30
BANDWIDTH = 4.3e12  # bytes a second that an H200 copies
FILE = 5 * 10**9
RANK = 16


def shapes(tiny: bool) -> dict[str, torch.Size]:
    config = config_of("qwen2.5-vl-7b")
    if tiny:
        text, vision = config.text_config, config.vision_config
        text.num_hidden_layers, text.hidden_size, text.intermediate_size, text.vocab_size = 2, 256, 1000, 1000
        text.num_attention_heads, text.num_key_value_heads = 2, 1
        vision.depth, vision.hidden_size, vision.intermediate_size, vision.out_hidden_size = 2, 256, 500, 256
    with torch.device("meta"):
        return {name: weight.shape for name, weight in QwenVL(config).named_parameters()}


def random_weights(named: dict[str, torch.Size], device: torch.device, gradients: bool = False) -> dict[str, Tensor]:
    weights = {}
    for name, shape in named.items():
        weights[name] = nn.Parameter(torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0, 0.02))
        if gradients:
            weights[name].grad = torch.empty_like(weights[name]).normal_(0, 1e-3)
    return weights


class Measure:
    """Runs a part, waits for the device, prints a line."""

    def __init__(self, device: torch.device, out: Path | None) -> None:
        self.device, self.out = device, out

    def __call__(self, part: str, work: Callable[[], Any], moved: int = 0, repeat: int = 3, **facts: Any) -> Any:
        gpu = self.device.type == "cuda"
        taken, most, result = [], 0.0, None
        for _ in range(repeat):
            result = None
            gc.collect()
            if gpu:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            began = time.perf_counter()
            result = work()
            if gpu:
                torch.cuda.synchronize()
                most = max(most, (torch.cuda.max_memory_allocated() - before) / GIB)
            taken.append(time.perf_counter() - began)
        line = {"part": part, "first_s": round(taken[0], 4), "best_s": round(min(taken), 4)}
        if moved:
            line |= {"gb": round(moved / 1e9, 2), "gb_a_s": round(moved / 1e9 / min(taken), 2)}
            line |= {"bound_s": round(moved / BANDWIDTH, 4)}
        if gpu:
            line |= {"gib": round(most, 2), "held_gib": round(torch.cuda.memory_allocated() / GIB, 2)}
        line = json.dumps(line | facts)
        print(line, flush=True)
        if self.out:
            with self.out.open("a") as file:
                file.write(line + "\n")
        return result


def some_layers(named: dict[str, torch.Size], n: int) -> dict[str, torch.Size]:
    first = tuple(f"model.language_model.layers.{i}." for i in range(n))
    return {name: shape for name, shape in named.items() if name.startswith(first)}


def measure_step(measure: Measure, named: dict[str, torch.Size], layers: int, pieces: list[int]) -> None:
    for moments, ones in (("fp32", some_layers(named, layers)), ("8bit", named)):
        weights = list(random_weights(ones, measure.device, gradients=True).values())
        n = sum(weight.numel() for weight in weights)
        make = partial(Bf16AdamW, weights, 1e-6, 0.0, moments, 0)
        optimizer = measure(f"new optimizer, {moments}", make, repeat=1, weights=n)
        measure(f"norm and clipping, {moments}", partial(clip_gradients, weights, 1.0), moved=2 * n)
        held = 2 + sum(one.nbytes for kept in optimizer.state.values() for one in kept.values()) / n  # of each weight
        for piece in pieces:
            optimizers.PIECE = piece
            # Read and written again, and the gradient read.
            measure(f"step, {moments}", optimizer.step, moved=int(n * (2 * held + 2)), weights=n, piece=piece)
        del optimizer, weights, make
    optimizers.PIECE = pieces[0]


@torch.no_grad()
def measure_publish(measure: Measure, named: dict[str, torch.Size]) -> None:
    device = measure.device
    learner, engine = random_weights(named, device), random_weights(named, device)
    size = sum(weight.nbytes for weight in learner.values())

    def copy(weights: Iterator[tuple[str, Tensor]]) -> None:
        for name, weight in weights:
            engine[name].copy_(weight)

    measure("publish all", lambda: copy(iter(learner.items())), moved=2 * size)
    targets = [name for name in named if ".language_model.layers." in name and len(named[name]) == 2]
    adapters = {
        name: (
            torch.empty(RANK, named[name][1], dtype=torch.bfloat16, device=device).normal_(0, 0.02),
            torch.empty(named[name][0], RANK, dtype=torch.bfloat16, device=device).normal_(0, 0.02),
        )
        for name in targets
    }

    def merged() -> Iterator[tuple[str, Tensor]]:
        for name, weight in learner.items():
            if name in adapters:
                a, b = adapters[name]
                weight = torch.addmm(weight.float(), b.float(), a.float(), alpha=2.0).to(weight.dtype)
            yield name, weight

    measure(f"publish, LoRA of rank {RANK} merged", lambda: copy(merged()), moved=2 * size)
    tower = [name for name in named if ".visual." in name]
    measure("compare the tower", lambda: all(torch.equal(learner[name], engine[name]) for name in tower))


def measure_save(measure: Measure, named: dict[str, torch.Size], place: Path | None) -> None:
    device = measure.device
    weights = random_weights(named, device)
    optimizer = Bf16AdamW(list(weights.values()), 1e-6, 0.0, "8bit", 0)
    every = weights | dict(named_tensors(optimizer.state_dict()["state"]))
    size = sum(tensor.nbytes for tensor in every.values())

    def plain() -> dict[str, Tensor]:
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in every.items()}

    kept = measure("snapshot", plain, moved=size, repeat=1)
    measure("snapshot into the same memory", lambda: [kept[n].copy_(t.detach()) for n, t in every.items()], moved=size)
    if device.type == "cuda":
        one = torch.empty(256 * 2**20, dtype=torch.uint8, pin_memory=True)

        def staged() -> None:
            for name, tensor in every.items():
                source, target = tensor.detach().view(-1).view(torch.uint8), kept[name].view(-1).view(torch.uint8)
                for start in range(0, len(source), len(one)):
                    part = source[start : start + len(one)]
                    one[: len(part)].copy_(part)
                    target[start : start + len(part)].copy_(one[: len(part)])

        measure("snapshot through page-locked memory", staged, moved=size, repeat=2)
    free = shutil.disk_usage(place or tempfile.gettempdir()).free
    if free < 1.1 * size:  # as much of it as there is room for
        room, some = 0.8 * free, {}
        for name, tensor in kept.items():
            if (room := room - tensor.nbytes) < 0:
                break
            some[name] = tensor
        kept = some
    size = sum(tensor.nbytes for tensor in kept.values())
    with tempfile.TemporaryDirectory(dir=place) as folder:
        measure("write files", lambda: write_tensors(Path(folder), "x", kept.items(), FILE), moved=size, repeat=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="few and small layers, for a CPU")
    parser.add_argument("--layers", type=int, default=8, help="for the optimiser with fp32 moments")
    parser.add_argument("--only", default="step,publish,save")
    parser.add_argument("--pieces", default="24,22,26", help="weights at once, as powers of two")
    parser.add_argument("--folder", type=Path, help="where to write the files; default: the system's for such")
    parser.add_argument("--out", type=Path, help="append the lines to this file too")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not arguments.tiny:
        sys.exit("no GPU here: --tiny is the rehearsal")
    measure, named = Measure(device, arguments.out), shapes(arguments.tiny)
    layers = min(arguments.layers, 1) if arguments.tiny else arguments.layers
    pieces = [2 ** int(power) for power in arguments.pieces.split(",")]
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    total = sum(shape.numel() for shape in named.values())
    print(json.dumps({"device": name, "torch": torch.__version__, "weights": total}), flush=True)
    parts: dict[str, Callable[[], None]] = {
        "step": lambda: measure_step(measure, named, layers, pieces),
        "publish": lambda: measure_publish(measure, named),
        "save": lambda: measure_save(measure, named, arguments.folder),
    }
    for part in arguments.only.split(","):
        parts[part]()
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
