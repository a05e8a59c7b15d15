"""Every way in which a checkpoint can be unusable ends in one line that names it."""

import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from arpo.config import AgentConfig
from arpo.engines.local.screens import BATCH
from arpo.errors import ConfigError
from arpo.model.checkpoint import (
    find_device,
    load_checkpoint,
    load_configured,
    load_model,
    save_model,
)
from arpo.teaching.tiny import make_tokenizer, save_tokenizer
from tiny_model import make_decided


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "copy"))


def edit_config(folder: Path, change: Callable[[dict], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def shard(folder: Path) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    weights = sorted(load_file(folder / "model.safetensors").items())
    half = len(weights) // 2
    for name, part in zip(names, (weights[:half], weights[half:]), strict=True):
        save_file(dict(part), folder / name, metadata={"format": "pt"})
    index = {key: names[i >= half] for i, (key, _) in enumerate(weights)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "model.safetensors").unlink()


def lose_shard(folder: Path) -> None:
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def without_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


def tokenizer_without(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / "tokenizer.json").read_text()
        for name in names:
            text = text.replace(name, name.replace("<|", "<|no_"))
        (folder / "tokenizer.json").write_text(text)

    return change


def nans(weights: dict[str, torch.Tensor]) -> None:
    name = next(name for name in weights if name.endswith("layers.1.mlp.up_proj.weight"))
    weights[name][0, 0] = float("nan")


def without_tower(weights: dict[str, torch.Tensor]) -> None:
    for name in [name for name in weights if "visual" in name]:
        del weights[name]


def without_one(weights: dict[str, torch.Tensor]) -> None:
    del weights[next(name for name in weights if name.endswith("layers.1.mlp.up_proj.weight"))]


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "not a checkpoint: it has no config.json"),
    "config not JSON": (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
    "another family": (
        lambda f: edit_config(f, lambda c: c.update(model_type="llama")),
        "of the family llama; only qwen2_5_vl and qwen3_vl can be used",
    ),
    "a mixture of experts": (
        lambda f: edit_config(f, lambda c: c.update(model_type="qwen3_vl_moe")),
        "of the family qwen3_vl_moe; only",
    ),
    "a family that is no name": (lambda f: edit_config(f, lambda c: c.update(model_type=[1])), "of the family [1]"),
    "no vision in the config": (lambda f: edit_config(f, lambda c: c.pop("vision_config")), "no vision tower"),
    "no vision in the weights": (lambda f: edit_weights(f, without_tower), "no weights of a vision tower"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "1 of 1 files of weights missing"),
    "a missing shard": (lose_shard, "1 of 2 files of weights missing: model-00002-of-00002.safetensors"),
    "a cut file": (lambda f: (f / "model.safetensors").write_bytes(b"\0" * 100), "cannot be loaded"),
    "a missing weight": (lambda f: edit_weights(f, without_one), "1 weights missing"),
    "other sizes": (
        lambda f: edit_config(f, lambda c: c["text_config"].update(intermediate_size=128)),
        "by config.json it should be",
    ),
    "NaNs": (lambda f: edit_weights(f, nans), "layers.1.mlp.up_proj.weight holds values that are not finite"),
    "no tokenizer": (without_tokenizer, "tokenizer"),
    "no vision tokens": (tokenizer_without("<|vision_start|>"), "its tokenizer has no token <|vision_start|>"),
    "no box tokens": (
        tokenizer_without("<|box_start|>", "<|box_end|>"),
        "its tokenizer has no token <|box_start|>, <|box_end|>",
    ),
    "another tokenizer": (
        lambda f: save_tokenizer(make_tokenizer(["a b c"] * 3, 280), f),
        "<|image_pad|> is",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_checkpoint_that_cannot_be_used_says_why_in_one_line(folder: Path, what: str) -> None:
    damage, message = BROKEN[what]
    damage(folder)
    with pytest.raises(ConfigError) as caught:
        load_checkpoint(folder, "cpu")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["nowhere", "/no/such/folder"])
def test_a_folder_that_is_not_there_is_named(place: str) -> None:
    with pytest.raises(ConfigError, match=f"model={place}: no such folder"):
        load_checkpoint(place)


def test_a_hub_name_that_cannot_be_fetched_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def offline(*args: object, **kwargs: object) -> str:
        raise OSError("the network\nis unreachable")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(
        ConfigError, match=r"model=owner/name: no such folder, and the hub does not give it: the network$"
    ):
        load_checkpoint("owner/name")


def test_a_hub_name_is_fetched_and_loaded(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(tiny_folder))
    assert load_checkpoint("owner/name", "cpu").name == "owner/name"


def test_a_sharded_checkpoint_loads_like_the_whole_one(folder: Path, tiny_folder: Path) -> None:
    shard(folder)
    parts, whole = load_checkpoint(folder, "cpu").model.state_dict(), load_checkpoint(tiny_folder, "cpu").model
    assert all(torch.equal(parts[name], weight) for name, weight in whole.state_dict().items())


def test_the_vocabulary_is_that_of_the_tokenizer_file(tiny_folder: Path) -> None:
    import tokenizers

    file = tokenizers.Tokenizer.from_file(str(tiny_folder / "tokenizer.json"))
    vocabulary = load_checkpoint(tiny_folder, "cpu").vocabulary
    text = "some words, click (12,345)\n  and  'more'"
    assert vocabulary.encode(text) == tuple(file.encode(text, add_special_tokens=False).ids)
    assert vocabulary.decode(vocabulary.encode(text)) == text
    assert vocabulary.special("<|image_pad|>") == file.token_to_id("<|image_pad|>")


def test_the_device_and_the_precision_are_those_of_the_settings(tiny_folder: Path) -> None:
    for dtype, expected in (("auto", torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        agent = AgentConfig.model_validate({"device": "cpu", "dtype": dtype})
        model = load_configured(tiny_folder, agent).model
        assert {(weight.dtype, weight.device.type) for weight in model.parameters()} == {(expected, "cpu")}


def test_a_gpu_is_used_where_there_is_one_and_a_macs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for cuda, mps, found in ((True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda cuda=cuda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda mps=mps: mps)
        assert find_device().type == find_device("auto").type == found
        assert BATCH[found] > 0


def test_a_device_that_is_not_there_is_one_line_that_says_what_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert find_device("cuda:1") == torch.device("cuda:1")
    for name in ("cuda:2", "mps"):
        said = rf"^agent.device={name}: not on this machine, which has cpu, cuda, cuda:0, cuda:1$"
        with pytest.raises(ConfigError, match=said):
            find_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"^agent.device=cuda: not on this machine, which has cpu$"):
        find_device("cuda")


def test_whoever_may_read_the_folder_may_read_the_weights(tiny_folder: Path, tmp_path: Path) -> None:
    model = load_model(tiny_folder, "cpu")
    for umask, mode in ((0o027, 0o640), (0o022, 0o644), (0o077, 0o600)):
        before = os.umask(umask)
        try:
            save_model(model, tmp_path / f"{umask:o}")
        finally:
            os.umask(before)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / f"{umask:o}").iterdir()}
        assert "model.safetensors" in modes and set(modes.values()) == {mode}


def test_transformers_loads_what_is_saved_here_and_the_other_way_round(tiny_folder: Path, tmp_path: Path) -> None:
    import transformers

    ours = load_model(tiny_folder, "cpu")
    save_model(ours, tmp_path / "ours")
    load: Any = getattr(transformers, ours.architecture).from_pretrained
    theirs, info = load(tmp_path / "ours", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    theirs.save_pretrained(tmp_path / "theirs")
    again = load_model(tmp_path / "theirs", "cpu").state_dict()
    for name, weight in theirs.state_dict().items():
        assert torch.equal(weight, ours.state_dict()[name]) and torch.equal(weight, again[name]), name
    names = [set(load_file(tmp_path / who / "model.safetensors")) for who in ("ours", "theirs")]
    configs = [json.loads((tmp_path / who / "config.json").read_text()) for who in ("ours", "theirs")]
    assert names[0] == names[1] and configs[0] == configs[1]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda c: c["text_config"]["rope_parameters"].update(rope_type="linear", factor=2.0),
            "scaled rotary positions",
        ),
        (lambda c: c["text_config"].update(hidden_act="gelu"), "another activation than silu"),
        (lambda c: c["vision_config"].update(hidden_act="gelu"), "another activation than "),
        (
            lambda c: c["text_config"].update(
                use_sliding_window=True, sliding_window=64, layer_types=None, max_window_layers=0
            ),
            "sliding-window attention",
        ),
        (lambda c: c["text_config"].update(attention_bias=True), "biases in attention"),
    ],
)
def test_what_the_forward_pass_cannot_do_is_refused(
    folder: Path, family: str, change: Callable[[dict], object], what: str
) -> None:
    if {"sliding-window attention": "qwen3_vl", "biases in attention": "qwen2_5_vl"}.get(what) == family:
        pytest.skip("a setting that this family does not have")
    edit_config(folder, change)
    with pytest.raises(ConfigError, match=f"uses {what}.*which is not supported"):
        load_model(folder, "cpu")


