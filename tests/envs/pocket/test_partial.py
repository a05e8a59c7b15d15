"""Partial credit: what asks for several things pays for some of them, where a training says so."""

from dataclasses import replace

import pytest
from machine import Machine

from arpo.envs.pocket import PocketEnv
from arpo.envs.pocket.apps.mail import letters
from arpo.envs.pocket.catalog import get_task, task_list
from arpo.envs.pocket.expert import PocketExpert
from arpo.envs.pocket.families import FAMILIES, family_of
from arpo.envs.pocket.families.base import way_made
from arpo.envs.pocket.families.settings import SettingsFamily

SEVERAL = {"files-cleanup", "mail-cleanup", "settings-many", "settings-colours"}
TRAIN = [task for tasks in task_list("train").values() for task in tasks]


def played(task_id: str, partial: float) -> list[float]:
    """The score at the start and after each move of the expert."""
    task = replace(get_task(task_id), partial=partial)
    env, expert = PocketEnv(), PocketExpert(task)
    env.load(task, 3)
    scores = [env.score()]
    while not env.ended:
        env.perform(expert.act(env)[1])
        scores.append(env.score())
    return scores


@pytest.mark.parametrize("family", sorted({get_task(task).setup["family"] for task in TRAIN}))
def test_the_expert_earns_parts_of_what_asks_for_several_things_and_of_nothing_else(family: str) -> None:
    for task in [task for task in TRAIN if get_task(task).setup["family"] == family][:3]:
        whole, parts = played(task, 0.0), played(task, 0.5)
        assert set(whole) <= {0.0, 1.0}, task
        assert (parts[0], parts[-1]) == (0.0, 1.0), task
        between = [score for score in parts if score not in (0.0, 1.0)]
        assert all(0 < score < 0.5 for score in between), task
        assert bool(between) == (family in SEVERAL), task
        assert parts == sorted(parts), task  # an expert undoes nothing


def test_families_that_are_named_here_are_there() -> None:
    assert {*FAMILIES} >= SEVERAL


def test_other_changes_count_against_the_parts() -> None:
    machine = Machine("files-cleanup-000")
    family, params = family_of(get_task("files-cleanup-000"))
    folder = f"/{params['folder']}"
    others = [name for name in machine.desk.files.names(folder) if not name.endswith(params["kind"])]
    wrong = [
        name for name in machine.desk.files.names(folder) if name.endswith(params["kind"]) and name != params["keep"]
    ]
    assert family.progress(machine.desk, params) == 0
    machine.desk.files.trash(f"{folder}/{wrong[0]}")
    assert family.progress(machine.desk, params) == pytest.approx(1 / 3)
    machine.desk.files.trash(f"{folder}/{params['keep']}")
    assert family.progress(machine.desk, params) == 0
    for name in (*wrong[1:], *others):  # all of it is gone, also what was to go
        machine.desk.files.trash(f"{folder}/{name}")
    assert family.progress(machine.desk, params) < 0.5
    assert not family.done(machine.desk, params)


@pytest.mark.parametrize("task_id", [task for task in TRAIN if task.startswith("mail-cleanup")])
def test_only_the_place_that_was_asked_for_pays(task_id: str) -> None:
    task = get_task(task_id)
    family, params = family_of(task)
    for gone in (False, True):
        machine = Machine(task_id, seed=3)
        mails = letters(machine.desk)
        named = [mail for mail in mails if mail.sender == params["sender"] and mail.folder == "Inbox"]
        earned = []
        for mail in named:
            if gone:
                mails.remove(mail)
            else:
                mail.folder = "Trash"
            earned.append(family.progress(machine.desk, params))
        whole = [pytest.approx((i + 1) / len(named)) for i in range(len(named))]
        assert earned == (whole if params["verb"] == "Delete" else [0] * len(named))


def test_a_folder_that_nobody_asked_for_counts_against_the_parts() -> None:
    machine = Machine("files-cleanup-000")
    family, params = family_of(get_task("files-cleanup-000"))
    folder = f"/{params['folder']}"
    names = [name for name in machine.desk.files.names(folder) if name.endswith(params["kind"])]
    for name in names:
        if name != params["keep"]:
            machine.desk.files.trash(f"{folder}/{name}")
    assert family.done(machine.desk, params)
    machine.desk.files.make_folder(f"{folder}/junk")
    assert not family.done(machine.desk, params)
    assert family.progress(machine.desk, params) == pytest.approx(2 / 3)


def test_parts_beside_which_something_else_was_lost_earn_nothing() -> None:
    task = replace(get_task("settings-many-000"), partial=0.5)
    family, params = family_of(task)
    assert isinstance(family, SettingsFamily)
    env = PocketEnv()
    env.load(task, 3)
    (first, value), *_ = family.wanted(params).items()
    env.desk.settings[first] = value
    assert 0 < env.score() < 0.5
    env.desk.files.trash(next(iter(env.desk.files.outside_trash()[0])))
    assert env.score() == 0


def test_the_way_is_counted_entry_by_entry() -> None:
    assert way_made("abc", "abx", "abc") == 0
    assert way_made("abc", "xyc", "xbc") == 0.5
    assert way_made("abc", "xyc", "xyz") == 0.5  # all done, and one spoiled
    assert way_made("aab", "b", "ab") == 0.5  # one of two equal ones
    assert way_made("ab", "b", "") == 0  # never below
    assert way_made("ab", "ab", "b") == 0  # nothing was asked for
