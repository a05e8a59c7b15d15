"""Tasks come from a split, a list file or an id; whatever is wrong with them is one line that names the place."""

import dataclasses
import json
from pathlib import Path

import pytest

from arpo.errors import ConfigError, TaskError
from arpo.tasks.load import family, interleaved, load_tasks
from arpo.types import Task, to_json
from fake_env import TASKS, make_task

pytestmark = pytest.mark.usefixtures("fake_backend")


def write_list(folder: Path, listed: object) -> str:
    path = folder / "list.json"
    path.write_text(listed if isinstance(listed, str) else json.dumps(listed), encoding="utf-8")
    return str(path)


def put_beside(folder: Path, task: Task, name: str | None = None) -> Path:
    path = folder / "examples" / task.domain / f"{name or task.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_json(task))
    return path


def refusal(spec: str) -> str:
    with pytest.raises(TaskError) as refused:
        load_tasks("fake", spec)
    text = str(refused.value)
    assert "\n" not in text
    return text


def test_a_split_is_its_tasks_in_order() -> None:
    assert [task.id for task in load_tasks("fake", "train")] == ["press-1", "press-2", "never-1"]


def test_an_id_is_one_task() -> None:
    assert load_tasks("fake", "press-2") == [TASKS["press-2"]]


def test_a_list_takes_tasks_from_the_catalog_and_from_files_beside_it(tmp_path: Path) -> None:
    mine = make_task("mine-1", instruction="Press it.")
    put_beside(tmp_path, mine)
    path = write_list(tmp_path, {"buttons": ["press-2", "mine-1"]})
    assert load_tasks("fake", path) == [TASKS["press-2"], mine]


def test_the_mark_that_some_editors_put_in_front_of_a_file_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text('{"buttons": ["press-2"]}', encoding="utf-8-sig")
    assert load_tasks("fake", str(path)) == [TASKS["press-2"]]


def test_a_file_beside_the_list_wins_over_the_catalog(tmp_path: Path) -> None:
    mine = make_task("press-1", instruction="Press it my way.")
    put_beside(tmp_path, mine)
    assert load_tasks("fake", write_list(tmp_path, {"buttons": ["press-1"]})) == [mine]


def test_an_unknown_id_names_the_nearest_and_the_splits() -> None:
    assert refusal("press-9") == (
        "unknown task 'press-9': did you mean press-1? (a split would be one of train, heldout; a file ends in .json)"
    )


def test_a_misspelt_split_names_the_nearest() -> None:
    assert refusal("trian") == "unknown split or task 'trian': did you mean train?"


def test_an_unknown_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown environment 'moon'"):
        load_tasks("moon", "train")


LISTS = {
    "{": "line 1, column 2: not JSON",
    "": "line 1, column 1: not JSON",
    "[]": "must be one object {domain: [id, …]}, not a list",
    "3": "not a number",
    "null": "not null",
    "{}": "lists no task",
    '{"buttons": []}': "lists no task",
    '{"buttons": "press-1"}': "'buttons' must hold a list of ids, not text",
    '{"buttons": [3]}': "'buttons': 3 is not a name",
    '{"buttons": [""]}': "'buttons': '' is not a name",
    '{"buttons": ["../../secret"]}': "'../../secret' is not a name",
    '{"..": ["press-1"]}': "'..' is not a name",
    '{"buttons": ["a\\u0000"]}': "is not a name",
    '{"buttons": ["press-1", "press-1"]}': "the task 'press-1' is listed twice",
    '{"buttons": ["press-1"], "buttons": ["press-2"]}': "the key 'buttons' is given twice",
    '{"buttons": ["press-9"]}': "buttons: unknown task 'press-9': did you mean press-1?; there is no file",
    '{"levers": ["press-1"]}': "levers: the task's domain is 'buttons', not 'levers'",
    "[" * 100_000: "not JSON that can be read",
    "1" * 5000: "not JSON that can be read",
    json.dumps({"buttons": ["x" * 300]}): "is not a name",
}


@pytest.mark.parametrize(("text", "reason"), LISTS.items(), ids=lambda text: text[:40])
def test_a_broken_list_is_refused_with_its_name_and_the_place(text: str, reason: str, tmp_path: Path) -> None:
    path = write_list(tmp_path, text)
    refused = refusal(path)
    assert refused.startswith(f"{path}: ")
    assert reason in refused


def test_a_list_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert refusal(str(tmp_path / "none.json")).endswith("none.json: cannot be read: No such file or directory")
    assert refusal(f"{tmp_path}/").endswith("cannot be read: Is a directory")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    assert refusal(str(tmp_path / "binary.json")).endswith("binary.json: not a text file in UTF-8")
    assert "cannot be read" in refusal("a\0b.json")


def test_a_task_file_that_says_another_id_environment_or_domain_is_refused(tmp_path: Path) -> None:
    path = put_beside(tmp_path, make_task("mine-1"), name="mine-2")
    assert refusal(write_list(tmp_path, {"buttons": ["mine-2"]})) == f"{path}: the task's id is 'mine-1', not 'mine-2'"
    path = put_beside(tmp_path, make_task("mine-3", env="pocket"))
    assert refusal(write_list(tmp_path, {"buttons": ["mine-3"]})) == f"{path}: the task's env is 'pocket', not 'fake'"


def test_a_broken_task_file_is_refused_with_its_name_and_the_place(tmp_path: Path) -> None:
    spec = write_list(tmp_path, {"buttons": ["mine-1"]})
    path = put_beside(tmp_path, make_task("mine-1", max_steps=0))
    assert refusal(spec) == f"{path}: max_steps=0: must be from 1 to 10000"
    put_beside(tmp_path, make_task("mine-1", partial=0.5))
    assert refusal(spec) == f"{path}: partial=0.5: is for training alone to say, by algorithm.partial"
    whole = json.loads(to_json(make_task("mine-1")))
    for change, reason in (
        ({"max_steps": "many"}, "max_steps: Input should be a valid integer"),
        ({"stepps": 3}, "stepps: Unexpected"),
        ({"setup": []}, "setup: Input should be"),
    ):
        path.write_text(json.dumps(whole | change))
        assert refusal(spec).startswith(f"{path}: {reason}")
    path.write_text("{")
    assert refusal(spec).startswith(f"{path}: line 1, column 2: not JSON")


def test_interleaved_takes_domains_in_turn_and_in_each_families_in_turn() -> None:
    def task(domain: str, kind: str, number: int) -> Task:
        return make_task(f"{kind}-{number}", domain=domain)

    tasks = [task("files", "copy", 1), task("files", "copy", 2), task("files", "move", 1), task("mail", "send", 1)]
    assert [one.id for one in interleaved(tasks)] == ["copy-1", "send-1", "move-1", "copy-2"]
    assert interleaved([]) == []


def test_a_task_without_a_family_is_of_its_domain() -> None:
    assert family(TASKS["press-1"]) == "press"
    assert family(dataclasses.replace(TASKS["press-1"], setup={})) == "buttons"
