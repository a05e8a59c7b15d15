"""With which settings a run may be resumed: what it learns and how it is judged stay, limits may change."""

import difflib
import math
import os
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Any

from arpo.config import Config, EnvConfig, load_config, to_yaml
from arpo.errors import ConfigError
from arpo.files import refuse_links
from arpo.runs.store import Run, write_whole

COUNTS = {*"update success failed_groups replayed_groups env_steps sampled_tokens sample_s learn_s".split()}
METRICS = {*COUNTS, "reward"}  # what metrics.jsonl has of every update
LENGTH = ("train.updates", "train.env_steps")  # to make a run longer is to go on with it
# Results depend on none of these but by rounding: memory and length, where files lie, where episodes and metrics go.
MAY_CHANGE = (
    *LENGTH,
    *"train.save_every train.keep train.micro_tokens train.checkpointing train.n_envs train.track eval.n_envs".split(),
    *"eval.price train.ranks train.rank_resource".split(),
    *"agent.device env.workers env.files env.osworld_python env.allow_weaker_sandbox".split(),
    *"env.reset_s env.step_s env.score_s env.ray env.resource".split(),
    *"engine.servers engine.replicas engine.python engine.arguments engine.turn_s".split(),
)
AUTOMATIC = ("agent.dtype", "train.moments")  # `auto` becomes what it stands for on the machine where the run begins
# What names something that is not in the run's folder: a program, a file, a machine. The folder may be somebody else's,
# so it counts only where the user says it again.
OUTSIDE = (
    *"env.osworld_python env.osworld_image env.osworld_disk env.files env.options env.allow_weaker_sandbox".split(),
    *"env.ray agent.prompt_file train.model train.track".split(),
    *"engine.servers engine.python engine.arguments engine.options".split(),
)


def resumed(folder: Path, changes: list[str]) -> Config:
    """The settings of the training in this folder, with `key=value` changes to what may change."""
    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"resume={folder}: holds no run")
    keys = [change.partition("=")[0] for change in changes]
    said = ["env.options" if key.startswith("env.options.") else key for key in keys]
    for key in [key for key in said if key not in (*MAY_CHANGE, *OUTSIDE)]:
        near = difflib.get_close_matches(key, MAY_CHANGE, n=1, cutoff=0.8)
        hint = f"did you mean {near[0]}?" if near else f"beside --resume only these may be set: {', '.join(MAY_CHANGE)}"
        raise ConfigError(f"{key}: a run goes on with its own settings; {hint}")
    begun = stored_settings(folder)
    _refuse_other_kind(folder, begun, training=True)
    if words := [word for word in outside(begun) if word.partition("=")[0] not in said]:
        raise ConfigError(
            f"{folder}: its settings name what is not in it; where you trust them add {shlex.join(words)}"
        )
    config = stored_settings(folder, changes)
    return config.with_values({"run_dir": folder})


def begun_with(folder: Path, key: str) -> str | None:
    """What `auto` came to when the run in this folder was begun; None where there is none."""
    value = str(stored_settings(folder).value(key)) if (folder / "config.yaml").is_file() else "auto"
    return None if value == "auto" else value


def outside(config: Config) -> list[str]:
    """`key=value` of its settings that a run's folder may not decide alone: to be said again when it is resumed."""
    usual = Config(env=EnvConfig(name=config.env.name))
    keys = [key for key in OUTSIDE if config.value(key) != usual.value(key)]
    harmless = {  # what is here already is only read; the other trackers keep to the folder
        "train.model": Path(config.train.model).is_dir(),
        "train.track": not {"trackio", "wandb"} & {*config.train.track},
        "env.ray": config.env.ray == "local",
    }
    return config.words([key for key in keys if not harmless.get(key)])


