"""What is shown of a run: the right numbers, from a whole one as from a damaged one, and lists without unpacking."""

import dataclasses
import io
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from viewer_runs import ACTIONS, FAILURES, REPLAYED, SUCCESS, episode, grow

from arpo.engines.scripted import byte_vocabulary
from arpo.errors import ConfigError
from arpo.runs.store import Run
from arpo.types import Json
from arpo.viewer.decoding import pieces, read_table, tables_of
from arpo.viewer.episodes import WINDOW, Episodes, Missing
from arpo.viewer.look import CELLS, PAGE, POINTS, Filter, Look, filter_from
from arpo.viewer.site import Site


@pytest.fixture
def look(runs: Path) -> Look:
    return Look(runs / "training")


def episodes_of(look: Look) -> Episodes:
    return Episodes(look, lambda name, kind: f"{name}.{kind}")


def numbered(look: Look, name: str) -> int:
    found: list[Json] = look.episodes(Filter())["episodes"]
    return next(int(one["number"]) for one in found if one["id"] == name)


def ids(look: Look, **wanted: Any) -> list[str]:
    return [one["id"] for one in look.episodes(Filter(**wanted))["episodes"]]


def changed(runs: Path, tmp_path: Path, *statements: str) -> Look:
    """A copy of the run in which somebody wrote."""
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    with sqlite3.connect(folder / "run.sqlite") as db:
        for statement in statements:
            db.execute(statement)
    db.close()
    return Look(folder)


def test_curves_have_the_metrics_that_were_logged(look: Look) -> None:
    shown = look.overview()
    assert shown["problems"] == []
    assert shown["curves"]["success"] == [[0, 0.5], [1, 0.0]]
    assert shown["curves"]["replayed"] == [[0, 0.25], [1, 0.25]]
    assert shown["curves"]["mismatch"] == [[0, 1e-7], [1, 1e-7]]
    assert shown["curves"]["throughput"] == [[0, 200.0], [1, 200.0]]
    assert (shown["episodes"], shown["unscored"], shown["updates"], shown["tasks"]) == (7, 1, 2, 2)
    assert shown["settings"]["algorithm.name"] == "arpo"


def test_a_curve_of_many_updates_is_thinned_and_keeps_its_mean(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    lines = [json.dumps({"update": i, "success": i % 2}) for i in range(5 * POINTS)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    points = Look(folder).overview()["curves"]["success"]
    assert len(points) <= POINTS
    assert sum(y for _, y in points) / len(points) == pytest.approx(0.5)


def test_evaluations_stand_apart_by_update_with_their_interval(look: Look) -> None:
    before, after = look.overview()["judged"]
    assert (before["update"], before["success"], after["update"], after["success"]) == (0, 0.0, 2, 1.0)
    assert 0.0 < after["interval"][0] < 1.0 == after["interval"][1]
    assert (before["split"], before["tasks"]) == ("train", 1)


def test_a_task_has_its_history_of_success(look: Look) -> None:
    first, second = look.tasks()["tasks"]
    assert (first["id"], first["instruction"], first["split"]) == ("press-1", "Press button 1.", "train")
    assert first["played"] == [[0, 2, 0.5, 2], [1, 2, 0.0, 2]]
    assert first["judged"] == [[0, 1, 0.0, 1], [2, 1, 1.0, 1]]
    assert second["played"] == [[0, 0, None, 1]]  # a machine's failure is no failure of the agent


def test_an_attempt_that_earned_a_part_has_not_solved_its_task(tmp_path: Path) -> None:
    with Run.write(tmp_path / "run", "") as run:
        for i, score in enumerate((0.4, 0.0, 1.0, 0.4)):
            episode(run, f"u0.0-press-1-{i}-0", score=score)
        episode(run, "eval0-press-1-0-0", source="evaluation", score=0.4)
    (first,) = Look(tmp_path / "run").tasks()["tasks"]
    assert first["played"] == [[0, 4, 0.25, 4]]
    assert first["judged"] == [[0, 1, 0.4, 1]]  # of a checker that knows more than 0 and 1


def test_a_long_history_is_merged_by_the_number_of_episodes(runs: Path, tmp_path: Path) -> None:
    count = f"WITH RECURSIVE c(n) AS (SELECT 10 UNION ALL SELECT n + 1 FROM c WHERE n < {10 * CELLS}) SELECT n FROM c"
    copies = f"""INSERT INTO trajectories SELECT NULL, 'c' || n, task_id, n, source, attempt, env_seed, outcome, n % 2,
                 reward, n_steps, record FROM trajectories, ({count}) WHERE id = '{SUCCESS}'"""
    history = changed(runs, tmp_path, copies).tasks()["tasks"][0]["played"]
    assert len(history) <= CELLS
    assert sum(total for *_, total in history) == 4 + 10 * CELLS - 9


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"score": "solved"}, ["eval2-press-1-0-0", SUCCESS]),
        ({"score": "none"}, ["u0.0-press-2-0-0"]),
        ({"score": "failed", "source": "rollout", "most_update": 0}, ["u0.0-press-1-1-0"]),
        ({"outcome": "unparsable"}, ["u0.0-press-1-1-0"]),
        ({"task": "ess-2"}, ["u0.0-press-2-0-0"]),
        ({"task": "%"}, []),
        ({"least_steps": 3, "order": "oldest"}, [SUCCESS, *FAILURES]),
        ({"least_steps": 3, "most_steps": 3}, list(reversed(FAILURES))),
        ({"order": "longest", "source": "rollout", "least_steps": 3}, [SUCCESS, *reversed(FAILURES)]),
        ({"replayed": "source"}, [SUCCESS]),
        ({"replayed": "replaced"}, [FAILURES[1]]),
        ({"page": 1}, []),
    ],
)
def test_a_list_has_what_was_asked_for(look: Look, wanted: dict[str, Any], expected: list[str]) -> None:
    assert ids(look, **wanted) == expected


