"""What `arpo train` does: a run folder, the base agent judged, updates on a display, the trained agent judged."""

import asyncio
import contextlib
import json
import os
import re
import resource
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import TimeRemainingColumn
from rich.table import Table

from arpo.agent.dialects import UITars
from arpo.config import Config, to_yaml
from arpo.engines.checkpoint import load_checkpoint
from arpo.engines.local import LocalEngine
from arpo.envs.base import make, settings_of
from arpo.envs.pool import Pool, make_pool
from arpo.evaluation.command import load_agent, progress_bar
from arpo.evaluation.run import Evaluation, evaluate
from arpo.evaluation.statistics import Interval
from arpo.runs.plot import Series, save_plot
from arpo.runs.settings import from_anywhere, go_on
from arpo.runs.store import Run, write_whole
from arpo.runs.track import tracking
from arpo.tasks.load import HELD_OUT
from arpo.training.checkpoint import Checkpoints
from arpo.training.learner import Learner
from arpo.training.loop import train
from arpo.training.plan import checked_tasks
from arpo.training.progress import Learning
from arpo.training.rollouts import Rollouts
from arpo.types import Task


def run_training(config: Config) -> dict[str, Any]:
    """Train in the run's folder, new or begun; returns what summary.json holds."""
    began = time.monotonic()
    tasks = checked_tasks(config)
    make(config.env.name, **settings_of(config.env)).close()  # what cannot be made is said before a model is loaded
    folder = config.run_dir or _new_folder(config)
    config = from_anywhere(config.model_copy(update={"run_dir": folder}))
    slots = max(config.train.n_envs, config.eval.n_envs)
    engine, dialect, identity = load_agent(config, config.train.model, slots)
    with Run.write(folder, to_yaml(config)) as run:
        go_on(run, config)
        run.pin("model", identity)
        pool = make_pool(config.env, slots)
        console = Console(stderr=True, highlight=False)
        began -= float(run.fact("wall_s") or 0.0)  # as if all its sessions were one
        with _saying_how_to_go_on(folder, console), tracking(config.train.track, run, config) as track:
            session = _Session(config, run, engine, dialect, tasks, pool, track, began, console)
            summary = asyncio.run(session.run_all())
            write_whole(folder / "summary.json", json.dumps(summary, indent=1) + "\n")  # the mark of a finished run
            lines = list(run.metrics())
            if lines:
                done, success = [1 + line["update"] for line in lines], [line["success"] for line in lines]
                curve = Series(config.algorithm.name, done, success)
                save_plot(folder / "curve.png", [curve], "update", "success of its episodes")
    print_summary(summary, folder)
    return summary


def _new_folder(config: Config) -> Path:
    method = re.sub(r"[^\w.+=-]+", "-", config.algorithm.name)  # no colons in the names of folders
    return Path("runs") / f"train-{method}-{time.strftime('%Y%m%d-%H%M%S')}"


@contextlib.contextmanager
def _saying_how_to_go_on(folder: Path, console: Console) -> Iterator[None]:
    """Where a person, the system or a full disk ends a run: nothing is lost, and this is the way back."""
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print(_stopped(folder), markup=False, soft_wrap=True)
        raise KeyboardInterrupt from None  # status 130
    except OSError as error:
        if error.strerror is None:
            raise
        raise OSError(error.errno, f"{error.strerror}; {_stopped(folder)}", error.filename) from error


def _stopped(folder: Path) -> str:
    return f"stopped; to go on: arpo train --resume {shlex.quote(str(folder))}"


@dataclass
class _Session:
    """A run at work."""

    config: Config
    run: Run
    engine: LocalEngine
    dialect: UITars
    tasks: dict[str, list[Task]]
    pool: Pool
    track: Callable[[dict[str, Any]], None]
    began: float  # by the clock of this session
    console: Console
    stopping: bool = False

    async def run_all(self) -> dict[str, Any]:
        work = asyncio.current_task()
        assert work is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._stop, work)
        async with self.pool:
            try:
                return await self._run() | {
                    "wall_s": time.monotonic() - self.began,
                    "env_steps": sum(episode.n_steps for episode in self.run.summaries(source="rollout")),
                    "peak_rss_mb": self._peak_rss_mb(),
                }
            finally:
                self._note()

    def _stop(self, work: asyncio.Task[Any]) -> None:
        """Asked to end. What is being sampled ends now, what is being learned is learned first."""
        if self.stopping:
            self.console.print(_stopped(self.run.folder), markup=False, soft_wrap=True)
            os._exit(130)  # else Python would wait for the learner's thread; what is on disk is whole at any moment
        self.stopping = True
        self.console.print("stopping; a second time: at once", markup=False)
        work.cancel()

    def _note(self) -> None:
        """What a later session cannot know."""
        self.run.note("wall_s", str(time.monotonic() - self.began))
        self.run.note("peak_rss_mb", str(self._peak_rss_mb()))

    def _peak_rss_mb(self) -> float:
        here = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return max(here, float(self.run.fact("peak_rss_mb") or 0.0))

    async def _run(self) -> dict[str, Any]:
        config = self.config
        learner = Learner(load_checkpoint(config.train.model), config)  # now: what it lacks is said before the work
        base = await self.judge("the base agent", 0)
        with Learning(config, self.console, list(self.run.metrics())) as learning:

            def show(metrics: dict[str, Any]) -> None:
                learning.update(metrics)
                self.track(metrics)
                self._note()

            rollouts = Rollouts(self.tasks["train"], self.engine, self.dialect, config, self.run, self.pool)
            rollouts.on_episode = learning.episode
            await train(config, self.run, rollouts, self.engine, learner, self.dialect.image_pad, show)
        summary = _compared(base, await self.judge("the trained agent", learner.version))
        if learner.version:
            best = Checkpoints(self.run.folder / "checkpoints", config.train.keep).best
            summary["best_checkpoint"] = str(best.relative_to(self.run.folder))
        return summary

    async def judge(self, who: str, update: int) -> dict[str, Evaluation]:
        """Success in each split at the temperature of evaluation, on screens that training never shows."""
        return {split: await self._judge(who, update, split) for split in self.tasks}

    async def _judge(self, who: str, update: int, split: str) -> Evaluation:
        tasks, settings = self.tasks[split], self.config.eval
        if split != "train":
            settings = settings.model_copy(update={"trials": 1})
        with progress_bar(self.console, TimeRemainingColumn()) as progress:
            bar = progress.add_task(f"{who} on {split}", total=settings.trials * len(tasks), so_far="")
            return await evaluate(
                lambda task, env: self.engine,
                self.dialect,
                tasks,
                settings,
                pool=self.pool,
                run=self.run,
                seed=self.config.seed,
                update=update,
                on_trial=lambda trial: progress.advance(bar),
            )


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
