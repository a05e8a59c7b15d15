"""What a training takes of its device's memory: from config.json and the settings alone, without torch or a weight.

    model = find_shape("ByteDance-Seed/UI-TARS-1.5-7B")           # its config.json, else the size that its name says
    needs = estimate(config, model, steps=15, device=Device("cuda", 139 * GIB))
    needs.fits, needs.learning, needs.sampling, needs.rows

Learning and sampling take turns, and on a GPU the engine gives its keys and values back while the learner works (not so
with train.lag). With train.ranks it is the memory of the first GPU, where the engine is too unless vLLM's servers
sample; on a CPU that of all processes together. Counted is the longest episode that there can be: all steps of a task,
every reply as long as it may be. So the truth is mostly less, and only what exceeds the device even with the most
recomputing is refused.
"""

import dataclasses
import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from arpo.algorithms.base import METHODS
from arpo.config import Config
from arpo.errors import ConfigError
from arpo.files import read_bytes
from arpo.machine import free_memory
from arpo.model.recompute import NOTHING, Recompute, choose, kept_bytes, passing_bytes, tower_bytes
from arpo.model.shapes import SHAPES, head_dim, numbers_of
from arpo.resize import QWEN2_5, QWEN3

GIB = 2**30
LARGE = 200e6  # bytes of weights from which a GPU computes in bf16: as in model/checkpoint.py
PROMPT, TURN = 800, 16  # tokens of the prompt with a task in it; of what stands around a screenshot and a reply
SCORES = 1.0 * GIB  # those of the whole vocabulary are worked out in pieces: as in model/qwen.py
MASTERS = {"fp32": 2 + 8.0, "8bit": 2 + 2.03}  # bytes a weight in bf16: the rest of its master, and two moments
ROOM = 0.9  # of what is free, for activations: as in training/learner.py
CACHE = 0.8  # of what is free, for keys and values: as in engines/local/blocks.py
TOWER_WORK = 24  # numbers for each of a patch's in the tower's pass, measured
TOWER_TOKENS = 40_000  # of screenshots that go through the tower at once on a GPU: as in engines/local/screens.py
CUDA = 1.5 * GIB  # CUDA itself, and the gaps between tensors
CLEARLY = 1.05  # refused is what takes more than so many times the memory that is there
GPUS = (16, 24, 32, 40, 48, 80, 96, 141, 192, 288)  # by the names that they are sold under
USABLE = 0.985 * GIB  # of each, as drivers report it
TEXT = (  # sizes in config.json, which may come from others
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("vocab_size", "head_dim"),
)
VISION = (
    *("hidden_size", "intermediate_size", "depth", "num_heads", "out_hidden_size", "patch_size"),
    "num_position_embeddings",
)


@dataclass(frozen=True, slots=True)
class Device:
    """What computes, and the bytes of memory that it has for us."""

    name: str
    free: float
    cuda: bool = True
    count: int = 0  # of GPUs that are here; 0: not known


@dataclass(frozen=True, slots=True)
class Row:
    """A part of what is needed, in bytes."""

    what: str
    learning: float
    sampling: float


@dataclass(frozen=True, slots=True)
class Needs:
    """How a training would use its device."""

    device: Device
    rows: tuple[Row, ...]
    moments: str  # AdamW's: "fp32" or "8bit"
    recompute: Recompute
    episodes: int  # whose keys and values fit at once
    least: float  # bytes with 8-bit moments, the most recomputing and one episode at a time
    dtype: Literal["bfloat16", "float32"]  # that it computes with

    @property
    def learning(self) -> float:
        return sum(row.learning for row in self.rows)

    @property
    def sampling(self) -> float:
        return sum(row.sampling for row in self.rows)

    @property
    def fits(self) -> bool:
        return max(self.learning, self.sampling) <= self.device.free

    def as_quick_as(self, other: "Needs") -> bool:
        return self.recompute.layers <= other.recompute.layers and self.episodes >= other.episodes

    @property
    def hopeless(self) -> bool:
        return self.least > CLEARLY * self.device.free


