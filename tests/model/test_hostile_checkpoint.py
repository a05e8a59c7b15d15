"""Checkpoints that somebody else made: nothing in them is run, and memory is taken only after it is checked."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_checkpoint import edit_config, edit_weights

from arpo.errors import ConfigError
from arpo.model import checkpoint as module
from arpo.model.checkpoint import find_checkpoint, load_checkpoint, load_model

pytestmark = pytest.mark.attack("checkpoint")


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "copy"))


def refused(folder: Path, say: str = ".") -> str:
    with pytest.raises(ConfigError, match=say) as caught:
        load_checkpoint(folder, "cpu")
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails where memory for a model is taken."""

    def taken(*_: object, **__: object) -> None:
        raise AssertionError("memory was taken")

    monkeypatch.setattr(torch.nn.Module, "to_empty", taken)


SIZES: list[tuple[str, str, object]] = [
    ("text_config", "num_hidden_layers", 10**9),
    ("text_config", "num_hidden_layers", 0),
    ("text_config", "hidden_size", 10**9),
    ("text_config", "hidden_size", 63),
    ("text_config", "hidden_size", "64"),
    ("text_config", "intermediate_size", 2**20),
    ("text_config", "vocab_size", 10**12),
    ("text_config", "num_attention_heads", 0),
    ("text_config", "num_key_value_heads", 10**6),
    ("text_config", "rms_norm_eps", float("inf")),
    ("text_config", "num_labels", 10**9),
    ("vision_config", "depth", 10**9),
    ("vision_config", "patch_size", 0),
    ("vision_config", "spatial_merge_size", -2),
    ("vision_config", "window_size", 0),
    ("vision_config", "hidden_size", float("nan")),
    ("vision_config", "num_heads", [1]),
]


@pytest.mark.parametrize(("part", "key", "value"), SIZES, ids=str)
def test_a_model_of_any_size_is_refused_before_memory_is_taken(
    part: str, key: str, value: object, folder: Path, no_memory: None
) -> None:
    edit_config(folder, lambda config: config[part].update({key: value}))
    refused(folder)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 50_000, '{"a": ' + "9" * 5000 + "}", " " * 2**23])
