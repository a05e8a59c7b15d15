"""Whether the settings of a training fit together, and what it would do: `arpo train --dry-run`. No model is loaded."""

from arpo.config import Config
from arpo.engines.scripted import POLICIES
from arpo.envs.base import refuse_size
from arpo.errors import ConfigError
from arpo.tasks.load import judged_tasks
from arpo.types import Task


def checked_tasks(config: Config, own: dict[str, list[Task]] | None = None) -> dict[str, list[Task]]:
    """What `judged_tasks` gives, or a run's own. ConfigError where tasks or settings do not do for training."""
    train = config.train
    refuse_size(config.env.name, config.env.size)
    if train.model in POLICIES:
        raise ConfigError(f"train.model={train.model}: a script cannot be trained")
    if train.optimizer_tasks > train.rollout_tasks:
        most = f"must be at most train.rollout_tasks, which is {train.rollout_tasks}"
        raise ConfigError(f"train.optimizer_tasks={train.optimizer_tasks}: {most}")
    tasks = own or judged_tasks(config)
    if (n := len(tasks["train"])) < train.rollout_tasks:
        most = f"must be at most {n}, the number of tasks in tasks.source={config.tasks.source}"
        raise ConfigError(f"train.rollout_tasks={train.rollout_tasks}: {most}")
    return tasks


def plan(config: Config, own: dict[str, list[Task]] | None = None) -> str:
    """What would be done, as YAML comments. ConfigError where it cannot be done. `own`: the tasks of a begun run."""
    tasks = checked_tasks(config, own)
    train, algorithm, n = config.train, config.algorithm, len(tasks["train"])
    infeasible = sum(not task.feasible for task in tasks["train"])
    groups = train.updates * train.rollout_tasks
    steps = -(-train.rollout_tasks // train.optimizer_tasks)
    trials = {split: len(ones) * config.eval.trials for split, ones in tasks.items()}
    lines = [
        f"{train.model} learns by {algorithm.name} on the {n} tasks of {config.tasks.source}; infeasible: {infeasible}",
        f"an update: {train.rollout_tasks} tasks x {algorithm.group} episodes; optimiser steps: {steps}"
        + ("; with one alone clipping never acts" if steps == 1 else ""),
        f"in {train.updates} updates: {groups * algorithm.group:,} episodes, {groups / n:.3g} passes over the tasks; "
        f"optimiser steps: {train.updates * steps:,}",
        "to judge it, before and after: " + ", ".join(f"{n} episodes of {split}" for split, n in trials.items()),
    ]
    if train.env_steps:
        lines.append(f"fewer updates, where {train.env_steps:,} environment steps are reached before")
    if algorithm.redraw:
        lines.append(f"more episodes, where groups with equal rewards are drawn again, up to {algorithm.redraw} times")
    return "\n".join(f"# {text}" for text in ("What would be done:", *lines))