class Shape:
    """A model by the numbers of its config.json. `source`: where they come from, in words."""

    def __init__(self, numbers: Mapping[str, Any], source: str) -> None:
        text = {**numbers, **numbers.get("text_config", {})}  # older files have them beside each other
        third = str(numbers.get("model_type", "")).startswith("qwen3")
        text["model_type"] = "qwen3_vl_text" if third else "qwen2_5_vl_text"
        vision = dict(numbers["vision_config"])
        self._sight = QWEN3 if third else QWEN2_5
        usual = {
            "out_hidden_size": text["hidden_size"],
            "patch_size": self._sight.patch,
            "deepstack_visual_indexes": (),
            "fullatt_block_indexes": (7, 15, 23, 31),
        }
        vision = usual | vision
        self.source, self.model_type = source, "qwen3_vl" if third else "qwen2_5_vl"
        self.text_config, self.vision_config = SimpleNamespace(**text), SimpleNamespace(**vision)
        t, v = self.text_config, self.vision_config
        for part, names in ((t, TEXT), (v, VISION)):
            if any(type(size := getattr(part, name, 1)) is not int or not 0 < size <= 2**20 for name in names):
                raise ValueError("sizes of no model")
        self.hidden, self.mlp, self.layers = int(t.hidden_size), int(t.intermediate_size), int(t.num_hidden_layers)
        self.queries, self.keys = (heads * head_dim(t) for heads in (t.num_attention_heads, t.num_key_value_heads))
        self.vocabulary, self.context = int(t.vocab_size), int(text.get("max_position_embeddings", 32768))
        if not 0 < self.context <= 2**40 or min(self.queries, self.keys, v.num_heads) < 1:
            raise ValueError("a model that sees nothing")
        if len(v.fullatt_block_indexes) > v.depth:
            raise ValueError("more blocks than there are")
        self.width, self.depth, self.tower_mlp = int(v.hidden_size), int(v.depth), int(v.intermediate_size)
        self.out = int(v.out_hidden_size)
        tied = numbers.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
        self._gates = 2 if third else 3  # matrices of the tower's MLP
        self._mergers = 1 + len(v.deepstack_visual_indexes)
        h, w, m = self.hidden, self.width, self.tower_mlp
        layer = 2 * self.queries * h + 2 * self.keys * h + 3 * h * self.mlp + 2 * h
        layer += 2 * head_dim(t) if third else self.queries + 2 * self.keys  # norms of queries and keys, or biases
        self.layer = layer  # weights of one
        self.language = self.layers * layer + h + (1 if tied else 2) * self.vocabulary * h
        block = 4 * w * (w + 1) + self._gates * w * m + (self._gates - 1) * m + (5 if third else 3) * w
        merger = 4 * w * (4 * w + 1) + self.out * (4 * w + 1)
        norms = (8 * self._mergers - 6) * w if third else w
        around = (1 + int(vision.get("num_position_embeddings", 2304))) * w if third else 0
        self.tower = self.depth * block + self._mergers * merger + norms + around + 6 * self._sight.patch**2 * w
        self.weights = self.language + self.tower
        if not 0 < self.layers <= 1000 or not 0 < self.depth <= 1000:
            raise ValueError("a model of no such depth")

    def adapters(self, rank: int, vision: bool) -> int:
        """Weights of LoRA's matrices."""
        layer = 4 * self.hidden + 2 * self.queries + 2 * self.keys + 3 * (self.hidden + self.mlp)
        block = 6 * self.width + self._gates * (self.width + self.tower_mlp)
        tower = self.depth * block + self._mergers * (12 * self.width + self.out)
        return rank * (self.layers * layer + vision * tower)

    def image_tokens(self, size: tuple[int, int]) -> int:
        return self._sight.tokens(*size)


