"""Weights on their way to the engine, and checkpoints that are written while the run goes on."""

from __future__ import annotations

import asyncio
import json
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from guesser import settings, train_in, train_with
from torch import Tensor

from arpo.algorithms.base import make_algorithm
from arpo.config import load_config, to_yaml
from arpo.engines.base import Weights
from arpo.engines.local import LocalEngine
from arpo.errors import EngineError
from arpo.model.checkpoint import load_checkpoint, load_model
from arpo.runs.store import Run
from arpo.training import learner as learner_module
from arpo.training import lora
from arpo.training.base import LearnerError
from arpo.training.checkpoint import Checkpoints
from arpo.training.learner import LocalLearner
from arpo.training.optimizer import Bf16AdamW, join
from arpo.training.ranks import make_learner

LOOSE = ("sample_s", "learn_s", "sampler_gap")  # by the clock, and by the last digits of the sampler's numbers
LONG = 60.0  # seconds after which nobody waits any more
WAYS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "the tower too": {"freeze_vision": False},
    "adapters": {"lora_rank": 2},
    "bf16": {"dtype": torch.bfloat16, "moments": "fp32"},
    "bf16, 8bit": {"dtype": torch.bfloat16, "moments": "8bit"},
    "bf16, adapters": {"dtype": torch.bfloat16, "lora_rank": 2},
}


def learner_of(folder: Path, dtype: torch.dtype = torch.float32, **train: Any) -> LocalLearner:
    config = settings({"name": "arpo"}, **train)
    return LocalLearner(load_checkpoint(folder, "cpu", dtype), config, make_algorithm(config.algorithm, config.seed))


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return WAYS[request.param]


def learn(learner: LocalLearner, seed: int) -> None:
    """An update with gradients that are what they are."""
    random = torch.Generator().manual_seed(seed)
    for weight in learner.parameters:
        weight.grad = torch.randn(weight.shape, generator=random).to(weight.dtype)
    learner.optimizer.step()
    learner._steps += 1
    learner.version += 1


def all_of(learner: LocalLearner) -> dict[str, Tensor]:
    """Every number that the next step depends on."""
    weights = {name: weight.detach().clone() for name, weight in learner.model.named_parameters()}
    for number, kept in learner.optimizer.state_dict()["state"].items():
        weights |= {f"{number}.{name}": tensor.clone() for name, tensor in kept.items()}
    return weights


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# To the engine


def test_an_engine_in_the_same_process_gets_every_bit_and_no_file(
    way: dict[str, Any], guesser_folder: Path, tmp_path: Path
) -> None:
    learner = learner_of(guesser_folder, **way)
    dtype = way.get("dtype", torch.float32)
    engine = LocalEngine(load_checkpoint(guesser_folder, "cpu", dtype))
    learn(learner, 0)
    weights = learner.publish(tmp_path / "published")
    asyncio.run(engine.load(1, weights))
    assert engine.version == 1 and not weights.folder.exists()
    here = dict(engine.checkpoint.model.named_parameters())
    assert equal(here, dict(load_model(weights.path(), "cpu", dtype).named_parameters()))  # as by a file
    begun = dict(load_model(guesser_folder, "cpu", dtype).named_parameters())
    assert sum(not torch.equal(here[name], begun[name]) for name in here) > 10
    learn(learner, 1)  # and the engine's are its own
    assert equal(here, dict(load_model(weights.folder, "cpu", dtype).named_parameters()))


def test_merged_weights_are_made_one_by_one(guesser_folder: Path) -> None:
    learner = learner_of(guesser_folder, lora_rank=2)
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = 0
    own = {weight.data_ptr() for weight in learner.model.parameters()}
    for _, weight in lora.merged(learner.model):
        if weight.data_ptr() not in own:
            alive.add(weight)
        del weight
        most = max(most, len(alive))
    assert most <= 1


def test_screens_are_seen_anew_where_the_tower_was_trained_alone(guesser_folder: Path, tmp_path: Path) -> None:
    for frozen in (True, False):
        engine = LocalEngine(load_checkpoint(guesser_folder, "cpu"))
        engine.screens._known["screen"] = torch.zeros(1)
        learner = learner_of(guesser_folder, freeze_vision=frozen)
        learn(learner, 0)
        asyncio.run(engine.load(1, learner.publish(tmp_path)))
        assert ("screen" in engine.screens._known) == frozen


