"""`arpo export RUN DIR --checkpoint` and what others make of it: transformers, TRL. vLLM: tests/engines."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from datasets import disable_progress_bars, load_dataset  # type: ignore[import-untyped]
from guesser import make_guesser, settings, train_in
from transformers import (
    AutoModelForImageTextToText,
    AutoTokenizer,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessorPil,
    Qwen3VLProcessor,
)
from transformers.utils.logging import disable_progress_bar

import plain
from arpo.agent.dialects.base import flatten
from arpo.agent.dialects.qwen3 import Qwen3
from arpo.agent.dialects.uitars import UITars
from arpo.config import to_yaml
from arpo.engines.base import Prompt
from arpo.errors import ConfigError
from arpo.export import command
from arpo.export.messages import conversations
from arpo.export.model import renders
from arpo.images import decode
from arpo.model.checkpoint import Checkpoint, load_checkpoint
from arpo.model.images import resized
from arpo.model.layout import lay_out
from arpo.runs.checkpoints import best_in, checkpoints_in
from arpo.runs.store import Run

disable_progress_bars()
disable_progress_bar()


@pytest.fixture(scope="module", params=["the weights", "LoRA"])
def run(request: pytest.FixtureRequest, family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training of two updates."""
    folder = tmp_path_factory.mktemp("runs")
    model = make_guesser(folder / "guesser", family=family)
    trained = folder / "trained"
    config = settings({"group": 4}, updates=2, lora_rank=4 if request.param == "LoRA" else 0)
    train_in(trained, model, config.with_values({"run_dir": trained, "train.model": str(model)}))
    return trained


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    command.export_checkpoint(run, run.parent / "agent")
    return run.parent / "agent"


class Processors:
    """Processors without the half for videos, which would need torchvision."""

    class Of2(Qwen2_5_VLProcessor):
        def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str) -> None:
            super().__init__(image_processor, tokenizer, None, chat_template=chat_template)

    class Of3(Qwen3VLProcessor):
        def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str) -> None:
            super().__init__(image_processor, tokenizer, None, chat_template=chat_template)


def processor_of(folder: Path, family: str) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kind = Processors.Of2 if family == "qwen2_5_vl" else Processors.Of3
    return kind(Qwen2VLImageProcessorPil.from_pretrained(folder), tokenizer, tokenizer.chat_template)


def ours(checkpoint: Checkpoint, prompt: Prompt) -> torch.Tensor:
    sight = checkpoint.model.sight
    sizes = [sight.grid(image.width, image.height) for image in prompt.images]
    layout = lay_out(prompt.ids, sizes, checkpoint.config.image_token_id)
    images = {one.hash: torch.from_numpy(resized(decode(one.image), sight).copy()) for one in prompt.images}
    with torch.no_grad():
        return checkpoint.model(layout.ids, layout.positions, images=images, shown=[one.hash for one in prompt.images])


def test_transformers_computes_what_the_agent_computes(run: Path, exported: Path) -> None:
    checkpoint = load_checkpoint(best_in(run / "checkpoints"), "cpu")
    prompt = plain.add_screen(checkpoint, Prompt(checkpoint.vocabulary.encode("some"), ()), "words", plain.screen(1))
    model = AutoModelForImageTextToText.from_pretrained(exported)
    assert type(model).__name__ == checkpoint.model.architecture
    with torch.no_grad():
        theirs = model(**plain.reference_inputs(checkpoint, prompt)).logits[0]
    mine = ours(checkpoint, prompt)
    finite = mine.isfinite()
    assert torch.allclose(mine[finite], theirs[finite], atol=1e-4)
    # Of a LoRA these are the merged weights: others than it began with, if it had something to learn.
    before = ours(load_checkpoint(run.parent / "guesser", "cpu"), prompt)
    with Run.read(run) as stored:
        learned = any(metrics["learned_tokens"] for metrics in stored.metrics())
    assert torch.equal(mine[finite], before[finite]) is not learned


