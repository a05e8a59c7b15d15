"""The desktop's own tasks: they can be had as OSWorld's files; each can be solved, and is not solved untouched."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from traces import wait_until

from arpo.agent.actions import Action, Fail, Finish, Type
from arpo.envs.base import make_expert
from arpo.envs.desktop.catalog import SPLITS, get_task, task_list, write_files
from arpo.envs.desktop.checks.documents import check_style
from arpo.envs.desktop.env import DesktopEnv
from arpo.envs.desktop.families import FAMILIES, INSTANCES
from arpo.envs.desktop.needs import refuse
from arpo.errors import ConfigError, TaskError
from arpo.tasks.load import load_tasks
from arpo.types import Task, from_json, to_json

LISTED = [task_id for split in SPLITS for ids in task_list(split).values() for task_id in ids]
APPLICATIONS = {"mousepad", "pcmanfm", "galculator", "xterm", "libreoffice", "chromium", "gimp", "vlc"}
FIRST = {get_task(task_id).domain: task_id for task_id in reversed(LISTED) if get_task(task_id).feasible}


# The list.


def test_a_task_is_what_its_json_says() -> None:
    """A run keeps its tasks as JSON: what comes back is equal, so that it can be resumed."""
    for task in map(get_task, LISTED):
        assert from_json(Task, to_json(task)) == task


def test_there_are_tasks_for_every_application_in_both_splits() -> None:
    for split, least in (("train", 48), ("heldout", 24)):
        tasks = load_tasks("desktop", split)
        assert len(tasks) >= least
        assert {app for task in tasks for app in FAMILIES[task.setup["family"]].apps} == APPLICATIONS
        assert {task.split for task in tasks} == {split}
    assert sorted(LISTED) == sorted(INSTANCES)


def test_a_few_cannot_be_done() -> None:
    impossible = [task_id for task_id in LISTED if not get_task(task_id).feasible]
    assert 0.06 < len(impossible) / len(LISTED) < 0.1


def test_no_two_tasks_are_the_same() -> None:
    assert len({json.dumps([task.setup, task.evaluator]) for task in map(get_task, LISTED)}) == len(LISTED)


@pytest.mark.parametrize("task_id", LISTED)
def test_nothing_is_missing_for(task_id: str) -> None:
    refuse(get_task(task_id), {})


def test_they_can_be_written_as_osworlds_files_and_read_again(tmp_path: Path) -> None:
    write_files(tmp_path)
    for split in SPLITS:
        own = [replace(task, split="osworld", setup={**task.setup}) for task in load_tasks("desktop", split)]
        for task in own:
            del task.setup["family"]
        assert load_tasks("desktop", str(tmp_path / f"{split}.json")) == own


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(TaskError, match="did you mean editor-write-000"):
        get_task("editor-wirte-000")
    with pytest.raises(TaskError, match="desktop has train, heldout"):
        task_list("test")


def test_a_task_from_elsewhere_has_no_expert() -> None:
    with pytest.raises(ConfigError, match="there is no expert for it"):
        make_expert("desktop", Task("mine", "os", "Do it.", "desktop", {"config": []}, {"func": "x"}, "osworld"))


# The checker that they brought along.


@pytest.mark.parametrize(
    ("text", "wanted", "score"),
    [("Title", "bold", 1.0), ("Title", "normal", 0.0), ("part", "bold", 0.0), ("Other", "bold", 0.0)],
)
def test_a_style_belongs_to_the_text_that_has_it(tmp_path: Path, text: str, wanted: str, score: float) -> None:
    names = 'xmlns:s="style" xmlns:f="fo" xmlns:t="text"'
    style = '<s:style s:name="P1"><s:text-properties f:font-weight="bold"/></s:style>'
    body = '<t:p t:style-name="P1">Title</t:p><t:p t:style-name="P1">a <t:span>part</t:span></t:p><t:p>Other</t:p>'
    with zipfile.ZipFile(tmp_path / "a.odt", "w") as file:
        file.writestr("content.xml", f"<document {names}>{style}{body}</document>")
    rules = {"text": text, "property": "font-weight", "expected": wanted}
    assert check_style(str(tmp_path / "a.odt"), rules) == score


# On real desktops.


@pytest.fixture(scope="module")
def env() -> Iterator[DesktopEnv]:
    env = DesktopEnv()
    yield env
    env.close()


def play(env: DesktopEnv, task_id: str) -> None:
    task = get_task(task_id)
    missing = [app for app in FAMILIES[task.setup["family"]].apps if shutil.which(app) is None]
    if missing:
        pytest.skip(f"programs are missing: {' '.join(missing)}; `make test` as root installs all")
    env.reset(task, seed=0)
    assert env.score() == 0.0, "untouched"
    expert = make_expert("desktop", task)
    moves: list[tuple[str, Action]] = []
    while not env.ended and len(moves) < task.max_steps:
        thought, action = expert.act(env)
        if moves and thought != moves[-1][0] and action not in (Finish(), Fail()) and not done_early(task, thought):
            assert env.score() == 0.0, f"without the step {thought!r}"
        moves.append((thought, action))
        env.step(action)
    assert env.score() == 1.0, moves
    assert isinstance(moves[-1][1], Finish if task.feasible else Fail)


def done_early(task: Task, thought: str) -> bool:
    """The browser has the bookmark when it asks for its name: to confirm that only closes the question."""
    return task.setup["family"] == "chromium-bookmark" and thought == "The name is fine."


@pytest.mark.attack("agent")
@pytest.mark.heavy
@pytest.mark.desktop
@pytest.mark.parametrize("task_id", FIRST.values())
def test_the_expert_solves_one_of_each_domain_and_not_without_its_last_step(env: DesktopEnv, task_id: str) -> None:
    play(env, task_id)


@pytest.mark.attack("agent")
@pytest.mark.heavy
@pytest.mark.desktop
@pytest.mark.parametrize("task_id", sorted(set(LISTED) - set(FIRST.values())))
def test_the_expert_solves_all_others_and_not_without_its_last_step(env: DesktopEnv, task_id: str) -> None:
    play(env, task_id)


@pytest.mark.desktop("mousepad")
def test_what_was_written_but_not_saved_does_not_count(env: DesktopEnv) -> None:
    env.reset(get_task("editor-append-000"), seed=0)
    env.step(Type("Farid"))
    env.step(Finish())
    assert env.score() == 0.0


@pytest.mark.desktop("pcmanfm")
def test_on_a_task_that_cannot_be_done_only_fail_scores(env: DesktopEnv) -> None:
    env.reset(get_task("files-impossible-000"), seed=0)
    env.step(Finish())
    assert env.score() == 0.0


@pytest.mark.desktop("mousepad", "xterm")
def test_the_page_on_own_tasks_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "own-tasks.md").read_text("utf-8")
    task_list, task, steps = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    files = {"mine/list.json": task_list, "mine/examples/notes/buy-milk.json": task}
    own = {"id": "own", "instruction": "?", "config": json.loads(steps), "evaluator": {"func": "infeasible"}}
    files |= {"own/list.json": '{"tally": ["own"]}', "own/examples/tally/own.json": json.dumps(own)}
    files["own/files/tally/tally.sh"] = "touch /home/user/ran; sleep 100"
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, "utf-8")
    script = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert script is not None
    exec(script[1], {})
    assert capsys.readouterr().out == "untouched 0.0\nsolved 1.0\n"
    with closing(DesktopEnv(files="own/files")) as env:
        env.reset(load_tasks("desktop", "own/list.json", {"files": "own/files"})[0], seed=0)
        wait_until(lambda: env.sandbox.run("ls /home/user/ran").status == 0)


@pytest.mark.desktop("chromium")
def test_a_wrong_answer_does_not_count(env: DesktopEnv) -> None:
    env.reset(get_task("chromium-find-000"), seed=0)
    env.step(Finish("It is 212 metres long and cost 9 million."))
    assert env.score() == 0.0
