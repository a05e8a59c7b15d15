"""What `arpo train` does: a run folder, the base agent judged, updates on a display, the trained agent judged."""

import asyncio
import contextlib
import json
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from arpo.agent.episode import Agent, as_number
from arpo.agent.player import Player, Reward
from arpo.algorithms.base import METHODS, Algorithm, make_algorithm
from arpo.config import Config, to_yaml
from arpo.engines.base import Sampling
from arpo.envs.pictures import film_strip
from arpo.envs.pool import SlotPool, make_pool, try_settings
from arpo.errors import ConfigError, DeviceError, EngineError, EnvError, device_error, printable
from arpo.evaluation.agents import Loaded, find_model, load_agent
from arpo.evaluation.command import evaluate_shown, never_scored
from arpo.evaluation.compare import gain
from arpo.evaluation.run import Evaluation, doubt, judged_agent, of_episodes
from arpo.event_loops import callable_anywhere, on_signals, run_async
from arpo.machine import peak_rss_mb
from arpo.runs.checkpoints import best_in
from arpo.runs.plot import Series, save_plot
from arpo.runs.settings import begun_with, from_anywhere, go_on, outside, same_settings
from arpo.runs.store import Run, new_folder, write_whole
from arpo.runs.track import Track, tracking
from arpo.tasks.kept import Tasks, changed_since, same_tasks
from arpo.tasks.load import JUDGED
from arpo.training import offline
from arpo.training.base import Learner, RanksLost
from arpo.training.checkpoint import Checkpoints
from arpo.training.loop import train
from arpo.training.memory import lighter, refuse_large
from arpo.training.plan import checked_tasks, most_steps
from arpo.training.progress import Learning
from arpo.training.ranks import make_learner, refuse_ranks
from arpo.training.rollouts import Groups, Rollouts
from arpo.types import Task


@callable_anywhere
def run_training(
    config: Config, own: Tasks | None = None, reward: Reward | None = None, from_runs: Sequence[Path] = ()
) -> dict[str, Any]:
    """Train in the run's folder, new or begun; returns what summary.json holds.

    `own`: the tasks that the run has kept, where it is resumed with these, whatever tasks.source has by now.
    `reward`: what is trained on in place of the score with its penalty. `from_runs`: the runs whose stored episodes
    are learned, in place of playing (offline.py); a begun run has them.
    """
    began = time.monotonic()
    if reward is not None and not callable(reward):
        raise ConfigError(f"reward: must be a function of a task and a trajectory, not {reward!r:.60}")
    if reward is not None and METHODS.find(config.algorithm.method).by_score:
        raise ConfigError(f"reward: has no effect on {config.algorithm.method}, which goes by the checker's score")
    folder = config.run_dir or new_folder("train", config.algorithm.name)
    sources, own = offline.begin(config, folder, from_runs, own, reward)
    tasks = checked_tasks(config, own)
    try_settings(config.env)  # what cannot be made is said before a model is loaded
    # Of another run the checkpoint that is its best today: tomorrow it may be another.
    config = from_anywhere(config.with_values({"run_dir": folder, "train.model": find_model(config.train.model)}))
    refuse_ranks(config)
    needs = refuse_large(config, most_steps(tasks))
    if config.train.moments == "auto":
        moments = begun_with(folder, "train.moments") or (needs.moments if needs else "fp32")
        config = config.with_values({"train.moments": moments})
    if config.agent.dtype == "auto" and config.train.rank_resource is not None and needs is not None:
        config = config.with_values({"agent.dtype": needs.dtype})  # what it stands for where the ranks are
    slots = max(config.train.n_envs, config.eval.n_envs)
    loaded = load_agent(config, config.train.model, slots)
    # What auto stands for on this machine, so that it stays that where the run is resumed.
    config = config.with_values({"agent.dtype": loaded.made.dtype})
    if sources is not None:
        sources.refuse_foreign(loaded)
    with Run.write(folder, to_yaml(config)) as run:
        if sources is not None:
            sources.pin(run)
        same_settings(run, config)
        same_tasks(run, tasks, config)
        by: Any = reward if hasattr(reward, "__qualname__") else type(reward)  # the latter: of a callable object
        if run.fact("model") is not None and run.fact("reward") is None:
            run.note("reward", "its own")  # begun by an older arpo, which had no other
        run.pin("reward", "its own" if reward is None else f"{by.__module__}.{by.__qualname__}")
        run.pin("model", loaded.made.identity)
        go_on(run, config)
        pool = make_pool(config.env, slots)
        console = Console(stderr=True, highlight=False)
        if own and (what := changed_since(own, config)):
            told = f"tasks.source={config.tasks.source}: other tasks by now ({what}); the run goes on with its own"
            console.print(printable(told), markup=False, soft_wrap=True)
        if config.train.moments == "8bit":
            told = "AdamW keeps its moments in 8 bits (train.moments), 6 bytes a weight less than in fp32"
            console.print(told, markup=False, soft_wrap=True)
        began -= _number(run, "wall_s")  # as if all its sessions were one
        steps = most_steps(tasks)
        if sources is not None:
            sources.copy(run, loaded)
        with _saying_how_to_go_on(config, steps, console), tracking(config.train.track, run, config) as track:
            session = _Training(config, run, loaded, tasks, pool, track, began, console, reward)
            summary = run_async(session.run_all())
            write_whole(folder / "summary.json", json.dumps(summary, indent=1) + "\n")  # the mark of a finished run
            if (updates := list(run.metrics())) and run.fact("from") is None:  # stored episodes do not get better
                done, success = [1 + one["update"] for one in updates], [one["success"] for one in updates]
                curve = Series(config.algorithm.name, done, success)
                unscored = sum(one.get("errors", 0) for one in updates)
                played = sum(one.get("episodes", 0) for one in updates) + unscored
                label = f"success ({of_episodes(played, unscored)})"
                save_plot(folder / "curve.png", [curve], "update", label, share=True)
    print_summary(summary, folder)
    return summary


