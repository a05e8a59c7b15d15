"""Settings: typed, documented where they are defined, and refused in one line when they are wrong.

    load_config("pocket", ["env.size=640x400", "seed=3"])      a preset of the package, two values changed
    load_config("mine.yaml", [])                               a file with the same keys; what it leaves out is default
    print(to_yaml(config))                                     everything resolved, with each field's meaning

A wrong key or value is always answered with the key, the value and what would be allowed:

    env.sise=448x280: unknown key; did you mean env.size?
    seed=soon: must be a whole number

Nothing is coerced (`seed="3"` is text, not a number): what a file says is what it means.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml
from pydantic import BaseModel, Field

from arpo.envs.base import BACKENDS
from arpo.errors import ConfigError


def _size(value: object) -> tuple[int, int]:
    if isinstance(value, str) and (match := re.fullmatch(r"(\d{1,5})x(\d{1,5})", value)):
        value = [int(match[1]), int(match[2])]
    match value:
        case [int(width), int(height)] if width > 0 and height > 0 and bool not in (type(width), type(height)):
            return width, height
    raise ValueError("must be WIDTHxHEIGHT in pixels, as in 448x280")


def _env_name(value: str) -> str:
    if value not in BACKENDS:
        raise ValueError(f"must be one of {', '.join(BACKENDS)}")
    return value


Size = Annotated[
    tuple[int, int],
    pydantic.BeforeValidator(_size),
    pydantic.PlainSerializer(lambda size: "{}x{}".format(*size)),
]


class Section(BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)


class EnvConfig(Section):
    name: Annotated[str, pydantic.AfterValidator(_env_name)] = Field(
        default="pocket", description="which environment; `arpo envs list` names them"
    )
    size: Size = Field(default=(448, 280), description="the screen, WIDTHxHEIGHT in pixels")
    workers: int = Field(
        default=0, ge=0, description="processes for environments, one in each; 0: all in this one; changes no result"
    )
    files: str | None = Field(
        default=None, description="of desktop: a folder with the files of OSWorld's tasks, or a mirror's address"
    )
    osworld_python: str | None = Field(
        default=None,
        description="the interpreter of OSWorld's client: osworld needs it, desktop for checkers that arpo has not got",
    )
    osworld_image: str = Field(
        default="happysixd/osworld-docker", min_length=1, description="of osworld: the Docker image of a machine"
    )
    osworld_disk: str | None = Field(
        default=None, description="of osworld: the .qcow2 that machines boot from; null: the image brings one"
    )
    reset_s: float = Field(default=120.0, gt=0, description="a worker's limit for its start and for setting up a task")
    step_s: float = Field(default=60.0, gt=0, description="its limit for an action")
    score_s: float = Field(default=120.0, gt=0, description="its limit for scoring")


class TasksConfig(Section):
    source: str = Field(
        default="train",
        min_length=1,
        description="a split of the environment, a task list file {domain: [id, ...]}, or one id",
    )


class AgentConfig(Section):
    dialect: Literal["uitars"] = Field(default="uitars", description="the model family's prompt and action grammar")
    prompt_file: Path | None = Field(
        default=None, strict=False, description="a file with {instruction} in it that replaces the dialect's own prompt"
    )
    screenshots: int | None = Field(
        default=None, ge=1, description="how many of the last screenshots it sees; null: all"
    )
    block: int = Field(
        default=1, ge=1, description="how many old screenshots are dropped at a time, once there are too many"
    )
    context: int | None = Field(
        default=None, ge=2, description="tokens that it sees and says at most; null: as many as its model can take"
    )

    @pydantic.field_validator("block")
    @classmethod
    def _no_larger_than_what_is_shown(cls, block: int, others: pydantic.ValidationInfo) -> int:
        screenshots = others.data.get("screenshots")
        if screenshots is not None and block > screenshots:
            raise ValueError(f"must be at most agent.screenshots, which is {screenshots}")
        return block


class EvalConfig(Section):
    trials: int = Field(default=1, ge=1, description="how often each task is tried")
    temperature: float = Field(default=0.6, ge=0, description="of sampling; 0: always the likeliest token")
    top_p: float = Field(default=1.0, gt=0, le=1, description="of the likeliest tokens, the share that is drawn from")
    max_tokens: int = Field(default=256, ge=1, description="of one reply; a longer one is cut off")
    n_envs: int = Field(default=16, ge=1, description="how many episodes run at once; changes no result")
    held_out: int = Field(
        default=32, ge=0, description="after training: tasks of each held-out split that are tried; 0: none"
    )


class AlgorithmConfig(Section):
    """The method. `name` sets the fields that make it what it is; any of them can be set otherwise beside it."""

    name: Literal["grpo", "dapo", "arpo", "arpo+"] = Field(
        default="arpo", description="the method; it sets the fields below that its column in docs/algorithms.md names"
    )
    group: int = Field(default=8, ge=2, description="episodes of a task that are compared with each other")
    std: Literal["population", "sample"] = Field(
        default="population", description="which standard deviation divides advantages"
    )
    format_reward: float = Field(
        default=-1.0, le=0, description="added to the score of an episode with a reply that was no action"
    )
    clip_low: float = Field(default=0.2, gt=0, lt=1, description="how far below 1 the probability ratio may count")
    clip_high: float = Field(default=0.3, gt=0, description="how far above 1 it may count")
    dual_clip: float | None = Field(
        default=None, gt=1, description="bound on the ratio where the advantage is negative; null: none"
    )
    normaliser: Literal["trajectory", "constant"] = Field(
        default="trajectory", description="a token counts 1/length of its trajectory, or 1/`length`"
    )
    length: int = Field(default=256, ge=1, description="the constant normaliser, in tokens")
    redraw: int = Field(
        default=0, ge=0, description="how often tasks whose group has equal rewards are replaced by others"
    )
    replay: bool = Field(default=False, description="give groups that failed as a whole a stored success")
    replay_size: int = Field(default=8, ge=1, description="successes kept of each task, the newest")
    replay_tau: float | None = Field(
        default=None,
        gt=0,
        description="successes of age a, in updates, are drawn in proportion to exp(-a/tau); null: alike",
    )
    replay_truncate: float | None = Field(
        default=None,
        ge=1,
        description="bound on the importance weight of replayed tokens; null: no correction",
    )
    replay_reject: float | None = Field(
        default=None,
        gt=1,
        description="a replayed sequence is dropped where its mean ratio is beyond this or its inverse",
    )
    replay_spares: bool = Field(
        default=False, description="the failures that a replayed success joins are not pushed down by it"
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        if isinstance(given, dict):
            return ALGORITHMS.get(given.get("name", "arpo"), {}) | given
        return given


ALGORITHMS: dict[Any, dict[str, Any]] = {
    "grpo": {"replay": False},
    "dapo": {"replay": False, "redraw": 3},
    "arpo": {"replay": True},
    "arpo+": {
        "replay": True,
        "replay_tau": 8.0,
        "replay_truncate": 2.0,
        "replay_reject": 2.0,
        "replay_spares": True,
    },
}


class TrainConfig(Section):
    model: str = Field(default="base", min_length=1, description="the agent to begin with: base, a folder, a hub name")
    updates: int = Field(
        default=16, ge=0, description="at most; each is several optimiser steps. 0: only judge the base agent"
    )
    env_steps: int | None = Field(
        default=None, ge=1, description="a budget: the update in which so many are reached is the last; null: no limit"
    )
    rollout_tasks: int = Field(default=8, ge=1, description="tasks whose groups make one update")
    optimizer_tasks: int = Field(default=2, ge=1, description="of them, how many make one optimiser step")
    curriculum: bool = Field(
        default=False, description="draw tasks by how informative they were lately, rather than each in turn"
    )
    temperature: float = Field(default=1.0, gt=0, description="of sampling")
    max_tokens: int = Field(default=128, ge=1, description="of one reply; a longer one is cut off")
    n_envs: int = Field(default=16, ge=1, description="episodes at once; changes no result")
    lag: int = Field(default=0, ge=0, description="how many updates old the policy that samples may be")
    lr: float = Field(default=1e-4, gt=0, description="of AdamW")
    warmup: int = Field(default=0, ge=0, description="optimiser steps over which the learning rate rises to lr")
    weight_decay: float = Field(default=0.0, ge=0, description="of AdamW")
    grad_clip: float = Field(default=1.0, gt=0, description="bound on the norm of a gradient")
    micro_tokens: int = Field(default=8192, ge=1, description="tokens, images included, that are learned at once")
    checkpointing: bool = Field(default=False, description="recompute activations instead of keeping them")
    freeze_vision: bool = Field(default=True, description="leave the vision tower as it is")
    lora_rank: int = Field(
        default=0, ge=0, description="train LoRA adapters of this rank, alpha twice as much; 0: the weights themselves"
    )
    save_every: int = Field(default=1, ge=1, description="updates between checkpoints")
    keep: int = Field(default=2, ge=1, description="checkpoints kept, the newest; beside them the best one")
    track: list[Literal["tensorboard", "wandb", "wandb-offline"]] = Field(
        default=[], description="where metrics go beside metrics.jsonl: any of tensorboard, wandb, wandb-offline"
    )


class Config(Section):
    env: EnvConfig = Field(default=EnvConfig(), description="the computer")
    tasks: TasksConfig = Field(default=TasksConfig(), description="what is to be done on it")
    agent: AgentConfig = Field(default=AgentConfig(), description="who does it")
    algorithm: AlgorithmConfig = Field(default=AlgorithmConfig(), description="how it learns")
    train: TrainConfig = Field(default=TrainConfig(), description="how much, and with what")
    eval: EvalConfig = Field(default=EvalConfig(), description="how it is judged")
    seed: int = Field(default=0, ge=0, description="of every random choice")
    run_dir: Path | None = Field(
        default=None, strict=False, description="the folder of the run; null: a new one under runs/"
    )


def presets() -> tuple[str, ...]:
    """The names of the configurations in the package."""
    files = resources.files("arpo") / "configs"
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files.iterdir() if file.name.endswith(".yaml")))


def load_config(source: str | None, overrides: list[str]) -> Config:
    """The configuration of a preset or a YAML file (None: all defaults), with `key=value` settings on top."""
    values = {} if source is None else _read(source)
    if source is not None:
        _validated(values, prefix=f"{source}: ")  # so that an error says whether the file or the command line is wrong
    for override in overrides:
        _override(values, override)
    return _validated(values, overrides=overrides)


def split_settings(arguments: list[str]) -> tuple[str | None, list[str]]:
    """`[PRESET|FILE] [key=value …]`, as a command line has it, into the source and the overrides."""
    if arguments and "=" not in arguments[0]:
        return arguments[0], arguments[1:]
    return None, list(arguments)


def parse_size(text: str) -> tuple[int, int]:
    """A screen size as it is written on the command line."""
    try:
        return _size(text)
    except ValueError as error:
        raise ConfigError(f"size={_clipped(text)}: {error}") from None


def to_yaml(config: Config) -> str:
    """The configuration as a YAML file that loads again to the same, each field with its meaning as a comment."""
    return "\n".join(_lines(Config, config.model_dump(mode="json"))) + "\n"


def _lines(section: type[BaseModel], values: dict[str, Any], indent: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        value = values[name]
        if isinstance(value, dict):
            yield f"{indent}{name}:  # {field.description}"
            assert isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
            yield from _lines(field.annotation, value, indent + "  ")
        else:
            yield f"{indent}{name}: {_dumped(value)}  # {field.description}"


# ---- reading


class _Loader(yaml.SafeLoader):
    """YAML's safe types, with a key given twice refused instead of the first value dropped in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue  # refused by the base class
            if key_node.value in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key_node.value!r} is given twice", key_node.start_mark
                )
            keys.add(key_node.value)
        return super().construct_mapping(node, deep)


