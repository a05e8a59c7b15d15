"""What `arpo train` does: a run folder, the base agent judged, updates on a display, the trained agent judged."""

import asyncio
import contextlib
import json
import os
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from arpo.agent.episode import Agent
from arpo.agent.player import Player, Reward
from arpo.algorithms.base import make_algorithm
from arpo.config import Config, to_yaml
from arpo.engines.base import Sampling
from arpo.envs.base import make, settings_of
from arpo.envs.pool import LocalPool, make_pool
from arpo.errors import ConfigError
from arpo.evaluation.agents import Loaded, find_model, load_agent, with_precision
from arpo.evaluation.command import evaluate_shown, never_scored
from arpo.evaluation.compare import gain
from arpo.evaluation.run import Evaluation, sampling_of
from arpo.event_loops import callable_anywhere, on_signals, run_async
from arpo.machine import peak_rss_mb
from arpo.model.checkpoint import load_configured
from arpo.runs.checkpoints import best_in
from arpo.runs.plot import Series, save_plot
from arpo.runs.settings import from_anywhere, go_on, same_settings
from arpo.runs.store import Run, new_folder, write_whole
from arpo.runs.track import tracking
from arpo.tasks.kept import Tasks, changed_since, same_tasks
from arpo.tasks.load import HELD_OUT
from arpo.training.checkpoint import Checkpoints
from arpo.training.learner import LocalLearner
from arpo.training.loop import train
from arpo.training.plan import checked_tasks
from arpo.training.progress import Learning
from arpo.training.rollouts import Rollouts
from arpo.types import Task


@callable_anywhere
def run_training(config: Config, own: Tasks | None = None, reward: Reward | None = None) -> dict[str, Any]:
    """Train in the run's folder, new or begun; returns what summary.json holds.

    `own`: the tasks that the run has kept, where it is resumed with these, whatever tasks.source has by now.
    `reward`: what is trained on in place of the score with its penalty.
    """
    began = time.monotonic()
    if reward is not None and not callable(reward):
        raise ConfigError(f"reward: must be a function of a task and a trajectory, not {reward!r:.60}")
    tasks = checked_tasks(config, own)
    make(config.env.name, **settings_of(config.env)).close()  # what cannot be made is said before a model is loaded
    folder = config.run_dir or new_folder("train", config.algorithm.name)
    # Of another run the checkpoint that is its best today: tomorrow it may be another.
    config = from_anywhere(config.with_values({"run_dir": folder, "train.model": find_model(config.train.model)}))
    slots = max(config.train.n_envs, config.eval.n_envs)
    loaded = load_agent(config, config.train.model, slots)
    config = config.with_values({"agent": with_precision(config.agent, loaded.engine.checkpoint.model)})
    with Run.write(folder, to_yaml(config)) as run:
        same_settings(run, config)
        same_tasks(run, tasks, config)
        by: Any = reward if hasattr(reward, "__qualname__") else type(reward)  # the latter: of a callable object
        if run.fact("model") is not None and run.fact("reward") is None:
            run.note("reward", "its own")  # begun by an older arpo, which had no other
        run.pin("reward", "its own" if reward is None else f"{by.__module__}.{by.__qualname__}")
        run.pin("model", loaded.identity)
        go_on(run, config)
        pool = make_pool(config.env, slots)
        console = Console(stderr=True, highlight=False)
        if own and (what := changed_since(own, config)):
            told = f"tasks.source={config.tasks.source}: other tasks by now ({what}); the run goes on with its own"
            console.print(told, markup=False, soft_wrap=True)
        began -= float(run.fact("wall_s") or 0.0)  # as if all its sessions were one
        with _saying_how_to_go_on(folder, console), tracking(config.train.track, run, config) as track:
            session = _Training(config, run, loaded, tasks, pool, track, began, console, reward)
            summary = run_async(session.run_all())
            write_whole(folder / "summary.json", json.dumps(summary, indent=1) + "\n")  # the mark of a finished run
            if updates := list(run.metrics()):
                done, success = [1 + one["update"] for one in updates], [one["success"] for one in updates]
                curve = Series(config.algorithm.name, done, success)
                save_plot(folder / "curve.png", [curve], "update", "success of its episodes", share=True)
    print_summary(summary, folder)
    return summary


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
    return f"stopped; to resume: arpo train --resume {shlex.quote(str(folder))}"


