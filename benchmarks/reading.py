"""Can a model of a few million parameters learn to read the pocket desktop? docs/results/reading.md has the answer.

The model is made for this measurement alone; the agent `base` learns to read in `arpo pretrain`.

It is a small vision transformer with the geometry of Qwen2.5-VL: patches of 14 pixels, 2 x 2 of them merged to
one visual token. A head on every visual token names the word in the middle of each of its four patches. It is trained
on screens of the families of `train`, but of instances that no list holds, with random seeds and with moves of the
expert and random ones. It is tested on screens of `heldout` and `heldout_families`. The share of words that it names
is printed while it learns, as lines of JSON.

On a GPU with 16 processor cores (on a CPU give a small --images):

    python benchmarks/reading.py --images 1200000 --batch 256 --workers 15 --every 60000 --seconds 400
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arpo.agent.random_actions import random_action
from arpo.envs.pocket import PocketEnv
from arpo.envs.pocket.catalog import get_task, task_list
from arpo.envs.pocket.expert import ExpertLost, PocketExpert
from arpo.errors import TaskError
from arpo.types import Task

PATCH = 14
UNKNOWN = -100  # a word that is not in the vocabulary: neither right nor wrong


def screens(tasks: list[str], seed: int, extra: bool) -> Iterator[tuple[np.ndarray, list]]:
    """Screens and their words, for ever. `extra`: of other instances of the same families, which no list holds."""
    rng, env = random.Random(seed), PocketEnv()
    while True:
        task = choose_task(rng, rng.choice(tasks), extra)
        env.load(task, rng.randrange(2**31))
        expert = PocketExpert(task)
        yield env.pixels(), env.words()
        for _ in range(rng.randrange(1, 12)):
            try:
                env.perform(random_action(rng, env.size) if rng.random() < 0.3 else expert.act(env)[1])
            except ExpertLost:
                break
            if env.ended:
                break
            yield env.pixels(), env.words()


def choose_task(rng: random.Random, task_id: str, extra: bool) -> Task:
    if not extra:
        return get_task(task_id)
    try:
        return get_task(f"{task_id[:-4]}-{rng.randrange(9, 200):03d}")  # those before 9 may be in a list
    except TaskError:
        return get_task(task_id)  # a family with few instances


def targets(words: list, vocabulary: dict[str, int], size: tuple[int, int]) -> np.ndarray:
    """The word of each patch: 0 for none."""
    grid = np.zeros((size[1] // PATCH, size[0] // PATCH), np.int64)
    for word, (x0, y0, x1, y1) in words:
        grid[(y0 + y1) // 2 // PATCH, (x0 + x1) // 2 // PATCH] = vocabulary.get(word, UNKNOWN)
    return grid


def words_in_use(tasks: list[str], screens_seen: int, least: int) -> dict[str, int]:
    """The words that are seen often enough to be learned."""
    seen: Counter[str] = Counter()
    source = screens(tasks, 1, extra=True)
    for _ in range(screens_seen):
        seen.update({word for word, _ in next(source)[1]})
    return {word: i + 1 for i, (word, count) in enumerate(seen.most_common()) if count >= least}


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, tasks: list[str], vocabulary: dict[str, int], seed: int, extra: bool) -> None:
        self.tasks, self.vocabulary, self.seed, self.extra = tasks, vocabulary, seed, extra

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        worker = torch.utils.data.get_worker_info()
        torch.set_num_threads(1)
        for pixels, words in screens(self.tasks, self.seed + (worker.id if worker else 0), self.extra):
            yield pixels, targets(words, self.vocabulary, (pixels.shape[1], pixels.shape[0]))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        b, n, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, w))
        return x + self.mlp(self.norm2(x))


class Reader(nn.Module):
    """Patches, blocks, the 2 x 2 merge, and a head that names four words a visual token."""

    def __init__(self, size: tuple[int, int], words: int, width: int, depth: int) -> None:
        super().__init__()
        self.columns, self.rows = size[0] // PATCH, size[1] // PATCH
        self.embed = nn.Conv2d(3, width, PATCH, PATCH)
        self.place = nn.Parameter(0.02 * torch.randn(1, self.rows * self.columns, width))
        self.blocks = nn.ModuleList(Block(width, width // 32) for _ in range(depth))
        self.merge = nn.Sequential(nn.RMSNorm(4 * width), nn.Linear(4 * width, 2 * width), nn.GELU())
        self.head = nn.Linear(2 * width, 4 * (words + 1))

    def forward(self, pixels: Tensor) -> Tensor:
        """uint8 B x H x W x 3 to B x rows x columns x words."""
        x = self.embed(pixels.permute(0, 3, 1, 2).float() / 127.5 - 1).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x)
        b, _, w = x.shape
        half = (self.rows // 2, self.columns // 2)
        x = x.view(b, half[0], 2, half[1], 2, w).permute(0, 1, 3, 2, 4, 5).reshape(b, *half, 4 * w)
        named = self.head(self.merge(x)).view(b, *half, 2, 2, -1)
        return named.permute(0, 1, 3, 2, 4, 5).reshape(b, self.rows, self.columns, -1)


@torch.no_grad()
def accuracy(model: Reader, batches: list, device: str) -> float:
    """The share of known words that are named, where they stand."""
    right = total = 0
    for pixels, grid in batches:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            named = model(pixels.to(device)).argmax(-1).cpu()
        word = grid > 0
        right += int((named[word] == grid[word]).sum())
        total += int(word.sum())
    return right / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this long")
    parser.add_argument("--every", type=int, default=20_000, help="images between two measurements")
    parser.add_argument("--out", type=Path, default=Path("reading.jsonl"))
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    ids = {split: [t for tasks in task_list(split).values() for t in tasks] for split in ("train", "heldout")}
    ids["heldout_families"] = [t for tasks in task_list("heldout_families").values() for t in tasks]
    vocabulary = words_in_use(ids["train"], 4000, least=4)
    tests = {}
    for split in ("heldout", "heldout_families"):
        loader = torch.utils.data.DataLoader(Stream(ids[split], vocabulary, 10_000, extra=False), batch_size=64)
        tests[split] = [batch for batch, _ in zip(loader, range(8), strict=False)]
    size = PocketEnv().size
    model = Reader(size, len(vocabulary), args.width, args.depth).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=0.01, betas=(0.9, 0.98))
    steps = args.images // args.batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=steps + 1, pct_start=0.05)
    weight = torch.ones(len(vocabulary) + 1, device=device)
    weight[0] = 0.1
    head = sum(p.numel() for p in model.head.parameters())
    start = {"words": len(vocabulary), "parameters": sum(p.numel() for p in model.parameters()), "of_them_head": head}
    print(json.dumps(start), flush=True)
    args.out.write_text(json.dumps(start) + "\n")
    stream = torch.utils.data.DataLoader(
        Stream(ids["train"], vocabulary, 100, extra=True),
        batch_size=args.batch,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        pin_memory=device == "cuda",
    )
    began, seen, shown = time.time(), 0, 0
    for pixels, grid in stream:
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            named = model(pixels.to(device, non_blocking=True))
            loss = F.cross_entropy(named.flatten(0, 2).float(), grid.to(device).flatten(), weight, ignore_index=UNKNOWN)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        seen += len(pixels)
        done = seen >= args.images - args.batch or time.time() - began > args.seconds
        if seen - shown >= args.every or done:
            shown = seen
            metrics = {"images": seen, "seconds": round(time.time() - began, 1), "loss": round(loss.item(), 4)}
            metrics |= {split: round(accuracy(model, batches, device), 4) for split, batches in tests.items()}
            print(json.dumps(metrics), flush=True)
            with args.out.open("a") as out:
                out.write(json.dumps(metrics) + "\n")
        if done:
            break


if __name__ == "__main__":
    main()
