"""Two minutes of bad luck (benchmarks/soak.py): no score is wrong, no episode is lost, nothing is left over."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "soak.py"


@pytest.mark.heavy
@pytest.mark.desktop("mousepad", "galculator", "pcmanfm", "libreoffice", "chromium", "xterm")
def test_two_minutes_of_random_actions_and_kills() -> None:
    soak = subprocess.run([sys.executable, SCRIPT, "--minutes", "2"], capture_output=True, text=True)
    assert soak.returncode == 0, soak.stdout + soak.stderr
    report = json.loads(soak.stdout)
    assert report["valid"] + report["given up"] == report["episodes"] > 16
    assert report["right"] == report["valid"] > report["solved"] > 0
    assert set(report["killed"]) == {"Xvfb", "application", "worker"}
    assert report["attempts"]["env_error"] > 0  # the kills were felt
