"""Whether the settings of a training fit together, and what it would do: `arpo train --dry-run`. No model is loaded."""

import math
from collections.abc import Sequence
from pathlib import Path

from arpo.algorithms.base import METHODS
from arpo.config import Config
from arpo.engines.base import ENGINES
from arpo.engines.scripted import POLICIES
from arpo.envs.base import refuse_size
from arpo.envs.pool import on_ray
from arpo.errors import ConfigError, printable
from arpo.tasks.load import judged_tasks
from arpo.training import memory, offline
from arpo.types import Task


def checked_tasks(config: Config, own: dict[str, list[Task]] | None = None) -> dict[str, list[Task]]:
    """What `judged_tasks` gives, or a run's own. ConfigError where tasks or settings do not do for training."""
    train = config.train
    refuse_size(config.env.name, config.env.size)
    if train.model in POLICIES:
        raise ConfigError(f"train.model={train.model}: a script cannot be trained")
    if not ENGINES.find(config.engine.name).trains:
        raise ConfigError(
            f"engine.name={config.engine.name}: gives no log-probabilities, so it is for `arpo eval` only"
        )
    if train.optimizer_tasks > train.rollout_tasks:
        most = f"must be at most train.rollout_tasks, which is {train.rollout_tasks}"
        raise ConfigError(f"train.optimizer_tasks={train.optimizer_tasks}: {most}")
    if train.ranks > 1 and METHODS.find(config.algorithm.method).critic:
        alone = f"{config.algorithm.name} has a value head, which one process learns; set it to 1"
        raise ConfigError(f"train.ranks={train.ranks}: {alone}")
    _refuse_groups(config)
    _refuse_idle(config)
    tasks = own or judged_tasks(config)
    if (n := len(tasks["train"])) < train.rollout_tasks:
        most = f"must be at most {n}, the number of tasks in tasks.source={config.tasks.source}"
        raise ConfigError(f"train.rollout_tasks={train.rollout_tasks}: {most}")
    return tasks


def _refuse_groups(config: Config) -> None:
    """ConfigError for sizes of groups that contradict each other, and for more replayed successes than are kept."""
    algorithm, group = config.algorithm, config.algorithm.group
    if algorithm.group_least is not None and algorithm.group_least > group:
        raise ConfigError(f"algorithm.group_least={algorithm.group_least}: must be at most algorithm.group, {group}")
    if algorithm.group_most is not None and algorithm.group_most < group:
        raise ConfigError(f"algorithm.group_most={algorithm.group_most}: must be at least algorithm.group, {group}")
    if config.train.lag and (algorithm.group_least or algorithm.group_most):
        raise ConfigError(f"train.lag={config.train.lag}: groups of changing size need 0")
    if algorithm.replay_count > algorithm.replay_size:
        most = f"must be at most algorithm.replay_size, which is {algorithm.replay_size}"
        raise ConfigError(f"algorithm.replay_count={algorithm.replay_count}: {most}")


def _refuse_idle(config: Config) -> None:
    """ConfigError for a setting that has no effect on the method."""
    algorithm = config.algorithm
    for field in METHODS.find(algorithm.method).idle:
        usual = type(algorithm).model_fields[field].default
        if getattr(algorithm, field) != usual:
            (given,) = config.words([f"algorithm.{field}"])
            (default,) = config.with_values({f"algorithm.{field}": usual}).words([f"algorithm.{field}"])
            raise ConfigError(f"{given}: has no effect on {algorithm.method}; leave it at {default}")


def plan(config: Config, own: dict[str, list[Task]] | None = None, from_runs: Sequence[Path] = ()) -> str:
    """What would be done, as YAML comments. ConfigError where it cannot be done. `own`: the tasks of a begun run."""
    sources, own = offline.begin(config, config.run_dir, from_runs, own)
    stored = sources.count if sources else offline.facts_of(config.run_dir).get("copied")
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
    if stored is not None:
        lines[0] = f"{train.model} learns by {algorithm.name} from {stored} stored episodes; nothing is played to learn"
        lines[1] = lines[1].replace(" x ", " x up to ").replace(" episodes;", " of them;")
        lines[2] = f"in {train.updates} updates: optimiser steps: {train.updates * steps:,}"
    if starts := config.env.fixed_starts:
        begins = "a task always begins with " + ("the same screen" if starts == 1 else f"one of {starts} screens")
        lines.append(f"{begins}; train: judged there, fresh: the same tasks on others")
    if train.env_steps:
        lines.append(f"fewer updates, where {train.env_steps:,} environment steps are reached before")
    if algorithm.group_least:
        lines.append(f"fewer episodes, where the first {algorithm.group_least} of a task all solve it")
    if algorithm.group_most:
        lines.append(f"more episodes, where all of a task fail, up to {algorithm.group_most}")
    if algorithm.redraw and stored is None:
        lines.append(f"more episodes, where groups with equal rewards are drawn again, up to {algorithm.redraw} times")
    needs, cuda = _memory(config, tasks)
    lines += [*_machines(config, 0 if stored else groups * algorithm.group, cuda), *needs]
    return "\n".join(f"# {printable(text)}" for text in ("What would be done:", *lines))