def find_shape(model: str) -> Shape | None:
    """The shape of a checkpoint, by its config.json where that is here, else by the size in its name; None: unknown."""
    for file in _configs(model):
        try:
            return Shape(json.loads(read_bytes(file, 2**22)), "its config.json")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            return None  # what is wrong with it is said where the model is loaded
    size = re.search(r"(?<![\d.])(\d+)b(?![a-z])", model.lower())
    third = "qwen3" in model.lower()
    name = f"qwen{'3' if third else '2.5'}-vl-{size[1]}b" if size else ""
    return Shape(numbers_of(name), f"the name, as of a {name}") if name in SHAPES else None


def _configs(model: str) -> Iterator[Path]:
    """The config.json of a model, if it is on this machine."""
    folder = Path(__file__).parents[1] / "models" / model if model == "base" else Path(model)
    if (folder / "config.json").is_file():
        yield folder / "config.json"
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", model) and not folder.exists():
        from huggingface_hub import try_to_load_from_cache

        if isinstance(cached := try_to_load_from_cache(model, "config.json"), str):
            yield Path(cached)


def find_device(name: str) -> Device:
    """The memory of the device that `agent.device` names. Without a driver of NVIDIA's there is no need of torch."""
    if name == "mps" or (name in ("auto", "cpu") and not _driver()):
        return Device("cpu" if name == "auto" else name, free_memory(), cuda=False)
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return Device(name, free_memory(), cuda=False)
    if not torch.cuda.is_available() or int(name[5:] or 0) >= torch.cuda.device_count():  # who loads the model says it
        return Device(name, math.inf)
    free, _ = torch.cuda.mem_get_info(name)
    return Device(name, free + torch.cuda.memory_reserved(name), count=torch.cuda.device_count())


def learners_device(config: Config, model: Shape, steps: int) -> Device:
    """Of ranks on other nodes not known: the smallest GPU that does stands for theirs."""
    if config.train.rank_resource is None:
        return find_device(config.agent.device)
    gpus = config.train.rank_resource == "GPU"
    return smallest_gpu(config, model, steps) if gpus else Device("a node", math.inf, cuda=False)


def _driver() -> bool:
    return Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None


def itemsize(config: Config, model: Shape, device: Device) -> int:
    """Bytes of a number that it computes with."""
    automatic = "bfloat16" if device.cuda and 2 * model.weights > LARGE else "float32"
    return 2 if (config.agent.dtype if config.agent.dtype != "auto" else automatic) == "bfloat16" else 4


def longest(config: Config, model: Shape, steps: int, reply: int) -> int:
    """Tokens of an episode of so many steps, each reply as long as it may be."""
    shown = min(steps, config.agent.screenshots or steps)
    tokens = PROMPT + steps * (reply + TURN) + shown * model.image_tokens(config.env.size)
    return min(tokens, model.context, config.agent.context or tokens)


def servers(config: Config) -> int:
    """How many of vLLM's sample."""
    return (len(config.engine.servers) or config.engine.replicas) if config.engine.name == "vllm" else 0


def apart(config: Config, device: Device) -> bool:
    """Whether the engine has memory of its own: that of other GPUs, or of another host."""
    ranks = config.train.ranks if config.train.rank_resource is None else 0
    enough = device.cuda and (not device.count or ranks + servers(config) <= device.count)
    return servers(config) > 0 and (enough or bool(config.engine.servers))


def one_model(config: Config) -> bool:
    """Whether engine and learner are one model in memory: they take turns, and what is trained is what samples."""
    local = config.engine.name == "local" and config.train.ranks == 1
    return local and not config.train.lag and not config.train.lora_rank


def of_a_server(config: Config, model: Shape, steps: int, device: Device) -> tuple[float, float]:
    """Bytes of its weights, and of the keys and values of the longest episode."""
    item = itemsize(config, model, device)
    return 1.0 * model.weights * item, _episode_bytes(config, model, steps, item, config.train.max_tokens)


def _episode_bytes(config: Config, model: Shape, steps: int, item: int, reply: int) -> float:
    return 2.0 * model.layers * model.keys * item * longest(config, model, steps, reply)


