"""Runs that were forged so that a report or a bundle of them ends in an error, or never."""

import io
import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from viewer_runs import SUCCESS, record_of

from arpo.errors import ConfigError
from arpo.runs import record
from arpo.runs.record import pack
from arpo.runs.store import Run
from arpo.viewer import look
from arpo.viewer.look import Look
from arpo.viewer.static import write_bundle, write_report


def changed(folder: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.execute(statement, values)
    db.close()


@pytest.mark.attack("run folder")
@pytest.mark.parametrize("forged", ["metrics", "name", "screenshot", "tokenizer", "steps"])
def test_a_forged_run_is_still_written(runs: Path, tmp_path: Path, forged: str) -> None:
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    if forged == "metrics":
        lines = [{"sampled_tokens": (-1) ** i * 1e99, "sample_s": 1e-300} for i in range(2000)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif forged == "name":
        with Run.read(folder) as run:
            record = pack([record_of(run.trajectory(SUCCESS), 1.0, name="half\ud800-replay")])
        changed(folder, "INSERT INTO records VALUES (7, ?)", record)
    elif forged == "screenshot":
        file = io.BytesIO()
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (17000, 20, 3), np.uint8)).save(file, "PNG")
        changed(folder, "UPDATE images SET image = ?", file.getvalue())
    elif forged == "tokenizer":
        (folder / "checkpoints" / "update-00001").mkdir(parents=True)
        text = '{"model": {"vocab": {"a": 1e999}}, "added_tokens": []}'
        (folder / "checkpoints" / "update-00001" / "tokenizer.json").write_text(text)
    else:
        changed(folder, "UPDATE trajectories SET n_steps = ?", 2**52)
    write_report([folder], tmp_path / "report.html")
    write_bundle([folder], tmp_path / "site")
    assert (tmp_path / "site" / "api" / "0" / "episode" / "2" / "0.json").is_file()


def test_a_report_that_cannot_lie_there_is_one_line(runs: Path, tmp_path: Path) -> None:
    for out in (tmp_path, tmp_path / "missing" / "report.html"):
        with pytest.raises(ConfigError, match="name a file to write"):
            write_report([runs / "training"], out)


def test_a_bundle_never_replaces_a_run(runs: Path, tmp_path: Path) -> None:
    write_bundle([runs / "training"], tmp_path / "site")
    folder = shutil.copytree(runs / "training", tmp_path / "site" / "run")
    with pytest.raises(ConfigError, match="holds a run that would be replaced"):
        write_bundle([folder], tmp_path / "site")
    assert (folder / "run.sqlite").is_file()


@pytest.mark.attack("run folder")
def test_names_in_the_records_of_updates_have_bounds(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few megabytes of them unpack to tens of gigabytes."""
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    with Run.read(folder) as run:
        known, _ = Look(folder).learned(run)
        first = record_of(run.trajectory(SUCCESS), 1.0)
        changed(folder, "INSERT INTO records VALUES (7, ?)", pack([first] * 30))
        for module, limit in ((record, "NAMES"), (record, "LETTERS"), (look, "MOST_LEARNED")):
            with monkeypatch.context() as patch:
                patch.setattr(module, limit, 29)
                of_few = Look(folder)
                assert 7 not in of_few.learned(run)[0].values() and 7 in of_few.damaged
        assert Look(folder).learned(run)[0] == known | {SUCCESS: 7}
