"""All of it at once: environments on two Ray nodes, vLLM as the engine, FSDP2 on two ranks, sampling ahead of learning.

Real processes throughout. A node dies in the middle, and the server stops without a word for a while; the run goes on,
and its store is audited.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from pathlib import Path

import pytest
from ray_nodes import Nodes, below, nodes, wait_until
from test_ray_train import GROUP, TASKS, UPDATES, ended, played, start

from arpo.engines.vllm.installed import find_python
from arpo.errors import ConfigError
from arpo.runs.store import Run
from audit import audit

__all__ = ["nodes"]


def vllm_is_there() -> bool:
    try:
        find_python()
    except ConfigError:
        return False
    return True


@pytest.mark.heavy
@pytest.mark.ray
@pytest.mark.fsdp
@pytest.mark.vllm
@pytest.mark.skipif(not vllm_is_there(), reason="vLLM is not installed: make vllm")
def test_a_training_on_nodes_servers_and_ranks_outlives_a_node_and_a_server_that_hangs(
    nodes: Nodes, tmp_path: Path
) -> None:
    run = start(tmp_path, f"env.ray={nodes.address}", "engine.name=vllm", "train.ranks=2", "train.lag=1")
    try:
        wait_until(lambda: played(tmp_path) >= 3 or run.poll() is not None, 500)
        nodes.lose(nodes.started[1])
        nodes.start(desktop=2)
        server = [pid for pid, args in below(run.pid).items() if re.match(r"VLLM::|\S+python -m vllm\.", args)]
        assert server
        for pid in server:
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: "gave no answer within" in (tmp_path / "told").read_text() or run.poll() is not None, 300)
        for pid in server:
            with contextlib.suppress(ProcessLookupError):  # it was started again meanwhile
                os.kill(pid, signal.SIGCONT)
        told = ended(tmp_path, run)
    finally:
        run.kill()
    assert run.returncode == 0, told
    with Run.read(tmp_path / "run") as stored:
        counts = audit(stored, UPDATES, TASKS, GROUP)
        fresh = [update for update in stored.metrics() if update.get("lag") == 0]
    assert counts["episodes"] == UPDATES * TASKS * GROUP, told
    # What vLLM sampled is what the ranks compute: tokens, screenshots and weights are the same on both sides.
    # (Of older samples the policy itself has changed since.)
    assert fresh and all(update["sampler_gap"] < 1e-3 for update in fresh), told
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["env_steps"] > 0
