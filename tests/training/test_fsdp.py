"""Several ranks learn what one process learns, resume from each other's checkpoints, and live and die together."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from guesser import make_guesser
from test_learner import FREE, Played, changed, play, steps
from torch import Tensor
from torch.optim import AdamW

from arpo.algorithms.base import make_algorithm
from arpo.algorithms.grpo import Grpo
from arpo.config import Config
from arpo.errors import ConfigError
from arpo.model.checkpoint import FAMILIES, load_checkpoint, load_model
from arpo.resize import QWEN2_5
from arpo.training.base import LearnerError, NotFinite, RanksLost
from arpo.training.learner import LocalLearner
from arpo.training.optimizer import Bf16AdamW, Moments
from arpo.training.packing import lengths_of, packed, shared_out
from arpo.training.ranks import Ranks, refuse_ranks
from arpo.training.shards import CODED, read_shards, write_shard

pytestmark = pytest.mark.fsdp
LIMIT_S = 900.0
PATH = os.pathsep.join(sys.path)


def test_two_ranks_have_the_losses_and_gradients_of_one_process(tmp_path: Path) -> None:
    folders = {family: make_guesser(tmp_path / family, 0, family) for family in FAMILIES}
    kinds = [f"{folders['qwen2_5_vl']}=trained,frozen,adapters,bfloat16,pairs", f"{folders['qwen3_vl']}=trained"]
    command = [sys.executable, str(Path(__file__).with_name("ranked.py")), str(tmp_path / "store")]
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    here = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": loopback, "PYTHONPATH": PATH}
    both = [
        subprocess.Popen([*command, str(rank), *kinds], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=here)
        for rank in range(2)
    ]
    try:
        ends = [rank.communicate(timeout=LIMIT_S) for rank in both]
    finally:
        for rank in both:
            rank.kill()
    for rank, (_, said) in zip(both, ends, strict=True):
        assert rank.returncode == 0, said.decode()
    found = [json.loads(out) for out, _ in ends]
    shares: dict[str, list[Any]] = {}
    for one in (one for of_rank in found for one in of_rank):
        coarse = one["kind"] == "bfloat16"  # sums in another order end in another of its few digits
        if one["batch"] == "after updates":
            ours, theirs = one["norms"]
            assert ours == pytest.approx(theirs, rel=0.1 if coarse else 1e-3), one
            # How far the farthest token of a coarse one gets is the processor's to say.
            assert one["apart"] < 0.5 * one["moved"] if coarse else one["logprobs"] < 5e-3, one
            assert one["held"] == 0, one
            continue
        assert one["losses"][0] == pytest.approx(one["losses"][1], abs=1e-4), one
        assert one["logprobs"] < (0.05 if coarse else 1e-4) and one["compared"] > 30, one
        assert one["gradients"] < (0.1 if coarse else 1e-3), one
        if one["kind"] == "trained":
            shares.setdefault(one["batch"], []).append((one["samples"], one["images"] > 0))
    assert sorted(shares["for one rank"]) == 2 * [(0, False)] + 2 * [(1, True)]
    assert sorted(shares["one sees"]) == 2 * [(1, False)] + 2 * [(1, True)]
    assert not any(sees for _, sees in shares["nobody sees"])
    assert min(shares["many"])[0] >= 2


# The driver and its ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_guesser(tmp_path_factory.mktemp("guesser"))


@pytest.fixture(scope="module")
def played(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(load_checkpoint(folder, "cpu"), tmp_path_factory.mktemp("run"))


def learning(folder: Path, **train: Any) -> Config:
    return changed(FREE, **{"model": str(folder), "ranks": 2, "freeze_vision": False, "lr": 1e-4} | train)


def started(config: Config) -> Ranks:
    return Ranks(config, make_algorithm(config.algorithm, config.seed))


def alone(config: Config) -> LocalLearner:
    return LocalLearner(load_checkpoint(config.train.model, "cpu"), config, make_algorithm(config.algorithm, 0))


def apart(one: Path, other: Path) -> float:
    """How far the weights of two folders are apart, at most."""
    pairs = zip(load_model(one, "cpu").parameters(), load_model(other, "cpu").parameters(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def gone(pids: Sequence[int]) -> bool:
    """Whether the processes end, within a while."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.1)
    return False


