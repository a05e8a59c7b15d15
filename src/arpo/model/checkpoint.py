"""Loading a Qwen2.5-VL checkpoint, and saying in one line what is wrong with one that cannot be used.

    checkpoint = load_checkpoint("ByteDance-Seed/UI-TARS-1.5-7B")    # or a folder, or base: our own

The files are those of transformers, which loads what is saved here and the other way round. But it fills weights that a
checkpoint lacks with random ones and only warns. An agent that samples from those looks like a bad agent, so here every
weight must be there, fit, and be a number.
"""

import copy
import json
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoTokenizer, Qwen2_5_VLConfig

from arpo.config import AgentConfig
from arpo.errors import ConfigError
from arpo.model.qwen import QwenVL
from arpo.vocabulary import TokenizerVocabulary, Vocabulary

BASE = "base"
SHARD = "15MB"  # the largest file of weights: small enough to be carried anywhere
LARGE = 200e6  # bytes of weights
FAMILY = "qwen2_5_vl"
ARCHITECTURE = "Qwen2_5_VLForConditionalGeneration"
TOKENS = {  # what the dialects need, and under which name the config must know the same id
    "<|im_start|>": None,
    "<|im_end|>": None,
    "<|box_start|>": None,
    "<|box_end|>": None,
    "<|image_pad|>": "image_token_id",
    "<|vision_start|>": "vision_start_token_id",
    "<|vision_end|>": "vision_end_token_id",
}
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
    folder = find_checkpoint(place)
    config, files = _read_config(folder), _weight_files(folder)
    device = find_device() if device is None else torch.device(device)
    if dtype is None:
        # A small model gains nothing from bf16, which also crashes on some virtual CPUs.
        large = sum(file.stat().st_size for file in files) > LARGE
        dtype = torch.bfloat16 if device.type == "cuda" and large else torch.float32
    with torch.device("meta"):  # no memory yet, and no random numbers that would be overwritten
        model = QwenVL(config)
    model = model.to(dtype).to_empty(device=device).eval().requires_grad_(False)
    model.tie()
    _fill(folder, model, files)
    return model


def save_model(model: QwenVL, folder: Path, weights: dict[str, torch.Tensor] | None = None) -> None:
    """Write config and weights as `load_model` takes them. `weights`: these in place of the model's own."""
    from huggingface_hub import save_torch_state_dict

    config = copy.deepcopy(model.config)
    config.architectures = [ARCHITECTURE]
    for part in (config, config.text_config, config.vision_config):
        part.dtype = model.lm_head.weight.dtype
    config.save_pretrained(folder)
    weights = dict(model.state_dict() if weights is None else weights)
    if config.tie_word_embeddings:
        del weights["lm_head.weight"]
    old = {"model.visual.": "visual.", "model.language_model.": "model."}  # names that every reader of files knows
    renamed = {re.sub("|".join(old), lambda prefix: old[prefix[0]], name): weight for name, weight in weights.items()}
    save_torch_state_dict(dict(sorted(renamed.items())), folder, max_shard_size=SHARD)
    # safetensors makes its files readable for their owner alone; who may read the others may read these.
    mode = stat.S_IMODE((folder / "config.json").stat().st_mode)
    for file in folder.glob("*.safetensors"):
        file.chmod(mode)


def load_vocabulary(place: str | Path, config: Any) -> Vocabulary:
    """The tokenizer's vocabulary, checked for the tokens that dialects need and against the model's config."""
    folder = find_checkpoint(place)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise ConfigError(f"model={folder}: its tokenizer cannot be loaded: {_first_line(error)}") from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ConfigError(f"model={folder}: its tokenizer is not a fast one (there is no tokenizer.json)")
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


def own_prompt(place: str | Path) -> Path | None:
    """The prompt that a checkpoint was taught with, where it brings one."""
    own = find_checkpoint(place) / "prompt.txt"
    return own if own.is_file() else None


def _read_config(folder: Path) -> Any:
    raw = _read_json(folder / "config.json")
    family = raw.get("model_type")
    if family != FAMILY:
        raise ConfigError(f"model={folder}: a checkpoint of the family {family}; only {FAMILY} can be used")
    if not raw.get("vision_config"):
        raise ConfigError(f"model={folder}: its config.json describes no vision tower (no vision_config)")
    try:
        config: Any = Qwen2_5_VLConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise ConfigError(f"model={folder}: its config.json cannot be used: {_first_line(error)}") from error
    text, vision = config.text_config, config.vision_config
    unusual = {
        "sliding-window attention": "sliding_attention" in text.layer_types,
        "scaled rotary positions": text.rope_parameters["rope_type"] != "default",
        "another activation than silu": {text.hidden_act, vision.hidden_act} != {"silu"},
    }
    for what, used in unusual.items():
        if used:
            raise ConfigError(f"model={folder}: uses {what}, which is not supported")
    return config


def _weight_files(folder: Path) -> list[Path]:
    """Every file that the index names, or the one file of an unsharded checkpoint."""
    index, names = folder / "model.safetensors.index.json", {"model.safetensors"}
    if index.exists():
        names = set(_read_json(index).get("weight_map", {}).values())
    if missing := sorted(name for name in names if not (folder / name).exists()):
        raise ConfigError(f"model={folder}: {len(missing)} of {len(names)} files of weights missing: {missing[0]}")
    return [folder / name for name in sorted(names)]


@torch.no_grad()
def _fill(folder: Path, model: QwenVL, files: Iterable[Path]) -> None:
    """Copy the weights into a model, one by one."""
    missing = dict(model.named_parameters())  # without a tied head
    tower = {name for name in missing if ".visual." in name}
    for name, value in _weights(folder, files):
        if (weight := missing.pop(name, None)) is None:
            continue
        if value.shape != weight.shape:
            shapes = f"is {tuple(value.shape)}, by config.json it should be {tuple(weight.shape)}"
            raise ConfigError(f"model={folder}: {name} {shapes}")
        if not torch.isfinite(weight.copy_(value)).all():
            raise ConfigError(f"model={folder}: {name} holds values that are not finite (NaN or infinity)")
    if tower <= missing.keys():
        raise ConfigError(f"model={folder}: has no weights of a vision tower")
    if missing:
        raise ConfigError(f"model={folder}: {len(missing)} weights missing, {min(missing)} the first of them")


def _weights(folder: Path, files: Iterable[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """What the files hold, under the names that it has in the model."""
    try:
        for file in files:
            with safe_open(file, "pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118
                    name = re.sub(r"^model\.(?!language_model\.|visual\.)", "model.language_model.", key)
                    yield re.sub(r"^visual\.", "model.visual.", name), tensors.get_tensor(key)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"model={folder}: cannot be loaded: {_first_line(error)}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"model={path.parent}: not a checkpoint: it has no {path.name}") from None
    except (OSError, ValueError) as error:
        reason = f"{path.name} cannot be read: {_first_line(error)}"
        raise ConfigError(f"model={path.parent}: not a checkpoint: {reason}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"model={path.parent}: not a checkpoint: {path.name} is not a JSON object")
    return data


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
