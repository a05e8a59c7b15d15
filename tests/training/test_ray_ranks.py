"""Ranks on two nodes of a Ray cluster learn what one process learns; one that is lost, or its node, ends all."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from test_fsdp import alone, apart, folder, gone, learning, played, started
from test_learner import Played, steps

pytest.importorskip("ray")
sys.path.append(str(Path(__file__).parents[1] / "envs"))
from ray_nodes import Nodes, below, cluster, wait_until

from arpo.config import Config, load_config
from arpo.errors import ConfigError
from arpo.training import ray_ranks
from arpo.training.base import RanksLost
from arpo.training.ranks import refuse_ranks

__all__ = ["folder", "played"]
pytestmark = [pytest.mark.ray, pytest.mark.fsdp]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster({"learner": 1}, {"learner": 1}) as made:
        yield made


def on_nodes(nodes: Nodes, folder: Path, ranks: int = 2) -> Config:
    config = learning(folder, ranks=ranks, rank_resource="learner")
    return config.with_values({"env.ray": nodes.address})


@pytest.mark.heavy
def test_ranks_on_two_nodes_learn_as_one_process_and_are_lost_together(
    nodes: Nodes, folder: Path, played: Played, tmp_path: Path
) -> None:
    config, batches = on_nodes(nodes, folder), steps(*played.samples[:3])
    refuse_ranks(config)
    local = alone(config)
    (kept := tmp_path / "kept").mkdir()
    with contextlib.closing(started(config)) as ranks:
        pids = ranks.pids
        assert [sum(pid in below(node.pid) for pid in pids) for node in nodes.started] == [1, 1]
        ours, theirs = ranks.update(batches, played.screens), local.update(batches, played.screens)
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-3, abs=1e-4)
        assert (ranks.version, len(ours.record)) == (local.version, len(theirs.record))
        ranks.publish(tmp_path / "published")
        local.publish(tmp_path / "one").path()
        assert apart(tmp_path / "published", tmp_path / "one") < 1e-4
        state = ranks.save(kept)()
        os.kill(pids[1], signal.SIGKILL)
        with pytest.raises(RanksLost, match=r"rank 1 of the learner on node .* ended"):
            ranks.update(batches, played.screens)
        assert gone(pids)
    with contextlib.closing(started(config)) as ranks:
        ranks.restore(kept, state)
        ours, theirs = ranks.update(batches, played.screens), local.update(batches, played.screens)
        assert ours.metrics == pytest.approx(theirs.metrics, rel=1e-3, abs=1e-4)
        pids = ranks.pids
        nodes.lose(nodes.started[1])
        with pytest.raises(RanksLost, match=r"of the learner on node .* ended"):
            while True:  # it takes a moment until the processes of a node end
                ranks.update(batches, played.screens)
        assert gone(pids)

    def refused() -> str:
        with pytest.raises((ConfigError, RanksLost)) as said:
            started(config)
        return str(said.value)

    wait_until(lambda: "each takes one learner, and the nodes of env.ray offer 1" in refused(), 400)


def test_a_rank_that_is_lost_before_it_has_its_place_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that dies at this moment: Ray is replaced, since the moment cannot be met."""
    killed: list[object] = []

    def get(asked: object, timeout: float) -> list[ray_ranks.Seen]:
        if isinstance(asked, list):
            return [ray_ranks.Seen(ray_ranks.HERE, "10.0.0.1", 1, 1, True)] * 2
        raise ray_ranks.RayError("gone")

    monkeypatch.setattr(ray_ranks, "connect", lambda env: None)
    monkeypatch.setattr(ray_ranks, "alive", lambda: [{"Resources": {"learner": 2}}])
    monkeypatch.setattr(ray_ranks, "_WORKING", Mock())
    monkeypatch.setattr(ray_ranks.ray, "get", get)
    monkeypatch.setattr(ray_ranks.ray, "kill", killed.append)
    config = load_config(None, ["train.ranks=2", "train.rank_resource=learner", "env.ray=auto"])
    with pytest.raises(ConfigError, match=r"train.rank_resource=learner: a rank did not start"):
        list(ray_ranks.remote_ranks(config))
    assert len(killed) == 2


def test_ranks_meet_at_one_address_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `torchrun` would listen on all of them."""
    monkeypatch.setattr(ray_ranks.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    working = ray_ranks.Working()
    seen = working.look(None)
    threads = torch.get_num_threads()
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    for name in (*place, "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # so that it is taken back
    try:
        working.settle({**place, "MASTER_PORT": str(seen.port)}, seen.address)
    finally:
        torch.set_num_threads(threads)
    tables = [Path(f"/proc/net/tcp{kind}").read_text().splitlines()[1:] for kind in ("", "6")]
    rows = [line.split() for lines in tables for line in lines]
    listening = [row[1] for row in rows if row[1].endswith(f":{seen.port:04X}") and row[3] == "0A"]
    assert listening == [f"0100007F:{seen.port:04X}"]


def test_one_rank_is_not_put_on_a_node() -> None:
    config = load_config(None, ["train.rank_resource=GPU", "env.ray=auto"])
    with pytest.raises(ConfigError, match=r"train.rank_resource=GPU: one rank is this process; set train.ranks to 2"):
        refuse_ranks(config)


def test_ranks_on_nodes_need_a_cluster() -> None:
    config = load_config(None, ["train.ranks=2", "train.rank_resource=GPU"])
    with pytest.raises(ConfigError, match=r"train.rank_resource=GPU: needs a cluster; set env.ray to it"):
        refuse_ranks(config)
