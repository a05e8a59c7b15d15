"""Settings: typed, documented where they are defined, and refused in one line when they are wrong.

    load_config("pocket", ["env.size=640x400", "seed=3"])      a preset of the package, two values changed
    load_config("mine.yaml", [])                               a file with the same keys; what it leaves out is default
    load_config(None, ["env.sise=448x280"])                    ConfigError: unknown key; did you mean env.size?
    print(to_yaml(config))                                     everything resolved, with each field's meaning

Nothing is coerced (`seed="3"` is text, not a number): what a file says is what it means.
"""

import contextlib
import difflib
import functools
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml
from pydantic import BaseModel, Field

from arpo.agent.dialects.base import DIALECTS
from arpo.algorithms.base import METHODS
from arpo.envs.base import BACKENDS
from arpo.errors import ConfigError
from arpo.registry import Registry


def _size(value: object) -> tuple[int, int]:
    if isinstance(value, str) and (sides := re.fullmatch(r"(\d{1,5})x(\d{1,5})", value)):
        value = [int(sides[1]), int(sides[2])]
    match value:
        case [int(width), int(height)] if width > 0 and height > 0 and bool not in (type(width), type(height)):
            return width, height
    raise ValueError("must be WIDTHxHEIGHT in pixels, as in 448x280")


def _name_of(registry: Registry[Any]) -> pydantic.AfterValidator:
    def known(value: str) -> str:
        if value not in registry and value not in registry.names():
            raise ValueError(f"must be one of {', '.join(registry)}")
        return value

    return pydantic.AfterValidator(known)


