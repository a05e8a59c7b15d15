"""`arpo train` with a random model of 7B on `pocket` at 1920x1080, by LoRA or every weight: three updates.

    PYTHONPATH=src python benchmarks/gpu_train.py FOLDER --mode lora             # a GPU of 139 GiB; --mode all
    PYTHONPATH=src python benchmarks/gpu_train.py FOLDER --mode lora --updates 4 # goes on from there
    PYTHONPATH=src python benchmarks/gpu_train.py FOLDER --model random-tiny --size 448x280

A random model never succeeds, so what is trained on is the share of even ids among its tokens: a reward that differs
between the members of a group. Printed, a JSON line each: seconds of each update, the largest GPU memory, and how far
log-probabilities of sampler and learner lie apart.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import arpo
from arpo.bench.sample import random_model, random_tokenizer
from arpo.model.checkpoint import save_model
from arpo.teaching.tiny import save_tokenizer
from arpo.types import Task, Trajectory

GIB = 2**30
TASK = "shell-close-000"


def even(task: Task, trajectory: Trajectory) -> float:
    """The reward; a module's function, since a resumed run must find the same one."""
    tokens = [token for step in trajectory.steps for token in step.completion.tokens]
    return sum(token % 2 == 0 for token in tokens) / max(1, len(tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="random-7b")
    parser.add_argument("--size", default="1920x1080")
    parser.add_argument("--mode", choices=["lora", "all"], default="lora")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--place", type=Path, help="of the model's files, if not the folder")
    options = parser.parse_args()
    model = (options.place or options.folder) / options.model
    began = time.monotonic()
    if not (model / "config.json").exists():
        save_model(random_model(options.model, seed=0), model)
        save_tokenizer(random_tokenizer(), model)
        (model / "prompt.txt").write_text("Do this: {instruction}\n")
        torch.cuda.empty_cache()
    say(what="the model's files", seconds=time.monotonic() - began)
    run_dir = options.folder / f"run-{options.mode}"
    own = {
        "lora": ["train.lora_rank=16", "train.lr=1e-5"],
        "all": ["train.freeze_vision=false", "train.moments=8bit", "train.lr=1e-6"],
    }
    settings = [
        f"train.model={model}",
        f"env.size={options.size}",
        "algorithm.name=grpo",
        "algorithm.group=4",
        "train.rollout_tasks=1",
        "train.optimizer_tasks=1",
        "train.n_envs=4",
        "train.max_tokens=120",
        "train.save_every=100",
        "tasks.max_steps=4",
        f"tasks.source={TASK}",
        "eval.trials=1",
        "eval.held_out=0",
        "eval.max_tokens=8",
        *own[options.mode],
    ]
    began = time.monotonic()
    summary = arpo.train("pocket", *settings, f"train.updates={options.updates}", run_dir=run_dir, reward=even)
    say(what="session", updates=options.updates, seconds=time.monotonic() - began, env_steps=summary["env_steps"])
    report(run_dir)


def report(run_dir: Path) -> None:
    """What the run has kept of its updates."""
    with arpo.read_run(run_dir) as run:
        for line in run.metrics():
            tokens = run.record(line["update"])
            gap = np.concatenate([np.abs(one.sampler - one.old) for one in tokens])
            say(
                what="update",
                update=line["update"],
                sample_s=line["sample_s"],
                learn_s=line["learn_s"],
                sampled_tokens=line["sampled_tokens"],
                optimizer_steps=line["optimizer_steps"],
                gap_mean=float(gap.mean()),
                gap_p99=float(np.quantile(gap, 0.99)),
                reward=line["reward"],
            )
    if torch.cuda.is_available():
        say(what="peak", gib=torch.cuda.max_memory_allocated() / GIB)


def say(**numbers: Any) -> None:
    print(json.dumps(numbers), flush=True)


if __name__ == "__main__":
    main()
