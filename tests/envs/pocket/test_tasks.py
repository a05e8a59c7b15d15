"""All tasks: what each split promises; every task can be solved, is not solved, and is never the same twice."""

import hashlib
import inspect
import json
import random
import shutil
import statistics
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from arpo.agent.actions import Action, Click, Drag, Fail
from arpo.agent.random_actions import random_action
from arpo.envs.pocket import PocketEnv, catalog
from arpo.envs.pocket.catalog import LISTS, SELECTED, SPLITS, build_lists, get_task, task_list
from arpo.envs.pocket.env import LARGEST, SMALLEST
from arpo.envs.pocket.expert import PocketExpert
from arpo.envs.pocket.families import FAMILIES
from arpo.errors import TaskError
from arpo.types import Task

SEEDS = range(6)
FROZEN = ("subset32", *SELECTED)


def ids(split: str) -> list[str]:
    return [task for tasks in task_list(split).values() for task in tasks]


LISTED = ids("train") + ids("heldout") + ids("heldout_families")


@cache
def solve(task_id: str, seed: int) -> tuple[float, list[tuple[str, Action]], float]:
    """The score of the untouched start, what the expert did, and the score that it reached."""
    task = get_task(task_id)
    env, expert = PocketEnv(), PocketExpert(task)
    moves: list[tuple[str, Action]] = []
    env.load(task, seed)
    start = env.score()
    while not env.ended and len(moves) < task.max_steps:
        moves.append(expert.act(env))
        env.perform(moves[-1][1])
    return start, moves, env.score()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_solves_every_task_of_the_family_and_the_untouched_start_scores_nothing(family: str) -> None:
    tasks = [task for task in LISTED if get_task(task).setup["family"] == family]
    assert tasks
    for task_id in tasks:
        for seed in SEEDS:
            start, moves, score = solve(task_id, seed)
            assert (start, score) == (0.0, 1.0), f"{task_id} seed {seed}: {moves}"
            assert 1 <= len(moves) <= 15
            assert all(thought and len(thought) < 80 for thought, _ in moves)


def test_the_untouched_start_scores_nothing_on_many_more_seeds() -> None:
    env = PocketEnv()
    for task_id in LISTED:
        task = get_task(task_id)
        for seed in range(100, 120):
            env.load(task, seed)
            assert env.score() == 0.0, f"{task_id} seed {seed}"


@pytest.mark.parametrize("size", [SMALLEST, LARGEST])
def test_the_expert_solves_tasks_of_every_family_on_the_smallest_and_the_largest_screen(size: tuple[int, int]) -> None:
    for task_id in LISTED[::2]:
        task = get_task(task_id)
        env, expert = PocketEnv(size), PocketExpert(task)
        env.load(task, 50)
        for _ in range(task.max_steps):
            env.perform(expert.act(env)[1])
            if env.ended:
                break
        assert env.score() == 1.0, task_id


def repeated(task_id: str) -> list[float]:
    """The scores of an agent that has learned the expert's clicks for seed 0 by heart, on other seeds."""
    scores = []
    for seed in range(1, 6):
        env = PocketEnv()
        env.load(get_task(task_id), seed)
        for _, action in solve(task_id, 0)[1]:
            env.perform(action)
        scores.append(env.score())
    return scores


def test_no_family_is_solved_by_remembered_coordinates() -> None:
    by_family: dict[str, list[float]] = {}
    for task_id in LISTED:
        clicks = any(isinstance(action, Click | Drag) for _, action in solve(task_id, 0)[1])
        if clicks and get_task(task_id).feasible:  # keys have no place to remember, and Fail is always Fail
            by_family.setdefault(get_task(task_id).setup["family"], []).extend(repeated(task_id))
    assert len(by_family) > 30
    assert {family: share for family, scores in by_family.items() if (share := statistics.mean(scores)) > 0.4} == {}
    assert statistics.mean(score for scores in by_family.values() for score in scores) < 0.1