def _options_of(registry: Registry[Any]) -> pydantic.AfterValidator:
    """Settings that the named one has of its own: what is given, and its defaults."""

    def known(given: dict[str, Any], others: pydantic.ValidationInfo) -> dict[str, Any]:
        name = others.data.get("name", "").partition(":")[0]
        own = registry[name].options if name else given
        if strange := given.keys() - own:
            raise ValueError(f"{name} has no option {min(strange)!r}; it has {', '.join(own) or 'none'}")
        try:  # as config.yaml gives them back, so that a resumed run has the same
            plain: dict[str, Any] = json.loads(json.dumps({**own, **given}, allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            raise ValueError(
                "an option is text, a finite number, true, false, null, or a list or mapping of these"
            ) from None
        return plain

    return pydantic.AfterValidator(known)


def _device(value: str) -> str:
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", value):
        raise ValueError("must be auto, cpu, cuda, cuda:N or mps")
    return value


Size = Annotated[
    tuple[int, int], pydantic.BeforeValidator(_size), pydantic.PlainSerializer(lambda size: "{}x{}".format(*size))
]
Device = Annotated[str, pydantic.AfterValidator(_device)]


def _setting(default: Any, description: str, **bounds: Any) -> Any:
    """A field of a section."""
    return Field(default=default, description=description, **bounds)


class Section(BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class EnvConfig(Section):
    name: Annotated[str, _name_of(BACKENDS)] = _setting("pocket", "which environment; `arpo envs list` names them")
    size: Size = _setting((448, 280), "the screen, WIDTHxHEIGHT in pixels")
    workers: int = _setting(0, "processes for environments, one in each; 0: all in this one; changes no result", ge=0)
    options: Annotated[dict[str, Any], _options_of(BACKENDS)] = _setting(
        {}, "of an environment from outside arpo: what it has of its own", validate_default=True
    )
    files: str | None = _setting(None, "of desktop: a folder with the files of OSWorld's tasks, or a mirror's address")
    osworld_python: str | None = _setting(None, "the Python of OSWorld's client: for osworld, and checkers arpo lacks")
    osworld_image: str = _setting("happysixd/osworld-docker", "of osworld: the Docker image of a machine", min_length=1)
    osworld_disk: str | None = _setting(None, "of osworld: the .qcow2 to boot from; null: an own image brings one")
    reset_s: float = _setting(120.0, "a worker's limit for its start and for setting up a task", gt=0)
    step_s: float = _setting(60.0, "its limit for an action", gt=0)
    score_s: float = _setting(120.0, "its limit for scoring", gt=0)


class TasksConfig(Section):
    source: str = _setting("train", "a split, a task list file {domain: [id, ...]}, or one id", min_length=1)
    max_steps: int | None = _setting(None, "most actions of an episode; null: each task's own, 15 for OSWorld's", ge=1)


class AgentConfig(Section):
    dialect: Annotated[str, _name_of(DIALECTS)] = _setting("uitars", "the model family's prompt and action grammar")
    prompt_file: Path | None = _setting(None, "a file with {instruction}, for a prompt of your own", strict=False)
    screenshots: int | None = _setting(None, "how many of the last screenshots it sees; null: all", ge=1)
    block: int = _setting(1, "how many old screenshots are dropped at a time, once there are too many", ge=1)
    context: int | None = _setting(None, "most tokens that it sees and says; null: as many as its model takes", ge=2)
    device: Device = _setting("auto", "what its model runs on: cpu, cuda, cuda:N or mps; auto: a GPU if there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = _setting(
        "auto", "the precision that it computes in; auto: bfloat16 for a large model on a CUDA GPU, else float32"
    )

    @pydantic.field_validator("block")
    @classmethod
    def _no_larger_than_what_is_shown(cls, block: int, others: pydantic.ValidationInfo) -> int:
        screenshots = others.data.get("screenshots")
        if screenshots is not None and block > screenshots:
            raise ValueError(f"must be at most agent.screenshots, which is {screenshots}")
        return block


class EvalConfig(Section):
    trials: int = _setting(1, "how often each task is tried", ge=1)
    temperature: float = _setting(0.6, "of sampling; 0: always the likeliest token", ge=0)
    top_p: float = _setting(1.0, "of the likeliest tokens, the share that is drawn from", gt=0, le=1)
    max_tokens: int = _setting(256, "of one reply; a longer one is cut off", ge=1)
    n_envs: int = _setting(16, "how many episodes run at once; changes no result", ge=1)
    held_out: int = _setting(32, "around training: tasks of each held-out split that are tried too; 0: none", ge=0)


class AlgorithmConfig(Section):
    """The method. `name` sets the fields that make it what it is, and says where one is otherwise: a name cannot lie.

    arpo+:replay_spares=false is arpo+ in all but that field. Whatever the fields are set to, `name` becomes the name of
    what they make; `load_config` refuses settings whose name was another one.
    """

    name: str = _setting(
        "arpo", "grpo, dapo, arpo or arpo+: sets fields below (docs/algorithms.md); or, say, arpo+:replay_tau=null"
    )
    options: Annotated[dict[str, Any], _options_of(METHODS)] = _setting(
        {}, "of an algorithm from outside arpo: what it has of its own", validate_default=True
    )
    group: int = _setting(8, "episodes of a task that are compared with each other", ge=1)
    std: Literal["population", "sample"] = _setting("population", "which standard deviation divides advantages")
    format_reward: float = _setting(-1.0, "added to the score of an episode with a reply that was no action", le=0)
    solved: float = _setting(1.0, "the score of a solved task: what replay keeps, `arpo select` counts", gt=0, le=1)
    clip_low: float = _setting(0.2, "how far below 1 the probability ratio may count", gt=0, lt=1)
    clip_high: float = _setting(0.3, "how far above 1 it may count", gt=0)
    dual_clip: float | None = _setting(None, "bound on the ratio where the advantage is negative; null: none", gt=1)
    normaliser: Literal["trajectory", "constant"] = _setting(
        "trajectory", "a token counts 1/length of its trajectory, or 1/`length`"
    )
    length: int = _setting(256, "the constant normaliser, in tokens", ge=1)
    redraw: int = _setting(0, "how often tasks whose group has equal rewards are replaced by others", ge=0)
    replay: bool = _setting(False, "give groups that failed as a whole a stored success")
    replay_size: int = _setting(8, "successes kept of each task, the newest", ge=1)
    replay_tau: float | None = _setting(None, "a success that is a updates old counts exp(-a/tau); null: 1", gt=0)
    replay_truncate: float | None = _setting(None, "bound on importance weights of replayed tokens; null: all 1", ge=1)
    replay_reject: float | None = _setting(None, "drop replayed sequences whose mean ratio is beyond it or 1/it", gt=1)
    replay_spares: bool = _setting(False, "the failures that a replayed success joins are not pushed down by it")
    lag_truncate: float | None = _setting(2.0, "the same for tokens of older policies (train.lag); null: all 1", ge=1)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        name = given.get("name", cls.model_fields["name"].default)
        try:
            fields = _meant(name) | given
        except ValueError:  # said below
            return given
        known = name.partition(":")[0]
        changed = {field: fields[field] for field, value in _meant(known).items() if fields[field] != value}
        return fields | {"name": ":".join([known, *(f"{field}={_plain(value)}" for field, value in changed.items())])}

    @pydantic.field_validator("name", mode="before")
    @classmethod
    def _known(cls, name: object) -> object:
        _meant(name)
        return name

    @pydantic.field_validator("group")
    @classmethod
    def _large_enough(cls, group: int, others: pydantic.ValidationInfo) -> int:
        if (name := others.data.get("name")) and group < (least := METHODS.find(name.partition(":")[0]).least_group):
            raise ValueError(f"must be at least {least}")
        return group

    @property
    def method(self) -> str:
        """Its name without what was changed of it."""
        return self.name.partition(":")[0]


METHOD = tuple(sorted({field for method in METHODS.values() for field in method.settings}))  # the fields that names set


def _meant(name: object) -> dict[str, Any]:
    """The fields that a name sets, all of METHOD. ValueError where it names no method."""
    known, *changes = str(name).split(":")
    if known not in METHODS and known not in METHODS.names():
        *others, last = map(repr, METHODS)
        raise ValueError(f"must be {', '.join(others)} or {last}")
    meant = {field: AlgorithmConfig.model_fields[field].default for field in METHOD} | dict(METHODS[known].settings)
    for change in changes:
        field, equals, value = change.partition("=")
        if field not in meant or not equals:
            raise ValueError(f"a name holds what it changes of {', '.join(meant)}, as in {known}:redraw=2")
        meant[field] = _yaml(value, change)
    return meant


def _plain(value: object) -> str:
    """A value in a name, always written alike: a file has 4.0 where somebody typed 4."""
    return _dumped(int(value) if isinstance(value, float) and value.is_integer() else value)


class TrainConfig(Section):
    model: str = _setting("base", "to begin with: base, a run's best, a checkpoint's folder, a hub name", min_length=1)
    updates: int = _setting(16, "at most; each is several optimiser steps. 0: only judge the base agent", ge=0)
    env_steps: int | None = _setting(None, "a budget: the update that reaches it is the last; null: no limit", ge=1)
    rollout_tasks: int = _setting(8, "tasks whose groups make one update", ge=1)
    optimizer_tasks: int = _setting(2, "of them, how many make one optimiser step", ge=1)
    curriculum: bool = _setting(False, "draw tasks by how informative they were lately, rather than each in turn")
    temperature: float = _setting(1.0, "of sampling", gt=0)
    max_tokens: int = _setting(128, "of one reply; a longer one is cut off", ge=1)
    n_envs: int = _setting(16, "episodes at once; changes no result", ge=1)
    lag: int = _setting(0, "how many updates old the policy that samples may be", ge=0)
    lr: float = _setting(1e-4, "of AdamW", gt=0)
    warmup: int = _setting(0, "optimiser steps over which the learning rate rises to lr", ge=0)
    weight_decay: float = _setting(0.0, "of AdamW", ge=0)
    grad_clip: float = _setting(1.0, "bound on the norm of a gradient", gt=0)
    self_test: float | None = _setting(
        None, "how much the learner's and the sampler's log-probs may differ, on average; null: 0.001, bf16 0.02", gt=0
    )
    micro_tokens: int = _setting(8192, "tokens, images included, that are learned at once", ge=1)
    checkpointing: bool = _setting(False, "recompute activations instead of keeping them")
    freeze_vision: bool = _setting(True, "leave the vision tower as it is")
    lora_rank: int = _setting(0, "train LoRA adapters of this rank, alpha is twice it; 0: the weights", ge=0)
    save_every: int = _setting(1, "updates between checkpoints", ge=1)
    keep: int = _setting(2, "checkpoints kept, the newest; beside them the best one", ge=1)
    track: list[Literal["tensorboard", "wandb", "wandb-offline"]] = _setting(
        [], "where metrics go beside metrics.jsonl: any of tensorboard, wandb, wandb-offline"
    )


class Config(Section):
    env: EnvConfig = _setting(EnvConfig(), "the computer")
    tasks: TasksConfig = _setting(TasksConfig(), "what is to be done on it")
    agent: AgentConfig = _setting(AgentConfig(), "who does it")
    algorithm: AlgorithmConfig = _setting(AlgorithmConfig(), "how it learns")
    train: TrainConfig = _setting(TrainConfig(), "how much, and with what")
    eval: EvalConfig = _setting(EvalConfig(), "how it is judged")
    seed: int = _setting(0, "of every random choice", ge=0)
    run_dir: Path | None = _setting(None, "the folder of the run; null: a new one under runs/", strict=False)

    def value(self, key: str) -> Any:
        """The value of a key as it is written on the command line, such as `train.updates`."""
        return functools.reduce(getattr, key.split("."), self)

    def with_values(self, values: dict[str, Any]) -> "Config":
        """The same with other values, by key. They are not validated."""
        config = self
        for key, value in values.items():
            section, _, name = key.rpartition(".")
            if section:
                name, value = section, getattr(config, section).model_copy(update={name: value})
            config = config.model_copy(update={name: value})
        return config


def presets() -> tuple[str, ...]:
    """The names of the configurations in the package."""
    files = resources.files("arpo") / "configs"
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files.iterdir() if file.name.endswith(".yaml")))


def load_config(source: str | None, overrides: list[str], stored: bool = False) -> Config:
    """The configuration of a preset or a YAML file (None: all defaults), with `key=value` settings on top.

    A new `algorithm.name` resets the fields that names set. `stored`: a run's, whose name may say too little.
    """
    values = {} if source is None else _read(source)
    if source is not None:  # first alone, so that an error says whether the file or the command line is wrong
        _validated(values, stored, prefix=f"{source}: ")
    for name in [override.partition("=")[2] for override in overrides if override.startswith("algorithm.name=")]:
        given = values.get("algorithm", {})
        with contextlib.suppress(ValueError):  # no method: said below
            for field in ("options", *_meant(given.get("name", "arpo")), *_meant(name)):
                given.pop(field, None)
    for override in overrides:
        _override(values, override)
    return _validated(values, stored, overrides=overrides)


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


def at_least(least: int, **numbers: int) -> None:
    """ConfigError for a number of the command line that is smaller."""
    for name, value in numbers.items():
        if value < least:
            raise ConfigError(f"{name}={value}: must be at least {least}")


def to_yaml(config: Section, indent: str = "") -> str:
    """The configuration as a YAML file that loads again to the same, each field with its meaning as a comment."""
    text, plain = "", config.model_dump(mode="json")
    for name, field in type(config).model_fields.items():
        inner = getattr(config, name)
        value = "" if isinstance(inner, Section) else f" {_dumped(plain[name])}"
        text += f"{indent}{name}:{value}  # {field.description}\n"
        text += to_yaml(inner, indent + "  ") if isinstance(inner, Section) else ""
    return text


def known_keys() -> tuple[str, ...]:
    """Every setting there is, as it is written on the command line."""
    inside = {name: [f"{name}.{key}" for key, _ in part] for name, part in Config() if isinstance(part, Section)}
    return tuple(key for name in Config.model_fields for key in inside.get(name, [name]))


# ---- reading


class _Loader(yaml.SafeLoader):
    """YAML's safe types, with a key given twice refused instead of the first value dropped in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key in [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]:  # others: the base refuses them
            if key.value in keys:
                problem = f"the key {key.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


# YAML 1.1 takes 1e-4 for text, since it has no point.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+e[-+]?\d+", re.IGNORECASE), [*"-+0123456789"]
)


def _read(source: str) -> dict[str, Any]:
    path = resources.files("arpo") / "configs" / f"{source}.yaml" if source in presets() else Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{source}: neither a preset nor a file; {_hint(source, 'presets', presets())}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: not a text file in UTF-8") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{source!r}: cannot be read: {reason}") from None
    values = _yaml(text, source)
    if not isinstance(values, dict | None):
        raise ConfigError(f"{source}: must hold settings as `key: value` lines, not {_shown(values)}")
    return values or {}


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
    "finite_number": "must be a finite number",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be more than {gt:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be {expected}",
    "list_type": "must be a list, as in [one, other]",
}


def _validated(values: dict[str, Any], stored: bool, prefix: str = "", overrides: Sequence[str] = ()) -> Config:
    """ConfigError where they are none, or where a field makes the method another than the one that is named."""
    try:
        config = Config.model_validate(values)
    except pydantic.ValidationError as error:
        first, *more = error.errors(include_url=False)
        others = f" (and {len(more)} more)" if more else ""
        raise ConfigError(f"{prefix}{_complaint(first, overrides)}{others}") from None
    name = values.get("algorithm", {}).get("name", Config().algorithm.name)
    for field, meant in () if stored else _meant(name).items():
        if (value := getattr(config.algorithm, field)) != meant:
            other = f"makes {name} another method; name it {config.algorithm.name}"
            raise ConfigError(f"{prefix}algorithm.{field}={_shown(value)}: {other}")
    return config


def _complaint(error: Any, overrides: Sequence[str]) -> str:
    """The key, the value and what is allowed; the value as the user typed it, where it came from the command line."""
    key = ".".join(str(part) for part in error["loc"])
    for override in reversed(overrides):
        typed = override.partition("=")[0]
        if typed == key or (key.endswith(".options") and typed.startswith(f"{key}.")):
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
    return _TEXTS[kind].format(**error.get("ctx", {})) if kind in _TEXTS else str(error["msg"])


def _unknown_key(key: str) -> str:
    return f"unknown key; {_hint(key, 'keys', known_keys())}"


def _hint(word: str, kind: str, known: tuple[str, ...]) -> str:
    match = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {match[0]}?" if match else f"the {kind} are {', '.join(known)}"


def _shown(value: object) -> str:
    return _clipped(_dumped(value))


def _dumped(value: object) -> str:
    """Any value on one line, as YAML."""
    odd = isinstance(value, str) and not value.isprintable()  # in double quotes all of it can be escaped
    style = '"' if odd else None
    text = yaml.safe_dump(value, default_flow_style=True, default_style=style, allow_unicode=not odd, width=10**9)
    return text.removesuffix("\n").removesuffix("\n...")


def _clipped(text: str, limit: int = 60) -> str:
    text = " ".join(text.split())
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= limit else f"{text[:limit]}…"
