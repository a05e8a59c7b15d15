"""The sections of the settings: what each key is, its default and its bounds.

A field's description is what `arpo train --dry-run` prints beside its value. config.py reads and writes them.
"""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, Field

from arpo.agent.dialects.base import DIALECTS
from arpo.algorithms.base import METHODS
from arpo.engines.base import ENGINES
from arpo.envs.base import BACKENDS
from arpo.registry import Registry
from arpo.types import PIXELS
from arpo.yaml_text import one_line, parse_yaml


def size_of(value: object) -> tuple[int, int]:
    if isinstance(value, str) and (sides := re.fullmatch(r"(\d{1,5})x(\d{1,5})", value)):
        value = [int(sides[1]), int(sides[2])]
    match value:
        case [int(width), int(height)] if width > 0 and height > 0 and bool not in (type(width), type(height)):
            if width * height <= PIXELS:
                return width, height
            raise ValueError(f"must have at most {PIXELS:,} pixels")
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
    tuple[int, int], pydantic.BeforeValidator(size_of), pydantic.PlainSerializer(lambda size: "{}x{}".format(*size))
]
Device = Annotated[str, pydantic.AfterValidator(_device)]
Price = Annotated[float, Field(ge=0, le=1e9)]


def setting(default: Any, description: str, **bounds: Any) -> Any:
    """A field of a section."""
    return Field(default=default, description=description, **bounds)


