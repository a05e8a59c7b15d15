"""Two minutes of bad luck for a training on a cluster (benchmarks/cluster_soak.py): each episode is accounted for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "cluster_soak.py"


@pytest.mark.heavy
@pytest.mark.ray
@pytest.mark.fsdp
@pytest.mark.vllm  # where it is installed; else the local engine samples
@pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")
def test_two_minutes_of_kills_on_a_cluster() -> None:
    soak = subprocess.run([sys.executable, SCRIPT, "--minutes", "2"], capture_output=True, text=True, timeout=1800)
    assert soak.returncode == 0, soak.stdout + soak.stderr
    report = json.loads(soak.stdout)
    assert report["audit"] == "passed" and report["left_over"] == []
    assert report["episodes"] >= 16 * report["updates"] > 0
    assert report["killed"]["environment"] > 0