def test_ranks_are_a_learner_like_any_other(folder: Path, played: Played, tmp_path: Path) -> None:
    config = learning(folder)
    batches = steps(*played.samples[:3])
    local = alone(config)
    with contextlib.closing(started(config)) as ranks:

        def both_learn() -> None:
            ours, theirs = ranks.update(batches, played.screens), local.update(batches, played.screens)
            assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-3, abs=1e-4)
            assert ranks.version == local.version
            for one, other in zip(ours.record, theirs.record, strict=True):
                assert one.trajectory_id == other.trajectory_id
                assert np.allclose(one.new, other.new, atol=1e-3) and np.array_equal(one.sampler, other.sampler)

        both_learn()
        assert ranks.publish(tmp_path / "published").path() == local.publish(tmp_path / "one").path().with_name(
            "published"
        )
        assert apart(tmp_path / "published", tmp_path / "one") < 1e-4
        assert sorted(file.name for file in (tmp_path / "published").iterdir()) == sorted(
            file.name for file in (tmp_path / "one").iterdir()
        )
        # From two ranks to one, and back to two
        (tmp_path / "two").mkdir()
        local = alone(config)
        local._tested = True
        local.restore(tmp_path / "two", json.loads(json.dumps(ranks.save(tmp_path / "two")())))
        both_learn()
        (tmp_path / "again").mkdir()
        ranks.restore(tmp_path / "again", local.save(tmp_path / "again")())
        both_learn()
        assert ranks.version == 3

        # What cannot be learned ends no rank
        before = ranks.publish(tmp_path / "before").path()
        first = played.samples[0][0]
        bad = dataclasses.replace(first, advantages=(math.nan,) * len(first.advantages))
        with pytest.raises(NotFinite, match="the loss is nan") as stopped:
            ranks.update(steps([bad, *played.samples[0][1:]]), played.screens)
        assert stopped.value.batch.samples[1:] == tuple(played.samples[0][1:])
        with pytest.raises(LearnerError, match="has tokens that no episode of this model can have"):
            ranks.update(steps([dataclasses.replace(first, ids=(10**6, *first.ids[1:]))]), played.screens)
        assert ranks.version == 3
        assert apart(before, ranks.publish(tmp_path / "after").path()) == 0

        # One that is killed ends all
        pids = ranks.pids
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(RanksLost, match="rank 1 of the learner was ended by signal 9"):
            ranks.update(batches, played.screens)
        assert gone(pids)
        with pytest.raises(RanksLost, match="are gone: rank 1"):
            ranks.save(tmp_path / "never")


def test_a_rank_that_hangs_ends_all(folder: Path, played: Played) -> None:
    with contextlib.closing(started(learning(folder, freeze_vision=True))) as ranks:
        pids = ranks.pids
        ranks._quiet_s = 3.0
        os.kill(pids[0], signal.SIGSTOP)
        with pytest.raises(RanksLost, match="did nothing for 3 s"):
            ranks.update(steps(played.samples[0]), played.screens)
        assert gone(pids)


@pytest.mark.heavy
def test_ranks_end_with_their_driver(folder: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("driver.py")), str(folder)]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": PATH})
    try:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(pids) == 2
        os.kill(pids[0], signal.SIGSTOP)  # one that can do nothing by itself
    finally:
        driver.kill()
        driver.communicate()
    assert gone(pids)


def test_what_cannot_start_is_said_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = learning(folder)
    refuse_ranks(config)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"train.ranks=2: each has a GPU of its own, and this machine has 1"):
        refuse_ranks(config)
    with pytest.raises(ConfigError, match=r"agent\.device=cuda:0"):
        refuse_ranks(config.with_values({"agent.device": "cuda:0"}))

    class Own(Grpo):
        pass

    with pytest.raises(ConfigError, match="cannot import Own from a script"):
        Ranks(config, Own(config.algorithm, 0))


# The command


def arpo(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "arpo.cli", "train", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONPATH": PATH, "OMP_NUM_THREADS": "1", "COLUMNS": "500"},
    )


