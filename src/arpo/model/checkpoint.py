"""Loading a checkpoint of a Qwen2.5-VL or Qwen3-VL, and saying in one line what is wrong with one that is of no use.

    checkpoint = load_checkpoint("ByteDance-Seed/UI-TARS-1.5-7B")    # or a folder, or base: our own

The files are those of transformers, which loads what is saved here and the other way round. But it fills weights that a
checkpoint lacks with random ones and only warns. An agent that samples from those looks like a bad agent, so here every
weight must be there, fit, and be a number.

A checkpoint may come from somebody else. Nothing in it is run: weights are safetensors, the tokenizer is made from
tokenizer.json alone and of known parts, and no code that it names is looked for. Sizes are compared with what its files
hold before memory is taken, and no link in it is followed but those of the hub's cache.
"""

import copy
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from transformers import Qwen2_5_VLConfig, Qwen3VLConfig

from arpo.config import AgentConfig
from arpo.errors import ConfigError
from arpo.files import read_bytes, refuse_links
from arpo.machine import free_memory
from arpo.model.qwen import QwenVL
from arpo.model.qwen3 import Qwen3VL
from arpo.model.tensorfiles import read_tensors, write_tensors
from arpo.vocabulary import TokenizerVocabulary, Vocabulary

BASE = "base"
CPU = torch.device("cpu")
LARGE = 200e6  # bytes of weights
FILES = 15 * 10**6, 5 * 10**9  # bytes of a file of weights: a small model's can be carried anywhere; a large model's
FAMILIES: dict[str, tuple[Any, type[QwenVL]]] = {  # by model_type; others, such as mixtures of experts, are refused
    "qwen2_5_vl": (Qwen2_5_VLConfig, QwenVL),
    "qwen3_vl": (Qwen3VLConfig, Qwen3VL),
}
TOKENS = {  # what the dialects need, and under which name the config must know the same id
    "<|im_start|>": None,
    "<|im_end|>": None,
    "<|box_start|>": None,
    "<|box_end|>": None,
    "<|image_pad|>": "image_token_id",
    "<|vision_start|>": "vision_start_token_id",
    "<|vision_end|>": "vision_end_token_id",
}
# Of the tokenizers of these families. Others can make much of little text, or search it for ever.
PARTS = ("BPE", "ByteLevel", "NFC", "Sequence", "Split")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LONGEST_TOKEN = 1000  # letters; Qwen's longest are 128 spaces
JSON, TOKENIZER = 2**22, 2**25  # bytes of config.json, of tokenizer.json
DEEPEST, LARGEST = 1000, 2**20  # layers; any other number, but for those that no size follows from
FREE = ("rope_theta", "max_position_embeddings")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ["*.json", "*.safetensors", "*.txt"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that is ready to run, and its vocabulary."""

    name: str
    model: QwenVL
    vocabulary: Vocabulary

    @property
    def config(self) -> Any:
        return self.model.config


def load_checkpoint(
    place: str | Path, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Checkpoint:
    """The checkpoint of a hub name or folder. bf16 for a large model on a GPU, else fp32, unless `dtype` says it."""
    folder = find_checkpoint(place)
    model = load_model(folder, device, dtype)
    return Checkpoint(str(place), model, load_vocabulary(folder, model.config))


def load_configured(place: str | Path, agent: AgentConfig) -> Checkpoint:
    """The same with the device and the precision of the settings. ConfigError for a device that is not there."""
    dtypes = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}
    return load_checkpoint(place, find_device(agent.device), dtypes[agent.dtype])


def find_device(name: str = "auto") -> torch.device:
    """The device of that name, which is one of this machine's; `auto`: the fastest of them."""
    here = ["cpu"]
    if torch.cuda.is_available():
        here += ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        here.append("mps")
    if name == "auto":
        name = next(fastest for fastest in ("cuda", "mps", "cpu") if fastest in here)
    if name not in here:
        raise ConfigError(f"agent.device={name}: not on this machine, which has {', '.join(here)}")
    return torch.device(name)


def load_model(place: str | Path, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> QwenVL:
    """The weights alone, every one of them checked."""
    device = find_device() if device is None else torch.device(device)
    model = empty_model(place, device, dtype)
    folder = find_checkpoint(place)
    needed = sum(weight.nbytes for weight in model.parameters())
    if device.type == "cpu" and needed > (free := free_memory()):
        raise ConfigError(f"model={folder}: takes {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free")
    model = model.to_empty(device=device)
    model.tie()
    fill_weights(folder, dict(model.named_parameters()))
    return model


def empty_model(place: str | Path, device: torch.device = CPU, dtype: torch.dtype | None = None) -> QwenVL:
    """The model of a folder without its weights, which are there and fit: to be filled by `fill_weights`."""
    folder = find_checkpoint(place)
    config, files = _read_config(folder), _weight_files(folder)
    try:
        with torch.device("meta"):  # no memory yet, and no random numbers that would be overwritten
            model = make_model(config)
    except Exception as error:  # of torch, for sizes that do not go together
        raise ConfigError(f"model={folder}: its config.json describes no model: {_first_line(error)}") from error
    _refuse_unfit(folder, model, files)
    return model.to(dtype or _automatic(files, device)).eval().requires_grad_(False)


def fill_model(model: QwenVL, place: str | Path) -> None:
    """Give a model the weights of a folder, every one of them checked and copied to where the model has it."""
    refuse_unfit(model, place)
    fill_weights(place, dict(model.named_parameters()))


def fill_weights(place: str | Path, weights: dict[str, torch.Tensor], rows: Mapping[str, slice] | None = None) -> None:
    """Copy what a folder has of these weights, by name, to where they are. `rows`: of some only so many are wanted."""
    _fill(find_checkpoint(place), weights, rows or {})


def refuse_unfit(model: QwenVL, place: str | Path) -> None:
    """ConfigError where a folder has not the weights of this model."""
    folder = find_checkpoint(place)
    _read_config(folder)
    _refuse_unfit(folder, model, _weight_files(folder))


def make_model(config: Any) -> QwenVL:
    """The model of a config, of whichever family it is, with weights that are not set."""
    return FAMILIES[config.model_type][1](config)


def save_model(
    model: QwenVL,
    folder: Path,
    weights: Iterable[tuple[str, torch.Tensor]] | None = None,
    rank: int = 0,
    ranks: int = 1,
) -> None:
    """Write config and weights as `load_model` takes them. `weights`: these in place of the model's own.

    `rank`, `ranks`: where so many processes write it together, each some of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(model.config)
    config.architectures = [model.architecture]
    for part in (config, config.text_config, config.vision_config):
        part.dtype = model.lm_head.weight.dtype
    if not rank:
        config.save_pretrained(folder)
    named: Iterable[tuple[str, torch.Tensor]] = model.named_parameters() if weights is None else weights  # no tied head
    if config.model_type == "qwen2_5_vl":
        old = {"model.visual.": "visual.", "model.language_model.": "model."}  # names that every reader of files knows
        named = ((re.sub("|".join(old), lambda prefix: old[prefix[0]], name), weight) for name, weight in named)
    size = sum(weight.nbytes for weight in model.parameters())
    places = write_tensors(folder, "model", named, FILES[size > LARGE], rank, ranks)
    if len(set(places.values())) > 1 and not rank:
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def load_vocabulary(place: str | Path, config: Any) -> Vocabulary:
    """The tokenizer's vocabulary, checked for the tokens that dialects need and against the model's config."""
    folder = find_checkpoint(place)
    backend = _read_tokenizer(folder)
    vocabulary = TokenizerVocabulary(backend)
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    if missing := [name for name in TOKENS if name not in added]:
        raise ConfigError(f"model={folder}: its tokenizer has no token {', '.join(missing)}")
    for name, setting in TOKENS.items():
        if setting is not None and vocabulary.special(name) != getattr(config, setting):
            raise ConfigError(
                f"model={folder}: {name} is {vocabulary.special(name)} in the tokenizer, "
                f"but {setting} is {getattr(config, setting)} in config.json"
            )
    size, rows = backend.get_vocab_size(), config.text_config.vocab_size
    if size > rows:
        raise ConfigError(f"model={folder}: its tokenizer has {size} tokens, the model only {rows}")
    return vocabulary


def find_checkpoint(place: str | Path) -> Path:
    """The folder of a checkpoint; a hub name is fetched first, or found in the hub's cache."""
    if place == BASE:
        return Path(__file__).parent.parent / "models" / BASE
    folder = Path(place)
    if folder.is_dir():
        refuse_links(folder, store=folder.resolve().parent.parent / "blobs")  # as the hub's cache has it
        return folder
    if folder.exists():
        raise ConfigError(f"model={place}: a file; a checkpoint is a folder or a hub name such as owner/name")
    if not isinstance(place, str) or not _HUB_NAME.fullmatch(place):
        raise ConfigError(f"model={place}: no such folder")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(place, allow_patterns=_FILES))
    except Exception as error:  # no network, no such repository, not allowed: many kinds, one meaning
        raise ConfigError(
            f"model={place}: no such folder, and the hub does not give it: {_first_line(error)}"
        ) from error


def find_dtype(place: str | Path, agent: AgentConfig) -> str:
    """The name of the precision that `load_configured` would give this checkpoint."""
    if agent.dtype != "auto":
        return agent.dtype
    automatic = _automatic(_weight_files(find_checkpoint(place)), find_device(agent.device))
    return str(automatic).removeprefix("torch.")


def _automatic(files: Iterable[Path], device: torch.device) -> torch.dtype:
    """A small model gains nothing from bf16, which also crashes on some virtual CPUs."""
    large = sum(file.stat().st_size for file in files) > LARGE
    return torch.bfloat16 if device.type == "cuda" and large else torch.float32


def own_prompt(place: str | Path) -> Path | None:
    """The prompt that a checkpoint was taught with, where it brings one."""
    own = find_checkpoint(place) / "prompt.txt"
    return own if own.is_file() else None


def _read_config(folder: Path) -> Any:
    raw = _read_json(folder / "config.json")
    family = str(raw.get("model_type"))
    if family not in FAMILIES:
        known = " and ".join(FAMILIES)
        raise ConfigError(f"model={folder}: a checkpoint of the family {family:.40}; only {known} can be used")
    if not raw.get("vision_config"):
        raise ConfigError(f"model={folder}: its config.json describes no vision tower (no vision_config)")
    _refuse_numbers(folder, raw)
    try:
        config: Any = FAMILIES[family][0].from_dict(raw)
    except Exception as error:
        raise ConfigError(f"model={folder}: its config.json cannot be used: {_first_line(error)}") from error
    text, vision = config.text_config, config.vision_config
    unusual = {
        "scaled rotary positions": text.rope_parameters["rope_type"] != "default",
        "another activation than silu": text.hidden_act != "silu",
    }
    if family == "qwen3_vl":
        unusual["biases in attention"] = text.attention_bias
        unusual["another activation than gelu_pytorch_tanh"] = vision.hidden_act != "gelu_pytorch_tanh"
    else:
        unusual["sliding-window attention"] = "sliding_attention" in text.layer_types
        unusual["another activation than silu"] |= vision.hidden_act != "silu"
    for what, used in unusual.items():
        if used:
            raise ConfigError(f"model={folder}: uses {what}, which is not supported")
    return config


def _weight_files(folder: Path) -> list[Path]:
    """Every file that the index names, or the one file of an unsharded checkpoint."""
    index, names = folder / "model.safetensors.index.json", {"model.safetensors"}
    if index.exists():
        listed = _read_json(index).get("weight_map")
        names = set(map(str, listed.values())) if isinstance(listed, dict) else set()
        if strange := sorted(name for name in names if not re.fullmatch(r"[\w.-]+\.safetensors", name)):
            raise ConfigError(
                f"model={folder}: {index.name} names {strange[0]!r:.80}, which is no file of weights in it"
            )
    if missing := sorted(name for name in names if not (folder / name).exists()):
        raise ConfigError(f"model={folder}: {len(missing)} of {len(names)} files of weights missing: {missing[0]}")
    return [folder / name for name in sorted(names)]


def _refuse_unfit(folder: Path, model: QwenVL, files: Iterable[Path]) -> None:
    """ConfigError where the files lack a weight of the model, or have one of another shape or kind."""
    missing = dict(model.named_parameters())  # without a tied head
    tower = {name for name in missing if ".visual." in name}
    for name, part in _weights(folder, files):
        if (weight := missing.pop(name, None)) is None:
            continue
        if (shape := tuple(part.get_shape())) != tuple(weight.shape):
            shapes = f"is {shape}, by config.json it should be {tuple(weight.shape)}"
            raise ConfigError(f"model={folder}: {name} {shapes}")
        if (kind := part.get_dtype()) not in ("F64", "F32", "F16", "BF16"):
            raise ConfigError(f"model={folder}: {name} holds {kind}, which are no weights that can be used")
    if tower <= missing.keys():
        raise ConfigError(f"model={folder}: has no weights of a vision tower")
    if missing:
        raise ConfigError(f"model={folder}: {len(missing)} weights missing, {min(missing)} the first of them")


@torch.no_grad()
def _fill(folder: Path, weights: dict[str, torch.Tensor], rows: Mapping[str, slice]) -> None:
    """Copy the weights to where they belong, one by one."""
    for name, part in _weights(folder, _weight_files(folder)):
        if (weight := weights.get(name)) is None or not weight.numel():
            continue
        if not torch.isfinite(weight.copy_(part[rows.get(name, ...)])).all():
            raise ConfigError(f"model={folder}: {name} holds values that are not finite (NaN or infinity)")


def _weights(folder: Path, files: Iterable[Path]) -> Iterator[tuple[str, Any]]:
    """What the files hold, not read yet, under the names that it has in the model."""
    try:
        for file in files:
            for key, part in read_tensors(file):
                name = re.sub(r"^model\.(?!language_model\.|visual\.)", "model.language_model.", key)
                yield re.sub(r"^visual\.", "model.visual.", name), part
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"model={folder}: cannot be loaded: {_first_line(error)}") from error