def test_a_list_by_time_leaves_out_what_has_none(runs: Path, tmp_path: Path) -> None:
    stored = "UPDATE times SET added = 1700000000 + number"
    look = changed(runs, tmp_path, stored, "DELETE FROM times WHERE number = 3")
    assert [one["time"] for one in look.episodes(Filter(order="oldest"))["episodes"]][:4] == [
        1700000001, 1700000002, None, 1700000004,
    ]  # fmt: skip
    listed = look.episodes(filter_from({"least_time": "1700000002", "most_time": "1700000005", "order": "oldest"}))
    assert [one["number"] for one in listed["episodes"]] == [2, 4, 5]


def test_times_that_are_none_are_not_shown(runs: Path, tmp_path: Path) -> None:
    look = changed(
        runs, tmp_path, "UPDATE times SET added = 'yesterday'", "UPDATE times SET added = 9e999 WHERE number = 1"
    )
    assert {one["time"] for one in look.episodes(Filter())["episodes"]} == {None}


def test_no_episode_is_unpacked_for_a_list(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("unpacked")

    monkeypatch.setattr(Run, "_unpacked", refuse)
    look.overview(), look.tasks(), look.state()
    assert look.episodes(Filter())["total"] == 7
    with pytest.raises(AssertionError):
        episodes_of(look).episode(1)


def test_a_list_comes_in_pages(runs: Path, tmp_path: Path) -> None:
    more = f"""INSERT INTO trajectories SELECT NULL, 'c' || n, task_id, "update", source, attempt, env_seed, outcome,
               score, reward, n_steps, record FROM trajectories,
               (WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n < {2 * PAGE}) SELECT n FROM c)
               WHERE id = '{SUCCESS}'"""
    look = changed(runs, tmp_path, more)
    pages = [ids(look, page=page) for page in range(4)]
    assert [len(page) for page in pages] == [PAGE, PAGE, 8, 0]
    assert len({name for page in pages for name in page}) == look.episodes(Filter())["total"] == 2 * PAGE + 8


def test_an_episode_has_its_screens_actions_and_words(look: Look) -> None:
    shown = episodes_of(look).episode(numbered(look, SUCCESS))
    assert (shown["instruction"], shown["steps"], shown["score"]) == ("Press button 1.", len(ACTIONS), 1.0)
    first, *_, last = shown["moves"]
    assert first["action"] == {"kind": "click", "x": 20, "y": 10, "button": "left", "count": 1}
    assert (first["did"], first["thought"]) == ("click (20, 10)", "There is the button.")
    assert (first["screen"]["width"], first["screen"]["height"]) == (96, 64)
    assert first["screen"]["url"].endswith((".webp", ".png"))
    assert (last["did"], shown["end"], first["engine_s"], first["env_s"]) == ("finish", None, 0.5, 0.25)


def test_each_token_has_what_was_learned_from_it(look: Look) -> None:
    shown = episodes_of(look).episode(numbered(look, SUCCESS))
    for move in shown["moves"]:
        assert "".join(move["tokens"]) == move["text"]
        assert len(move["tokens"]) == len(move["logprobs"]) == len(move["ratios"]) == len(move["clipped"])
        assert set(move["advantages"]) == {1.0}
    ratios = [ratio for move in shown["moves"] for ratio in move["ratios"]]
    assert ratios[0] == pytest.approx(0.74, abs=0.01) and ratios[-1] == pytest.approx(1.35, abs=0.01)
    assert [move["clipped"][-1] for move in shown["moves"]] == [0] * 7 + [1]
    assert shown["trained"]["update"] == 0 and shown["trained"]["advantage"] == 1.0


def test_a_replayed_success_says_where_and_a_group_shows_it_beside_the_failures(look: Look) -> None:
    shown = episodes_of(look)
    success, failure = numbered(look, SUCCESS), numbered(look, FAILURES[0])
    assert shown.episode(success)["repeats"] == [{"update": 1, "group": failure}]
    group = shown.group(failure)
    assert [one["id"] for one in group["members"]] == list(FAILURES)
    assert [one["replaced"] for one in group["members"]] == [False, True]
    (guest,) = group["guests"]
    assert (guest["number"], guest["joined"], guest["advantage"]) == (success, FAILURES[1], 2.5)
    assert guest["film"][0]["screen"] and guest["film"][0]["action"]["kind"] == "click"
    assert group["members"][0]["advantage"] == -1.0
    assert REPLAYED not in ids(look)


def test_a_replayed_success_has_its_tokens_as_each_update_learned_them(runs: Path) -> None:
    site = Site([runs / "training"])
    path = f"api/0/episode/{numbered(site.looks[0], SUCCESS)}/0.json"
    first, again = site.answer(path), site.answer(path, {"again": "1"})
    for shown, update, advantage in ((first, 0, 1.0), (again, 1, 2.5)):
        assert {number for move in shown["moves"] for number in move["advantages"]} == {advantage}
        assert (shown["trained"]["update"], shown["trained"]["advantage"]) == (update, advantage)
    assert [move["text"] for move in again["moves"]] == [move["text"] for move in first["moves"]]
    for wrong, error in (
        ("0", Missing),
        ("7", Missing),
        ("-1", ConfigError),
        ("1e3", ConfigError),
        ("9" * 99, ConfigError),
    ):
        with pytest.raises(error):
            site.answer(path, {"again": wrong})


def test_a_long_episode_comes_in_windows(runs: Path) -> None:
    shown = episodes_of(Look(runs / "long"))
    windows = [shown.episode(1, window) for window in range(3)]
    assert [len(one["moves"]) for one in windows] == [WINDOW, WINDOW, 20]
    assert [one["moves"][0]["index"] for one in windows] == [0, 50, 100]
    with pytest.raises(Missing):
        shown.episode(1, 3)


def test_what_grows_is_seen(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    look = Look(folder)
    before, total = look.state(), look.episodes(Filter())["total"]
    grow(folder)
    assert look.state() != before
    assert look.episodes(Filter())["total"] == total + 1


def test_a_missing_screenshot_leaves_the_rest(runs: Path, tmp_path: Path) -> None:
    look = changed(runs, tmp_path, "DELETE FROM images WHERE rowid = (SELECT MIN(rowid) FROM images)")
    moves = episodes_of(look).episode(numbered(look, SUCCESS))["moves"]
    assert [move["screen"] is None for move in moves].count(True) == 1
    assert moves[0]["thought"]


@pytest.mark.attack("run folder")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE records SET record = X'00'",
        "UPDATE trajectories SET score = 'much', outcome = X'ff', n_steps = 1e300",
        "UPDATE images SET width = 'wide', image = 7",
    ],
)
def test_damage_is_said_or_left_out_and_the_rest_is_shown(runs: Path, tmp_path: Path, statement: str) -> None:
    look = changed(runs, tmp_path, statement)
    assert SUCCESS in json.dumps([look.overview(), look.tasks(), look.episodes(Filter())], allow_nan=False)
    place = numbered(look, SUCCESS)
    if "records" in statement:
        shown = episodes_of(look).episode(place)
        assert shown["moves"] and shown["problems"] == ["what update 0 learned cannot be read"]
    elif "images" in statement:
        assert {move["screen"] for move in episodes_of(look).episode(place)["moves"]} == {None}
    else:
        with pytest.raises(ConfigError, match="an episode in it is none"):
            episodes_of(look).episode(place)