def test_a_mix_lies_between_what_training_began_with_and_what_it_made(run: Path, tmp_path: Path) -> None:
    begun = run.parent / "guesser"
    model_of(run, "guesser with weights 0")
    trained = best_in(run / "checkpoints")
    command.export_checkpoint(run, tmp_path / "mix", 0.25, str(begun))
    before, after, mix = (
        dict(load_checkpoint(one, "cpu").model.named_parameters()) for one in (begun, trained, tmp_path / "mix")
    )
    assert before.keys() == mix.keys()
    for name, weight in mix.items():
        assert torch.allclose(weight, 0.75 * before[name] + 0.25 * after[name], atol=1e-6), name
    assert any(not torch.equal(weight, before[name]) for name, weight in mix.items())
    card = (tmp_path / "mix" / "README.md").read_text()
    assert "Its weights lie 25% of the way from" in card and "This mix was not judged." in card
    names = {path.name for path in (tmp_path / "mix").iterdir()}
    command.export_checkpoint(run, tmp_path / "whole", 1.0, str(begun))
    assert names == {path.name for path in (tmp_path / "whole").iterdir()}
    AutoModelForImageTextToText.from_pretrained(tmp_path / "mix")


def test_a_mix_with_another_model_than_training_began_with_is_refused(run: Path, tmp_path: Path) -> None:
    model_of(run, "guesser with weights 0")
    with pytest.raises(ConfigError, match=r"--model base: .* began with guesser with weights 0; name that one"):
        command.export_checkpoint(run, tmp_path / "mix", 0.5)
    model_of(run, "base with weights 0")  # it lies
    with pytest.raises(ConfigError, match="model="):
        command.export_checkpoint(run, tmp_path / "mix", 0.5)
    for share in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="must be more than 0 and at most 1"):
            command.export_checkpoint(run, tmp_path / "mix", share, str(run.parent / "guesser"))
    assert not list(tmp_path.glob("mix*"))


def model_of(run: Path, identity: str) -> None:
    """As `arpo train` notes it."""
    with Run.write(run, (run / "config.yaml").read_text()) as stored:
        stored.note("model", identity)


def test_the_folder_holds_what_loads_it_and_nothing_that_only_resumes(exported: Path) -> None:
    names = {path.name for path in exported.iterdir()}
    assert names == {
        *"README.md chat_template.jinja config.json generation_config.json model.safetensors prompt.txt".split(),
        *"preprocessor_config.json video_preprocessor_config.json tokenizer.json tokenizer_config.json".split(),
    }
    assert load_checkpoint(exported, "cpu").vocabulary.special("<|im_end|>")  # arpo eval takes it too
    told = json.loads((exported / "generation_config.json").read_text())
    assert told["eos_token_id"] == load_checkpoint(exported, "cpu").vocabulary.special("<|im_end|>")


def test_the_chat_template_writes_what_the_agent_was_shown(run: Path, exported: Path) -> None:
    vocabulary = load_checkpoint(exported, "cpu").vocabulary
    tokenizer = AutoTokenizer.from_pretrained(exported)
    pad = vocabulary.special("<|image_pad|>")
    with Run.read(run) as stored:
        episodes = [one for one in stored.trajectories() if one.steps]
    assert episodes
    for one in episodes:
        (part,) = conversations(one, vocabulary)
        replies = [step.completion.tokens for step in one.steps]
        context = (*one.steps[-1].context, one.steps[-1].context[-1] + 1)
        seen = vocabulary.decode(flatten(one.segments, replies, context, pad).ids)
        written = str(tokenizer.apply_chat_template(part.messages, tokenize=False))
        assert written.removesuffix("\n").removesuffix("<|im_end|>") == seen.removesuffix("<|im_end|>")


def test_a_dialect_that_speaks_otherwise_gets_no_template(exported: Path) -> None:
    vocabulary = load_checkpoint(exported, "cpu").vocabulary

    class Other(UITars):
        def start(self, instruction: str) -> Any:
            conversation = super().start(f"{instruction}\n")
            conversation._chat.before_reply = (*conversation._chat.before_reply, *vocabulary.encode("So: "))
            return conversation

    assert renders(UITars(vocabulary), vocabulary)
    assert not renders(Other(vocabulary), vocabulary)


def test_a_dialect_of_qwen3_is_what_the_template_writes() -> None:
    from arpo.engines.scripted import byte_vocabulary

    vocabulary = byte_vocabulary()
    assert renders(Qwen3(vocabulary), vocabulary)