@contextlib.contextmanager
def _saying_how_to_go_on(config: Config, steps: int, console: Console) -> Iterator[None]:
    """Where a person, the system, a full disk or a device ends a run: nothing is lost, and this is the way back."""
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print(_stopped(config), markup=False, soft_wrap=True)
        raise KeyboardInterrupt from None  # status 130
    except (RanksLost, EnvError, EngineError) as error:
        # Others' kinds of them may be made of other things than a text.
        kind = next(kind for kind in (RanksLost, EnvError, EngineError) if isinstance(error, kind))
        raise kind(f"{error}; {_stopped(config)}") from error
    except OSError as error:
        if error.strerror is None:
            raise
        raise OSError(error.errno, f"{error.strerror}; {_stopped(config)}", error.filename) from error
    except Exception as error:
        if (lost := device_error(error)) is None:
            raise
        sampling = lost is error  # the engine's own; what the learner met is torch's
        doing = "sampling" if sampling else "learning"
        changes, why = lighter(config, steps, sampling) if lost.full else ({}, "the device failed")
        text = f"{why} (while {doing}: {lost}); {_stopped(config.with_values(changes), *changes)}"
        raise DeviceError(text, lost.full) from error


def _stopped(config: Config, *changed: str) -> str:
    words = ["arpo", "train", "--resume", str(config.run_dir), *outside(config), *config.words(changed)]
    return f"stopped; to resume: {shlex.join(words)}"


@dataclass
class _Training:
    """A run at work."""

    config: Config
    run: Run
    loaded: Loaded
    tasks: dict[str, list[Task]]
    pool: SlotPool
    track: Track
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
                await self.loaded.made.close()
        steps = sum(episode.n_steps for episode in self.run.summaries(source="rollout"))
        return summary | costs | {"env_steps": steps}

    def _stop(self, work: asyncio.Task[Any]) -> None:
        """Asked to end. What is being sampled ends now, what is being learned is learned first."""
        if self.stopping:
            self.console.print(_stopped(self.config), markup=False, soft_wrap=True)
            os._exit(130)  # else Python would wait for the learner's thread; what is on disk is whole at any moment
        self.stopping = True
        self.console.print("stopping; a second time: at once", markup=False)
        work.cancel()

    def _note(self) -> dict[str, float]:
        """Keep what a later session cannot know."""
        peak = max(peak_rss_mb(), _number(self.run, "peak_rss_mb"))
        costs = {"wall_s": time.monotonic() - self.began, "peak_rss_mb": peak}
        for name, value in costs.items():
            self.run.note(name, str(value))
        return costs

    async def _run(self) -> dict[str, Any]:
        config, local = self.config, self.loaded.made.local
        algorithm = make_algorithm(config.algorithm, config.seed)
        with make_learner(config, algorithm, local) as learner:  # now: what it lacks is said first
            return await self._learn(learner, algorithm)

    async def _learn(self, learner: Learner, algorithm: Algorithm) -> dict[str, Any]:
        config, engine, local = self.config, self.loaded.engine, self.loaded.made.local
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
            groups: Groups = Rollouts(tasks, agent, config, self.run, player, self.reward, learning.episode)
            if self.run.fact("from") is not None:
                groups = offline.Stored(tasks, agent, config, self.run)
            # They take turns on a GPU. On a CPU memory is less scarce, and to take it again would cost time.
            shared = local and local.checkpoint.model.lm_head.weight.device.type == "cuda" and not config.train.lag
            room = local.rest if local and shared else None
            await train(config, self.run, groups, engine, learner, algorithm, checkpoints, show, room)
        summary = _compared(base, await self.judge("the trained agent", learner.version, player))
        if learner.version:
            summary["best_checkpoint"] = str(best_in(place).relative_to(self.run.folder))
        return summary

    async def judge(self, who: str, update: int, player: Player) -> dict[str, Evaluation]:
        """Success in each split at the temperature of evaluation.

        On screens that training never shows; but `train`, where starts are fixed, on these.
        """
        agent = judged_agent(self.loaded.engine, self.loaded.dialect, self.config.eval)
        judged = {}
        for split, tasks in self.tasks.items():
            judged[split] = await evaluate_shown(
                f"{who} on {split}",
                lambda task, env: agent,
                tasks,
                self.config,
                player,
                self.run,
                update=update,
                starts=self.config.env.fixed_starts if split == "train" else 0,
            )
        self._show(who, update)
        return judged

    def _show(self, who: str, update: int) -> None:
        """Pictures of how it was judged go where metrics go: once, and never behind what was logged since."""
        made = len(list(self.run.metrics()))
        if self.track.logs and update >= max(made, _number(self.run, "pictured")):
            self.track.show(max(0, update - 1), dict(self._pictures(who, update)))
            self.run.note("pictured", str(update + 1))

    def _pictures(self, who: str, update: int) -> Iterator[tuple[str, Image.Image]]:
        """A film strip of a success and one of a failure, the longest of each, as far as there is one."""
        by_id = {task.id: task for tasks in self.tasks.values() for task in tasks}
        played = self.run.summaries(source="evaluation", update=update)
        scored = [one for one in played if one.score is not None and one.task_id in by_id]
        for kind, solved in (("success", True), ("failure", False)):
            if of_kind := [one for one in scored if (one.score == 1.0) == solved]:
                longest = self.run.trajectory(max(of_kind, key=lambda one: one.n_steps).id)
                strip = film_strip(by_id[longest.task_id], longest, self.run.image)
                yield f"{who.removeprefix('the ')}/{kind}", strip