def test_experts_recover_from_somebody_elses_wrong_moves() -> None:
    """Up to three random actions anywhere in an episode; what they destroy for good is the few that may fail."""
    scores = []
    for i, task_id in enumerate(LISTED[::2]):
        rng, task = random.Random(i), get_task(task_id)
        env, expert = PocketEnv(), PocketExpert(task)
        env.load(task, i)
        disturbed = sorted(rng.sample(range(6), 3))
        for step in range(25):
            if step in disturbed:
                env.perform(random_action(rng, env.size))
            env.perform(expert.act(env)[1])
            if env.ended:
                break
        scores.append(env.score())
    assert statistics.mean(scores) > 0.95


def test_there_are_enough_tasks_and_families() -> None:
    assert len(set(LISTED)) == len(LISTED) >= 256
    assert len(FAMILIES) >= 24
    assert len(ids("subset32")) == 32 and set(ids("subset32")) <= set(ids("train"))


def test_no_two_listed_tasks_of_a_family_are_the_same() -> None:
    setups = [json.dumps(get_task(task).setup, sort_keys=True) for task in LISTED]
    assert len(set(setups)) == len(setups)


def test_no_two_families_share_an_expert_script() -> None:
    scripts = [inspect.getsource(type(family).expert) for family in FAMILIES.values()]
    assert len(set(scripts)) == len(scripts)


def test_heldout_has_the_families_of_train_and_heldout_families_has_none_of_them() -> None:
    families = {split: {get_task(task).setup["family"] for task in ids(split)} for split in SPLITS}
    assert families["heldout"] == families["train"]
    assert not families["heldout_families"] & families["train"]
    assert families["heldout_families"] | families["train"] == set(FAMILIES)


def test_a_quarter_of_the_tasks_needs_six_steps_or_more_and_none_more_than_fifteen() -> None:
    lengths = [statistics.median(len(solve(task, seed)[1]) - 1 for seed in SEEDS) for task in LISTED]  # without Finish
    assert sum(length >= 6 for length in lengths) >= len(lengths) / 4
    assert max(len(solve(task, seed)[1]) for task in LISTED for seed in SEEDS) <= 15
    assert min(lengths) <= 1


@pytest.mark.parametrize("split", [split for split in SPLITS if split not in SELECTED])
def test_always_answering_fail_scores_exactly_the_infeasible_share_of_about_eight_percent(split: str) -> None:
    scores = []
    for task_id in ids(split):
        env = PocketEnv()
        env.load(get_task(task_id), 0)
        env.perform(Fail())
        scores.append(env.score())
    share = sum(not get_task(task).feasible for task in ids(split)) / len(scores)
    assert statistics.mean(scores) == share
    assert 0.06 <= share <= 0.10


def test_every_family_is_in_the_lists_of_the_package() -> None:
    for split, tasks in build_lists().items():
        assert task_list(split) == tasks, "run python -m arpo.envs.pocket.catalog"
    assert {path.stem for path in LISTS.glob("*.json")} == set(SPLITS) == {*build_lists(), *FROZEN}


def test_the_frozen_lists_hold_the_same_tasks_as_ever() -> None:
    """Figures depend on them: another digest here means that older ones cannot be compared with."""
    frozen = {split: [(task, get_task(task).setup) for task in ids(split)] for split in FROZEN}
    later = {"seldom": frozen.pop("seldom")}
    assert set(ids("seldom16")) < set(ids("seldom"))
    del frozen["seldom16"]
    digests = [hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest() for part in (frozen, later)]
    assert digests == [
        "d664bc4917d5671a67d762f3b78634ceeca486addd8bdeb9e3c99da2813012d7",
        "1b99ef052d462db27f561a2450b66e7568d448fc876566b7fc4d31476ff0b558",
    ]


def test_the_selected_lists_are_parts_of_train_that_keep_their_rule() -> None:
    for split, count in (("demo", 12), ("compare", 32)):
        assert len(set(ids(split))) == len(ids(split)) == count
        assert set(ids(split)) <= set(ids("train"))
        assert {get_task(task).split for task in ids(split)} == {"train"}
        assert all(get_task(task).feasible for task in ids(split))