def test_trl_learns_what_was_exported(run: Path, exported: Path, family: str, tmp_path: Path) -> None:
    """Its own collator and one step of its own trainer; of images all but the half that needs torchvision."""
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling, SFTTrainer

    command.export_episodes(run, tmp_path / "episodes")
    rows = load_dataset(str(tmp_path / "episodes"), split="train", cache_dir=str(tmp_path / "cache"))
    processor = processor_of(exported, family)
    batch = DataCollatorForVisionLanguageModeling(processor, assistant_only_loss=True)([rows[0], rows[1]])
    for number, labels in enumerate(batch["labels"]):
        said = [
            part["text"] for one in rows[number]["messages"] if one["role"] == "assistant" for part in one["content"]
        ]
        assert processor.tokenizer.decode(labels[labels != -100]) == "".join(f"{text}<|im_end|>" for text in said)
    model = AutoModelForImageTextToText.from_pretrained(exported)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    arguments = SFTConfig(
        output_dir=str(tmp_path / "sft"),
        max_steps=1,
        per_device_train_batch_size=2,
        learning_rate=1e-3,
        assistant_only_loss=True,
        max_length=None,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
    )
    logging.getLogger("transformers").setLevel(logging.ERROR)
    trainer = SFTTrainer(model, args=arguments, train_dataset=rows, processing_class=processor)
    trained = trainer.train()
    assert trained.global_step == 1 and trained.training_loss > 0
    assert any(not torch.equal(before[name], weight) for name, weight in model.named_parameters())


def test_the_card_tells_the_method_and_how_it_was_judged(run: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(run, copied)
    newest = checkpoints_in(copied / "checkpoints")[-1]
    command.export_checkpoint(newest, tmp_path / "one")
    card = (tmp_path / "one" / "README.md").read_text()
    assert "It was not judged. In the last 2 updates before it" in card and "Method: `grpo`; updates made: 2" in card
    assert str(tmp_path) not in card and str(run.parent) not in card and "`guesser`" in card
    numbers = {"base_train": 0.25, "base_train_ci95": [0.1, 0.5], "base_train_counts": [8, 0]}
    numbers |= {"final_train": 0.5, "final_train_ci95": [0.25, 0.75], "final_train_counts": [8, 1]}
    (copied / "summary.json").write_text(json.dumps(numbers))
    command.export_checkpoint(newest, tmp_path / "two")
    card = (tmp_path / "two" / "README.md").read_text()
    row = "| train | 25.0% (10% to 50%; 8 episodes, 0 unscored) | 50.0% (25% to 75%; 8 episodes, 1 unscored) |"
    assert row in card
    assert yaml.safe_load(card.split("---\n")[1])["library_name"] == "transformers"
    (copied / "summary.json").write_text('{"final_train": "<b>"}')
    with pytest.raises(ConfigError, match=r"summary\.json: cannot be read"):
        command.export_checkpoint(newest, tmp_path / "three")
    assert not list(tmp_path.glob("three*"))


@pytest.mark.attack("checkpoint")
def test_nothing_that_names_code_is_handed_on(run: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(run, copied)
    place = checkpoints_in(copied / "checkpoints")[-1]
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        told = json.loads((place / name).read_text()) if (place / name).exists() else {}
        (place / name).write_text(json.dumps(told | {"auto_map": {"AutoModel": "evil.Model"}, "chat_template": "evil"}))
    (place / "evil.py").write_text("raise SystemExit")
    (place / "modeling_evil.py").touch()
    command.export_checkpoint(place, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.py"))
    for file in (tmp_path / "out").glob("*.json"):
        assert "evil" not in file.read_text(), file


@pytest.mark.parametrize(
    ("file", "line"),
    [("model.safetensors", "cannot be loaded"), ("tokenizer.json", "cannot be read"), ("config.json", "config.json")],
)
def test_a_damaged_checkpoint_is_one_line_and_leaves_nothing_behind(
    file: str, line: str, run: Path, tmp_path: Path
) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(run, copied)
    place = checkpoints_in(copied / "checkpoints")[-1]
    (place / file).write_bytes(b"{")
    with pytest.raises(ConfigError, match=line):
        command.export_checkpoint(place, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_of_a_hub_model_the_card_names_its_base_and_of_an_evil_name_it_does_not(run: Path, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(run, copied)
    place = checkpoints_in(copied / "checkpoints")[-1]
    for model, told in (("owner/name", "owner/name"), ("x\nlicense: <script>", None)):
        config = settings(updates=2).with_values({"run_dir": copied, "train.model": model})
        (copied / "config.yaml").write_text(to_yaml(config))
        out = tmp_path / f"out-{told is None}"
        command.export_checkpoint(place, out)
        head = yaml.safe_load((out / "README.md").read_text().split("---\n")[1])
        assert head.get("base_model") == told and "license" not in head
        text = (out / "README.md").read_text()
        assert all("<script>" not in "".join(line.split("`")[::2]) for line in text.splitlines())
