"""Runs that were forged so that a report or a bundle of them ends in an error, or never, or shows what is not so."""

import asyncio
import base64
import dataclasses
import io
import json
import shutil
import sqlite3
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_viewer_static import data_of
from viewer_runs import FAILURES, SUCCESS, episode, record_of

from arpo.errors import ConfigError
from arpo.runs import record
from arpo.runs.record import TokenRecord, pack, unpack
from arpo.runs.store import Run
from arpo.viewer import episodes, look
from arpo.viewer.decoding import pieces
from arpo.viewer.episodes import Episodes, Missing
from arpo.viewer.look import Look
from arpo.viewer.serve import POLICY
from arpo.viewer.site import Site
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


def noise(width: int, height: int) -> bytes:
    """As PNG."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def peak(work: Callable[[], object]) -> int:
    """Bytes that it had at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.attack("run folder")
def test_a_report_shows_no_screenshot_of_one_run_for_another(runs: Path, tmp_path: Path) -> None:
    """The forged one comes first, under the name of the other's."""
    forged = shutil.copytree(runs / "training", tmp_path / "forged")
    changed(forged, "UPDATE images SET image = ?", image := noise(4, 4))
    write_report([forged, runs / "training"], tmp_path / "report.html")
    data = data_of(tmp_path / "report.html")
    shown = [[move["screen"]["url"] for move in data[f"{run}/episode/7/0"]["moves"]] for run in (0, 1)]
    mark = base64.b64encode(image).decode()
    assert [[mark in url for url in urls] for urls in shown] == [[True, True], [False, False]]


@pytest.mark.attack("run folder")
def test_a_report_says_of_a_large_screenshot_what_it_is(runs: Path, tmp_path: Path) -> None:
    """Too high for WebP: it stays PNG."""
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    changed(folder, "UPDATE images SET image = ?", noise(20, 17000))
    write_report([folder], tmp_path / "report.html")
    moves = data_of(tmp_path / "report.html")["0/episode/7/0"]["moves"]
    assert {move["screen"]["url"].partition(",")[0] for move in moves} == {"data:image/png;base64"}


@pytest.mark.attack("run folder")
def test_tokens_that_stand_for_millions_of_letters_are_not_written_out(runs: Path) -> None:
    for word in ("x" * 10**6, b"x" * 10**6):
        assert peak(lambda word=word: pieces((0,) * 60, "x" * 100, [{0: word}])) < 20 * 10**6  # type: ignore[misc]


@pytest.mark.attack("run folder")
@pytest.mark.parametrize(("more", "apart"), [(0, True), (1, False)])
def test_only_so_many_tokens_are_shown_apart(runs: Path, tmp_path: Path, more: int, apart: bool) -> None:
    """Those of a forged table may stand for no letter: then a short text has any number of them."""
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    (folder / "checkpoints" / "update-00001").mkdir(parents=True)
    table = {"model": {"vocab": {"": 0, "a": 1}}, "added_tokens": []}
    (folder / "checkpoints" / "update-00001" / "tokenizer.json").write_text(json.dumps(table))
    count = episodes.LONGEST + more
    with Run.write(folder, "") as run:
        made = run.trajectory(SUCCESS)
        tokens = (1, *[0] * (count - 1))
        said = dataclasses.replace(made.steps[0].completion, tokens=tokens, logprobs=(-0.5,) * count, text="a")
        steps = (dataclasses.replace(made.steps[0], completion=said), *made.steps[1:])
        run.add(dataclasses.replace(made, id="many", steps=steps))
    shown = Site([folder]).answer("api/0/episode/8/0.json")["moves"][0]
    assert (shown["n_tokens"], shown["text"]) == (count, "a")
    assert (len(shown["tokens"] or []), len(shown["logprobs"])) == ((count, count) if apart else (0, 0))