def _number(run: Run, name: str) -> float:
    """A number that was noted; 0 where there is none."""
    with contextlib.suppress(ValueError):
        return as_number(float(run.fact(name) or 0.0)) or 0.0
    return 0.0


def print_summary(summary: dict[str, Any], folder: Path) -> None:
    """Base against trained, for people."""
    console = Console(highlight=False)
    splits = [split for split in JUDGED if f"crashed_{split}" in summary]
    rate, points = "{:.1%} ({:.0%} to {:.0%}; {})".format, "{:+.1f} points ({:+.0f} to {:+.0f})".format
    rows = []
    for split in splits:
        if f"base_{split}" in summary:
            names = (f"base_{split}", f"final_{split}", f"gain_{split}")
            base, final, gain = ((summary[name], *summary[f"{name}_ci95"]) for name in names)
            counts = [of_episodes(*summary[f"{name}_counts"]) for name in names[:2]]
            gained = points(*(100 * share for share in gain))
            rows.append((split, rate(*base, counts[0]), rate(*final, counts[1]), gained))
    _print_rows(console, ("base", "trained", "gain"), rows)
    for name in [f"{when}_{split}" for split in splits for when in ("base", "final")]:
        if warning := doubt(*summary[f"{name}_counts"]):
            console.print(f"[red]{name.replace('_', ' ', 1)}: {warning}[/]", soft_wrap=True)
    for split in splits:
        if crashed := summary[f"crashed_{split}"]:
            console.print(f"[red]{split}: {escape(never_scored(crashed))}[/]", soft_wrap=True)
    look = f"; look at {curve}" if (curve := folder / "curve.png").exists() else ""  # without updates there is none
    console.print(f"Everything is in {folder}{look}", markup=False, soft_wrap=True)


def _print_rows(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table; where it is too wide for the terminal, a line a number."""
    table = Table("tasks", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    wanted = console.measure(table, options=console.options.update(max_width=10_000)).maximum
    if wanted > console.width:
        table = Table.grid(Column(no_wrap=True), Column(), padding=(0, 2))
        for name, *cells in rows:
            for column, cell in zip(columns, cells, strict=True):
                table.add_row(f"{name}, {column}", cell)
    console.print(table)


def _compared(base: dict[str, Evaluation], final: dict[str, Evaluation]) -> dict[str, Any]:
    """Rates of both agents, each over the tasks that it has scores of, and the gain over those that both have."""
    summary: dict[str, Any] = {}
    for split in base:
        summary[f"crashed_{split}"] = sorted({*base[split].crashed, *final[split].crashed})
        summary |= {f"base_{split}_counts": base[split].counts, f"final_{split}_counts": final[split].counts}
        if (gained := gain(base[split], final[split])) is None:
            continue  # no machine worked: there is no rate
        rates = {"base": base[split].success(), "final": final[split].success(), "gain": (gained.mean, gained.ci95)}
        for name, (rate, interval) in rates.items():
            summary |= {f"{name}_{split}": rate, f"{name}_{split}_ci95": interval}
    return summary