# Episodes an hour as simulated with so many of OSWorld's machines, in lock-step and decoupled with a lag of up to 3,
# and the GPUs for that; with a smaller lag the share that was left of them at 256. docs/results/rollouts.md has more.
SIMULATED = {
    8: (130, 304, 16),
    32: (291, 1240, 16),
    128: (478, 4132, 16),
    256: (759, 7891, 32),
    512: (1289, 14835, 64),
    1024: (2169, 26790, 128),
}
SHORT_LAG = {1: 0.70, 2: 0.90}


def _machines(config: Config, episodes: int, cuda: bool) -> list[str]:
    """Which GPUs and environments there would be, and where; how long episodes would take, as far as that is known."""
    env, train, servers = config.env, config.train, memory.servers(config)
    n = env.workers or max(train.n_envs, config.eval.n_envs)
    how = "at the same time" if train.lag else "in turn"
    engine = f", {servers} for vLLM's servers" if servers else ", the engine is on the first of them"
    engine = engine if servers or train.ranks > 1 else " and the engine"
    where = "in worker processes of this machine" if env.workers else "in this process"
    lines = [
        f"sampling and learning: {how}",
        f"{'GPUs' if cuda else 'processes'}: {train.ranks} for the learner{engine}",
        f"environments: {n} of {env.name}, {where}",
    ]
    if env.ray is not None:
        on = "a Ray cluster of its own on this machine" if env.ray == "local" else f"the Ray cluster {env.ray}"
        lines[-1] = f"environments: {n} of {env.name} on {on}"
        lines += [] if env.ray == "local" else [f"  {text}" for text in on_ray().placed(env, n)]
    if env.name == "osworld" and episodes:
        at = min(SIMULATED, key=lambda known: abs(math.log(known / n)))
        waiting, decoupled, gpus = SIMULATED[at]
        hours = [
            f"{episodes / (rate * n / at):.2g} {way}"
            for rate, way in (
                (waiting, "in lock-step"),
                (decoupled * SHORT_LAG.get(train.lag, 1), f"with train.lag={train.lag or 3}"),
            )
        ]
        planned, other = reversed(hours) if train.lag else hours
        simulated = f"as simulated with {at} environments and {gpus} GPUs"
        lines.append(f"hours for its episodes: {planned}, {simulated}; {other}")
    return lines


def most_steps(tasks: dict[str, list[Task]]) -> int:
    """Of the longest episode that there can be."""
    return max(task.max_steps for part in tasks.values() for task in part)


def _memory(config: Config, tasks: dict[str, list[Task]]) -> tuple[list[str], bool]:
    """What it takes here; where no GPU is here and it wants one, on the smallest that does. And whether that is one."""
    steps = most_steps(tasks)
    if (model := memory.find_shape(config.train.model)) is None:
        told = f"memory: not known, for config.json of {config.train.model} is not here, or describes no model"
        return [told], config.train.rank_resource == "GPU" or memory.find_device(config.agent.device).cuda
    lines, device = [], memory.learners_device(config, model, steps)
    if memory.estimate(config, model, steps, device).hopeless and config.agent.device == "auto" and not device.cuda:
        lines = [f"memory: no GPU is here, and {device.name} with {memory.gib(device.free)} is too small"]
        device = memory.smallest_gpu(config, model, steps)
    needs = memory.estimate(config, model, steps, device)
    lines += memory.table(needs, model)
    if not needs.fits:
        lines += [f"  {text}" for text in memory.smaller(config, model, steps, device)]
    if memory.apart(config, device):
        weights, episode = memory.of_a_server(config, model, steps, device)
        at_once = -(-config.train.n_envs // memory.servers(config))
        lines.append(
            f"memory of a vLLM server: {memory.gib(weights)} of weights, {memory.gib(episode)} of keys and values for "
            f"each episode that is in its cache at once, at most {at_once}"
        )
    return lines, device.cuda