def _refuse_numbers(folder: Path, part: Any, name: str = "") -> None:
    """ConfigError for numbers of config.json from which a model of no use follows, or lists without end."""
    if isinstance(part, dict | list):
        for key, value in part.items() if isinstance(part, dict) else ((name, value) for value in part):
            _refuse_numbers(folder, value, key)
    elif isinstance(part, int | float):
        most = DEEPEST if name in ("num_hidden_layers", "depth", "num_labels") else LARGEST
        least = 1 if re.search("_size$|^num_|^depth$|^head_dim$", name) and name != "num_labels" else -LARGEST
        if not (math.isfinite(part) and name in FREE) and not least <= part <= most:
            raise ConfigError(f"model={folder}: config.json: {name:.80}={part!r:.20}: not of a model that can be used")


def _read_tokenizer(folder: Path) -> Tokenizer:
    """Made of tokenizer.json alone. ConfigError where it has other parts than Qwen's, or tokens like books."""
    raw = _read_json(folder / "tokenizer.json", TOKENIZER)
    raw |= {"post_processor": None, "truncation": None, "padding": None}

    def refuse(part: Any) -> None:
        if isinstance(part, dict):
            if part.get("type", "BPE") not in PARTS or part.get("pattern", {"Regex": SPLIT}) != {"Regex": SPLIT}:
                raise ValueError(f"a part {part.get('type')!r:.40} is not one of Qwen's")
            for inner in (one for name in ("pretokenizers", "normalizers", "decoders") for one in part.get(name, [])):
                refuse(inner)

    try:
        for name in ("normalizer", "pre_tokenizer", "decoder"):
            refuse(raw[name])
        refuse({"type": raw["model"]["type"]})
        texts = [*raw["model"]["vocab"], *(token["content"] for token in raw["added_tokens"])]
        if not all(0 < len(text) <= LONGEST_TOKEN for text in texts):
            raise ValueError(f"a token is empty or has more than {LONGEST_TOKEN} letters")
        made: Tokenizer = Tokenizer.from_str(json.dumps(raw))
        return made
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # also a panic of Rust, which is no Exception
        raise ConfigError(f"model={folder}: its tokenizer cannot be loaded: {_first_line(error)}") from error


def _read_json(path: Path, most: int = JSON) -> dict[str, Any]:
    try:
        data = json.loads(read_bytes(path, most))
    except FileNotFoundError:
        raise ConfigError(f"model={path.parent}: not a checkpoint: it has no {path.name}") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = f"{path.name} cannot be read: {_first_line(error)}"
        raise ConfigError(f"model={path.parent}: not a checkpoint: {reason}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"model={path.parent}: not a checkpoint: {path.name} is not a JSON object")
    return data


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