# YAML 1.1 takes 1e-4 for text, since it has no point.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+e[-+]?\d+", re.IGNORECASE), [*"-+0123456789"]
)


def _read(source: str) -> dict[str, Any]:
    if source in presets():
        text = (resources.files("arpo") / "configs" / f"{source}.yaml").read_text(encoding="utf-8")
    else:
        try:
            text = Path(source).read_text(encoding="utf-8")
        except FileNotFoundError:
            hint = _nearest(source, presets()) or f"the presets are {', '.join(presets())}"
            raise ConfigError(f"{source}: neither a preset nor a file; {hint}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{source}: not a text file in UTF-8") from None
        except (OSError, ValueError) as error:  # ValueError: a null byte in the name
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"{source!r}: cannot be read: {reason}") from None
    values = _yaml(text, source)
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"{source}: must hold settings as `key: value` lines, not {_shown(values)}")
    return values


def _yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{source}:{place}: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2024-99-99
        raise ConfigError(f"{source}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None


def _override(values: dict[str, Any], override: str) -> None:
    """Put the value of "a.b=value" into nested settings, in place."""
    key, equals, text = override.partition("=")
    if not equals or not key or not key.isprintable():
        raise ConfigError(f"{_clipped(override)}: a setting is written key=value, as in seed=3")
    *sections, name = key.split(".")
    for section in sections:
        inner = values.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{_clipped(override)}: {_unknown_key(key)}")
        values = inner
    values[name] = _yaml(text, _clipped(override))


# ---- refusing

_TEXTS = {
    "int_type": "must be a whole number",
    "string_type": "must be text",
    "path_type": "must be the path of a file",
    "string_unicode": "must be text in UTF-8",
    "string_too_short": "must not be empty",
    "float_type": "must be a number",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be more than {gt:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be {expected}",
    "list_type": "must be a list, as in [one, other]",
}


def _validated(values: dict[str, Any], prefix: str = "", overrides: list[str] | None = None) -> Config:
    try:
        return Config.model_validate(values)
    except pydantic.ValidationError as error:
        first, *more = error.errors(include_url=False)
        others = f" (and {len(more)} more)" if more else ""
        raise ConfigError(f"{prefix}{_complaint(first, overrides or [])}{others}") from None


def _complaint(error: Any, overrides: list[str]) -> str:
    """The key, the value and what is allowed; the value as the user typed it, where it came from the command line."""
    key = ".".join(str(part) for part in error["loc"])
    for override in reversed(overrides):
        typed = override.partition("=")[0]
        if typed == key:
            return f"{_clipped(override)}: {_reason(key, error)}"
        if typed.startswith(f"{key}."):  # it goes on where the settings end
            return f"{_clipped(override)}: {_unknown_key(typed)}"
    return f"{key}={_shown(error['input'])}: {_reason(key, error)}"


def _reason(key: str, error: Any) -> str:
    kind = error["type"]
    if kind in ("extra_forbidden", "invalid_key"):
        return _unknown_key(key)
    if kind == "model_type":
        inside = [known for known in known_keys() if known.startswith(f"{key}.")]
        return f"is a section; its keys are {', '.join(inside)}"
    if kind == "value_error":
        return str(error["ctx"]["error"])
    if kind in _TEXTS:
        return _TEXTS[kind].format(**error.get("ctx", {}))
    text: str = error["msg"]
    return text


def _unknown_key(key: str) -> str:
    return f"unknown key; {_nearest(key, known_keys()) or 'the keys are ' + ', '.join(known_keys())}"


def _nearest(word: str, known: tuple[str, ...]) -> str:
    match = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {match[0]}?" if match else ""


def known_keys() -> tuple[str, ...]:
    """Every setting there is, as it is written on the command line."""

    def walk(section: type[BaseModel], prefix: str) -> Iterator[str]:
        for name, field in section.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                yield from walk(field.annotation, f"{prefix}{name}.")
            else:
                yield prefix + name

    return tuple(walk(Config, ""))


def _shown(value: object) -> str:
    """Any value on one short line, as YAML."""
    return _clipped(_dumped(value))


def _dumped(value: object) -> str:
    odd = isinstance(value, str) and not value.isprintable()  # in double quotes all of it can be escaped
    style = '"' if odd else None
    text = yaml.safe_dump(value, default_flow_style=True, default_style=style, allow_unicode=not odd, width=10**9)
    return text.removesuffix("\n").removesuffix("\n...")


def _clipped(text: str, limit: int = 60) -> str:
    text = " ".join(text.split())
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= limit else f"{text[:limit]}…"