@pytest.mark.parametrize("feasible", [True, False])
def test_a_new_family_adds_its_tasks_to_the_lists_and_changes_no_other(
    feasible: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def setups() -> dict[str, object]:
        monkeypatch.setattr(catalog, "_instances", defaultdict(list))  # drawn anew
        return {task: get_task(task).setup for task in LISTED}

    before, tasks = {split: task_list(split) for split in SPLITS}, setups()
    monkeypatch.setattr(catalog, "LISTS", Path(shutil.copytree(LISTS, tmp_path / "lists")))
    monkeypatch.setattr(catalog, "_splits", catalog._splits.__wrapped__)  # nothing remembered
    like = type(FAMILIES["editor-new" if feasible else "shell-missing"])
    monkeypatch.setitem(FAMILIES, "shell-newest", type("Newest", (like,), {"name": "shell-newest"})())
    catalog.write_lists()
    numbers = {"train": range(6), "heldout": range(6, 9)} if feasible else {"train": range(2), "heldout": range(2, 3)}
    for split in SPLITS:
        more = [f"shell-newest-{number:03d}" for number in numbers.get(split, ())]
        assert task_list(split) == before[split] | ({"shell": [*before[split]["shell"], *more]} if more else {})
        assert {get_task(task).split for task in more} <= {split}
    assert get_task("shell-newest-009").split == "extra"
    for split in FROZEN:
        assert (catalog.LISTS / f"{split}.json").read_bytes() == (LISTS / f"{split}.json").read_bytes()
    assert setups() == tasks
    shares = [statistics.mean(not get_task(task).feasible for task in ids(split)) for split in numbers]
    assert all(0.06 <= share <= 0.10 for share in shares)
    once = {path.name: path.read_bytes() for path in catalog.LISTS.iterdir()}
    catalog.write_lists()
    assert {path.name: path.read_bytes() for path in catalog.LISTS.iterdir()} == once


def test_a_new_family_can_be_one_that_is_never_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "LISTS", Path(shutil.copytree(LISTS, tmp_path / "lists")))
    monkeypatch.setattr(catalog, "HELDOUT_FAMILIES", catalog.HELDOUT_FAMILIES | {"moon-land"})
    like = type(FAMILIES["editor-new"])
    monkeypatch.setitem(FAMILIES, "moon-land", type("Land", (like,), {"name": "moon-land"})())
    before = {split: task_list(split) for split in SPLITS}
    catalog.write_lists()
    more = {"moon": [f"moon-land-{number:03d}" for number in range(5)]}
    after = {split: task_list(split) for split in SPLITS}
    assert after == before | {"heldout_families": before["heldout_families"] | more}


def test_a_task_knows_its_split_and_unlisted_numbers_are_further_instances() -> None:
    assert get_task(ids("heldout")[0]).split == "heldout"
    assert get_task(ids("subset32")[0]).split == "train"
    assert get_task("editor-new-400").split == "extra"


@pytest.mark.parametrize("task_id", ["", "editor-new", "editor-new-1", "editor-nwe-001", "../../etc/passwd"])
def test_an_unknown_id_is_refused_with_the_nearest_known_ones(task_id: str) -> None:
    with pytest.raises(TaskError, match="did you mean editor-new-" if "editor" in task_id else "envs list --json"):
        get_task(task_id)


def test_a_family_that_has_no_further_instances_says_how_many_it_has() -> None:
    with pytest.raises(TaskError, match=r"only [0-9]+ different instances"):
        get_task("shell-move-999")


def test_instructions_are_short_and_in_one_printable_line() -> None:
    for task_id in LISTED:
        task: Task = get_task(task_id)
        assert 8 <= len(task.instruction) <= 120 and task.instruction.isprintable()


def test_equal_instructions_ask_for_the_same() -> None:
    families: dict[str, set[str]] = {}
    for task_id in LISTED:
        task = get_task(task_id)
        families.setdefault(task.instruction, set()).add(task.setup["family"])
    assert {instruction: names for instruction, names in families.items() if len(names) > 1} == {}


def wording(task: Task) -> str:
    """The instruction with the names and values taken out."""
    text = task.instruction
    for value in sorted((str(v) for v in task.setup["params"].values() if v), key=len, reverse=True):
        text = text.replace(value, "_")
    return text


def test_no_wording_gives_away_that_a_task_cannot_be_done() -> None:
    """What is infeasible is asked for in the words of a feasible family, so that one has to look at the screen."""
    tasks = [get_task(task_id) for task_id in LISTED]
    feasible = {wording(task) for task in tasks if task.feasible}
    told = {task.setup["family"] for task in tasks if not task.feasible and wording(task) not in feasible}
    assert told == set()
