"""What `arpo train` does: a run folder, the base agent judged, updates on a display, the trained agent judged."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from arpo.agent.dialects import UITars
from arpo.config import Config, to_yaml
from arpo.engines.base import Sampling
from arpo.engines.checkpoint import load_checkpoint
from arpo.engines.local import LocalEngine
from arpo.engines.scripted import POLICIES
from arpo.envs.base import catalog, make
from arpo.errors import ConfigError
from arpo.evaluation.command import load_agent
from arpo.evaluation.run import Evaluation, evaluate
from arpo.evaluation.statistics import Interval
from arpo.runs.plot import Series, save_plot
from arpo.runs.settings import same_settings
from arpo.runs.store import Run
from arpo.tasks.load import load_tasks, spread
from arpo.training.learner import Learner
from arpo.training.loop import train
from arpo.training.rollouts import Rollouts
from arpo.types import Task

HELD_OUT = ("heldout", "heldout_families")


def run_training(config: Config) -> dict[str, Any]:
    """Train in the run's folder, new or begun; returns what summary.json holds."""
    began = time.monotonic()
    tasks = {"train": load_tasks(config.env.name, config.tasks.source)}
    for split in HELD_OUT:
        if split in catalog(config.env.name).SPLITS and config.eval.held_out:
            tasks[split] = spread(load_tasks(config.env.name, split))[: config.eval.held_out]
    folder = config.run_dir or Path("runs") / f"train-{config.algorithm.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    config = config.model_copy(update={"run_dir": folder})
    if config.train.model in POLICIES:
        raise ConfigError(f"train.model={config.train.model}: a script cannot be trained")
    slots = max(config.train.n_envs, config.eval.n_envs)
    engine, dialect, identity = load_agent(config, config.train.model, slots)
    with Run.write(folder, to_yaml(config)) as run:
        same_settings(run, config)
        run.pin("model", identity)
        session = _Session(config, run, engine, dialect, tasks, Console(stderr=True, highlight=False))
        summary = asyncio.run(session.run_all())
        summary |= {
            "wall_s": time.monotonic() - began,
            "env_steps": sum(episode.n_steps for episode in run.summaries(source="rollout")),
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        }
        (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        lines = list(run.metrics())
        curve = Series(
            config.algorithm.name, [1 + line["update"] for line in lines], [line["success"] for line in lines]
        )
        save_plot(folder / "curve.png", [curve], "update", "success of its episodes")
    print_summary(summary, folder)
    return summary


@dataclass
class _Session:
    """A run at work."""

    config: Config
    run: Run
    engine: LocalEngine
    dialect: UITars
    tasks: dict[str, list[Task]]
    console: Console

    async def run_all(self) -> dict[str, Any]:
        config = self.config
        base = {split: await self.judge(split, tasks, 0, "the base agent") for split, tasks in self.tasks.items()}
        learner = Learner(load_checkpoint(config.train.model), config)
        make_env = partial(make, config.env.name, size=config.env.size)
        with self.progress() as progress:
            bar = progress.add_task("learning", total=config.train.updates, so_far="")

            def show(metrics: dict[str, Any]) -> None:
                progress.update(bar, completed=metrics["update"] + 1, so_far=f"success {metrics['success']:.0%}")
                progress.console.print(_line(metrics), markup=False)

            rollouts = Rollouts(self.tasks["train"], self.engine, self.dialect, config, self.run, make_env)
            await train(config, self.run, rollouts, self.engine, learner, self.dialect.image_pad, show)
        updates = config.train.updates
        final = {
            split: await self.judge(split, tasks, updates, "the trained agent") for split, tasks in self.tasks.items()
        }
        return _compared(base, final)

    async def judge(self, split: str, tasks: Sequence[Task], update: int, who: str) -> Evaluation:
        """Success at the temperature of evaluation, on screens that training never shows."""
        settings = self.config.eval
        trials = settings.trials if split == "train" else 1
        with self.progress() as progress:
            bar = progress.add_task(f"{who} on {split}", total=trials * len(tasks), so_far="")
            return await evaluate(
                lambda task, env: self.engine,
                self.dialect,
                tasks,
                make_env=partial(make, self.config.env.name, size=self.config.env.size),
                run=self.run,
                trials=trials,
                n_envs=settings.n_envs,
                sampling=Sampling(settings.temperature, settings.top_p, settings.max_tokens),
                seed=self.config.seed,
                update=update,
                on_trial=lambda trial: progress.advance(bar),
            )

    def progress(self) -> Progress:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        so_far = TextColumn("{task.fields[so_far]}")
        hidden = not self.console.is_terminal
        return Progress(*columns, so_far, TimeRemainingColumn(), console=self.console, transient=True, disable=hidden)


def print_summary(summary: dict[str, Any], folder: Path) -> None:
    """Base against trained, for people."""
    console = Console(highlight=False)
    table = Table("tasks", box=None, pad_edge=False)
    for column in ("base", "trained", "gain"):
        table.add_column(column, justify="right")
    for split in ("train", *HELD_OUT):
        if f"base_{split}" in summary:
            cells = [
                _with_interval(summary[f"{when}_{split}"], summary[f"{when}_{split}_ci95"])
                for when in ("base", "final")
            ]
            table.add_row(split, *cells, f"{100 * summary[f'gain_{split}']:+.1f} points")
    console.print(table)
    console.print(f"Everything is in {folder}; look at {folder / 'curve.png'}", markup=False, soft_wrap=True)


def _with_interval(rate: float, interval: Interval) -> str:
    return f"{rate:.1%} ({interval[0]:.0%} to {interval[1]:.0%})"


def _compared(base: dict[str, Evaluation], final: dict[str, Evaluation]) -> dict[str, Any]:
    summary: dict[str, Any] = {}
    for split in base:
        (before, before_interval), (after, after_interval) = base[split].success(), final[split].success()
        if before is None or after is None:
            continue  # no machine worked: there is no rate
        summary |= {f"base_{split}": before, f"base_{split}_ci95": before_interval}
        summary |= {f"final_{split}": after, f"final_{split}_ci95": after_interval, f"gain_{split}": after - before}
    return summary


def _line(metrics: dict[str, Any]) -> str:
    """One update for people."""
    tokens = metrics["learned_tokens"] / max(1e-9, metrics["sample_s"] + metrics["learn_s"])
    return (
        f"update {metrics['update'] + 1:3}  success {metrics['success']:4.0%}  reward {metrics['reward']:5.2f}  "
        f"all failed {metrics['failed_groups']:4.0%}  replayed {metrics['replayed_groups']:4.0%}  {tokens:.0f} tokens/s"
    )
