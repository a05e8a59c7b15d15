"""Trackio: what it keeps is what was logged. It wants an older Pillow than ours, so most places have none.

To run it there: a virtual environment with trackio, pytest, hypothesis, pydantic, tokenizers and rich; PYTHONPATH=src.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest

from arpo.images import decode

pytestmark = pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed: pip install trackio")

SESSION = """
import sys
from pathlib import Path
from PIL import Image
from arpo.config import Config
from arpo.runs.store import Run
from arpo.runs.track import tracking

with Run.write(Path(sys.argv[1]), "") as run, tracking(["trackio"], run, Config()) as track:
    first = int(sys.argv[2])
    track.show(first, {"base agent/failure": Image.new("RGB", (30, 20), (10 + first, 0, 0))})
    for update in range(first, first + 2):
        track({"update": update, "success": 0.25, "env_steps": 7 + update})
"""


def test_trackio_keeps_metrics_and_pictures_of_all_sessions_as_one_run(tmp_path: Path) -> None:
    kept, folder = tmp_path / "kept", tmp_path / "a run: ours"
    for first in (0, 2):
        words = [sys.executable, "-c", SESSION, str(folder), str(first)]
        environment = {**os.environ, "TRACKIO_DIR": str(kept), "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
    with closing(sqlite3.connect(kept / "arpo.db")) as db:
        rows = db.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    (name,) = {row[0] for row in rows}
    assert name.startswith("a-run-ours-")
    told = [(step, json.loads(metrics)) for _, step, metrics in rows]
    numbers = [(step, one) for step, one in told if "success" in one]
    assert numbers == [(update, {"success": 0.25, "env_steps": 7.0 + update}) for update in range(4)]
    pictures = {step: one["base agent/failure"]["file_path"] for step, one in told if "success" not in one}
    for step, path in pictures.items():
        assert decode((kept / "media" / path).read_bytes())[0, 0].tolist() == [10 + step, 0, 0]
    assert list(pictures) == [0, 2]
