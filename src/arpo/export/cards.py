"""The cards of what is exported: README.md with a head that the Hugging Face hub and `datasets` read.

All that comes from a run is somebody's text. It stands in code spans and indented blocks, where Markdown and HTML are
letters, and never in the head, but for a base model that is a hub name. No path of this machine is told.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import yaml

from arpo import __version__
from arpo.config import Config
from arpo.errors import ConfigError, printable
from arpo.files import read_bytes
from arpo.runs.checkpoints import checkpoints_in, read_state
from arpo.tasks.load import JUDGED

if TYPE_CHECKING:
    from arpo.export.episodes import Exported

SUMMARY = 2**24  # bytes of summary.json, at most
SHOWN = {  # settings that say how something was made
    "env": ("name", "size", "starts"),
    "agent": ("dialect", "screenshots", "block"),
    "train": ("updates", "rollout_tasks", "optimizer_tasks", "temperature", "max_tokens", "lag", "lr", "lora_rank"),
    "eval": ("trials", "temperature", "top_p", "max_tokens"),
}


def of_episodes(folder: Path, config: Config, model: str | None, done: "Exported", solved: bool) -> str:
    """The card of a dataset."""
    tables = [
        {"config_name": "conversations", "data_files": "data/*.parquet", "default": True},
        {"config_name": "trajectories", "data_files": "trajectories/*.parquet"},
    ]
    head = {"configs": tables, "task_categories": ["image-text-to-text"], "tags": ["arpo", "computer-use"]}
    which = "The episodes that solved their task" if solved else "All episodes that were played so far"
    return f"""{_head(head)}
# Episodes of {code(folder.resolve().name)}

{which}: {done.episodes:,}, of which {done.solved:,} have a score of {config.algorithm.solved:g} or more and
{done.without_score:,} have no score, since a machine failed. Written by arpo {__version__}.

- The agent: {code(model or "not known")}; its dialect: {code(config.agent.dialect)}
- The computer: {code(config.env.name)}, {config.env.size[0]}x{config.env.size[1]} pixels

## Load it

    from datasets import load_dataset

    conversations = load_dataset("DIR", split="train")
    episodes = load_dataset("DIR", "trajectories", split="train")

**conversations** ({done.conversations:,} rows): `messages` and `images` as TRL's `SFTTrainer` takes them for
vision-language models, one image for each part of the type `image`; then what is known of the episode. Episodes without
a score are left out. With `assistant_only_loss=True` only what the agent said is learned. An episode is one row. Where
the agent saw its last screenshots only, there is a row for each run of steps that saw the same ones; replies before
`first_step` are then shown again, and belong to the row before.

