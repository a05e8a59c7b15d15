"""A checkpoint as a model's folder that transformers, vLLM and others load.

Its weights are in their form already, those of LoRA merged: they are copied, or mixed with those that training began
with. Added is what arpo has in its code: how images are prepared, and how a chat looks.

Left out is what only resumes a training (optimizer.*, state.json). No file that names code is written: the checkpoint
may come from somebody else.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from arpo.agent.actions import Finish
from arpo.agent.dialects.base import Dialect, flatten, make_dialect
from arpo.config import Config
from arpo.errors import ConfigError
from arpo.export.messages import END, messages_of
from arpo.files import read_bytes
from arpo.model.checkpoint import (
    empty_model,
    fill_weights,
    find_checkpoint,
    load_vocabulary,
    refuse_unfit,
    save_model,
)
from arpo.model.processor import processor_files
from arpo.model.qwen import QwenVL
from arpo.types import Observation
from arpo.vocabulary import Vocabulary

JSON = 2**22  # bytes of a file of settings
CODE = ("auto_map", "custom_pipelines")  # settings that name code to run
TEMPLATE_FILE = "chat_template.jinja"
# What the dialects of Qwen render; `renders` holds it to that. Between the marks of `generation` is what an agent says:
# trainers can learn that alone.
TEMPLATE = r"""
{%- for message in messages -%}
{%- if loop.first and message.role != 'system' -%}
{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' -}}
{%- endif -%}
{{- '<|im_start|>' + message.role + '\n' -}}
{%- if message.role == 'assistant' -%}
{%- generation -%}
{%- if message.content is string -%}
{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{{- part.text -}}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>' -}}
{%- endgeneration -%}
{%- elif message.content is string -%}
{{- message.content + '<|im_end|>' -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'text' -%}
{{- part.text -}}
{%- else -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- endif -%}
{%- endfor -%}
{{- '<|im_end|>' -}}
{%- endif -%}
{{- '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- endif -%}
"""


@dataclass(frozen=True, slots=True)
class Mix:
    """Weights on the straight way from one model to another."""

    begun: str  # the model that training began with
    share: float  # of the way to the trained one


def write_model(place: Path, config: Config, folder: Path, mix: Mix | None = None) -> None:
    """All but the card. ConfigError where the checkpoint is not whole, or `mix` names a model of another shape."""
    dtype = None if config.agent.dtype == "auto" else getattr(torch, config.agent.dtype)
    model = empty_model(place, dtype=dtype)
    vocabulary = load_vocabulary(place, model.config)
    if mix is not None:
        refuse_unfit(model, mix.begun)
        save_model(model, folder, mixed(model, place, mix))
    else:
        for file in sorted(place.glob("*.safetensors*")):
            if not file.name.startswith("optimizer"):
                shutil.copy(file, folder / file.name)
    shutil.copy(place / "tokenizer.json", folder)
    ends = {"eos_token_id": vocabulary.special(END), "pad_token_id": vocabulary.special(END)}
    _write_json(folder / "config.json", _settings(place / "config.json"))
    _write_json(folder / "generation_config.json", _settings(place / "generation_config.json") or ends)
    tokenizer = _settings(place / "tokenizer_config.json") or {"tokenizer_class": "PreTrainedTokenizerFast"}
    _write_json(folder / "tokenizer_config.json", {"eos_token": END, "pad_token": END} | tokenizer)
    for name, text in processor_files(model).items():
        (folder / name).write_text(text, encoding="utf-8")
    own = place / "prompt.txt"
    agent = config.agent.model_copy(update={"prompt_file": own if own.is_file() else None})
    dialect = make_dialect(agent, vocabulary)
    if own.is_file():
        shutil.copy(own, folder)
    if renders(dialect, vocabulary):
        (folder / TEMPLATE_FILE).write_text(TEMPLATE, encoding="utf-8")


def mixed(model: QwenVL, place: Path, mix: Mix) -> Iterator[tuple[str, torch.Tensor]]:
    """Each weight of the model by name, one by one: two of a 7B would not fit into many a memory."""
    places = (find_checkpoint(mix.begun), place)
    for name, weight in model.named_parameters():
        before, after = torch.empty(weight.shape), torch.empty(weight.shape)
        for where, part in zip(places, (before, after), strict=True):
            fill_weights(where, {name: part})
        yield name, before.lerp_(after, mix.share).to(weight.dtype)


def renders(dialect: Dialect, vocabulary: Vocabulary) -> bool:
    """Whether TEMPLATE writes a conversation as the dialect does, to the letter: two screenshots and a reply."""
    from transformers.utils.chat_template_utils import render_jinja_template

    conversation = dialect.start("Do it:\n“twice”, {{ now }}.")
    screen = Observation(b"", 56, 56, "0" * 32)
    conversation.observe(screen)
    reply = dialect.format("I am done.", Finish(), (56, 56))
    conversation.reply(reply)
    seen = conversation.observe(screen)
    written = vocabulary.decode(flatten(conversation.segments, [reply], seen, dialect.image_pad).ids)
    said = [vocabulary.decode(reply).removesuffix(END)]
    *messages, mine = messages_of([conversation.segments[index] for index in seen], said, vocabulary)
    if mine != {"role": "assistant", "content": []}:
        return False
    rendered: Any = render_jinja_template([messages], chat_template=TEMPLATE, add_generation_prompt=True)
    return bool(rendered[0] == [written])  # beside it: where replies are


def _settings(file: Path) -> dict[str, Any]:
    """What a file of settings holds, but for code that it names and a template that is not ours; {}: there is none."""
    if not file.exists():
        return {}
    try:
        found = json.loads(read_bytes(file, JSON))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: cannot be read; put a whole one back")
    return {key: value for key, value in found.items() if key not in (*CODE, "chat_template")}


def _write_json(file: Path, settings: dict[str, Any]) -> None:
    file.write_text(json.dumps(settings, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