def same_settings(run: Run, config: Config, fixed: Collection[str] = ()) -> None:
    """ConfigError where it was begun with other settings than may change. `fixed`: nor may these."""
    begun = stored_settings(run.folder)
    _refuse_other_kind(run.folder, begun, training=config.run_dir is not None)
    free = ["run_dir", *(key for key in MAY_CHANGE if key not in fixed)]
    for key in AUTOMATIC:  # what `auto` came to was known later, or is by now
        if "auto" in (begun.value(key), config.value(key)):
            free.append(key)
    config = from_anywhere(config)
    begun = from_anywhere(begun).with_values({key: config.value(key) for key in free})
    if begun != config:
        lines = zip(to_yaml(begun).splitlines(), to_yaml(config).splitlines(), strict=True)
        before, now = next(pair for pair in lines if pair[0] != pair[1])
        before, now = (text.partition("  #")[0].strip() for text in (before, now))
        raise ConfigError(f"{run.folder}: was begun with {before}, not {now}; choose another folder")


def go_on(run: Run, config: Config) -> None:
    """Resume a training with these settings, checked by `same_settings`: config.yaml has them from now on.

    ConfigError where the run is already longer than they allow.
    """
    begun = stored_settings(run.folder)
    steps = []
    for number, metrics in enumerate(run.metrics(), start=1):
        if not of_an_update(metrics):
            path = run.folder / "metrics.jsonl"
            raise ConfigError(f"{path}: line {number} is not an update's; take it out, and the run goes on without it")
        steps.append(metrics["env_steps"])
    if len(steps) > config.train.updates:
        raise ConfigError(f"train.updates={config.train.updates}: {run.folder} has made {len(steps)} already")
    if sum(steps[:-1]) >= (config.train.env_steps or math.inf):
        raise ConfigError(f"train.env_steps={config.train.env_steps}: {run.folder} has played {sum(steps)} already")
    config = config.with_values({key: begun.value(key) for key in AUTOMATIC if config.value(key) == "auto"})
    if any(begun.value(key) != config.value(key) for key in LENGTH):
        (run.folder / "summary.json").unlink(missing_ok=True)  # of another length: it is not finished any more
    if begun != config:
        write_whole(run.folder / "config.yaml", to_yaml(config))


def of_an_update(metrics: dict[str, Any]) -> bool:
    """Whether they are those of an update, with numbers that can be counted with."""
    numbers = all(isinstance(value, int | float) for value in metrics.values()) and metrics.keys() >= METRICS
    counts = numbers and all(0 <= metrics[name] < 1e12 for name in COUNTS)  # not so NaN
    return counts and isinstance(metrics["update"], int) and metrics["success"] <= 1


def from_anywhere(config: Config) -> Config:
    """The same with absolute paths, so that a run can be resumed in any working directory. Links stay as they are."""
    if (prompt := config.agent.prompt_file) is not None:
        config = config.with_values({"agent.prompt_file": Path(os.path.abspath(prompt))})
    if (model := config.train.model) != "base" and Path(model).is_dir():  # else a name
        config = config.with_values({"train.model": os.path.abspath(model)})
    return config


def stored_settings(folder: Path, changes: Collection[str] = ()) -> Config:
    """What config.yaml of a run says, with `key=value` changes."""
    refuse_links(folder)
    return load_config(str(folder / "config.yaml"), list(changes), stored=True)


def _refuse_other_kind(folder: Path, begun: Config, training: bool) -> None:
    """Of the two kinds of runs only a training's settings name its folder, at their end; and only it has metrics."""
    if begun.run_dir is None and (folder / "metrics.jsonl").exists():
        raise ConfigError(f"{folder / 'config.yaml'}: is cut short, for it does not name run_dir; put a whole one back")
    if training and begun.run_dir is None:
        raise ConfigError(f"{folder}: holds an evaluation, no training; `arpo eval … --run-dir` goes on with it")
    if not training and begun.run_dir is not None:
        raise ConfigError(f"{folder}: holds a training, no evaluation; choose another folder")
