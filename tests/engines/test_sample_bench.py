"""The sampling benchmark counts what it says and has the promised names."""

from pathlib import Path

import pytest

from arpo.bench import sample
from arpo.errors import ConfigError


def test_the_numbers_have_the_promised_names(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sample, "REPEATS", 1)
    numbers = sample.bench_sample(str(tiny_folder), (112, 84), episodes=2, turns=2, tokens=3, seed=0, peer=True)
    for name in ("sample_tokens_per_s", "turn_cost_ratio", "episode_core_s", "peer_tokens_per_s"):
        assert numbers[name] > 0
    assert (numbers["episodes"], numbers["turns"], numbers["tokens_per_turn"]) == (2, 2, 3)
    sample.print_table(numbers)
    assert "turn 10 over turn 2" in capsys.readouterr().out


def test_amounts_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="tokens=0: must be at least 1"):
        sample.bench_sample("base", (448, 280), 16, 5, 0, 0, False)
