"""`arpo bench envs --env desktop`, small: real desktops, the names that others rely on, OSWorld's sleeps shortened."""

from __future__ import annotations

import json
import sys

import pytest

from arpo import cli
from arpo.bench import desktop
from arpo.bench.envs import bench_envs, print_table
from arpo.envs.memory import free_mb

POCKET = """env size n_envs cores steps seed steps_per_s floor_steps_per_s reset_ms_p50 reset_ms_p95 resets_per_min
encode_ms mb_per_env""".split()
ADDED = ["settle_ms_p50", "late_change_share", "osworld_pacing_steps_per_s", "speedup_vs_osworld_pacing"]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RESETS_S", 1.0), ("SAMPLES", 2), ("EPISODES", 1), ("EPISODE", 3)):
        monkeypatch.setattr(desktop, name, value)
    for name, value in (("SLEEP_START_S", 0.2), ("SLEEP_STEP_S", 0.5), ("SLEEP_SCORE_S", 0.1)):
        monkeypatch.setattr(desktop, name, value)


@pytest.mark.heavy
@pytest.mark.desktop("mousepad", "galculator", "libreoffice", "chromium")
def test_its_numbers_have_their_names(
    short: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", "arpo bench envs --env desktop --n-envs 4 --steps 12 --json".split())
    with pytest.raises(SystemExit):
        cli.main()
    numbers = json.loads(capsys.readouterr().out)
    assert list(numbers)[: len(POCKET) + len(ADDED)] == POCKET + ADDED
    assert (numbers["size"], numbers["n_envs"]) == ("1280x720", 4)
    assert numbers["steps"] >= 12
    assert 0 <= numbers["late_change_share"] <= 1
    free = ("late_change_share", "seed", "mb_per_env", "mb_per_spare", "open_share")  # may be 0, or noise
    assert all(value > 0 for name, value in numbers.items() if not isinstance(value, str) and name not in free)
    assert numbers["osworld_pacing_steps_per_s"] < 4 / desktop.SLEEP_STEP_S
    print_table(numbers)
    assert "with OSWorld's sleeps" in capsys.readouterr().out


@pytest.mark.desktop("mousepad")
def test_the_memory_of_a_desktop_is_told_from_that_of_its_spare() -> None:
    seat = desktop.Seat("mousepad", (1280, 720), 0)
    try:
        own, spare = desktop._memory([seat], free_mb())
        if seat.env.sandbox.group is None:
            pytest.skip("this user may make no control groups")
    finally:
        seat.close()
    assert 20 < own < 100
    assert 0.7 < spare / own < 1.3, "both have the program open"


def test_a_count_out_of_range_is_refused_before_anything_is_started() -> None:
    with pytest.raises(Exception, match="n-envs=0: must be from 1 to 1024"):
        bench_envs("desktop", 0, 1, (1280, 720), 0)
