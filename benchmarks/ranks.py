"""One rank of the sharded learner (training/fsdp.py) beside the plain one, in one process and by turns.

    OMP_NUM_THREADS=2 python benchmarks/ranks.py        # the agent that comes with arpo
    PYTHONPATH=src python benchmarks/ranks.py --model random-7b --size 1920x1080 --turns 5  # a GPU

The same samples, the same settings. Printed, a JSON line: the median seconds of an update of each, by the clock and of
the processor's (which a busy machine does not change), the median of their ratios by round, and how far their losses
lie apart in the first update.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from arpo.algorithms.base import make_algorithm
from arpo.bench.learn import to_sample
from arpo.bench.sample import RANDOM, Work, random_model, random_tokenizer
from arpo.config import load_config, parse_size
from arpo.model.checkpoint import find_checkpoint, find_device, load_checkpoint, save_model
from arpo.teaching.tiny import save_tokenizer
from arpo.training.base import Batch
from arpo.training.fsdp import RankLearner
from arpo.training.learner import LocalLearner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="base")
    parser.add_argument("--size", default="448x280")
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("settings", nargs="*", help="key=value, such as train.freeze_vision=false")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(options, Path(folder))


def run(options: argparse.Namespace, folder: Path) -> None:
    place = folder / "model"
    if options.model in RANDOM:
        save_model(random_model(options.model, seed=0), place)
        save_tokenizer(random_tokenizer(), place)
    else:
        place = find_checkpoint(options.model)
    device = find_device()
    kind = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(kind, init_method=f"file://{folder / 'store'}", rank=0, world_size=1)
    work = Work(str(place), parse_size(options.size), options.episodes, options.turns, options.tokens, seed=0)
    played = work.episodes(options.episodes, options.turns)
    asyncio.run(work.play(played))
    samples = [to_sample(work, episode, 1.0 if i % 2 else -1.0) for i, episode in enumerate(played)]
    screens = {screen.hash: screen for episode in played for screen in episode.screens}
    batches = [Batch(tuple(samples), len(samples))]
    config = load_config(None, ["algorithm.name=grpo", "train.lr=1e-7", *options.settings])
    algorithm = make_algorithm(config.algorithm, config.seed)
    asyncio.run(work.engine.rest())
    learners = {"plain": LocalLearner(load_checkpoint(place), config, algorithm)}
    learners["one rank"] = RankLearner(str(place), config, algorithm, device)
    losses, seconds, core = {}, {name: [] for name in learners}, {name: [] for name in learners}
    for turn in range(1 + options.rounds):  # the first warms up
        for name, learner in learners.items():
            began, core_began = time.perf_counter(), time.process_time()
            metrics = learner.update(batches, screens).metrics
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:
                seconds[name].append(time.perf_counter() - began)
                core[name].append(time.process_time() - core_began)
            else:
                losses[name] = metrics["loss"], metrics["grad_norm"]

    def ratio(of: dict[str, list[float]]) -> float:
        return statistics.median(b / a for a, b in zip(*of.values(), strict=True))

    numbers = {
        "model": options.model,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "tokens": sum(len(sample.logprobs) for sample in samples),
        "plain_s": statistics.median(seconds["plain"]),
        "one_rank_s": statistics.median(seconds["one rank"]),
        "ratio": ratio(seconds),
        "plain_core_s": statistics.median(core["plain"]),
        "one_rank_core_s": statistics.median(core["one rank"]),
        "core_ratio": ratio(core),
        "losses_apart": abs(losses["plain"][0] - losses["one rank"][0]),
        "norms": [one[1] for one in losses.values()],
    }
    print(json.dumps(numbers), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
