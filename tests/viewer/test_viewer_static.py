"""Bundles and reports are there whole or not at all, have bounds, and never take the place of somebody's files."""

import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from viewer_runs import make_long

from arpo.errors import ConfigError
from arpo.images import observe
from arpo.viewer import static
from arpo.viewer.serve import SCRIPTS
from arpo.viewer.site import Site
from arpo.viewer.static import MARK, write_bundle, write_report


def data_of(report: Path) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', report.read_text(), re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_bundle_has_every_answer_that_the_server_gives(runs: Path, tmp_path: Path) -> None:
    write_bundle([runs / "training", runs / "long"], tmp_path / "deep" / "site")
    site, folder = Site([runs / "training", runs / "long"], live=False), tmp_path / "deep" / "site"
    files = [str(file.relative_to(folder)) for file in (folder / "api").rglob("*.json")]
    assert {f"api/0/episode/{number}/0.json" for number in range(1, 8)} < set(files)
    assert {f"api/1/episode/1/{window}.json" for window in range(3)} < set(files)
    for path in files:
        answer = json.loads((folder / path).read_text())
        if path.endswith("episodes.json"):
            assert answer["whole"] and len(answer["episodes"]) == answer["total"]
        else:
            assert answer == json.loads(json.dumps(site.answer(path)))
    named = set(re.findall(r"image/[01]/[0-9a-f]+\.[a-z]+", "".join((folder / path).read_text() for path in files)))
    assert named == {str(file.relative_to(folder)) for file in (folder / "image").rglob("*.*")}


def test_a_bundle_is_replaced_and_other_files_are_not(runs: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()  # an empty folder is nobody's
    write_bundle([runs / "training"], site)
    (site / "old").touch()
    write_bundle([runs / "training"], site)
    assert (site / MARK).is_file() and not (site / "old").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("precious")
    for taken in ("mine", "mine/diary.txt"):
        with pytest.raises(ConfigError, match="is there already and no bundle of arpo"):
            write_bundle([runs / "training"], tmp_path / taken)
    assert (tmp_path / "mine" / "diary.txt").read_text() == "precious"


def test_of_a_bundle_that_fails_nothing_is_left(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bundle([runs / "training"], tmp_path / "site")
    (tmp_path / "site" / "old").touch()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(static._Bundle, "_episode", full)
    with pytest.raises(OSError, match="No space"):
        write_bundle([runs / "training"], tmp_path / "site")
    assert [path.name for path in tmp_path.iterdir()] == ["site"] and (tmp_path / "site" / "old").exists()


def test_a_report_is_one_file_that_asks_for_nothing(runs: Path, tmp_path: Path) -> None:
    write_report([runs / "training"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page.partition('id="data"')[0])
    assert all(f'src="{name}"' not in page for name in SCRIPTS)
    assert "script-src 'sha256-" in page and "default-src 'none'" in page
    data = data_of(tmp_path / "report.html")
    assert {"overview", "0/tasks", "0/episodes"} < set(data)
    chosen = [path for path in data if "/episode/" in path]
    assert 2 <= len(chosen) <= 2 * static.EXAMPLES
    scores = {data[path]["score"] for path in chosen}
    assert scores == {0.0, 1.0}  # some of the best and some of the worst


@pytest.mark.attack("run folder")
def test_no_text_of_a_run_ends_the_data_of_a_report(runs: Path, tmp_path: Path) -> None:
    write_report([runs / "hostile"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("</script>") == 2 and "<img src=x" not in page
    assert "window.hacked" in json.dumps(data_of(tmp_path / "report.html"))


def test_a_report_keeps_to_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_long(tmp_path / "long", 12)
    noise = np.random.default_rng(0).integers(0, 256, (700, 1100, 3), np.uint8)
    image = observe(noise).image
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.execute("UPDATE images SET width = 1100, height = 700, image = ?", (image,))
    db.close()
    monkeypatch.setattr(static, "IMAGES", 2 * 10**6)
    write_report([folder], tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 5 * 10**6 < len(image) * 3
    moves = data_of(tmp_path / "report.html")["0/episode/1/0"]["moves"]
    urls = [move["screen"]["url"] for move in moves]
    assert urls[0].startswith("data:image/webp;base64,") and urls[-1] is None  # the first have gone first


def test_a_report_of_a_damaged_run_says_so_and_shows_the_others(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.sqlite").write_bytes(b"nothing")
    write_report([tmp_path / "broken", runs / "training"], tmp_path / "report.html")
    data = data_of(tmp_path / "report.html")
    broken, whole = data["overview"]["runs"]
    assert broken["problems"] and whole["episodes"] == 7
    write_bundle([tmp_path / "broken", runs / "training"], tmp_path / "site")
    assert "error" in json.loads((tmp_path / "site" / "api" / "0" / "episodes.json").read_text())


@pytest.mark.parametrize(
    "command", [("report", "-o", "out.html"), ("view", "--port", "0"), ("view", "--bundle", "site")]
)
def test_a_folder_without_a_run_is_one_line(command: tuple[str, ...], tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "arpo.cli", command[0], str(tmp_path), *command[1:]]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"error: {tmp_path}: holds no run\n")
    assert list(tmp_path.iterdir()) == []


def test_the_command_names_the_report_that_it_wrote(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    arguments = [sys.executable, "-m", "arpo.cli", "report", str(runs / "training"), "-o", str(out)]
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 0 and f"The report is in {out}" in done.stdout and out.is_file()