def test_a_config_that_is_deep_or_long_is_refused(text: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    refused(folder, r"config\.json cannot be read")


def test_weights_that_do_not_fit_into_memory_are_refused_before_it_is_taken(
    folder: Path, no_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with holes has any size and takes no disk; what it says fits, and is still too much."""
    monkeypatch.setattr(module, "free_memory", lambda: 1000.0)
    refused(folder, "GB of memory, and 0.0 GB are free")


def with_header(folder: Path, header: bytes, length: int | None = None) -> None:
    size = len(header) if length is None else length
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", size) + header + bytes(64))


@pytest.mark.parametrize(
    "header",
    [b"{}", b"[]", b"", b"[" * 100_000, b'{"a":' + b"9" * 9000 + b"}",
     b'{"lm_head.weight":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,64]}}',
     b'{"lm_head.weight":{"dtype":"F32","shape":[-1],"data_offsets":[64,0]}}',
     b'{"lm_head.weight":{"dtype":"EVIL","shape":[16],"data_offsets":[0,64]}}',
     b'{"\\u001b[2J":{"dtype":"F32","shape":[16],"data_offsets":[0,99999999]}}'],
    ids=range(9),
)  # fmt: skip
def test_a_header_of_weights_that_lies_is_refused(header: bytes, folder: Path, no_memory: None) -> None:
    with_header(folder, header)
    refused(folder)


def test_a_header_of_gigabytes_is_not_read(folder: Path, no_memory: None) -> None:
    with_header(folder, b"{}", 2**40)
    with (folder / "model.safetensors").open("ab") as file:
        file.truncate(2**41)  # holes: it takes no disk
    refused(folder, "begins with more than 16,777,216 bytes that are no weights")


def test_a_weight_of_another_shape_is_refused_before_memory_is_taken(folder: Path, no_memory: None) -> None:
    edit_weights(folder, lambda weights: weights.update({min(weights): torch.zeros(3)}))
    refused(folder, "by config.json it should be")


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.uint8, torch.float8_e4m3fn], ids=str)
def test_a_weight_that_is_no_usual_number_is_refused(kind: torch.dtype, folder: Path, no_memory: None) -> None:
    edit_weights(folder, lambda weights: weights.update({min(weights): weights[min(weights)].to(kind)}))
    refused(folder, "which are no weights that can be used")


@pytest.mark.parametrize("place", ["../elsewhere.safetensors", "/etc/passwd", "a/b.safetensors", "pickled.bin", ""])
def test_an_index_leads_to_no_other_folder(place: str, folder: Path) -> None:
    index = {"weight_map": {"lm_head.weight": place}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "no file of weights in it")


@pytest.mark.parametrize("index", [[], {"weight_map": []}, {"weight_map": {"a": {"b": 1}}}, {}])
def test_an_index_that_is_none_is_refused(index: object, folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "prompt.txt", "extra.bin"])
def test_no_link_in_a_checkpoint_is_followed(name: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("precious {instruction}")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "secret")
    refused(folder, "is a link, a pipe or a device")


def test_a_pipe_in_a_checkpoint_is_not_waited_for(folder: Path) -> None:
    (folder / "prompt.txt").unlink(missing_ok=True)
    os.mkfifo(folder / "prompt.txt")
    refused(folder, "is a link, a pipe or a device")


def test_the_links_of_the_hubs_cache_are_followed_and_no_others(folder: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "abc", tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert load_checkpoint(snapshot, "cpu").name == str(snapshot)
    (tmp_path / "secret").write_text("precious")
    (blobs / "evil").symlink_to(tmp_path / "secret")
    (snapshot / "more.json").symlink_to("../../blobs/evil")
    with pytest.raises(ConfigError, match="is a link"):
        find_checkpoint(snapshot)


CODE = "import pathlib\npathlib.Path('RAN').write_text('ran')\nclass Evil:\n    pass\n"


def test_no_code_of_a_checkpoint_is_run_or_asked_for(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the user was asked"))
    for name in ("evil", "configuration_evil", "tokenization_evil", "modeling_evil"):
        (folder / f"{name}.py").write_text(CODE.replace("RAN", str(tmp_path / "RAN")))
    named = {key: "evil.Evil" for key in ("AutoConfig", "AutoModel", "AutoModelForImageTextToText")}
    edit_config(folder, lambda config: config.update(auto_map=named, trust_remote_code=True, custom_code="evil"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}})
    )
    (folder / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch RAN'\ntR.")
    load_checkpoint(folder, "cpu")
    assert not (tmp_path / "RAN").exists() and "evil" not in sys.modules


def test_pickled_weights_are_not_looked_at(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(tmp_path / "gone")
    (folder / "pytorch_model.bin").write_bytes(f"cos\nsystem\n(S'touch {tmp_path}/RAN'\ntR.".encode())
    refused(folder, "1 of 1 files of weights missing")
    assert not (tmp_path / "RAN").exists()


def edit_tokenizer(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    raw = json.loads((folder / "tokenizer.json").read_text())
    change(raw)
    (folder / "tokenizer.json").write_text(json.dumps(raw))


EVIL_REGEX = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
GROWS = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10**6}
TOKENIZERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "a regex for ever": lambda raw: raw.update(pre_tokenizer=EVIL_REGEX),
    "a regex inside": lambda raw: raw.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [EVIL_REGEX]}),
    "text that grows": lambda raw: raw.update(normalizer=GROWS),
    "text that grows inside": lambda raw: raw.update(normalizer={"type": "Sequence", "normalizers": [GROWS]}),
    "a decoder that grows": lambda raw: raw.update(decoder=GROWS),
    "another model": lambda raw: raw["model"].update(type="WordLevel"),
    "a token like a book": lambda raw: raw["added_tokens"][0].update(content="x" * 10**6),
    "a word like a book": lambda raw: raw["model"]["vocab"].update({"x" * 10**6: 0}),
    "an empty token": lambda raw: raw["added_tokens"][0].update(content=""),
    "a list": lambda raw: raw.update(model=[]),
    "merges of nothing": lambda raw: raw["model"].update(merges=[["not", "there"]]),
    "ids beyond": lambda raw: raw["model"]["vocab"].update({"zz": 2**40}),
    "negative ids": lambda raw: raw["model"]["vocab"].update({"zz": -1}),
    "no tokens": lambda raw: raw.pop("added_tokens"),
    "a deep one": lambda raw: raw.update(pre_tokenizer=deep(300)),
}


def deep(levels: int) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "ByteLevel"}
    for _ in range(levels):
        part = {"type": "Sequence", "pretokenizers": [part]}
    return part


@pytest.mark.parametrize("what", TOKENIZERS)
def test_a_tokenizer_that_makes_much_of_little_is_refused(what: str, folder: Path) -> None:
    edit_tokenizer(folder, TOKENIZERS[what])
    assert len(refused(folder, "tokenizer|not a checkpoint")) < 1000


def test_a_tokenizer_of_gigabytes_is_not_read(folder: Path) -> None:
    with (folder / "tokenizer.json").open("ab") as file:
        file.truncate(2**40)
    refused(folder, "it has more than 33,554,432 bytes")


def test_weights_are_read_as_before(folder: Path, tiny_folder: Path) -> None:
    kept = load_file(tiny_folder / "model.safetensors")
    save_file({name: weight.to(torch.float64) for name, weight in kept.items()}, folder / "model.safetensors")
    one, other = load_model(folder, "cpu"), load_model(tiny_folder, "cpu")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
