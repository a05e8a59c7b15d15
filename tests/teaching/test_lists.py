"""The lists `demo`, `compare`, `seldom` and `seldom16` are what their rules choose from what `base` solves."""

import json
from pathlib import Path

import pytest

from arpo.envs.pocket.catalog import LISTS, SELECTED, task_list
from arpo.teaching import lists

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SUCCESSES = (RESULTS / "base-train.json", RESULTS / "base-fixed.json")  # on fresh starts and on fixed ones


def test_the_selected_lists_follow_from_their_rule() -> None:
    chosen = lists.choose(*(json.loads(file.read_text(encoding="utf-8")) for file in SUCCESSES))
    packaged = {split: {task for tasks in task_list(split).values() for task in tasks} for split in SELECTED}
    assert {split: set(names) for split, names in chosen.items()} == packaged


def test_the_command_writes_the_files_that_are_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lists, "LISTS", tmp_path)
    monkeypatch.setattr(lists, "choose", lambda *_: {name: _listed(name) for name in SELECTED})
    lists.main(*map(str, SUCCESSES))
    for name in SELECTED:
        assert (tmp_path / f"{name}.json").read_bytes() == (LISTS / f"{name}.json").read_bytes()
    assert "demo: 12 tasks, mean success" in capsys.readouterr().out


def test_the_list_for_fixed_starts_has_what_is_solved_once_or_twice_there_the_shortest_first() -> None:
    fixed = {"shell-open-000": 1, "files-rename-000": 2, "shell-open-001": 3, "shell-open-002": 0}
    assert lists.choose({}, fixed)["seldom"] == ["shell-open-000", "files-rename-000"]
    assert len(task_list("seldom")) > 1 and sum(map(len, task_list("seldom").values())) == 32
    many = {task: 1 for task in _listed("seldom")}
    assert lists.choose({}, many)["seldom16"] == lists.choose({}, many)["seldom"][:16]


def _listed(name: str) -> list[str]:
    return [task for tasks in task_list(name).values() for task in reversed(tasks)]