@pytest.mark.parametrize(
    "changed, one",
    [
        ([], True),
        (["train.freeze_vision=false", "algorithm.kl=0.1"], True),
        (["train.lag=1"], False),  # it samples while weights change
        (["train.lora_rank=2"], False),  # it has them merged
    ],
)
def test_a_learner_takes_the_model_of_an_engine_that_waits_for_it(
    changed: list[str], one: bool, guesser_folder: Path
) -> None:
    config = load_config(None, [f"train.model={guesser_folder}", "agent.device=cpu", *changed])
    engine = LocalEngine(load_checkpoint(guesser_folder, "cpu"))
    with make_learner(config, make_algorithm(config.algorithm, 0), engine) as learner:
        assert isinstance(learner, LocalLearner) and (learner.model is engine.checkpoint.model) == one
    with make_learner(config, make_algorithm(config.algorithm, 0)) as learner:  # of servers there is none to take
        assert isinstance(learner, LocalLearner) and learner.model is not engine.checkpoint.model


@pytest.mark.parametrize(
    "algorithm, train",
    [
        ({}, {}),
        ({"kl": 0.1}, {"freeze_vision": False}),  # the start's weights change places with them, the tower's too
        ({"name": "ppo"}, {"rollout_tasks": 4, "optimizer_tasks": 2}),
    ],
)
def test_one_model_for_both_changes_no_number(
    algorithm: dict[str, Any], train: dict[str, Any], guesser_folder: Path, tmp_path: Path
) -> None:
    config = settings({"format_reward": 0.0, "group": 3} | algorithm, **train)
    for name, updates in (("two", 3), ("one", 2), ("one", 3)):  # a run is resumed, too
        stopped = config.with_values({"train.updates": updates})
        train_in(tmp_path / name, guesser_folder, stopped, one_model=name == "one")
    two, one = (tmp_path / folder for folder in ("two", "one"))
    found = []
    for folder in (two, one):
        with Run.read(folder) as run:
            found.append([{name: line[name] for name in line if not name.startswith(LOOSE)} for line in run.metrics()])
    assert found[0] == found[1] and len(found[0]) == 3
    weights = [
        dict(load_model(folder / "checkpoints" / "update-00003", "cpu").named_parameters()) for folder in (two, one)
    ]
    begun = dict(load_model(guesser_folder, "cpu").named_parameters())
    assert equal(*weights) and not equal(weights[0], begun)


def test_gradients_are_gone_after_an_update(guesser_folder: Path, tmp_path: Path) -> None:
    """Of a 7B they are 15 GiB, and sampling is next."""
    engine = LocalEngine(load_checkpoint(guesser_folder, "cpu"), max_context=2000)
    config = settings({"format_reward": 0.0, "group": 3})
    with Run.write(tmp_path, to_yaml(config)) as run:
        asyncio.run(train_with(engine, guesser_folder, config, run, one_model=True))
    begun = dict(load_model(guesser_folder, "cpu").named_parameters())
    here = dict(engine.checkpoint.model.named_parameters())
    assert not equal(here, begun) and all(weight.grad is None for weight in here.values())


def test_weights_that_do_not_fit_are_named(guesser_folder: Path, tmp_path: Path) -> None:
    learner = learner_of(guesser_folder)
    every = dict(learner.model.named_parameters())
    engine = LocalEngine(load_checkpoint(guesser_folder, "cpu"))
    name = "model.language_model.norm.weight"
    wrongs: tuple[tuple[dict[str, Tensor], str], ...] = (
        (every | {name: torch.zeros(3)}, rf"{name} is \(3,\) there"),
        ({}, "got no "),
    )
    for wrong, why in wrongs:
        weights = Weights(tmp_path, partial(iter, wrong.items()))
        with pytest.raises(EngineError, match=why):
            asyncio.run(engine.load(1, weights))
    assert engine.version == 0


# Checkpoints


def save(checkpoints: Checkpoints, learner: LocalLearner) -> None:
    checkpoints.finished({"update": learner.version - 1, "success": 0.5})
    checkpoints.save(learner, learner.algorithm)