**trajectories** ({done.episodes:,} rows): one row an episode: `outcome` (why it ended), `score` (the checker's),
`reward` (what is trained on), `source` (who played it, for what), `update` (of the run), and every step: the hash of
its screenshot, the reply, the action as JSON, the sum of its tokens' log-probabilities, seconds.

Texts are as they were shown and said. An instruction may hold the letters of a special token such as `<|im_end|>`: the
agent saw letters, but a tokenizer that is given these messages makes the token of them.

## How it was made

{_block(_settings(config))}"""


def of_model(place: Path, config: Config, share: float = 1.0) -> str:
    """The card of a model. `share`: how far its weights lie on the way from what training began with."""
    base = config.train.model
    hub = re.fullmatch(r"[\w.-]+/[\w.-]+", base) is not None and not Path(base).exists()
    head: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "image-text-to-text"}
    head |= {"tags": ["arpo", "computer-use", "reinforcement-learning"]} | ({"base_model": base} if hub else {})
    head |= {"license": "apache-2.0"} if base == "base" else {}
    known = base if hub or base == "base" else Path(base).name
    licence = "" if base == "base" else "\nIts licence is that of the model that it began with.\n"
    mixed = f"\n- Its weights lie {share:.0%} of the way from what it began as to what was trained" if share < 1 else ""
    success = "This mix was not judged. To judge it: `arpo eval DIR`.\n" if mixed else _success(place)
    return f"""{_head(head)}
# {code(place.parent.parent.resolve().name)}, {place.name}

An agent that uses a computer by screenshots, trained by reinforcement learning with arpo {__version__}
([ARPO](https://arxiv.org/abs/2505.16282)).

- It began as: {code(known)}{", the agent that comes with arpo" if base == "base" else ""}
- Method: {code(config.algorithm.name)}; updates made: {int(place.name.removeprefix("update-"))}{mixed}
- The computer that it was trained on: {code(config.env.name)}, {config.env.size[0]}x{config.env.size[1]} pixels
{licence}
## How good it is

{success}
## Load it

    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained("DIR")
    processor = AutoProcessor.from_pretrained("DIR")    # needs torchvision

`vllm serve DIR` serves it, and `arpo eval DIR` plays with it. A conversation is a system message
("You are a helpful assistant."), the prompt as a user message, then in turn a screenshot alone as a user message and
the agent's reply. Where `chat_template.jinja` is here, it writes exactly that; else the dialect
{code(config.agent.dialect)} of arpo does. The prompt is `prompt.txt`, or the dialect's own where that is not here.

## How it was made

{_block(_settings(config))}"""


def code(text: str) -> str:
    """Somebody's text in a line of Markdown."""
    return f"`{printable(text[:200]).replace('`', chr(39)) or ' '}`"


def _head(values: dict[str, Any]) -> str:
    return f"---\n{yaml.safe_dump(values, sort_keys=False)}---\n"


def _block(values: dict[str, Any]) -> str:
    """As YAML in an indented block, in which nothing is Markdown."""
    return "".join(f"    {line}\n" for line in yaml.safe_dump(values, sort_keys=False).splitlines())


def _settings(config: Config) -> dict[str, Any]:
    """Those that tell how it was made; none names a file of this machine."""
    every = config.model_dump(mode="json")
    shown: dict[str, Any] = {"seed": every["seed"], "tasks": Path(config.tasks.source).name}
    if config.run_dir is not None:  # a training
        shown["algorithm"] = every["algorithm"]
    for section, names in SHOWN.items():
        if section != "train" or config.run_dir is not None:
            shown[section] = {name: every[section][name] for name in names}
    return shown


def _success(place: Path) -> str:
    """What is known of a checkpoint: of the last one of a finished run how it was judged, else how training went."""
    judged = _judged(place.parent.parent / "summary.json") if place == checkpoints_in(place.parent)[-1] else []
    if judged:
        rows = "".join(f"| {' | '.join(row)} |\n" for row in judged)
        return (
            f"Share of tasks done, with 95 % intervals over tasks. By `arpo train`, at the end of the run:\n\n"
            f"| tasks | before | after |\n|---|---|---|\n{rows}"
        )
    recent = [float(one) for one in read_state(place)["recent"]]
    return (
        f"It was not judged. In the last {len(recent)} updates before it, {fmean(recent):.1%} of the training episodes "
        "were successes. To judge it: `arpo eval DIR`.\n"
    )


def _judged(file: Path) -> list[Sequence[str]]:
    """(split, before, after) of what summary.json tells; nothing where the run has not ended."""
    if not file.exists():
        return []
    try:
        summary = json.loads(read_bytes(file, SUMMARY))
        splits = [split for split in JUDGED if f"final_{split}" in summary]
        return [(split, *(_rate(summary, f"{when}_{split}") for when in ("base", "final"))) for split in splits]
    except (ValueError, TypeError, LookupError, RecursionError):
        raise ConfigError(f"{file}: cannot be read; put a whole one back, or remove it") from None


def _rate(summary: dict[str, Any], name: str) -> str:
    rate, (low, high) = float(summary[name]), summary[f"{name}_ci95"]
    episodes, unscored = summary[f"{name}_counts"]
    return f"{rate:.1%} ({float(low):.0%} to {float(high):.0%}; {int(episodes)} episodes, {int(unscored)} unscored)"