class Section(BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class EnvConfig(Section):
    name: Annotated[str, _name_of(BACKENDS)] = setting("pocket", "which environment; `arpo envs list` names them")
    size: Size = setting((448, 280), "the screen, WIDTHxHEIGHT in pixels")
    starts: Literal["fresh", "fixed"] = setting(
        "fresh", "what a task begins with: another screen each time, or, as OSWorld's do, always the same; also judged"
    )
    n_starts: int = setting(1, "of fixed: how many such screens a task has; a group has one of them", ge=1, le=10_000)
    workers: int = setting(
        0, "processes for environments, one in each; 0: all in this one; changes no result", ge=0, le=1024
    )
    ray: str | None = setting(
        None, "put the workers on a Ray cluster: its address; auto: this machine's; local: one of its own", min_length=1
    )
    resource: str | None = setting(
        None, "of ray: what a worker takes one of, on its node; null: desktop or docker, pocket nothing", min_length=1
    )
    options: Annotated[dict[str, Any], _options_of(BACKENDS)] = setting(
        {}, "of an environment from outside arpo: what it has of its own", validate_default=True
    )
    files: str | None = setting(None, "of desktop: a folder with the files of OSWorld's tasks, or a mirror's address")
    wall: Literal["bubblewrap", "gvisor"] = setting(
        "bubblewrap", "of desktop: what holds an agent's programs; gvisor: a second wall behind the first, slower"
    )
    allow_weaker_sandbox: bool = setting(False, "of desktop: also where walls are lacking; `arpo doctor` names them")
    osworld_python: str | None = setting(None, "the Python of OSWorld's client: for osworld, and checkers arpo lacks")
    osworld_image: str = setting("happysixd/osworld-docker", "of osworld: the Docker image of a machine", min_length=1)
    osworld_disk: str | None = setting(None, "of osworld: the .qcow2 to boot from; null: an own image brings one")
    reset_s: float = setting(120.0, "a worker's limit for its start and for setting up a task", gt=0)
    step_s: float = setting(300.0, "its limit for an action: longer than what an agent can make one last", gt=0)
    score_s: float = setting(900.0, "its limit for scoring, likewise", gt=0)

    @pydantic.field_validator("n_starts")
    @classmethod
    def _of_fixed_ones(cls, n_starts: int, others: pydantic.ValidationInfo) -> int:
        if n_starts > 1 and others.data.get("starts") == "fresh":
            raise ValueError("needs env.starts=fixed; fresh starts are without number")
        return n_starts

    @property
    def fixed_starts(self) -> int:
        """How many a task has; 0: each start is a fresh one."""
        return self.n_starts if self.starts == "fixed" else 0


class TasksConfig(Section):
    source: str = setting(
        "train", "a split, a task list file {domain: [id, ...]}, or one id; stored: what --from has", min_length=1
    )
    max_steps: int | None = setting(None, "most actions of an episode; null: each task's own, 15 for OSWorld's", ge=1)


class AgentConfig(Section):
    dialect: Annotated[str, _name_of(DIALECTS)] = setting("uitars", "the model family's prompt and action grammar")
    prompt_file: Path | None = setting(None, "a file with {instruction}, for a prompt of your own", strict=False)
    screenshots: int | None = setting(None, "how many of the last screenshots it sees; null: all", ge=1)
    block: int = setting(1, "how many old screenshots are dropped at a time, once there are too many", ge=1)
    context: int | None = setting(None, "most tokens that it sees and says; null: as many as its model takes", ge=2)
    device: Device = setting("auto", "what its model runs on: cpu, cuda, cuda:N or mps; auto: a GPU if there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "the precision that it computes in; auto: bfloat16 for a large model on a CUDA GPU, else float32"
    )

    @pydantic.field_validator("block")
    @classmethod
    def _no_larger_than_what_is_shown(cls, block: int, others: pydantic.ValidationInfo) -> int:
        screenshots = others.data.get("screenshots")
        if screenshots is not None and block > screenshots:
            raise ValueError(f"must be at most agent.screenshots, which is {screenshots}")
        return block


def _address(value: str) -> str:
    if not re.fullmatch(r"https?://[\w.:\[\]-]+(/[\w./-]*)?", value):
        raise ValueError("must be a list of addresses, as in [http://127.0.0.1:8000]")
    return value.rstrip("/")


class EngineConfig(Section):
    name: Annotated[str, _name_of(ENGINES)] = setting("local", "what samples: local, in this process; vllm; openai")
    servers: list[Annotated[str, pydantic.AfterValidator(_address)]] = setting(
        [], "of vllm: those that `arpo serve` printed; of openai: the endpoint's address, up to /v1"
    )
    replicas: int = setting(1, "of vllm: how many servers are started where none is named", ge=1, le=1024)
    python: str | None = setting(None, "of vllm: the Python that has it; null: that of `make vllm`, or this one")
    arguments: list[str] = setting([], "of vllm: more words for `vllm serve`, as in [--gpu-memory-utilization, '0.5']")
    turn_s: float = setting(300.0, "of vllm and openai: the limit for one reply; then another server is asked", gt=0)
    options: Annotated[dict[str, Any], _options_of(ENGINES)] = setting(
        {}, "of an engine from outside arpo: what it has of its own", validate_default=True
    )


class EvalConfig(Section):
    trials: int = setting(1, "how often each task is tried", ge=1, le=10_000)
    temperature: float = setting(0.6, "of sampling; 0: always the likeliest token", ge=0)
    top_p: float = setting(1.0, "of the likeliest tokens, the share that is drawn from", gt=0, le=1)
    max_tokens: int = setting(256, "of one reply; a longer one is cut off", ge=1)
    n_envs: int = setting(16, "how many episodes run at once; changes no result", ge=1, le=4096)
    protocol: Literal["plain", "standard", "hard"] = setting(
        "plain",
        "plain: all is scored as it stands; standard: FAIL is said at the step limit; hard: infeasible tasks apart",
    )
    price: list[Price] | None = setting(
        None, "[prompt, reply]: of a million tokens of each at an endpoint, for `cost`", min_length=2, max_length=2
    )
    held_out: int = setting(32, "around training: tasks of each held-out split that are tried too; 0: none", ge=0)


class AlgorithmConfig(Section):
    """The method. `name` sets the fields that make it what it is, and says where one is otherwise: a name cannot lie.

    arpo+:group_most=null is arpo+ in all but that field. Whatever the fields are set to, `name` becomes the name of
    what they make; `load_config` refuses settings whose name was another one.
    """

    name: str = setting("arpo", "a method of docs/algorithms.md: sets fields below; or, say, arpo+:group_most=null")
    options: Annotated[dict[str, Any], _options_of(METHODS)] = setting(
        {}, "of an algorithm from outside arpo: what it has of its own", validate_default=True
    )
    group: int = setting(8, "episodes of a task that are compared with each other", ge=1, le=4096)
    group_least: int | None = setting(
        None, "a group ends after so many attempts where all of them solved the task; null: `group`", ge=1
    )
    group_most: int | None = setting(
        None,
        "a group in which all attempts failed goes on up to so many, `group` at a time; null: `group`",
        ge=1,
        le=4096,
    )
    std: Literal["population", "sample"] = setting("population", "which standard deviation divides advantages")
    format_reward: float = setting(-1.0, "added to the score of an episode with a reply that was no action", le=0)
    partial: float = setting(
        0.0,
        "the most that an attempt earns which did a part: by the share of it, where the checker has parts",
        ge=0,
        lt=1,
    )
    solved: float = setting(1.0, "the score of a solved task: what replay keeps, `arpo select` counts", gt=0, le=1)
    clip_low: float = setting(0.2, "how far below 1 the probability ratio may count", gt=0, lt=1)
    clip_high: float = setting(0.3, "how far above 1 it may count", gt=0)
    dual_clip: float | None = setting(None, "bound on the ratio where the advantage is negative; null: none", gt=1)
    normaliser: Literal["trajectory", "constant"] = setting(
        "trajectory", "a token counts 1/length of its trajectory, or 1/`length`"
    )
    length: int = setting(256, "the constant normaliser, in tokens", ge=1)
    surprising: float = setting(
        1.0, "share of a group's turns that is learned: those whose replies were least expected", gt=0, le=1
    )
    redraw: int = setting(0, "how often tasks whose group has equal rewards are replaced by others", ge=0)
    replay: bool = setting(False, "give groups that failed as a whole a stored success")
    replay_size: int = setting(8, "successes kept of each task, the newest", ge=1)
    replay_count: int = setting(1, "how many different successes join a group that failed", ge=1)
    replay_shortest: bool = setting(False, "of the kept successes those with the fewest steps join, not random ones")
    lag_truncate: float | None = setting(
        2.0, "bound on importance weights of tokens of older policies (train.lag); null: all 1", ge=1
    )
    kl: float = setting(0.0, "of grpo, dapo, arpo, arpo+, ppo: how strongly it is pulled back to where it began", ge=0)
    beta: float = setting(0.1, "of dpo and kto: how near the policy stays to the one that training began with", gt=0)
    gae: float = setting(1.0, "of ppo: how much later values count for a token; 1: only the reward does", ge=0, le=1)
    value_weight: float = setting(0.5, "of ppo: how much the error of the value head counts in the loss", gt=0)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        name = given.get("name", cls.model_fields["name"].default)
        try:
            fields = meant_by(name) | given
        except ValueError:  # said below
            return given
        known = name.partition(":")[0]
        changed = {field: fields[field] for field, value in meant_by(known).items() if fields[field] != value}
        return fields | {"name": ":".join([known, *(f"{field}={_plain(value)}" for field, value in changed.items())])}

    @pydantic.field_validator("name", mode="before")
    @classmethod
    def _known(cls, name: object) -> object:
        meant_by(name)
        return name

    @pydantic.field_validator("group")
    @classmethod
    def _large_enough(cls, group: int, others: pydantic.ValidationInfo) -> int:
        if (name := others.data.get("name")) and group < (least := METHODS.find(name.partition(":")[0]).least_group):
            raise ValueError(f"must be at least {least}")
        return group

    @pydantic.field_validator("solved")
    @classmethod
    def _more_than_a_part(cls, solved: float, others: pydantic.ValidationInfo) -> float:
        if (partial := others.data.get("partial", 0.0)) >= solved:
            raise ValueError(f"must be more than algorithm.partial, which is {partial}")
        return solved

    @property
    def method(self) -> str:
        """Its name without what was changed of it."""
        return self.name.partition(":")[0]

    @property
    def rewards(self) -> tuple[float, float]:
        """The least and the most that arpo's own reward can be."""
        return self.format_reward, 1.0


METHOD = tuple(sorted({field for method in METHODS.values() for field in method.settings}))  # the fields that names set


def meant_by(name: object) -> dict[str, Any]:
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
        meant[field] = parse_yaml(value, change)
    return meant


def _plain(value: object) -> str:
    """A value in a name, always written alike: a file has 4.0 where somebody typed 4."""
    return one_line(int(value) if isinstance(value, float) and value.is_integer() else value)


class TrainConfig(Section):
    model: str = setting("base", "to begin with: base, a run's best, a checkpoint's folder, a hub name", min_length=1)
    updates: int = setting(16, "at most; each is several optimiser steps. 0: only judge the base agent", ge=0)
    env_steps: int | None = setting(None, "a budget: the update that reaches it is the last; null: no limit", ge=1)
    rollout_tasks: int = setting(8, "tasks whose groups make one update", ge=1)
    optimizer_tasks: int = setting(2, "of them, how many make one optimiser step", ge=1)
    curriculum: bool = setting(False, "draw tasks by how informative they were lately, rather than each in turn")
    temperature: float = setting(1.0, "of sampling", gt=0)
    max_tokens: int = setting(128, "of one reply; a longer one is cut off", ge=1)
    n_envs: int = setting(16, "episodes at once; changes no result", ge=1, le=4096)
    lag: int = setting(0, "how many updates old the policy that samples may be", ge=0, le=100)
    stragglers: int = setting(0, "with a lag: last episodes of a group that a waiting update goes without", ge=0)
    lr: float = setting(1e-4, "of AdamW", gt=0)
    warmup: int = setting(0, "optimiser steps over which the learning rate rises to lr", ge=0)
    weight_decay: float = setting(0.0, "of AdamW", ge=0)
    grad_clip: float = setting(1.0, "bound on the norm of a gradient", gt=0)
    self_test: float | None = setting(
        None, "how much the learner's and the sampler's log-probs may differ, on average; null: 0.001, bf16 0.05", gt=0
    )
    micro_tokens: int = setting(8192, "tokens, images included, that are learned at once", ge=1)
    checkpointing: bool | None = setting(
        None, "compute activations again for the gradient instead of keeping them; null: those that do not fit"
    )
    moments: Literal["auto", "fp32", "8bit"] = setting(
        "auto", "how AdamW keeps its moments of bfloat16 weights; auto: fp32 if there is ample memory, else 8bit"
    )
    ranks: int = setting(1, "processes that share the learning by FSDP2; on GPUs each has one", ge=1, le=1024)
    rank_resource: str | None = setting(
        None, "of env.ray: put ranks on its nodes, each takes one of this, such as GPU; null: all here", min_length=1
    )
    freeze_vision: bool = setting(True, "leave the vision tower as it is")
    lora_rank: int = setting(0, "train LoRA adapters of this rank, alpha is twice it; 0: the weights", ge=0, le=4096)
    save_every: int = setting(1, "updates between checkpoints", ge=1)
    keep: int = setting(2, "checkpoints kept, the newest; beside them the best one", ge=1)
    track: list[Literal["tensorboard", "trackio", "wandb", "wandb-offline"]] = setting(
        [], "where metrics and pictures go beside metrics.jsonl: any of tensorboard, trackio, wandb, wandb-offline"
    )