def held(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Writing waits for the second event, and sets the first when it begins."""
    begun, go_on = threading.Event(), threading.Event()
    write = LocalLearner._write

    def waiting(*arguments: Any) -> None:
        begun.set()
        assert go_on.wait(LONG)
        write(*arguments)

    monkeypatch.setattr(LocalLearner, "_write", waiting)
    return begun, go_on


def test_a_checkpoint_is_what_was_there_when_it_was_begun_and_the_run_goes_on_from_it(
    way: dict[str, Any], guesser_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_of(guesser_folder, **way)
    checkpoints = Checkpoints(tmp_path, model=str(guesser_folder))
    for seed in range(3):
        learn(learner, seed)
    expected = all_of(learner)
    begun, go_on = held(monkeypatch)
    save(checkpoints, learner)
    assert begun.wait(LONG) and checkpoints.newest is None
    learn(learner, 3)
    go_on.set()
    checkpoints.wait()
    other = learner_of(guesser_folder, **way)
    place = Checkpoints(tmp_path).restore(other, other.algorithm)
    assert place is not None and place.name == "update-00003" and other.version == 3
    assert equal(all_of(other), expected)
    learn(other, 3)
    assert equal(all_of(other), all_of(learner))  # with the same random numbers
    assert not equal(all_of(other), expected)


def test_masters_are_finer_than_the_weights_of_their_checkpoint(guesser_folder: Path, tmp_path: Path) -> None:
    learner = learner_of(guesser_folder, torch.bfloat16, lr=1e-6)
    assert isinstance(learner.optimizer, Bf16AdamW)
    for seed in range(3):
        learn(learner, seed)
    checkpoints = Checkpoints(tmp_path, model=str(guesser_folder))
    save(checkpoints, learner)
    checkpoints.wait()
    other = learner_of(guesser_folder, torch.bfloat16, lr=1e-6)
    checkpoints.restore(other, other.algorithm)
    for mine, theirs in zip(learner.parameters, other.parameters, strict=True):
        lower = learner.optimizer.state[mine]["lower"]
        assert lower.any() and torch.equal(
            join(mine.detach(), lower), join(theirs.detach(), other.optimizer.state[theirs]["lower"])
        )


def test_where_memory_is_too_short_for_a_copy_it_is_written_at_once(
    guesser_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_of(guesser_folder)
    learn(learner, 0)
    monkeypatch.setattr(learner_module, "free_memory", lambda: 1000.0)
    monkeypatch.setattr(learner_module, "_copied", lambda *_: pytest.fail("copied"))
    expected = all_of(learner)
    write = learner.save(tmp_path)
    learn(learner, 1)
    assert write() == {"version": 1, "steps": 1}
    other = learner_of(guesser_folder)
    other.restore(tmp_path, {"version": 1, "steps": 1})
    assert equal(all_of(other), expected)


def test_one_is_written_at_a_time(guesser_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(guesser_folder)
    checkpoints = Checkpoints(tmp_path, keep=2, model=str(guesser_folder))
    begun, go_on = held(monkeypatch)
    learner.version += 1
    save(checkpoints, learner)
    assert begun.wait(LONG)
    learner.version += 1
    second = threading.Thread(target=save, args=(checkpoints, learner))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    go_on.set()
    second.join(LONG)
    checkpoints.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["update-00001", "update-00002"]


@pytest.mark.parametrize("how", ["finished", "save", "wait"])
def test_what_could_not_be_written_is_said_at_the_next_occasion(
    how: str, guesser_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_of(guesser_folder)
    checkpoints = Checkpoints(tmp_path, model=str(guesser_folder))
    done = threading.Event()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "here")

    with monkeypatch.context() as patch:
        patch.setattr(LocalLearner, "_write", full)
        learner.version += 1
        save(checkpoints, learner)
        assert checkpoints._writing is not None
        checkpoints._writing.add_done_callback(lambda _: done.set())
        assert done.wait(LONG)
    with pytest.raises(OSError, match="No space left"):
        if how == "finished":
            checkpoints.finished({"update": 1, "success": 0.5})
        elif how == "save":
            checkpoints.save(learner, learner.algorithm)
        else:
            checkpoints.wait()
    assert checkpoints.newest is None
    if how == "wait":  # what stops a run finds it unsaved
        with pytest.raises(KeyboardInterrupt), checkpoints.guard(learner, learner.algorithm):
            raise KeyboardInterrupt
        assert checkpoints.newest == tmp_path / "update-00001"
        assert json.loads((tmp_path / "update-00001" / "state.json").read_text())["line"]["update"] == 0


def test_between_the_steps_of_an_update_nothing_is_saved(guesser_folder: Path, tmp_path: Path) -> None:
    learner = learner_of(guesser_folder)
    learner._midway = True
    with pytest.raises(LearnerError, match="some of an update's optimiser steps"):
        learner.save(tmp_path)
