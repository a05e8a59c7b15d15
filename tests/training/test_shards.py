"""What ranks have written of their optimisers is checked before it is used: a checkpoint may be somebody else's."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from arpo.model.tensorfiles import write_tensors
from arpo.training.shards import read_shards, write_shard

SPANS = [(0, 12), (0, 2)]  # of both weights all: each of the two ranks wrote what a process alone has


def optimizer(steps: int = 1) -> torch.optim.AdamW:
    weights = [torch.nn.Parameter(torch.ones(4, 3)), torch.nn.Parameter(torch.ones(2))]
    made = torch.optim.AdamW(weights, 1e-3)
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        made.step()
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(2):
        write_shard(tmp_path, optimizer(), rank)
    return tmp_path


def test_what_was_written_is_read(folder: Path) -> None:
    read_shards(folder, 2, new := optimizer(0), SPANS, 0, 2)
    for mine, theirs in zip(new.state.values(), optimizer().state.values(), strict=True):
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("written", [0, -3, False, 2.0, "2", 10**12])
def test_a_number_of_ranks_that_is_none_is_refused(folder: Path, written: Any) -> None:
    with pytest.raises(ValueError):
        read_shards(folder, written, optimizer(0), SPANS, 0, 2)


@pytest.mark.parametrize("steps", [torch.ones(5), torch.ones(0), torch.tensor(-1.0), torch.tensor(float("nan"))])
def test_a_number_of_steps_that_is_none_is_refused(folder: Path, steps: Tensor) -> None:
    for rank in range(2):
        state = optimizer().state_dict()["state"]
        named = [(f"{i}.{name}", steps if name == "step" else value) for i in state for name, value in state[i].items()]
        write_tensors(folder, f"optimizer-rank{rank}", named, 2**30)
    with pytest.raises(ValueError, match="no number of steps"):
        read_shards(folder, 2, optimizer(0), SPANS, 0, 2)
