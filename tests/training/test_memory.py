"""What a training takes is worked out from config.json alone, right for known models, and too much is one line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from arpo.config import Config, load_config, presets
from arpo.engines.local import blocks, screens
from arpo.errors import ConfigError, DeviceError, EnvError, device_error
from arpo.model import checkpoint, qwen
from arpo.model.checkpoint import BASE, load_model, make_model
from arpo.model.recompute import NOTHING
from arpo.model.shapes import SHAPES, config_of, numbers_of
from arpo.runs.settings import MAY_CHANGE
from arpo.training import command, learner, lora, memory
from arpo.training.memory import (
    GIB,
    Device,
    Needs,
    Shape,
    estimate,
    find_shape,
    lighter,
    longest,
    refuse_large,
    smaller,
)

H200 = Device("cuda", 139 * GIB)
UITARS = "ByteDance-Seed/UI-TARS-1.5-7B"


def seven(*settings: str, preset: str = "osworld-1gpu-lora") -> tuple[Config, Shape]:
    model = find_shape(UITARS)
    assert model is not None
    return load_config(preset, list(settings)), model


def needs_of(device: Device, *settings: str, preset: str = "osworld-1gpu-lora") -> Needs:
    return estimate(*seven(*settings, preset=preset), 15, device)


# The sizes of models


@pytest.mark.parametrize("name", SHAPES)
def test_weights_and_adapters_are_counted_as_the_modules_have_them(name: str) -> None:
    with torch.device("meta"):
        model = make_model(config_of(name))
        shape = Shape(numbers_of(name), "")
        assert shape.weights == sum(weight.numel() for weight in model.parameters())
        assert shape.tower == sum(weight.numel() for weight in model.model.visual.parameters())
        for vision in (False, True):
            model = make_model(config_of(name))
            lora.add_adapters(model, 4, vision, seed=0)
            count = sum(weight.numel() for name, weight in model.named_parameters() if ".lora_" in name)
            assert shape.adapters(4, vision) == count


def test_the_agent_that_comes_with_arpo_is_known_by_its_file() -> None:
    shape = find_shape(BASE)
    assert shape is not None and shape.source == "its config.json"
    assert shape.weights == sum(weight.numel() for weight in load_model(BASE, "cpu").parameters())
    assert shape.context == 8192


def test_older_files_have_the_numbers_of_the_language_model_beside_the_others(tmp_path: Path) -> None:
    numbers = numbers_of("qwen2.5-vl-3b")
    flat = {**numbers.pop("text_config"), **numbers}
    (tmp_path / "config.json").write_text(json.dumps(flat))
    shape = find_shape(str(tmp_path))
    assert shape is not None and shape.weights == Shape(numbers_of("qwen2.5-vl-3b"), "").weights


@pytest.mark.parametrize(
    ("model", "known"),
    [
        (UITARS, "qwen2.5-vl-7b"),
        ("Qwen/Qwen2.5-VL-32B-Instruct", "qwen2.5-vl-32b"),
        ("Qwen/Qwen3-VL-8B", "qwen3-vl-8b"),
    ],
)
def test_a_model_that_is_not_here_is_known_by_the_size_in_its_name(model: str, known: str) -> None:
    shape = find_shape(model)
    assert shape is not None
    assert (shape.weights, shape.source) == (Shape(numbers_of(known), "").weights, f"the name, as of a {known}")


@pytest.mark.parametrize("model", ["someone/agent", "someone/agent-11B", "runs/nowhere", "a7beta"])
def test_other_names_say_nothing(model: str) -> None:
    assert find_shape(model) is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"vision_config": 3}', '{"hidden_size": "wide", "vision_config": {}}', '{"vision_config": {}}'],
)
def test_a_file_that_is_none_is_left_to_who_loads_it(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    assert find_shape(str(tmp_path)) is None
    assert refuse_large(Config().with_values({"train.model": str(tmp_path)}), 15) is None


WRONG: list[Any] = [0, -1, 10**400, "28", 1.5, math.inf, math.nan, [1], True, None, {"a": 1}]


@pytest.mark.parametrize("name", ["qwen2.5-vl-7b", "qwen3-vl-8b"])
def test_whatever_a_file_says_there_is_a_sum_or_none(name: str, tmp_path: Path) -> None:
    """It may come from others; what is wrong with it is said where the model is loaded."""
    config = load_config("pocket", [f"train.model={tmp_path}", "train.freeze_vision=false"])
    texts = ['{"text_config":' + "[" * 100_000 + "]" * 100_000 + "}"]
    for part in ("text_config", "vision_config"):
        for key in numbers_of(name)[part]:
            for wrong in WRONG:
                numbers = numbers_of(name)
                numbers[part] = {**numbers[part], key: wrong}
                texts.append(json.dumps(numbers))
    for text in texts:
        (tmp_path / "config.json").write_text(text)
        if (model := find_shape(str(tmp_path))) is not None:
            for device in (Device("cuda", 139 * GIB), Device("cpu", 16 * GIB, cuda=False)):
                assert memory.estimate(config, model, 15, device).least > 0


def test_what_is_said_elsewhere_too_is_the_same_there() -> None:
    """Sums need no torch, so they cannot ask those who use these numbers."""
    assert memory.LARGE == checkpoint.LARGE
    assert memory.ROOM == learner.ROOM
    assert memory.CACHE == blocks.SHARE
    assert screens.BATCH["cuda"] == memory.TOWER_TOKENS
    assert memory.SCORES == 4 * qwen.PIECE  # scores, their softmax, and the gradients of both


def test_huge_numbers_in_a_file_take_no_time(tmp_path: Path) -> None:
    numbers = numbers_of("qwen2.5-vl-3b")
    numbers["text_config"]["num_hidden_layers"] = 10**12
    (tmp_path / "config.json").write_text(json.dumps(numbers))
    assert find_shape(str(tmp_path)) is None


# What is needed


def test_the_longest_trajectory_of_fifteen_full_hd_screenshots() -> None:
    config, model = seven("train.max_tokens=120")
    assert model.image_tokens((1920, 1080)) == 2691
    assert 42_195 <= longest(config, model, 15, 120) <= 43_500  # 15 x (2,691 + 120), and some text
    assert longest(config.with_values({"agent.context": 9000}), model, 15, 120) == 9000
    assert longest(config.with_values({"agent.screenshots": 1}), model, 15, 120) < 6000


def test_sums_of_a_7b() -> None:
    rows = {row.what: row for row in needs_of(H200, preset="osworld-1gpu").rows}
    weights = 8_292_166_656
    both = rows["the weights of learner and engine"]  # once: they take turns
    assert both.learning == both.sampling == 2 * weights and "the engine's weights" not in rows
    for copied in ("train.lag=1", "train.lora_rank=16", "engine.name=vllm"):
        apart = {
            row.what: row for row in needs_of(Device("cuda", 300 * GIB, count=1), copied, preset="osworld-1gpu").rows
        }
        assert apart["the engine's weights"].learning == 2 * weights and apart["the learner's weights"].learning > 0
    assert rows["its gradients"].learning == 2 * (weights - 676_550_144)  # the tower is frozen
    assert rows["its gradients"].sampling == 0
    masters = rows["AdamW's masters and moments, 8bit"].learning
    assert masters == pytest.approx(4.1 * (weights - 676_550_144), rel=0.02)
    cache = rows["keys and values, 16 episodes at once"]
    assert cache.learning == 0 and cache.sampling == 16 * 2 * 28 * 4 * 128 * 2 * 49_085


def test_ranks_share_weights_gradients_and_optimiser_but_not_a_tower_that_does_not_learn() -> None:
    def rows(ranks: int, device: Device, *settings: str) -> dict[str, float]:
        ahead = ("train.lag=1", "train.moments=fp32")  # else one rank and the engine are one model
        needs = needs_of(device, f"train.ranks={ranks}", *ahead, *settings, preset="osworld-full")
        return {row.what: row.learning for row in needs.rows}

    one, four = rows(1, H200), rows(4, H200)
    for what in ("the learner's weights", "its gradients", "AdamW's masters and moments, fp32"):
        assert four[what] == one[what] / 4, what
    assert four["the engine's weights"] == one["the engine's weights"]
    assert 0 < four["weights of all ranks, while in use"] < one["the learner's weights"]
    frozen = rows(4, H200, "train.freeze_vision=true")["the learner's weights"]
    tower = 2 * 676_550_144
    assert frozen == (one["the learner's weights"] - tower) / 4 + tower
    host = Device("cpu", 2000 * GIB, cuda=False)  # where all ranks are in one memory
    assert rows(4, host)["its gradients"] == rows(1, host)["its gradients"]
    assert rows(4, host)["scores of the vocabulary"] == 4 * rows(1, host)["scores of the vocabulary"]


def test_servers_of_vllm_have_memory_of_their_own_but_for_a_cpu() -> None:
    host, common = Device("cpu", 2000 * GIB, cuda=False), ("train.lag=1", "train.moments=fp32")
    ours = {"the engine's weights", "keys and values, 256 episodes at once"}
    for device, words, there in ((H200, (), set()), (host, (), ours), (host, ("engine.servers=[http://a:1]",), set())):
        needs = needs_of(device, "engine.name=vllm", *common, *words, preset="osworld-full")
        assert {row.what for row in needs.rows if row.what.startswith(("the engine", "keys"))} == there
        whole = needs_of(device, *common, preset="osworld-full")
        assert (needs.learning < whole.learning, needs.sampling < whole.sampling) == (not there, not there)


def test_the_presets_for_one_gpu_fit_where_they_say_they_do() -> None:
    full, small = needs_of(H200, preset="osworld-1gpu"), needs_of(Device("cuda", 79 * GIB))
    assert (full.fits, full.moments) == (True, "8bit")
    assert (small.fits, small.moments) == (True, "fp32")
    assert not needs_of(Device("cuda", 79 * GIB), preset="osworld-1gpu").fits
    assert needs_of(H200).recompute.layers < small.recompute.layers  # more memory, less work


def test_moments_are_fp32_where_that_fits_and_what_the_settings_say_where_they_do() -> None:
    assert needs_of(Device("cuda", 280 * GIB), preset="osworld-1gpu").moments == "fp32"
    exact, chosen = (needs_of(H200, *asked, preset="osworld-1gpu") for asked in (["train.moments=fp32"], []))
    assert exact.fits and chosen.moments == "8bit"  # else most layers would be computed again
    assert chosen.recompute.layers < exact.recompute.layers and chosen.episodes > exact.episodes
    assert needs_of(Device("cuda", 280 * GIB), "train.moments=8bit", preset="osworld-1gpu").moments == "8bit"
    cramped = needs_of(Device("cuda", 110 * GIB), "train.moments=fp32", preset="osworld-1gpu")
    assert (cramped.moments, cramped.fits) == ("fp32", False)


def test_where_not_all_episodes_fit_fewer_are_sampled_at_once() -> None:
    few, many = needs_of(Device("cuda", 79 * GIB), "train.n_envs=64"), needs_of(H200, "train.n_envs=64")
    assert 1 <= few.episodes < many.episodes <= 64
    assert few.fits and many.fits


def test_with_a_lag_the_cache_stays_while_the_learner_works() -> None:
    rows = {row.what.partition(",")[0]: row for row in needs_of(H200, "train.lag=1").rows}
    assert rows["keys and values"].learning == rows["keys and values"].sampling > 0
    host = needs_of(Device("cpu", 500 * GIB, cuda=False)).rows  # there an engine keeps it
    kept = next(row for row in host if row.what.startswith("keys and values"))
    assert kept.learning == kept.sampling > 0


@pytest.mark.parametrize(
    ("setting", "steps"),
    [
        ("train.lora_rank=16", 15),
        ("train.freeze_vision=true", 15),
        ("train.checkpointing=true", 15),
        ("agent.screenshots=5", 15),
        ("env.size=1280x720", 15),
        ("seed=0", 5),
    ],
)
def test_fewer_tokens_fewer_weights_and_less_kept_take_less(setting: str, steps: int) -> None:
    huge, common = Device("cuda", 9999 * GIB), ["train.micro_tokens=1", "train.checkpointing=null"]
    everything = needs_of(huge, *common, preset="osworld-full")
    less = estimate(*seven(*common, setting, preset="osworld-full"), steps, huge)
    assert less.learning < 0.95 * everything.learning
    assert less.least <= everything.least


def test_where_the_settings_say_that_all_is_kept_all_is_counted() -> None:
    small, huge = (needs_of(Device("cuda", n * GIB), "train.checkpointing=false") for n in (80, 9999))
    assert small.recompute == huge.recompute == NOTHING
    assert not small.fits and small.hopeless and huge.fits


def test_on_a_cpu_a_large_model_computes_in_fp32() -> None:
    config, model = seven()
    here = Device("cpu", math.inf, cuda=False)
    assert (memory.itemsize(config, model, here), memory.itemsize(config, model, H200)) == (4, 2)
    asked = config.with_values({"agent.dtype": "float32"})
    assert memory.itemsize(asked, model, H200) == 4
    base = find_shape(BASE)
    assert base is not None and memory.itemsize(Config(), base, H200) == 4


# What is refused


def test_a_gpu_that_is_too_small_is_refused_with_what_would_fit() -> None:
    config, _ = seven(preset="osworld-1gpu")
    with pytest.raises(ConfigError) as refused:
        refuse_large(config, 15, Device("cuda", 80 * GIB))
    said = str(refused.value)
    assert said.startswith(f"train.model={UITARS}: takes at least ") and "and cuda has 80 GiB; " in said
    assert "train.lora_rank=16 takes " in said and " and fits; " in said
    assert said.endswith("a GPU of 96 GB holds it as it is") and "\n" not in said


def test_what_would_fit_is_worked_out_and_not_guessed() -> None:
    config, model = seven(preset="osworld-1gpu")
    device = Device("cuda", 80 * GIB)
    for text in smaller(config, model, 15, device)[:-1]:
        words, takes = text.split(" takes ")
        changed = load_config("osworld-1gpu", words.split())
        least = estimate(changed, model, 15, device).least
        assert takes.startswith(memory.gib(least))
        assert takes.endswith("fits") == (least <= device.free)


@pytest.mark.parametrize("preset", [name for name in presets() if load_config(name, []).train.model == BASE])
def test_what_works_today_is_never_refused(preset: str) -> None:
    needs = refuse_large(load_config(preset, []), 15, Device("cpu", 2 * GIB, cuda=False))
    assert needs is not None and needs.fits


def test_where_the_system_does_not_say_what_is_free_nothing_is_refused() -> None:
    config, _ = seven(preset="osworld-full")
    needs = refuse_large(config, 15, Device("cpu", math.inf, cuda=False))
    assert needs is not None and needs.fits


def test_training_refuses_before_it_loads_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(command, "load_agent", never)
    monkeypatch.setattr(memory, "find_device", lambda name: Device("cuda", 24 * GIB))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"takes at least .* and cuda has 24 GiB"):
        command.run_training(load_config("pocket", [f"train.model={UITARS}", "env.size=1920x1080"]))
    assert not list(tmp_path.iterdir())


# A device that failed


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), True),
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried"),
            True,
        ),
        (RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be …"), False),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), False),
        (RuntimeError("a bug"), None),
        (ValueError("CUDA"), None),
        (EnvError("not enough memory"), None),
    ],
)
def test_what_a_failure_of_the_device_looks_like(error: Exception, full: bool | None) -> None:
    found = device_error(error)
    assert (found is None) == (full is None)
    if found is not None:
        assert found.full == full and "\n" not in str(found) and str(found)
        assert device_error(found) is found


def test_after_too_little_memory_a_run_is_resumed_with_what_takes_less() -> None:
    config, model = seven()
    before = estimate(config, model, 15, H200)
    changes, why = lighter(config, 15, sampling=True, device=H200)
    assert changes == {"train.n_envs": 8, "eval.n_envs": 8}
    assert estimate(config.with_values(changes), model, 15, H200).sampling < before.sampling
    assert why.startswith("out of memory: it takes up to ")
    changes, _ = lighter(config, 15, sampling=False, device=H200)
    assert changes == {"train.checkpointing": True}
    crowded = config.with_values({"train.checkpointing": True, "train.micro_tokens": 100_000})
    changes, _ = lighter(crowded, 15, sampling=False, device=H200)
    assert changes == {"train.micro_tokens": longest(config, model, 15, 512)}
    assert {*changes, "train.checkpointing", "train.n_envs", "eval.n_envs"} <= {*MAY_CHANGE}


@pytest.mark.parametrize("model", [UITARS, "unknown"])
@pytest.mark.parametrize(("train", "judged"), [(2, 16), (16, 2), (8, 8)])
def test_no_limit_rises_after_too_little_memory(model: str, train: int, judged: int) -> None:
    settings = [f"train.model={model}", f"train.n_envs={train}", f"eval.n_envs={judged}"]
    way, _ = lighter(load_config("osworld-1gpu-lora", settings), 15, True, H200)
    assert way and way["train.n_envs"] <= train and way["eval.n_envs"] <= judged


def test_where_nothing_may_change_any_more_another_run_is_named() -> None:
    config, _ = seven("train.checkpointing=true", "train.n_envs=1", "eval.n_envs=1", preset="osworld-1gpu")
    for sampling in (True, False):
        changes, why = lighter(config, 15, sampling, H200)
        assert changes == {}
        assert why.startswith("out of memory; a new run with train.lora_rank=16 takes ")
    assert lighter(Config().with_values({"train.model": "some/agent"}), 15, False, H200) == ({}, "out of memory")


def test_the_error_of_a_device_is_one_of_ours() -> None:
    assert str(DeviceError("gone\nfor ever", full=False)) == "gone\\nfor ever"


def test_ranks_on_other_nodes_are_not_measured_by_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "find_device", lambda name: Device("cpu", 8 * GIB, cuda=False))
    far = [
        "train.ranks=4",
        "train.rank_resource=GPU",
        "env.ray=auto",
        "engine.name=vllm",
        "engine.servers=[http://a:1]",
    ]
    config, _ = seven(*far, preset="osworld-full")
    needs = refuse_large(config, 15)
    assert needs is not None and needs.fits and needs.device.cuda and needs.dtype == "bfloat16"
    other, _ = seven(*far, "train.rank_resource=learner", preset="osworld-full")
    needs = refuse_large(other, 15)
    assert needs is not None and math.isinf(needs.device.free) and needs.dtype == "float32"
    here, _ = seven(preset="osworld-full")
    with pytest.raises(ConfigError, match="takes at least"):
        refuse_large(here, 15)


@pytest.mark.parametrize(("gpus", "ranks", "beside"), [(0, 1, False), (1, 1, True), (2, 1, False), (2, 2, True)])
def test_a_server_that_shares_the_learners_gpu_is_counted(gpus: int, ranks: int, beside: bool) -> None:
    device = Device("cuda", 139 * GIB, count=gpus)
    needs = needs_of(device, "engine.name=vllm", f"train.ranks={ranks}")
    assert any(row.what == "the engine's weights" for row in needs.rows) == beside