@dataclass
class _Training:
    """A run at work."""

    config: Config
    run: Run
    loaded: Loaded
    tasks: dict[str, list[Task]]
    pool: LocalPool
    track: Callable[[dict[str, Any]], None]
    began: float  # by the clock of this session
    console: Console
    reward: Reward | None
    stopping: bool = False

    async def run_all(self) -> dict[str, Any]:
        work = asyncio.current_task()
        assert work is not None
        on_signals(self._stop, work)
        async with self.pool:
            try:
                summary = await self._run()
            finally:
                costs = self._note()
        steps = sum(episode.n_steps for episode in self.run.summaries(source="rollout"))
        return summary | costs | {"env_steps": steps}

    def _stop(self, work: asyncio.Task[Any]) -> None:
        """Asked to end. What is being sampled ends now, what is being learned is learned first."""
        if self.stopping:
            self.console.print(_stopped(self.run.folder), markup=False, soft_wrap=True)
            os._exit(130)  # else Python would wait for the learner's thread; what is on disk is whole at any moment
        self.stopping = True
        self.console.print("stopping; a second time: at once", markup=False)
        work.cancel()

    def _note(self) -> dict[str, float]:
        """Keep what a later session cannot know."""
        peak = max(peak_rss_mb(), float(self.run.fact("peak_rss_mb") or 0.0))
        costs = {"wall_s": time.monotonic() - self.began, "peak_rss_mb": peak}
        for name, value in costs.items():
            self.run.note(name, str(value))
        return costs

    async def _run(self) -> dict[str, Any]:
        config, engine = self.config, self.loaded.engine
        algorithm = make_algorithm(config.algorithm, config.seed)
        checkpoint = load_configured(config.train.model, config.agent)
        learner = LocalLearner(checkpoint, config, algorithm, engine.screens)  # now: what it lacks is said first
        player = Player(self.pool, self.run)
        base = await self.judge("the base agent", 0, player)
        place = self.run.folder / "checkpoints"
        checkpoints = Checkpoints(place, config.train.keep, config.train.model, config.agent.prompt_file)
        with Learning(config, self.console, list(self.run.metrics())) as learning:

            def show(metrics: dict[str, Any]) -> None:
                learning.update(metrics)
                self.track(metrics)
                self._note()

            agent = Agent(engine, self.loaded.dialect, Sampling(config.train.temperature, 1.0, config.train.max_tokens))
            tasks = self.tasks["train"]
            rollouts = Rollouts(tasks, agent, config, self.run, player, self.reward, learning.episode)
            await train(config, self.run, rollouts, engine, learner, algorithm, checkpoints, show)
        summary = _compared(base, await self.judge("the trained agent", learner.version, player))
        if learner.version:
            summary["best_checkpoint"] = str(best_in(place).relative_to(self.run.folder))
        return summary

    async def judge(self, who: str, update: int, player: Player) -> dict[str, Evaluation]:
        """Success in each split at the temperature of evaluation, on screens that training never shows."""
        agent = Agent(self.loaded.engine, self.loaded.dialect, sampling_of(self.config.eval))
        judged = {}
        for split, tasks in self.tasks.items():
            judged[split] = await evaluate_shown(
                f"{who} on {split}", lambda task, env: agent, tasks, self.config, player, self.run, update
            )
        return judged


def print_summary(summary: dict[str, Any], folder: Path) -> None:
    """Base against trained, for people."""
    console = Console(highlight=False)
    table = Table("tasks", box=None, pad_edge=False)
    for column in ("base", "trained", "gain"):
        table.add_column(column, justify="right")
    splits = [split for split in ("train", *HELD_OUT) if f"crashed_{split}" in summary]
    rate, points = "{:.1%} ({:.0%} to {:.0%})".format, "{:+.1f} points ({:+.0f} to {:+.0f})".format
    for split in splits:
        if f"base_{split}" in summary:
            names = (f"base_{split}", f"final_{split}", f"gain_{split}")
            base, final, gain = ((summary[name], *summary[f"{name}_ci95"]) for name in names)
            table.add_row(split, rate(*base), rate(*final), points(*(100 * share for share in gain)))
    console.print(table)
    for split in splits:
        if crashed := summary[f"crashed_{split}"]:
            console.print(f"[red]{split}: {escape(never_scored(crashed))}[/]", soft_wrap=True)
    look = f"; look at {curve}" if (curve := folder / "curve.png").exists() else ""  # without updates there is none
    console.print(f"Everything is in {folder}{look}", markup=False, soft_wrap=True)


def _compared(base: dict[str, Evaluation], final: dict[str, Evaluation]) -> dict[str, Any]:
    """Rates of both agents, each over the tasks that it has scores of, and the gain over those that both have."""
    summary: dict[str, Any] = {}
    for split in base:
        summary[f"crashed_{split}"] = sorted({*base[split].crashed, *final[split].crashed})
        if (gained := gain(base[split], final[split])) is None:
            continue  # no machine worked: there is no rate
        rates = {"base": base[split].success(), "final": final[split].success(), "gain": (gained.mean, gained.ci95)}
        for name, (rate, interval) in rates.items():
            summary |= {f"{name}_{split}": rate, f"{name}_{split}_ci95": interval}
    return summary