@pytest.mark.attack("run folder")
@pytest.mark.parametrize("column", ["advantages", "clipped", "trajectories", "replayed_from"])
def test_a_record_of_anything_else_than_numbers_is_not_shown(runs: Path, tmp_path: Path, column: str) -> None:
    look = changed(runs, tmp_path)
    with Run.read(look.folder) as run:
        ((packed,),) = run.rows('SELECT record FROM records WHERE "update" = 0')
    with np.load(io.BytesIO(packed)) as stored:
        arrays = {name: stored[name] for name in stored.files}
    numbers = column in ("trajectories", "replayed_from")
    arrays[column] = np.arange(2) if numbers else np.array(["x"] * len(arrays[column]))
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    with sqlite3.connect(look.folder / "run.sqlite") as db:
        db.execute('UPDATE records SET record = ? WHERE "update" = 0', (file.getvalue(),))
    db.close()
    site = Site([look.folder])
    place = numbered(look, SUCCESS)
    for path in ("api/overview.json", f"api/0/episode/{place}/0.json", f"api/0/group/{place}.json"):
        json.dumps(site.answer(path), allow_nan=False)
    trained = site.answer(f"api/0/episode/{place}/0.json")["trained"]
    assert (trained is not None) == (column == "replayed_from")  # the tokens' own numbers are right there


