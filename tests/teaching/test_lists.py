"""The lists `demo` and `compare` in the package are what their rules choose from what `base` solves."""

import json
from pathlib import Path

import pytest

from arpo.envs.pocket.catalog import LISTS, SELECTED, task_list
from arpo.teaching import lists

SUCCESSES = Path(__file__).parents[2] / "docs" / "results" / "base-train.json"


def test_the_selected_lists_follow_from_their_rule() -> None:
    chosen = lists.choose(json.loads(SUCCESSES.read_text(encoding="utf-8")))
    packaged = {split: {task for tasks in task_list(split).values() for task in tasks} for split in SELECTED}
    assert {split: set(names) for split, names in chosen.items()} == packaged


def test_the_command_writes_the_files_that_are_in_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lists, "LISTS", tmp_path)
    monkeypatch.setattr(lists, "choose", lambda _: {name: _listed(name) for name in SELECTED})
    lists.main(str(SUCCESSES))
    for name in SELECTED:
        assert (tmp_path / f"{name}.json").read_bytes() == (LISTS / f"{name}.json").read_bytes()
    assert "demo: 12 tasks, mean success" in capsys.readouterr().out


def _listed(name: str) -> list[str]:
    return [task for tasks in task_list(name).values() for task in reversed(tasks)]
