"""FSDP2 shards the model by its modules' own hooks: the gradients of two processes are those of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

LIMIT_S = 240


def test_two_processes_that_hold_half_of_each_layer_get_the_gradients_of_the_whole(
    tiny_folder: Path, tmp_path: Path
) -> None:
    command = [sys.executable, str(Path(__file__).with_name("sharded.py")), str(tiny_folder), str(tmp_path / "store")]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo",
    }
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        for rank in range(2)
    ]
    try:
        ends = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (_, said) in zip(ranks, ends, strict=True):
        assert rank.returncode == 0, said.decode()
    for out, _ in ends:
        for kind in json.loads(out):
            assert kind["fired"] == [1, 1, 1], kind
            assert kind["split"] > 30, kind
            assert kind["off"] < 1e-6, kind
