"""Whether a begun run is gone on with as what it is: what it learns and how it is judged stay, limits may change."""

import difflib
import math
import os
from collections.abc import Collection
from pathlib import Path

from arpo.config import Config, load_config, to_yaml
from arpo.errors import ConfigError
from arpo.runs.store import Run, write_whole

LINE = {"update", "success", "env_steps", "sample_s", "learn_s"}  # what an update's line of metrics has at least
LENGTH = ("train.updates", "train.env_steps")  # to make a run longer is to go on with it
MAY_CHANGE = (
    *LENGTH,
    "train.save_every",
    "train.keep",
    "train.micro_tokens",
    "train.checkpointing",
    "train.n_envs",
    "train.track",
    "eval.n_envs",
    "agent.device",
    "env.workers",
    "env.files",
    "env.osworld_python",
    "env.reset_s",
    "env.step_s",
    "env.score_s",
)
"""Of these no number depends but by rounding: memory and length, where files lie and episodes run, where metrics go."""


def resumed(folder: Path, changes: list[str]) -> Config:
    """The settings of the training in this folder, with `key=value` changes to what may change."""
    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"resume={folder}: holds no run")
    for change in changes:
        if (key := change.partition("=")[0]) not in MAY_CHANGE:
            near = difflib.get_close_matches(key, MAY_CHANGE, n=1, cutoff=0.8)
            hint = (
                f"did you mean {near[0]}?"
                if near
                else f"beside --resume only these may be set: {', '.join(MAY_CHANGE)}"
            )
            raise ConfigError(f"{key}: a run goes on with its own settings; {hint}")
    config = load_config(str(folder / "config.yaml"), changes, stored=True)
    _refuse_other_kind(folder, config, training=True)
    return config.model_copy(update={"run_dir": folder})


def same_settings(run: Run, config: Config, fixed: Collection[str] = ()) -> None:
    """ConfigError where it was begun with other settings than may change. `fixed`: nor may these."""
    begun = load_config(str(run.folder / "config.yaml"), [], stored=True)
    _refuse_other_kind(run.folder, begun, training=config.run_dir is not None)
    begun = from_anywhere(begun).model_copy(update={"run_dir": config.run_dir})
    for key in MAY_CHANGE:
        if key not in fixed:
            section, name = key.split(".")
            value = getattr(getattr(config, section), name)
            begun = begun.model_copy(update={section: getattr(begun, section).model_copy(update={name: value})})
    if "auto" in (begun.agent.dtype, config.agent.dtype):  # what it came to is known by the weights
        begun = begun.model_copy(update={"agent": begun.agent.model_copy(update={"dtype": config.agent.dtype})})
    if begun != from_anywhere(config):
        old, new = (to_yaml(settings).splitlines() for settings in (begun, from_anywhere(config)))
        before, now = next((a, b) for a, b in zip(old, new, strict=True) if a != b)
        before, now = (line.partition("  #")[0].strip() for line in (before, now))
        raise ConfigError(f"{run.folder}: was begun with {before}, not {now}; choose another folder")


def go_on(run: Run, config: Config) -> None:
    """Let a training go on with these settings, which are the same but for what may change: config.yaml has them now.

    ConfigError where it is longer already than they allow.
    """
    begun = load_config(str(run.folder / "config.yaml"), [], stored=True)
    steps = []
    for number, line in enumerate(run.metrics(), start=1):
        if not line.keys() >= LINE:
            path = run.folder / "metrics.jsonl"
            raise ConfigError(f"{path}: line {number} is not an update's; take it out, and the run goes on without it")
        steps.append(line["env_steps"])
    if len(steps) > config.train.updates:
        raise ConfigError(f"train.updates={config.train.updates}: {run.folder} has made {len(steps)} already")
    if sum(steps[:-1]) >= (config.train.env_steps or math.inf):
        raise ConfigError(f"train.env_steps={config.train.env_steps}: {run.folder} has played {sum(steps)} already")
    if config.agent.dtype == "auto":
        config = config.model_copy(update={"agent": config.agent.model_copy(update={"dtype": begun.agent.dtype})})
    if begun.train.updates != config.train.updates or begun.train.env_steps != config.train.env_steps:
        (run.folder / "summary.json").unlink(missing_ok=True)  # of another length: it is not finished any more
    if begun != config:
        write_whole(run.folder / "config.yaml", to_yaml(config))


def from_anywhere(config: Config) -> Config:
    """The same with absolute paths, so that a run goes on in any working directory."""
    agent, train = config.agent, config.train
    if agent.prompt_file is not None:
        agent = agent.model_copy(update={"prompt_file": _plain(agent.prompt_file)})
    if train.model != "base" and Path(train.model).is_dir():  # else a name
        train = train.model_copy(update={"model": str(_plain(Path(train.model)))})
    return config.model_copy(update={"agent": agent, "train": train})


def _plain(path: Path) -> Path:
    """Absolute and without `..`, its links as they are."""
    return Path(os.path.abspath(path))


def _refuse_other_kind(folder: Path, begun: Config, training: bool) -> None:
    """Of the two kinds of runs only a training's settings name its folder, at their end; and only it has metrics."""
    if begun.run_dir is None and (folder / "metrics.jsonl").exists():
        raise ConfigError(f"{folder / 'config.yaml'}: is cut short, for it does not name run_dir; put a whole one back")
    if training and begun.run_dir is None:
        raise ConfigError(f"{folder}: holds an evaluation, no training; `arpo eval … --run-dir` goes on with it")
    if not training and begun.run_dir is not None:
        raise ConfigError(f"{folder}: holds a training, no evaluation; choose another folder")
