"""Evaluation: k trials of each task, through the same `run_episode` as training.

    with Run.write(folder, config) as run:
        evaluation = await evaluate(lambda task, env: agent, tasks, config.eval, Player(pool, run), run)

- The seeds of a trial follow from (seed, task, trial) alone, so neither the number of environments nor the order of
  work changes a number. Environment seeds are evaluation's own, which no training ever used, or those of the tasks'
  fixed starts (`arpo.seeds`). Trials of the two kinds have different names, so one store holds both of the same task.
- A finished trial is in the run's store and is never run again: a killed evaluation resumes where it stopped, with
  the same result.
- A trial whose machine fails is retried by the player. If all attempts fail it is counted under `errors`: it has no
  score, so it is in no success rate, but it is always reported.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from arpo.agent.dialects.base import Dialect
from arpo.agent.episode import Agent
from arpo.agent.player import AgentFor, Player
from arpo.config import EvalConfig
from arpo.engines.base import Engine, Sampling
from arpo.errors import ConfigError
from arpo.evaluation.spent import Spent
from arpo.evaluation.statistics import Interval, pass_at, success
from arpo.runs.store import Run
from arpo.seeds import derive, evaluation_seed, start_seed
from arpo.types import Attempt, Outcome, Provenance, Summary, Task

Key = TypeVar("Key", str, int)
DOUBTFUL = 0.05  # of the episodes without a score, the share from which on the rate of the others says little


def of_episodes(total: int, unscored: int) -> str:
    """Stands beside every rate: who breaks off what would fail has a high rate of what is left."""
    return f"of {total:,} episodes, {unscored:,} without a score"


def doubt(total: int, unscored: int) -> str:
    """A warning, or nothing."""
    if unscored <= DOUBTFUL * total:
        return ""
    return f"warning: {unscored / total:.0%} of the episodes have no score; of what they would have been no rate tells"


@dataclass(frozen=True, slots=True)
class Trial:
    """One try of a task, and how it ended; the last attempt where machines failed."""

    task: Task
    index: int  # which of the k tries
    outcome: Outcome
    score: float | None
    n_steps: int
    trajectory: str | None = field(default=None, compare=False)  # its id in the store; None: it was not played


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All trials, in the order of the tasks. Rates are None where no trial has a score."""

    trials: tuple[Trial, ...]
    infeasible: tuple[Trial, ...] = ()  # of the protocol `hard`: apart, in no rate; elsewhere they are among `trials`
    spent: Spent | None = None

    @property
    def n_tasks(self) -> int:
        return len(self.by_task())

    @property
    def errors(self) -> int:
        """Trials without a score, because a machine failed in each attempt."""
        return sum(trial.score is None for trial in self.trials)

    @property
    def counts(self) -> tuple[int, int]:
        """All trials, and those without a score: for `of_episodes` and `doubt`."""
        return len(self.trials), self.errors

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

    def by_trial(self) -> dict[int, Evaluation]:
        """One try of every task in each: what OSWorld calls a result."""
        return self._by(lambda trial: trial.index)

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

    def pass_at(self, k: int, solved: float = 1.0) -> tuple[float, Interval, int] | None:
        """The chance that one of k tries reaches the score `solved`: its mean over tasks, interval, and their number.

        Of the tasks with at least k scores; None where there is none.
        """
        by_task = [[score >= solved for score in scores.values()] for scores in self.scores().values()]
        enough = [successes for successes in by_task if len(successes) >= k]
        return (*pass_at(enough, k), len(enough)) if enough else None

    def _by(self, key: Callable[[Trial], Key]) -> dict[Key, Evaluation]:
        parts: dict[Key, list[Trial]] = {}
        for trial in self.trials:
            parts.setdefault(key(trial), []).append(trial)
        return {name: Evaluation(tuple(part)) for name, part in parts.items()}


async def evaluate(
    agent_for: AgentFor,
    tasks: Sequence[Task],
    settings: EvalConfig,
    player: Player,
    run: Run,
    *,
    seed: int = 0,
    update: int = 0,
    starts: int = 0,
    on_trial: Callable[[Trial], object] = lambda trial: None,
) -> Evaluation:
    """Play the trials that the store does not hold yet. `update`: the policy's; `on_trial` gets each trial once.

    `starts`: how many fixed ones each task has, which its trials go through in turn; 0: every trial has a fresh one.
    """
    trials: dict[tuple[str, int], Trial] = {}
    kind = "fixed" if starts else "eval"
    attempts = [
        Attempt(
            task=task,
            index=index,
            episode=f"{kind}{update}-{task.id}-{index}",
            number=0,
            env_seed=start_seed(task.id, index % starts) if starts else evaluation_seed(seed, task.id, index),
            sample_seed=derive("sampling", seed, task.id, index),
            provenance=Provenance(source="evaluation", run=run.folder.name, update=update),
        )
        for index in range(settings.trials)  # first each task once: early means are fair
        for task in tasks
    ]

    def done(attempt: Attempt, played: Summary | None) -> None:
        task, index = attempt.task, attempt.index
        if played is None:
            trial = Trial(task, index, Outcome.ENV_ERROR, None, 0)
        elif played.env_seed == attempt.env_seed:
            trial = Trial(task, index, played.outcome, played.score, played.n_steps, played.id)
        else:
            raise ConfigError(f"seed={seed}: {run.folder} holds trials of {task.id} with another seed")
        trials[task.id, index] = trial
        on_trial(trial)

    await player.play(attempts, agent_for, settings.n_envs, done)
    played = [trials[task.id, index] for task in tasks for index in range(settings.trials)]
    return Evaluation(
        tuple(trial for trial in played if in_rates(trial.task, settings)),
        tuple(trial for trial in played if not in_rates(trial.task, settings)),
    )


def refuse_protocol(settings: EvalConfig, command: str) -> None:
    """ConfigError where a command has no use for the paper's protocols: what they count is not all that was solved."""
    if settings.protocol != "plain":
        raise ConfigError(
            f"eval.protocol={settings.protocol}: is for `arpo eval` and `arpo train`; {command} has only plain"
        )


def in_rates(task: Task, settings: EvalConfig) -> bool:
    """Whether the protocol counts it with the others; else it is apart."""
    return task.feasible or settings.protocol != "hard"


def judged_agent(engine: Engine, dialect: Dialect, settings: EvalConfig) -> Agent:
    """The agent as it acts while it is evaluated."""
    sampling = Sampling(settings.temperature, settings.top_p, settings.max_tokens)
    return Agent(engine, dialect, sampling, fails_at_limit=settings.protocol == "standard")