@pytest.mark.attack("model output")
def test_numbers_that_json_does_not_have_are_left_out(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    with Run.write(folder, "") as run:
        made = run.trajectory(SUCCESS)
        steps = tuple(dataclasses.replace(step, engine_s=float("nan"), env_s=float("inf")) for step in made.steps)
        run.add(dataclasses.replace(made, id="odd", steps=steps))
    site = Site([folder])
    shown = site.answer(f"api/0/episode/{numbered(Look(folder), 'odd')}/0.json")
    assert json.dumps(shown, allow_nan=False) and shown["moves"][0]["engine_s"] is None


@pytest.mark.attack("run folder")
def test_an_overview_says_what_cannot_be_read_and_not_where_it_lies(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "training", tmp_path / "training")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("{half\n")
    (folder / "tasks.json").write_text("[[[")
    (folder / "config.yaml").write_text("seed: [")
    shown = Look(folder).overview()
    assert len(shown["problems"]) == 3 and str(tmp_path) not in json.dumps(shown)
    assert shown["curves"]["success"] == [[0, 0.5], [1, 0.0]]
    assert Look(folder).tasks()["tasks"]
    (folder / "run.sqlite").write_bytes(b"no database" * 100)
    (problem,) = [line for line in Look(folder).overview()["problems"] if "run.sqlite" in line]
    assert "cannot be read" in problem and str(tmp_path) not in problem


@pytest.mark.parametrize(
    "query",
    [
        {"order": "x; DROP"},
        {"score": "1"},
        {"page": "-1"},
        {"page": "9" * 12},
        {"page": "²"},
        {"x": ""},
        {"task": "x" * 999},
    ],
)
def test_a_query_that_means_nothing_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        filter_from(query)


def test_tokens_are_cut_only_where_the_pieces_are_the_text(runs: Path, tmp_path: Path) -> None:
    tables = tables_of(runs / "training")
    vocabulary = byte_vocabulary()
    tokens = (*vocabulary.encode("é → 日"), vocabulary.special("<|im_end|>"))
    cut = pieces(tokens, vocabulary.decode(tokens), tables)
    assert cut is not None and "".join(cut) == "é → 日<|im_end|>" and len(cut) == len(tokens)
    assert pieces(tokens, "another text", tables) is None
    assert pieces((10**9,), "x", tables) is None
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": []}}')
    assert read_table(tmp_path / "tokenizer.json", 0) == {}


def test_runs_of_one_name_are_told_apart_and_a_folder_without_a_run_is_refused(runs: Path, tmp_path: Path) -> None:
    other = shutil.copytree(runs / "training", tmp_path / "training")
    assert [look.name for look in Site([runs / "training", other]).looks] == ["training (1)", "training (2)"]
    with pytest.raises(ConfigError, match="holds no run"):
        Site([tmp_path])
