"""Loading a Qwen2.5-VL checkpoint, and saying in one line what is wrong with one that cannot be used.

    checkpoint = load_checkpoint("ByteDance-Seed/UI-TARS-1.5-7B")    # or a folder, or base: our own

transformers fills weights that a checkpoint lacks with random ones and only warns. An agent that samples from those
looks like a bad agent, so here every weight must be there, fit, and be a number.
"""

import contextlib
import json
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.utils import logging as untyped_logging

from arpo.agent.vocabulary import TokenizerVocabulary, Vocabulary
from arpo.config import AgentConfig
from arpo.engines.qwen import Model
from arpo.errors import ConfigError

BASE = "base"
SHARD = "15MB"  # the largest file of weights: small enough to be carried anywhere
LARGE = 200e6  # bytes of weights
FAMILY = "qwen2_5_vl"
TOKENS = {  # what the dialects need, and under which name the config must know the same id
    "<|im_start|>": None,
    "<|im_end|>": None,
    "<|box_start|>": None,
    "<|box_end|>": None,
    "<|image_pad|>": "image_token_id",
    "<|vision_start|>": "vision_start_token_id",
    "<|vision_end|>": "vision_end_token_id",
}
_logging: Any = untyped_logging
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ["*.json", "*.safetensors", "*.txt"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that is ready to run, and its vocabulary."""

    name: str
    model: Model
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


def find_device(name: str) -> torch.device:
    """The device of that name, which is one of this machine's; `auto`: the fastest of them."""
    if name == "auto":
        return default_device()
    here = ["cpu"]
    if torch.cuda.is_available():
        here += ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        here.append("mps")
    if name not in here:
        raise ConfigError(f"agent.device={name}: not on this machine, which has {', '.join(here)}")
    return torch.device(name)


def default_device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def load_model(place: str | Path, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Model:
    """The weights alone, every one of them checked."""
    folder = find_checkpoint(place)
    _check_config(folder)
    _check_files(folder)
    device = default_device() if device is None else torch.device(device)
    if dtype is None:
        # A small model gains nothing from bf16, which also crashes on some virtual CPUs.
        large = sum(file.stat().st_size for file in folder.glob("*.safetensors")) > LARGE
        dtype = torch.bfloat16 if device.type == "cuda" and large else torch.float32
    try:
        with _quiet():  # what it would warn of is an error here
            loaded: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(
                folder, dtype=dtype, local_files_only=True, output_loading_info=True, ignore_mismatched_sizes=True
            )
    except Exception as error:  # safetensors, json and transformers each raise their own kinds, down to bare Exception
        raise ConfigError(f"model={folder}: cannot be loaded: {_first_line(error)}") from error
    model, info = loaded
    _check_weights(folder, model, info)
    return model.to(device).eval().requires_grad_(False)


def save_model(model: Model, folder: Path, weights: dict[str, torch.Tensor] | None = None) -> None:
    """Write config and weights as `load_model` takes them. `weights`: these in place of the model's own."""
    with _quiet():
        model.save_pretrained(folder, max_shard_size=SHARD, state_dict=weights)
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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no warnings of transformers'."""
    bars, level = _logging.is_progress_bar_enabled(), _logging.get_verbosity()
    _logging.disable_progress_bar()
    _logging.set_verbosity_error()
    try:
        yield
    finally:
        _logging.set_verbosity(level)
        if bars:
            _logging.enable_progress_bar()


def _check_config(folder: Path) -> None:
    config = _read_json(folder / "config.json", f"model={folder}: not a checkpoint")
    family = config.get("model_type")
    if family != FAMILY:
        raise ConfigError(f"model={folder}: a checkpoint of the family {family}; only {FAMILY} can be used")
    if not config.get("vision_config"):
        raise ConfigError(f"model={folder}: its config.json describes no vision tower (no vision_config)")
    try:
        text = Qwen2_5_VLConfig.from_pretrained(folder, local_files_only=True).get_text_config()
    except Exception as error:
        raise ConfigError(f"model={folder}: its config.json cannot be used: {_first_line(error)}") from error
    if "sliding_attention" in text.layer_types:
        raise ConfigError(f"model={folder}: uses sliding-window attention, which is not supported")


def _check_files(folder: Path) -> None:
    """Every file that the index names, or the one file of an unsharded checkpoint."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = set(_read_json(index, f"model={folder}: not a checkpoint").get("weight_map", {}).values())
    else:
        names = {"model.safetensors"}
    if missing := sorted(name for name in names if not (folder / name).exists()):
        raise ConfigError(f"model={folder}: {len(missing)} of {len(names)} files of weights missing: {missing[0]}")


def _check_weights(folder: Path, model: Model, info: dict[str, Any]) -> None:
    # Weights that the checkpoint shares with others (a tied head) are not missing.
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    missing = sorted(set(info["missing_keys"]) - tied)
    if {name for name, _ in model.named_parameters() if ".visual." in name} <= set(missing):
        raise ConfigError(f"model={folder}: has no weights of a vision tower")
    if missing:
        raise ConfigError(f"model={folder}: {len(missing)} weights missing, {missing[0]} the first of them")
    if info["mismatched_keys"]:
        name, found, wanted = sorted(info["mismatched_keys"])[0]
        raise ConfigError(f"model={folder}: {name} is {tuple(found)}, by config.json it should be {tuple(wanted)}")
    for name, weight in model.named_parameters():
        if not torch.isfinite(weight).all():
            raise ConfigError(f"model={folder}: {name} holds values that are not finite (NaN or infinity)")


def _read_json(path: Path, what: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{what}: it has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what}: {path.name} cannot be read: {_first_line(error)}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{what}: {path.name} is not a JSON object")
    return data


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