def ranks_of(driver: int) -> list[int]:
    """The processes of the learner, as soon as there are two."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        children = Path(f"/proc/{driver}/task/{driver}/children").read_text().split()
        found = [int(pid) for pid in children if b"training import ranks" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        if len(found) == 2:
            return found
        time.sleep(0.2)
    raise AssertionError("no ranks")


@pytest.mark.heavy
def test_a_training_that_loses_a_rank_or_is_stopped_goes_on_with_any_number_of_them(tmp_path: Path) -> None:
    run = tmp_path / "run"
    few = "rollout_tasks=2 optimizer_tasks=1 updates=50 ranks=2".split()
    words = [f"train.{one}" for one in few]
    words += ["algorithm.group=2", "eval.trials=1", "eval.held_out=0", "tasks.source=demo", f"run_dir={run}"]

    def wait_for(updates: int) -> None:
        until = time.monotonic() + LIMIT_S
        while not (run / "checkpoints" / f"update-{updates:05d}").exists():
            assert time.monotonic() < until and training.poll() is None, training.communicate()[0]
            time.sleep(0.2)

    def made() -> int:
        return len((run / "metrics.jsonl").read_text().splitlines())

    training = arpo("pocket", *words)
    pids = ranks_of(training.pid)
    wait_for(1)
    os.kill(pids[0], signal.SIGKILL)
    said = training.communicate(timeout=LIMIT_S)[0]
    assert training.returncode == 2, said
    last = said.strip().splitlines()[-1]
    assert "rank 0 of the learner was ended by signal 9" in last and f"to resume: arpo train --resume {run}" in last
    assert gone(pids) and made() >= 1

    # Stopped by a person, in the middle of something
    training = arpo("--resume", str(run))
    pids = ranks_of(training.pid)
    wait_for(made() + 1)
    training.send_signal(signal.SIGINT)
    said = training.communicate(timeout=LIMIT_S)[0]
    assert training.returncode == 130 and "to resume" in said, said
    assert gone(pids)

    done = made()
    training = arpo("--resume", str(run), "train.ranks=1", f"train.updates={done + 1}")
    said = training.communicate(timeout=LIMIT_S)[0]
    assert training.returncode == 0, said
    made_updates = [json.loads(line)["update"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert made_updates == [*range(done + 1)]


# What needs no process


def test_every_sample_has_one_rank_and_ranks_have_alike_much(played: Played) -> None:
    batch = steps([sample for group in played.samples for sample in group])[0]
    owners = shared_out([batch], played.screens, QWEN2_5, 3)
    lengths = lengths_of(batch.samples, played.screens, QWEN2_5)
    loads = [
        sum(n for n, one in zip(lengths, batch.samples, strict=True) if owners[id(one)] == rank) for rank in range(3)
    ]
    assert sum(loads) == sum(lengths) and max(loads) - min(loads) <= max(lengths)


def test_parts_hold_up_to_so_many_tokens_and_never_none() -> None:
    assert packed([5, 9, 2, 30, 4], range(5), 12) == [[2, 4, 0], [1], [3]]
    assert packed([], [], 12) == []


@pytest.mark.parametrize("moments", ["fp32", "8bit", None])
def test_the_state_of_an_optimiser_is_read_by_any_number_of_ranks(moments: Moments | None, tmp_path: Path) -> None:
    whole = [torch.randn(7, 60), torch.randn(3), torch.randn(1, 500)]  # some have no row of one
    gradients = [torch.randn_like(weight) for weight in whole]
    dtype = torch.float32 if moments is None else torch.bfloat16

    def cut(weights: list[Tensor], rank: int, ranks: int) -> list[Tensor]:
        return [weight[rank * -(-len(weight) // ranks) :][: -(-len(weight) // ranks)] for weight in weights]

    def optimizer(rank: int, ranks: int) -> AdamW | Bf16AdamW:
        mine = [weight.to(dtype).clone().requires_grad_(True) for weight in cut(whole, rank, ranks)]
        if moments is None:
            return AdamW(mine, 1e-3)
        return Bf16AdamW(mine, 1e-3, 0.0, moments, seed=0)

    def spans(rank: int, ranks: int) -> list[tuple[int, int]]:
        sizes = [[part.numel() for part in cut(whole, one, ranks)] for one in range(ranks)]
        starts = [sum(of_rank[i] for of_rank in sizes[:rank]) for i in range(len(whole))]
        return [(start, start + size) for start, size in zip(starts, sizes[rank], strict=True)]

    def values(optimizers: list[Any]) -> list[Tensor]:
        """Of all weights, what is kept of them: as numbers, not as codes."""
        found = []
        for number in range(len(whole)):
            states = [one.state_dict()["state"][number] for one in optimizers]
            if moments == "8bit":
                states = [
                    {"lower": one["lower"]}
                    | {name: CODED[name][0](one[name].view(-1), one[f"{name}_scale"]) for name in ("first", "second")}
                    for one in states
                ]
            names = [name for name in states[0] if name != "step"]
            found += [torch.cat([one[name].reshape(-1).float() for one in states]) for name in names]
        return found

    def written(ranks: int) -> list[Any]:
        optimizers = [optimizer(rank, ranks) for rank in range(ranks)]
        for rank, one in enumerate(optimizers):
            for weight, gradient in zip(one.param_groups[0]["params"], cut(gradients, rank, ranks), strict=True):
                weight.grad = gradient.to(dtype).contiguous()
            one.step()
            (tmp_path / str(ranks)).mkdir(exist_ok=True)
            write_shard(tmp_path / str(ranks), one, rank)
        return optimizers

    for then in (2, 4):
        before = values(written(then))
        for now in (1, 2, 3, 4):
            readers = [optimizer(rank, now) for rank in range(now)]
            for rank, one in enumerate(readers):
                read_shards(tmp_path / str(then), then, one, spans(rank, now), rank, now)
            for a, b in zip(before, values(readers), strict=True):
                exact = moments != "8bit" or now == then
                assert torch.equal(a, b) if exact else torch.allclose(a, b, atol=0.03 * float(a.abs().max()))
    (tmp_path / "4" / "optimizer-rank3.safetensors").unlink()
    with pytest.raises(ValueError, match="rank 3 of 4 has written"):
        read_shards(tmp_path / "4", 4, optimizer(0, 1), spans(0, 1), 0, 1)
    with pytest.raises(ValueError, match="of other weights"):
        read_shards(tmp_path / "2", 2, optimizer(0, 1), spans(0, 1)[:2], 0, 1)
