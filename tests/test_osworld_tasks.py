"""Tasks in OSWorld's own form load as they are, and what is wrong with one names its file and the field."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from arpo.config import load_config
from arpo.envs.base import settings_of
from arpo.errors import ConfigError, TaskError
from arpo.tasks.load import judged_tasks, load_tasks
from arpo.types import Task, from_json, to_json

OSWORLD = Path(__file__).parents[2] / "shared" / "osworld"
WHOLE: dict[str, Any] = {
    "id": "one",
    "snapshot": "os",
    "instruction": "Make the terminal wider.",
    "source": "https://example.org/wide",
    "trajectory": "trajectories/",
    "config": [{"type": "execute", "parameters": {"command": ["python", "-c", "print()"]}}],
    "related_apps": ["os"],
    "evaluator": {"func": ["file", "size"], "conj": "and", "result": [{"type": "vm_file"}, {"type": "window"}]},
    "proxy": True,
    "fixed_ip": False,
    "possibility_of_env_change": "low",
}
KNOWN: dict[str, Any] = {
    "func": "exact_match",
    "result": {"type": "vm_command_line", "command": "ls"},
    "expected": {"type": "rule", "rules": {"expected": ""}},
}
TASK = Task(
    id="one",
    domain="terminal",
    instruction="Make the terminal wider.",
    env="osworld",
    setup={"config": WHOLE["config"], "proxy": True},
    evaluator=WHOLE["evaluator"],
    split="osworld",
    max_steps=15,
)


def put(folder: Path, *tasks: dict[str, Any] | str, domain: str = "terminal") -> str:
    """A list beside `examples/`, as in an OSWorld checkout, with these files in it; text is written as it is."""
    (folder / "examples" / domain).mkdir(parents=True, exist_ok=True)
    names = []
    for task in tasks:
        names.append("broken" if isinstance(task, str) else task.get("id", "broken"))
        text = task if isinstance(task, str) else json.dumps(task)
        (folder / "examples" / domain / f"{names[-1]}.json").write_text(text)
    path = folder / "test_all.json"
    path.write_text(json.dumps({domain: names}))
    return str(path)


def test_a_task_keeps_what_its_machine_needs(tmp_path: Path) -> None:
    assert load_tasks("osworld", put(tmp_path, WHOLE)) == [TASK]


def test_a_task_of_the_desktop_is_refused_where_its_checker_is_not_to_be_had(tmp_path: Path) -> None:
    with pytest.raises(
        TaskError, match=r"^one: this environment lacks its checkers file, size, window; OSWorld's client"
    ):
        load_tasks("desktop", put(tmp_path, WHOLE))
    assert [task.env for task in load_tasks("desktop", put(tmp_path, {**WHOLE, "evaluator": KNOWN}))] == ["desktop"]


def test_all_tasks_of_a_list_that_are_refused_are_named_at_once(tmp_path: Path) -> None:
    bad = [{**WHOLE, "id": f"bad-{i}"} for i in range(3)]
    with pytest.raises(TaskError, match=r"^bad-0: this environment lacks .* \(also refused: bad-1, bad-2\)$"):
        load_tasks("desktop", put(tmp_path, bad[0], {**WHOLE, "evaluator": KNOWN}, *bad[1:]))
    many = [{**WHOLE, "id": f"bad-{i}"} for i in range(99)]
    with pytest.raises(TaskError, match=r" \(also refused: bad-1, .*, bad-8, …\)$"):
        load_tasks("desktop", put(tmp_path, *many))


def test_settings_say_where_files_and_checkers_are(tmp_path: Path) -> None:
    url = "https://huggingface.co/datasets/one/two/resolve/main/os/1/a.txt"
    download = {"type": "download", "parameters": {"files": [{"url": url, "path": "/home/user/a.txt"}]}}
    spec = put(tmp_path, {**WHOLE, "config": [download], "evaluator": KNOWN})
    config = load_config(None, ["env.name=desktop", f"env.files={tmp_path}/files"])
    with pytest.raises(
        TaskError, match=r"^one: needs the file https.*a\.txt, but env\.files=.*/files has no os/1/a\.txt$"
    ):
        load_tasks("desktop", spec, settings_of(config.env))
    (tmp_path / "files" / "os" / "1").mkdir(parents=True)
    (tmp_path / "files" / "os" / "1" / "a.txt").touch()
    assert len(load_tasks("desktop", spec, settings_of(config.env))) == 1
    config = load_config(None, ["env.name=desktop", "env.osworld_python=/none"])
    with pytest.raises(ConfigError, match=r"^env\.osworld_python=/none: No such file or directory$"):
        load_tasks("desktop", put(tmp_path, WHOLE), settings_of(config.env))


def test_a_task_without_setup_steps_is_set_up_by_none_and_may_be_infeasible(tmp_path: Path) -> None:
    bare = {"id": "bare", "instruction": "Fly.", "evaluator": {"func": "infeasible"}}
    (task,) = load_tasks("osworld", put(tmp_path, bare))
    assert task.setup == {"config": [], "proxy": False}
    assert not task.feasible and TASK.feasible


def test_a_setting_replaces_the_limit_of_steps_of_every_task(tmp_path: Path) -> None:
    spec = put(tmp_path, {**WHOLE, "evaluator": KNOWN}, json.loads(to_json(TASK)) | {"id": "two", "max_steps": 7})
    own = load_config(None, ["env.name=osworld", f"tasks.source={spec}"])
    set_to_50 = load_config(None, ["env.name=osworld", f"tasks.source={spec}", "tasks.max_steps=50"])
    assert [task.max_steps for task in judged_tasks(own)["train"]] == [15, 7]
    assert [task.max_steps for task in judged_tasks(set_to_50)["train"]] == [50, 50]
    pocket = load_config("pocket", ["tasks.max_steps=3"])
    assert {task.max_steps for tasks in judged_tasks(pocket).values() for task in tasks} == {3}
    with pytest.raises(ConfigError, match=r"^tasks\.max_steps=0: "):
        load_config(None, ["tasks.max_steps=0"])


def test_files_of_both_forms_lie_beside_one_list(tmp_path: Path) -> None:
    ours = json.loads(to_json(TASK)) | {"id": "two"}
    first, second = load_tasks("osworld", put(tmp_path, WHOLE, ours))
    assert first == TASK and second == from_json(Task, json.dumps(ours))


BROKEN: list[tuple[dict[str, Any] | str, str]] = [
    ({**WHOLE, "evaluator": {}}, "evaluator.func: Field required"),
    ({**WHOLE, "evaluator": {"func": 3}}, "evaluator.func.str: "),
    ({**WHOLE, "evaluator": {**KNOWN, "expcted": {}}}, "evaluator.expcted: Extra inputs are not permitted"),
    ({**WHOLE, "evaluator": {**KNOWN, "conj": "OR"}}, "evaluator.conj: Input should be 'and' or 'or'"),
    ({**WHOLE, "evaluator": {**KNOWN, "result": {}}}, "evaluator.result.Getter.type: Field required"),
    ({**WHOLE, "evaluator": {**KNOWN, "func": ["exact_match"]}}, "evaluator: Value error, func and result must be one"),
    ({**WHOLE, "evaluator": {**KNOWN, "postconfig": [{}]}}, "evaluator.postconfig.0.type: Field required"),
    ({**WHOLE, "instruction": ""}, "instruction: "),
    ({**WHOLE, "config": {}}, "config: "),
    ({**WHOLE, "config": [{"type": "sleep"}]}, "config.0.parameters: Field required"),
    ({**WHOLE, "evaluater": {}}, "evaluater: Extra inputs are not permitted"),
    ({key: value for key, value in WHOLE.items() if key != "instruction"}, "instruction: Field required"),
    ({key: value for key, value in WHOLE.items() if key != "id"}, "id: Field required"),
    ("{", "line 1, column 2: not JSON"),
    ('{"id": "broken", "id": "broken"}', "the key 'id' is given twice"),
    ("[]", "Input should be"),
]


@pytest.mark.parametrize(("task", "reason"), BROKEN, ids=lambda value: str(value)[-30:])
def test_a_broken_file_is_refused_with_its_name_and_the_field(
    task: dict[str, Any] | str, reason: str, tmp_path: Path
) -> None:
    spec = put(tmp_path, task)
    (path,) = (tmp_path / "examples" / "terminal").iterdir()
    with pytest.raises(TaskError) as refused:
        load_tasks("osworld", spec)
    assert str(refused.value).startswith(f"{path}: {reason}")
    assert "\n" not in str(refused.value)


def test_where_the_list_is_missing_one_line_says_what_to_clone_and_to_set(tmp_path: Path) -> None:
    with pytest.raises(TaskError) as refused:
        load_tasks("osworld", str(tmp_path / "test_subset32.json"))
    assert str(refused.value) == (
        f"{tmp_path}/test_subset32.json: there is no such file; `git clone --recurse-submodules "
        "https://github.com/dvlab-research/ARPO` brings OSWorld's tasks, then set "
        "tasks.source=ARPO/OSWorld/evaluation_examples/test_subset32.json"
    )


def test_an_id_without_a_file_and_a_word_that_is_no_list_are_refused(tmp_path: Path) -> None:
    path = Path(put(tmp_path, WHOLE))
    path.write_text('{"terminal": ["two"]}')
    with pytest.raises(TaskError, match=r"unknown task 'two': .*; there is no file .*two\.json either$"):
        load_tasks("osworld", str(path))
    with pytest.raises(TaskError, match=r"^unknown task 'train': this environment's tasks are files; tasks\.source"):
        load_tasks("osworld", "train")


@pytest.mark.skipif(not OSWORLD.is_dir(), reason="OSWorld's own files are not beside this checkout")
def test_every_task_of_osworld_loads() -> None:
    tasks = load_tasks("osworld", str(OSWORLD / "test_all.json"))
    assert Counter(task.domain for task in tasks) == {
        "chrome": 46, "gimp": 26, "libreoffice_calc": 47, "libreoffice_impress": 47, "libreoffice_writer": 23,
        "multi_apps": 101, "os": 24, "thunderbird": 15, "vlc": 17, "vs_code": 23,
    }  # fmt: skip
    assert sum(not task.feasible for task in tasks) == 29
    for task in tasks:
        raw = json.loads((OSWORLD / "examples" / task.domain / f"{task.id}.json").read_text())
        assert (task.instruction, task.evaluator) == (raw["instruction"], raw["evaluator"])
        assert task.setup["config"] == raw.get("config", [])
        assert from_json(Task, to_json(task)) == task
    listed = {path.stem: len(load_tasks("osworld", str(path))) for path in OSWORLD.glob("test_*.json")}
    assert (listed["test_success_uitars1.5_wo_impossible"], listed["test_subset32"]) == (128, 32)