@pytest.mark.attack("run folder")
def test_a_record_is_not_cut_into_more_parts_than_it_has_names(runs: Path) -> None:
    """A million lengths of zero are a kilobyte when packed, and took 100 bytes each in every column."""
    with Run.read(runs / "training") as run:
        packed = pack([record_of(run.trajectory(SUCCESS), 1.0)])
    with np.load(io.BytesIO(packed)) as stored:
        arrays = {name: stored[name] for name in stored.files} | {"lengths": np.zeros(10**6, np.int64)}
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)

    def refused() -> None:
        with pytest.raises(ValueError, match="not one length for each trajectory"):
            unpack(file.getvalue())

    assert peak(refused) < 60 * 10**6


@pytest.mark.attack("run folder")
def test_of_the_records_of_a_group_only_numbers_are_kept(runs: Path, tmp_path: Path) -> None:
    """Its members may be learned in many updates, each of which unpacks to a gigabyte."""
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    many = np.zeros(10**6, np.float32)
    with Run.write(folder, "") as run:
        for i in range(6):
            name = episode(run, f"u1.0-press-1-{i + 2}-0", update=1, score=0.0).id
            filler = TokenRecord("another", None, many, many, many, many, many > 0)
            members = record_of(run.trajectory(name), -1.0)
            asyncio.run(run.keep_record(i + 2, [filler, members]))
        one = peak(lambda: run.record(2))
    shown = Episodes(Look(folder), lambda name, kind: name)
    place = next(one["number"] for one in Look(folder).episodes(look.Filter())["episodes"] if one["id"] == FAILURES[0])
    group = shown.group(place)
    assert [member["advantage"] for member in group["members"]] == [-1.0, None] + [-1.0] * 6
    assert peak(lambda: shown.group(place)) < 2 * one


@pytest.mark.attack("run folder")
@pytest.mark.parametrize("damage", ["file", "gone"])
def test_of_a_damaged_screenshot_the_rest_is_written(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    first = Site([folder]).answer("api/0/episode/2/0.json")["moves"][0]["screen"]["url"]
    name = Path(first).stem
    if damage == "file":  # the pages of a large one lead nowhere
        image = noise(60, 60)
        changed(folder, "UPDATE images SET image = ? WHERE hash = ?", image, name)
        data = bytearray((folder / "run.sqlite").read_bytes())
        page = data.index(image[5000:5200]) // 1024 * 1024
        data[page : page + 4] = b"\x7f\xff\xff\xff"
        (folder / "run.sqlite").write_bytes(data)
    else:  # between the list of names and its turn
        there = Episodes.image

        def gone(self: Episodes, wanted: str) -> tuple[bytes, str]:
            if wanted == name:
                raise Missing(wanted)
            return there(self, wanted)

        monkeypatch.setattr(Episodes, "image", gone)
    write_bundle([folder], tmp_path / "site")
    told = json.loads((tmp_path / "site" / "api" / "0" / "episode" / "2" / "0.json").read_text())["moves"]
    assert len(told) == 8 and (told[0]["screen"] is None) == (damage == "file")
    assert not (tmp_path / "site" / first).exists()
    assert all((tmp_path / "site" / move["screen"]["url"]).is_file() for move in told[1:])


@pytest.mark.attack("run folder")
def test_a_report_and_a_bundle_have_as_strict_a_policy_as_the_server(runs: Path, tmp_path: Path) -> None:
    write_report([runs / "hostile"], tmp_path / "report.html")
    write_bundle([runs / "hostile"], tmp_path / "site")
    before = '<meta http-equiv="Content-Security-Policy" content="'
    report, bundle = (
        (tmp_path / page).read_text().partition(before)[2].partition('"')[0]
        for page in ("report.html", "site/index.html")
    )
    served = dict(part.split(" ", 1) for part in POLICY.split("; "))
    assert served.pop("frame-ancestors") == "'none'"  # a page cannot say this of itself
    assert dict(part.split(" ", 1) for part in bundle.split("; ")) == served
    told = dict(part.split(" ", 1) for part in report.split("; "))
    assert told.pop("img-src") == "data:"
    for kind in ("script-src", "style-src"):
        assert told.pop(kind).startswith("'sha256-") and kind in served
    assert told == {name: "'none'" for name in ("default-src", "base-uri", "form-action")}
