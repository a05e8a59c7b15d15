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
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pydantic

from arpo.errors import ConfigError
from arpo.sections import METHOD as METHOD
from arpo.sections import AgentConfig as AgentConfig
from arpo.sections import AlgorithmConfig as AlgorithmConfig
from arpo.sections import EngineConfig as EngineConfig
from arpo.sections import EnvConfig as EnvConfig
from arpo.sections import EvalConfig as EvalConfig
from arpo.sections import Section as Section
from arpo.sections import TasksConfig as TasksConfig
from arpo.sections import TrainConfig as TrainConfig
from arpo.sections import meant_by, setting, size_of
from arpo.yaml_text import one_line, parse_yaml

LONGEST = 2**18  # bytes of a file: YAML is slow to read


class Config(Section):
    env: EnvConfig = setting(EnvConfig(), "the computer")
    tasks: TasksConfig = setting(TasksConfig(), "what is to be done on it")
    agent: AgentConfig = setting(AgentConfig(), "who does it")
    engine: EngineConfig = setting(EngineConfig(), "what samples its replies")
    algorithm: AlgorithmConfig = setting(AlgorithmConfig(), "how it learns")
    train: TrainConfig = setting(TrainConfig(), "how much, and with what")
    eval: EvalConfig = setting(EvalConfig(), "how it is judged")
    seed: int = setting(0, "of every random choice", ge=0)
    run_dir: Path | None = setting(None, "the folder of the run; null: a new one under runs/", strict=False)

    def value(self, key: str) -> Any:
        """The value of a key as it is written on the command line, such as `train.updates`."""
        return functools.reduce(getattr, key.split("."), self)

    def words(self, keys: Sequence[str]) -> list[str]:
        """`key=value` for each, as a command line takes it."""
        plain = self.model_dump(mode="json")
        return [
            f"{key}={one_line(functools.reduce(lambda part, name: part[name], key.split('.'), plain))}" for key in keys
        ]

    def with_values(self, values: dict[str, Any]) -> "Config":
        """The same with other values, by key. They are not validated."""
        config = self
        for key, value in values.items():
            section, _, name = key.rpartition(".")
            if section:
                name, value = section, getattr(config, section).model_copy(update={name: value})
            config = config.model_copy(update={name: value})
        return config


# Settings of `algorithm` that earlier runs have, and what switched them off.
GONE = {"replay_tau": None, "replay_truncate": None, "replay_reject": None, "replay_spares": False}


def presets() -> tuple[str, ...]:
    """The names of the configurations in the package."""
    files = resources.files("arpo") / "configs"
    return tuple(sorted(file.name.removesuffix(".yaml") for file in files.iterdir() if file.name.endswith(".yaml")))


def load_config(source: str | None, overrides: list[str], stored: bool = False) -> Config:
    """The configuration of a preset or a YAML file (None: all defaults), with `key=value` settings on top.

    A new `algorithm.name` resets the fields that names set. `stored`: a run's, whose name may say too little.
    """
    values = {} if source is None else _read(source)
    if stored and isinstance(algorithm := values.get("algorithm"), dict):
        for field, off in GONE.items():
            if (value := algorithm.pop(field, off)) != off:
                gone = "arpo has this setting no more (CHANGELOG.md, Removed); arpo 0.2.0 reads such a run"
                raise ConfigError(f"{source}: algorithm.{field}={_shown(value)}: {gone}")
        if isinstance(name := algorithm.get("name"), str):  # it may say that they are off
            algorithm["name"] = ":".join(part for part in name.split(":") if part.partition("=")[0] not in GONE)
    if source is not None:  # first alone, so that an error says whether the file or the command line is wrong
        _validated(values, stored, prefix=f"{source}: ")
    for name in [override.partition("=")[2] for override in overrides if override.startswith("algorithm.name=")]:
        given = values.get("algorithm", {})
        with contextlib.suppress(ValueError):  # no method: said below
            for field in ("options", *meant_by(given.get("name", "arpo")), *meant_by(name)):
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
        return size_of(text)
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
        value = "" if isinstance(inner, Section) else f" {one_line(plain[name])}"
        text += f"{indent}{name}:{value}  # {field.description}\n"
        text += to_yaml(inner, indent + "  ") if isinstance(inner, Section) else ""
    return text


def known_keys() -> tuple[str, ...]:
    """Every setting there is, as it is written on the command line."""
    inside = {name: [f"{name}.{key}" for key, _ in part] for name, part in Config() if isinstance(part, Section)}
    return tuple(key for name in Config.model_fields for key in inside.get(name, [name]))


# ---- reading


def _read(source: str) -> dict[str, Any]:
    path = resources.files("arpo") / "configs" / f"{source}.yaml" if source in presets() else Path(source)
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST + 1)
        text = data[:LONGEST].decode("utf-8")
        if len(data) > LONGEST:
            raise ConfigError(f"{source}: has more than {LONGEST:,} bytes, which no settings need")
    except FileNotFoundError:
        raise ConfigError(f"{source}: neither a preset nor a file; {_hint(source, 'presets', presets())}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{source}: not a text file in UTF-8") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{source!r}: cannot be read: {reason}") from None
    values = parse_yaml(text, source)
    if not isinstance(values, dict | None):
        raise ConfigError(f"{source}: must hold settings as `key: value` lines, not {_shown(values)}")
    return values or {}


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
    values[name] = parse_yaml(text, _clipped(override))


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
    "too_short": "must have at least {min_length} items, not {actual_length}",
    "too_long": "must have at most {max_length} items, not {actual_length}",
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
    for field, meant in () if stored else meant_by(name).items():
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
    return _clipped(one_line(value))


def _clipped(text: str, limit: int = 60) -> str:
    text = " ".join(text.split())
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= limit else f"{text[:limit]}…"
