"""The agent that comes with arpo: that it is what its card says, and that it reads."""

import re
from pathlib import Path

import pytest
from safetensors import safe_open

from arpo.config import load_config
from arpo.evaluation.command import run_evaluation
from arpo.model.checkpoint import find_checkpoint, load_checkpoint

BASE = find_checkpoint("base")


def test_it_is_as_small_as_promised() -> None:
    assert (BASE / "model.safetensors").stat().st_size < 12_000_000
    with safe_open(BASE / "model.safetensors", "np") as weights:
        kinds = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    assert kinds == {"BF16"}
    checkpoint = load_checkpoint("base")
    assert sum(weight.numel() for weight in checkpoint.model.parameters()) < 6_000_000


@pytest.mark.heavy
def test_its_success_on_subset32_agrees_with_its_card(tmp_path: Path) -> None:
    card = (BASE / "README.md").read_text()
    found = re.search(r"\| `subset32` \|.*?\| ([\d.]+) % \| ([\d.]+) to ([\d.]+) %", card)
    assert found, "the card has no line for subset32"
    low, high = float(found[2]) / 100, float(found[3]) / 100
    config = load_config("pocket", ["tasks.source=subset32", "eval.trials=2", "eval.temperature=1.0", "seed=11"])
    rate, interval = run_evaluation(config, "base", tmp_path / "run").success()
    assert rate is not None and interval is not None
    assert interval[0] < high and low < interval[1], "the two intervals do not meet"
