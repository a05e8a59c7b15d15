"""With which settings a run may be resumed: what it learns and how it is judged stay, limits may change."""

import difflib
import math
import os
from collections.abc import Collection
from pathlib import Path

from arpo.config import Config, load_config, to_yaml
from arpo.errors import ConfigError
from arpo.runs.store import Run, write_whole

METRICS = {"update", "success", "env_steps", "sample_s", "learn_s"}  # what metrics.jsonl has of every update
LENGTH = ("train.updates", "train.env_steps")  # to make a run longer is to go on with it
# Results depend on none of these but by rounding: memory and length, where files lie, where episodes and metrics go.
MAY_CHANGE = (
    *LENGTH,
    *"train.save_every train.keep train.micro_tokens train.checkpointing train.n_envs train.track eval.n_envs".split(),
    *"agent.device env.workers env.files env.osworld_python env.reset_s env.step_s env.score_s".split(),
)


def resumed(folder: Path, changes: list[str]) -> Config:
    """The settings of the training in this folder, with `key=value` changes to what may change."""
    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"resume={folder}: holds no run")
    for key in [key for change in changes if (key := change.partition("=")[0]) not in MAY_CHANGE]:
        near = difflib.get_close_matches(key, MAY_CHANGE, n=1, cutoff=0.8)
        hint = f"did you mean {near[0]}?" if near else f"beside --resume only these may be set: {', '.join(MAY_CHANGE)}"
        raise ConfigError(f"{key}: a run goes on with its own settings; {hint}")
    config = _stored(folder, changes)
    _refuse_other_kind(folder, config, training=True)
    return config.with_values({"run_dir": folder})


def same_settings(run: Run, config: Config, fixed: Collection[str] = ()) -> None:
    """ConfigError where it was begun with other settings than may change. `fixed`: nor may these."""
    begun = _stored(run.folder)
    _refuse_other_kind(run.folder, begun, training=config.run_dir is not None)
    free = ["run_dir", *(key for key in MAY_CHANGE if key not in fixed)]
    if "auto" in (begun.agent.dtype, config.agent.dtype):  # what it came to is known by the weights
        free.append("agent.dtype")
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
    begun = _stored(run.folder)
    steps = []
    for number, metrics in enumerate(run.metrics(), start=1):
        if not metrics.keys() >= METRICS:
            path = run.folder / "metrics.jsonl"
            raise ConfigError(f"{path}: line {number} is not an update's; take it out, and the run goes on without it")
        steps.append(metrics["env_steps"])
    if len(steps) > config.train.updates:
        raise ConfigError(f"train.updates={config.train.updates}: {run.folder} has made {len(steps)} already")
    if sum(steps[:-1]) >= (config.train.env_steps or math.inf):
        raise ConfigError(f"train.env_steps={config.train.env_steps}: {run.folder} has played {sum(steps)} already")
    if config.agent.dtype == "auto":
        config = config.with_values({"agent.dtype": begun.agent.dtype})
    if any(begun.value(key) != config.value(key) for key in LENGTH):
        (run.folder / "summary.json").unlink(missing_ok=True)  # of another length: it is not finished any more
    if begun != config:
        write_whole(run.folder / "config.yaml", to_yaml(config))


def from_anywhere(config: Config) -> Config:
    """The same with absolute paths, so that a run can be resumed in any working directory. Links stay as they are."""
    if (prompt := config.agent.prompt_file) is not None:
        config = config.with_values({"agent.prompt_file": Path(os.path.abspath(prompt))})
    if (model := config.train.model) != "base" and Path(model).is_dir():  # else a name
        config = config.with_values({"train.model": os.path.abspath(model)})
    return config


def _stored(folder: Path, changes: Collection[str] = ()) -> Config:
    return load_config(str(folder / "config.yaml"), list(changes), stored=True)


def _refuse_other_kind(folder: Path, begun: Config, training: bool) -> None:
    """Of the two kinds of runs only a training's settings name its folder, at their end; and only it has metrics."""
    if begun.run_dir is None and (folder / "metrics.jsonl").exists():
        raise ConfigError(f"{folder / 'config.yaml'}: is cut short, for it does not name run_dir; put a whole one back")
    if training and begun.run_dir is None:
        raise ConfigError(f"{folder}: holds an evaluation, no training; `arpo eval … --run-dir` goes on with it")
    if not training and begun.run_dir is not None:
        raise ConfigError(f"{folder}: holds a training, no evaluation; choose another folder")
