"""Evaluation: k trials of each task, through the same `run_episode` as training.

    with Run.write(folder, config) as run:
        evaluation = await evaluate(engine_for, dialect, tasks, config.eval, pool=pool, run=run)

- The seeds of a trial follow from (seed, task, trial) alone, so neither the number of environments nor the order of
  work changes a number. Environment seeds are evaluation's own: no training ever used them (`arpo.seeds`).
- Environments take the next trial from one queue as they become free: none waits for another.
- A finished trial is in the run's store and is never run again: a killed evaluation goes on where it stopped and comes
  to the same result.
- A machine that fails is no fault of the agent's. The trial is tried three times, and as often again when the
  evaluation is gone on with; then it is counted under `errors`: it has no score, so it is in no success rate, but it is
  always reported. So are trials of a task that the pool has given up.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from arpo.agent.dialects import UITars
from arpo.agent.episode import run_episode
from arpo.config import EvalConfig
from arpo.engines.base import Engine, Sampling
from arpo.envs.pool import Job, Lease, Pool
from arpo.errors import ConfigError
from arpo.evaluation.statistics import Interval, success
from arpo.runs.store import Run, Summary
from arpo.seeds import derive, evaluation_seed
from arpo.types import Outcome, Provenance, Task

EngineFor: TypeAlias = Callable[[Task, Lease], Engine]
"""The engine for one episode of a task in an environment: a model's is always the same, a script's looks at both."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One try of a task, and how it ended; the last attempt where machines failed."""

    task: Task
    index: int  # which of the k tries
    outcome: Outcome
    score: float | None
    n_steps: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All trials, in the order of the tasks. Rates are None where no trial has a score."""

    trials: tuple[Trial, ...]

    @property
    def n_tasks(self) -> int:
        return len(self.by_task())

    @property
    def errors(self) -> int:
        """Trials without a score, because a machine failed in each attempt."""
        return sum(trial.score is None for trial in self.trials)

    @property
    def crashed(self) -> list[str]:
        """Tasks of which no trial has a score: they are in no rate at all."""
        return [task for task, scores in self.scores().items() if not scores]

    @property
    def outcomes(self) -> dict[str, int]:
        counted = Counter(trial.outcome for trial in self.trials)
        return {str(outcome): counted[outcome] for outcome in Outcome if counted[outcome]}

    @property
    def mean_steps(self) -> float | None:
        """Of the trials that have a score."""
        steps = [trial.n_steps for trial in self.trials if trial.score is not None]
        return statistics.fmean(steps) if steps else None

    def by_task(self) -> dict[str, Evaluation]:
        return self._by(lambda trial: trial.task.id)

    def by_domain(self) -> dict[str, Evaluation]:
        return self._by(lambda trial: trial.task.domain)

    def scores(self) -> dict[str, dict[int, float]]:
        """Of each task, by trial. A trial that a machine broke off has none."""
        return {
            task: {trial.index: trial.score for trial in part.trials if trial.score is not None}
            for task, part in self.by_task().items()
        }

    def success(self) -> tuple[float | None, Interval | None]:
        """The mean over tasks of their mean scores, with its 95 % interval."""
        scored = [list(scores.values()) for scores in self.scores().values() if scores]
        return success(scored) if scored else (None, None)

    def _by(self, key: Callable[[Trial], str]) -> dict[str, Evaluation]:
        parts: dict[str, list[Trial]] = {}
        for trial in self.trials:
            parts.setdefault(key(trial), []).append(trial)
        return {name: Evaluation(tuple(part)) for name, part in parts.items()}


async def evaluate(
    engine_for: EngineFor,
    dialect: UITars,
    tasks: Sequence[Task],
    settings: EvalConfig,
    *,
    pool: Pool,
    run: Run,
    seed: int = 0,
    update: int = 0,
    on_trial: Callable[[Trial], object] = lambda trial: None,
) -> Evaluation:
    """Run what the store does not hold yet. `update` says which policy is judged; `on_trial` sees each trial once."""
    trials, sampling = settings.trials, Sampling(settings.temperature, settings.top_p, settings.max_tokens)
    stored = {summary.id: summary for summary in run.summaries(source="evaluation", update=update)}
    work = _Work(engine_for, dialect, run, sampling, seed, update, stored)
    found: dict[tuple[str, int], Trial] = {}

    def done(job: Job, trial: Trial | None) -> None:
        trial = trial or Trial(job.task, job.index, Outcome.ENV_ERROR, None, 0)
        found[job.task.id, job.index] = trial
        on_trial(trial)

    jobs = [Job(task, index) for index in range(trials) for task in tasks]  # first each task once: early means are fair
    await pool.play(jobs, settings.n_envs, stored=work.look_up, attempt=work.attempt, done=done)
    return Evaluation(tuple(found[task.id, index] for task in tasks for index in range(trials)))


@dataclass(frozen=True, slots=True)
class _Work:
    """What all trials share."""

    engine_for: EngineFor
    dialect: UITars
    run: Run
    sampling: Sampling
    seed: int
    update: int
    stored: dict[str, Summary]

    def name(self, job: Job) -> str:
        return f"eval{self.update}-{job.task.id}-{job.index}-{job.attempt}"

    def look_up(self, job: Job) -> Trial | None:
        found = self.stored.get(self.name(job))
        if found is None:
            return None
        if found.env_seed != self.env_seed(job):
            raise ConfigError(f"seed={self.seed}: {self.run.folder} holds trials of {job.task.id} with another seed")
        return Trial(job.task, job.index, found.outcome, found.score, found.n_steps)

    def env_seed(self, job: Job) -> int:
        return evaluation_seed(self.seed, job.task.id, job.index)

    async def attempt(self, env: Lease, job: Job) -> Trial:
        trajectory = await run_episode(
            job.task,
            env,
            self.engine_for(job.task, env),
            self.dialect,
            self.sampling,
            env_seed=self.env_seed(job),
            sample_seed=derive("sampling", self.seed, job.task.id, job.index),
            trajectory_id=self.name(job),
            attempt=job.attempt,
            provenance=Provenance(source="evaluation", run=self.run.folder.name, update=self.update),
            images=self.run.keep_image,
        )
        if trajectory.outcome is Outcome.CANCELLED:
            raise asyncio.CancelledError  # not stored: it is run again when the evaluation goes on
        self.run.add(trajectory)
        return Trial(job.task, job.index, trajectory.outcome, trajectory.score, len(trajectory.steps))