def estimate(config: Config, model: Shape, steps: int, device: Device) -> Needs:
    """The best use of the device: as little recomputed as fits, and moments in fp32 where they do not change that."""
    ways = ("fp32", "8bit") if config.train.moments == "auto" else (config.train.moments,)
    if itemsize(config, model, device) == 4 or config.train.lora_rank:
        ways = ("fp32",)
    plans = [_Plan(config, model, steps, device, moments) for moments in ways]
    least = min(plan.most_recomputed().least for plan in plans)
    finest, *_, smallest = (plan.least_recomputed() for plan in (*plans, plans[-1]))
    best = finest if finest.fits and finest.as_quick_as(smallest) else smallest
    return dataclasses.replace(best if best.fits else plans[-1].most_recomputed(), least=least)


class _Plan:
    """The sums, for one way to keep the optimiser's moments."""

    def __init__(self, config: Config, model: Shape, steps: int, device: Device, moments: str) -> None:
        self.config, self.model, self.steps, self.device, self.moments = config, model, steps, device, moments
        self.item = itemsize(config, model, device)
        self.here = 1 if device.cuda else config.train.ranks  # learners in this memory
        self.longest = longest(config, model, steps, config.train.max_tokens)
        self.tokens = max(self.longest, config.train.micro_tokens)
        self.image = model.image_tokens(config.env.size)
        shown = min(steps, config.agent.screenshots or steps) * -(-self.tokens // self.longest)
        self.shown = max(1, min(shown, self.tokens // self.image))  # screenshots that are learned at once

    def most_recomputed(self) -> Needs:
        n = self.model.layers
        return self.needs(NOTHING if self.config.train.checkpointing is False else Recompute(n, n, tower=True))

    def least_recomputed(self) -> Needs:
        """As the learner chooses it, by what is free beside all else."""
        most = self.most_recomputed()
        if self.config.train.checkpointing is not None:
            return most
        others = most.learning - sum(row.learning for row in most.rows if row.what.startswith("activations"))
        patches = 0 if self.config.train.freeze_vision else 4 * self.image * self.shown
        free = ROOM * (self.device.free - others) / self.here
        return self.needs(choose(self.model, self.tokens, patches, self.item, free))

    def needs(self, plan: Recompute) -> Needs:
        train, model, item, device = self.config.train, self.model, self.item, self.device
        n, here, weights = train.ranks, self.here, model.weights * item
        engine = not apart(self.config, device)
        copy = engine and not one_model(self.config)
        trained = model.weights - train.freeze_vision * model.tower
        own, gradients, optimiser = 0.0, 1.0 * trained * item, trained * (8.0 if item == 4 else MASTERS[self.moments])
        if train.lora_rank:  # adapters are fp32
            adapters = model.adapters(train.lora_rank, not train.freeze_vision)
            own, gradients, optimiser = 4.0 * adapters, 4.0 * adapters, 8.0 * adapters
        algorithm = self.config.algorithm
        start = gradients if algorithm.kl or METHODS.find(algorithm.method).reference else 0.0  # a copy of the trained
        activations = kept_bytes(model, plan, self.tokens, item) + passing_bytes(model, self.tokens, item)
        patches = 4 * self.image
        looking = patches * TOWER_WORK * item * model.width  # at one screenshot, without a gradient
        at_once = max(1, min(self.shown, TOWER_TOKENS // self.image if device.cuda else 1))
        if train.freeze_vision:  # before the activations are there
            tower = max(0, looking * at_once - activations)
        else:
            tower = tower_bytes(model, plan, patches * self.shown, item)
        whole = train.freeze_vision * model.tower * item  # a tower that does not learn is whole on every rank
        mine = (weights - whole + own) / n + whole
        passing = (
            (2 * item + 4) * (2 * model.vocabulary * model.hidden + 2 * model.layer) if n > 1 else 0
        )  # as in fsdp.py
        learners = [
            Row("the weights of learner and engine" if engine and not copy else "the learner's weights", mine, mine),
            Row("its gradients", gradients / n, 0),
            Row(f"AdamW's {'masters and ' * (item == 2)}moments, {self.moments}", optimiser / n, optimiser / n),
            Row(f"activations of {self.tokens:,} tokens", activations, 0),
            Row("scores of the vocabulary", min(SCORES, 16.0 * self.tokens * model.vocabulary), 0),
            *([Row("weights of all ranks, while in use", passing, 0)] if n > 1 else []),
            *([Row("the weights that training began with", start / n, start / n)] if start else []),
        ]
        fixed = [
            *(Row(row.what, here * row.learning, here * row.sampling) for row in learners),
            *([Row("the engine's weights", weights, weights)] if copy else []),
            Row("the vision tower at work", here * tower, looking * at_once * engine),
            *([Row("CUDA itself", CUDA * (1 + (n > 1)), CUDA * (1 + (n > 1)))] if device.cuda else []),
        ]
        episodes, cache = self._cache(device.free - sum(row.sampling for row in fixed))
        kept_on = 1 if train.lag or not device.cuda else 0  # the engine goes on, or has no need to give it back
        rows = [Row(f"keys and values, {episodes} episodes at once", cache * kept_on, cache)] if engine else []
        one, learning = cache / episodes * engine, sum(row.learning for row in fixed)
        sampling = sum(row.sampling for row in fixed) - (at_once - 1) * looking * engine
        least = max(learning + one * kept_on, sampling + one)
        least -= 0.5 * CUDA * device.cuda
        dtype: Literal["bfloat16", "float32"] = "bfloat16" if item == 2 else "float32"
        return Needs(device, (*fixed, *rows), self.moments, plan, episodes, least, dtype)

    def _cache(self, left: float) -> tuple[int, float]:
        """How many episodes have their keys and values in the cache at once, as far as that fits, and its bytes."""
        train, judged = self.config.train, self.config.eval
        played = min(train.n_envs, train.rollout_tasks * self.config.algorithm.group)
        sizes = []
        for episodes, reply in ((played, train.max_tokens), (judged.n_envs, judged.max_tokens)):
            one = _episode_bytes(self.config, self.model, self.steps, self.item, reply)
            fitting = max(1, min(episodes, int(min((CACHE if self.device.cuda else 1) * left / one, 1e6))))
            sizes.append((fitting * one, fitting))
        cache, episodes = max(sizes)
        return episodes, float(cache)


# ---- in words


def gib(size: float) -> str:
    return f"{size / GIB:,.0f} GiB" if size >= 10 * GIB else f"{size / GIB:.2g} GiB"


def table(needs: Needs, model: Shape) -> list[str]:
    """The rows for people, and whether they fit."""
    device, plan = needs.device, needs.recompute
    again = f"{plan.layers} of {model.layers} layers, the MLPs of {plan.mlps}" if plan.mlps else "nothing"
    moments = f"AdamW's moments in {needs.moments}; computed again: {again}"
    lines = [f"memory of {device.name} in GiB, at most (by {model.source}); while learning, while sampling:"]
    for row in (*needs.rows, Row("in all", needs.learning, needs.sampling)):
        lines.append(f"  {row.what:<40}{row.learning / GIB:>9.2f}{row.sampling / GIB:>9.2f}")
    has = f"{gib(device.free)} are free" if math.isfinite(device.free) else "how much is free is not known"
    return [*lines, f"  {'fits' if needs.fits else 'does not fit'}: {has}; {moments}"]


def smallest_gpu(config: Config, model: Shape, steps: int) -> Device:
    """The smallest of the usual GPUs that fits, else the largest."""
    gpus = [Device(f"a GPU of {size} GB", size * USABLE) for size in GPUS]
    return next((gpu for gpu in gpus if estimate(config, model, steps, gpu).fits), gpus[-1])


def smaller(config: Config, model: Shape, steps: int, device: Device) -> list[str]:
    """What would fit, or at least take less: settings with what they come to, and the GPU that holds all of it."""
    now = estimate(config, model, steps, device).least
    train, agent = config.train, config.agent
    screens: dict[str, Any] = {"agent.screenshots": 5, "agent.block": min(agent.block, 5)}
    lora: dict[str, Any] = {"train.lora_rank": 16}
    tokens = longest(config, model, steps, train.max_tokens)
    screens["train.micro_tokens"] = min(
        train.micro_tokens, longest(config.with_values(screens), model, steps, train.max_tokens)
    )
    ways: list[dict[str, Any]] = []
    ways += [lora] if not train.lora_rank else []
    ways += [{"train.freeze_vision": True}] if not train.freeze_vision else []
    ways += [{"train.micro_tokens": tokens}] if train.micro_tokens > tokens else []
    ways += [screens] if (agent.screenshots or steps) > 5 else []
    every = {key: value for way in ways for key, value in way.items()}
    found = []
    for way in [*ways, *([every] if len(ways) > 1 else [])]:
        least = estimate(changed := config.with_values(way), model, steps, device).least
        if least < 0.98 * now:
            shown = [key for key in way if changed.value(key) != config.value(key)]
            fits = " and fits" if least <= device.free else ""
            found.append((not fits, f"{' '.join(changed.words(shown))} takes {gib(least)}{fits}"))
    words = [text for _, text in sorted(found, key=lambda one: one[0])][:3]
    gpu = smallest_gpu(config, model, steps)
    if gpu.free > device.free and estimate(config, model, steps, gpu).fits:
        words.append(f"{gpu.name} holds it as it is")
    return words


def refuse_large(config: Config, steps: int, device: Device | None = None) -> Needs | None:
    """What it takes, None where that is not known. ConfigError where it cannot fit, whatever is recomputed."""
    if (model := find_shape(config.train.model)) is None:
        return None
    device = device or learners_device(config, model, steps)
    needs = estimate(config, model, steps, device)
    if needs.hopeless:
        takes = f"takes at least {gib(needs.least)} of memory, and {device.name} has {gib(device.free)}"
        others = "; ".join(["", *smaller(config, model, steps, device)])
        raise ConfigError(f"train.model={config.train.model}: {takes}{others}")
    return needs


def lighter(config: Config, steps: int, sampling: bool, device: Device | None = None) -> tuple[dict[str, Any], str]:
    """For a run that was out of memory: limits that take less and may change when it is resumed, and why these."""
    train, n = config.train, max(config.train.n_envs, config.eval.n_envs)

    def at_once(most: int) -> dict[str, Any]:
        return {"train.n_envs": min(most, train.n_envs), "eval.n_envs": min(most, config.eval.n_envs)}

    if (model := find_shape(train.model)) is None:
        return (at_once(n // 2) if sampling and n > 1 else {}), "out of memory"
    device = device or learners_device(config, model, steps)
    least = longest(config, model, steps, train.max_tokens)
    ways: list[dict[str, Any]] = []
    if sampling:
        fewer = range(min(n - 1, estimate(config, model, steps, device).episodes // 2), 0, -1)
        ways += map(at_once, fewer)
    else:
        ways += [{"train.checkpointing": True}] if not train.checkpointing else []
        ways += [{"train.micro_tokens": least}] if train.micro_tokens > least else []
        ways += [{"train.checkpointing": True, "train.micro_tokens": least}] if len(ways) == 2 else []

    def taken(way: dict[str, Any]) -> float:
        needs = estimate(config.with_values(way), model, steps, device)
        return needs.sampling if sampling else needs.learning

    before = taken({})
    less = [way for way in ways if taken(way) < before]
    if not less:
        others = "; ".join(smaller(config, model, steps, device))
        return {}, f"out of memory; a new run with {others}" if others else "out of memory"
    way = next((way for way in less if taken(way) <= 0.9 * device.free), less[-1])
    return way, f"out of memory: it takes up to {gib(before)}, and {gib(taken(way))} with the limits below"