def test_names_of_both_kinds_are_known_and_an_untied_head_is_kept(folder: Path, tmp_path: Path) -> None:
    kinds = [("visual.", "model.visual."), ("model.", "model.language_model.")]

    def rename(weights: dict[str, torch.Tensor]) -> None:
        (embeddings,) = (weight for name, weight in weights.items() if "embed_tokens" in name)
        pairs = kinds if any(name.startswith("visual.") for name in weights) else [(b, a) for a, b in kinds]
        for name in list(weights):
            old, new = next(pair for pair in pairs if name.startswith(pair[0]))
            weights[new + name.removeprefix(old)] = weights.pop(name)
        weights["lm_head.weight"] = embeddings + 1

    edit_weights(folder, rename)
    tied = load_model(folder, "cpu")
    assert torch.equal(tied.lm_head.weight, tied.model.language_model.embed_tokens.weight)
    edit_config(
        folder, lambda c: (c.update(tie_word_embeddings=False), c["text_config"].update(tie_word_embeddings=False))
    )
    untied = load_model(folder, "cpu")
    save_model(untied, tmp_path / "saved")
    again = load_model(tmp_path / "saved", "cpu")
    assert torch.equal(again.lm_head.weight, tied.lm_head.weight + 1)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("vision_config", {"deepstack_visual_indexes": [2, 0]}),
        ("vision_config", {"deepstack_visual_indexes": [0, 0]}),
        ("vision_config", {"deepstack_visual_indexes": [0, 99]}),
        ("vision_config", {"deepstack_visual_indexes": [0, 1, 2]}),  # as many as there are layers
        ("text_config", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1]}}),
        ("text_config", {"head_dim": 0}),
    ],
)
def test_a_qwen3_whose_parts_do_not_go_together_is_refused(part: str, change: dict[str, Any], tmp_path: Path) -> None:
    folder = make_decided(tmp_path, 0, "qwen3_vl")
    edit_config(folder, lambda c: c[part].update(change))
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_model(folder, "cpu")
