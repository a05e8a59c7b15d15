"""Training: what a run leaves behind, that it goes on as if it had never been killed, and what it says to people."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import torch
from guesser import Guesser, settings, train_in
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from arpo import cli
from arpo.agent.dialects.base import DIALECTS, DialectEntry
from arpo.config import load_config
from arpo.errors import ConfigError, EnvError
from arpo.evaluation.command import run_evaluation
from arpo.model import checkpoint
from arpo.model.checkpoint import load_checkpoint
from arpo.runs.store import Run
from arpo.seeds import EVALUATION, start_seed
from arpo.training import command
from arpo.training.command import run_training
from arpo.types import Trajectory
from fake_env import FakeEnv, make_task, write_list

LOOSE = {"sample_s", "learn_s", "sampler_gap"}  # by the clock, and by the last digits of the sampler's numbers
LEARNS = {"format_reward": 0.0, "group": 3}  # that a reply was cut off does not matter: more of the scores are 1
GENTLY: dict[str, Any] = {"updates": 4, "rollout_tasks": 3, "lr": 5e-5}


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Every line, without what need not be the same."""
    with Run.read(folder) as run:
        return [
            {name: value for name, value in line.items() if name.partition("_turn_")[0] not in LOOSE}
            for line in run.metrics()
        ]


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def weights(place: Path) -> dict[str, torch.Tensor]:
    return {name: weight for file in sorted(place.glob("*.safetensors")) for name, weight in load_file(file).items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def rollouts(folder: Path) -> list[Trajectory]:
    with Run.read(folder) as run:
        return list(run.trajectories(source="rollout"))


def learned(folder: Path) -> list[list[tuple[object, ...]]]:
    """The training record of four updates, without the sampler's log-probabilities: their last digits may differ."""
    with Run.read(folder) as run:
        return [
            [
                (one.trajectory_id, one.replayed_from, *map(list, (one.advantages, one.old, one.new, one.clipped)))
                for one in run.record(update)
            ]
            for update in range(4)
        ]


def said(trajectory: Trajectory) -> tuple[object, ...]:
    """What an episode was, without its timings and without the last digits of its log-probabilities."""
    steps = [(step.completion.tokens, step.completion.version, step.action) for step in trajectory.steps]
    return trajectory.outcome, trajectory.score, trajectory.env_seed, steps


# What a run leaves behind


def test_a_run_leaves_its_metrics_and_the_newest_checkpoints_each_of_which_is_an_agent(
    guesser_folder: Path, tmp_path: Path
) -> None:
    config = settings(LEARNS, **GENTLY, keep=2)
    train_in(tmp_path, guesser_folder, config)
    lines = metrics(tmp_path)
    assert [line["update"] for line in lines] == [0, 1, 2, 3]
    episodes = rollouts(tmp_path)
    for line in lines:
        played = [one for one in episodes if one.provenance.update == line["update"]]
        scores = [one.score for one in played if one.score is not None]
        assert line["episodes"] == len(played) == 9 and line["errors"] == 0
        assert line["success"] == pytest.approx(sum(scores) / 9)
        assert line["env_steps"] == sum(len(one.steps) for one in played)
        assert 0 <= line["optimizer_steps"] <= 3
        assert line["sampled_tokens"] == sum(len(step.completion.tokens) for one in played for step in one.steps)
    assert any(line["optimizer_steps"] > 1 and line["learned_tokens"] > 0 for line in lines)
    assert {step.completion.version for one in episodes for step in one.steps} == {0, 1, 2, 3}
    assert all(step.completion.version == one.provenance.update for one in episodes for step in one.steps)
    assert checkpoints(tmp_path) == ["update-00003", "update-00004"]
    with Run.read(tmp_path) as run:
        for line in lines:
            record = run.record(line["update"])
            assert sum(len(one.old) for one in record) == line["learned_tokens"]
            assert {one.trajectory_id for one in record} <= {one.id for one in episodes}
    newest = tmp_path / "checkpoints" / "update-00004"
    trained, base = load_checkpoint(newest, "cpu"), load_checkpoint(guesser_folder, "cpu")
    assert trained.vocabulary.encode("Press (12,3)") == base.vocabulary.encode("Press (12,3)")
    assert (newest / "prompt.txt").read_text() == (guesser_folder / "prompt.txt").read_text()
    moved = [
        not torch.equal(one, other)
        for one, other in zip(trained.model.parameters(), base.model.parameters(), strict=True)
    ]
    assert any(moved) and not all(moved)  # the vision tower stays


def test_checkpoints_can_be_rarer_than_updates_and_the_last_one_is_always_there(
    guesser_folder: Path, tmp_path: Path
) -> None:
    config = settings(LEARNS, **GENTLY, keep=9)
    train_in(tmp_path / "each", guesser_folder, config)
    rare = config.model_copy(update={"train": config.train.model_copy(update={"save_every": 3})})
    train_in(tmp_path / "rare", guesser_folder, rare)
    assert (len(checkpoints(tmp_path / "each")), checkpoints(tmp_path / "rare")) == (
        4,
        ["update-00003", "update-00004"],
    )
    assert metrics(tmp_path / "rare") == metrics(tmp_path / "each")
    last = Path("checkpoints", "update-00004")
    assert equal(weights(tmp_path / "rare" / last), weights(tmp_path / "each" / last))


def test_episodes_that_gave_way_to_others_are_counted_too(guesser_folder: Path, tmp_path: Path) -> None:
    train_in(tmp_path, guesser_folder, settings({"name": "dapo", "group": 2, "format_reward": 0.0}, updates=2, lr=5e-5))
    lines, episodes = metrics(tmp_path), rollouts(tmp_path)
    assert len(episodes) > 2 * 2 * 2  # or nothing was replaced
    assert sum(line["episodes"] for line in lines) == len(episodes)
    assert sum(line["env_steps"] for line in lines) == sum(len(one.steps) for one in episodes)


def test_a_finished_run_has_nothing_left_to_do(guesser_folder: Path, tmp_path: Path) -> None:
    config = settings(LEARNS, **GENTLY | {"updates": 2})
    train_in(tmp_path, guesser_folder, config)
    before = (metrics(tmp_path), len(rollouts(tmp_path)), weights(tmp_path / "checkpoints" / "update-00002"))
    train_in(tmp_path, guesser_folder, config)
    assert (metrics(tmp_path), len(rollouts(tmp_path))) == before[:2]
    assert equal(weights(tmp_path / "checkpoints" / "update-00002"), before[2])


@pytest.mark.parametrize("lag", [1, 2])
def test_with_a_lag_there_are_as_many_updates_and_no_sample_is_older_than_that(
    guesser_folder: Path, tmp_path: Path, lag: int
) -> None:
    train_in(tmp_path, guesser_folder, settings(LEARNS, **GENTLY, lag=lag))
    lines, episodes = metrics(tmp_path), rollouts(tmp_path)
    assert [line["update"] for line in lines] == [0, 1, 2, 3]
    assert len(episodes) == 4 * 9
    ages = {one.provenance.update - step.completion.version for one in episodes for step in one.steps}
    assert max(ages) == lag and min(ages) >= 0


# Killed and gone on


@dataclasses.dataclass(frozen=True)
class Job:
    """A run that is killed at these moments, one after the other."""

    settings: dict[str, Any]
    moments: tuple[str, ...]
    rough: bool  # rounding depends on what is computed together


def job(name: str, moments: str, rough: bool = False, **train: Any) -> Job:
    config = settings(LEARNS | {"name": name}, **GENTLY | train)
    return Job(config.model_dump(mode="json"), tuple(moments.split()), rough)


KILLED = {
    "arpo": job("arpo", "add5 image3 add2 step2 write1 add4 load1 log1 step1 log1"),
    "dapo": job("dapo", "add10 step3 load1 add1 add3 write1 log1", curriculum=True),
    "arpo+": job("arpo+:group_least=2:group_most=6", "add5 step1 write1 add9 load1 log1 step2 load1"),
    "rare checkpoints": job("arpo", "log1 log2 step1 load3", save_every=2, freeze_vision=False),
    "rough": job("arpo", "add5 image3 add2 step2 add4 log1 step1", rough=True),
    "adapters": job("arpo", "write2 load1 step2 log1", lora_rank=2, lr=1e-3),
    "ppo": job("ppo", "add5 step2 write1 load1 log1 step1"),
    "dpo": job("dpo", "add5 step2 write1 load1 log1 step1"),
    "kto": job("kto", "step1 load1 log1", lora_rank=2, lr=1e-3),
}


@pytest.fixture(scope="module")
def tries(guesser_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path, Any]]:
    """Of each killed run: its folder, that of the same run left alone, and the tries. One process does all of it."""
    place = tmp_path_factory.mktemp("killed")
    work = [
        {"folder": str(place / name / kind), "settings": one.settings, "moments": moments, "rough": one.rough}
        for name, one in KILLED.items()
        for kind, moments in (("whole", ()), ("killed", one.moments))
    ]
    (place / "work.json").write_text(json.dumps(work))
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / "trainer.py", guesser_folder, place / "work.json"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert all(one[-1]["status"] == 0 for one in told.values()), done.stderr
    return lambda name: (place / name / "whole", place / name / "killed", told[str(place / name / "killed")])


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_a_killed_run_goes_on_to_exactly_the_same_numbers(
    name: str, tries: Callable[[str], tuple[Path, Path, Any]]
) -> None:
    whole, killed, told = tries(name)
    assert [(one["moment"], one["status"]) for one in told[:-1]] == [(moment, -9) for moment in KILLED[name].moments]
    lines = metrics(whole)
    assert metrics(killed) == lines
    assert [line["update"] for line in lines] == [0, 1, 2, 3]
    assert sum(line["optimizer_steps"] for line in lines) > 4  # or there was nothing to go wrong
    replays = KILLED[name].settings["algorithm"]["replay"]
    assert any(line["replayed_groups"] for line in lines) == replays
    assert checkpoints(killed) == checkpoints(whole)
    last = Path("checkpoints", "update-00004")
    assert equal(weights(killed / last), weights(whole / last))
    assert learned(killed) == learned(whole)
    states = [json.loads((folder / last / "state.json").read_text()) for folder in (whole, killed)]
    assert states[0]["replay"] == states[1]["replay"] and states[0]["steps"] == states[1]["steps"]


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_nothing_that_was_finished_is_lost_or_played_again(
    name: str, tries: Callable[[str], tuple[Path, Path, Any]]
) -> None:
    whole, killed, told = tries(name)
    stored = [one["stored"] for one in told]
    assert all(earlier.items() <= later.items() for earlier, later in itertools.pairwise(stored))
    one, other = ({episode.id: said(episode) for episode in rollouts(folder)} for folder in (whole, killed))
    assert one == other


# What it says to people


class Arpo:
    """Runs the real entry point in this process, on the fake environment and with the agent that can act."""

    def __init__(self, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.model, self._monkeypatch, self._capsys = model, monkeypatch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["arpo", "train", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = self._capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    def begin(self, folder: Path, *more: str) -> tuple[int, str, str]:
        return self("pocket", *self.settings(folder), *more)

    def settings(self, folder: Path) -> tuple[str, ...]:
        few = ("train.updates=2", "train.rollout_tasks=2", "train.optimizer_tasks=1", "train.max_tokens=16")
        method = ("algorithm.name=arpo", "algorithm.group=2", "train.lr=5e-5", "eval.trials=2", "eval.temperature=1.0")
        where = (
            "env.name=fake",
            "env.size=96x64",
            "tasks.source=train",
            f"train.model={self.model}",
            f"run_dir={folder}",
        )
        return (*few, *method, *where)


@pytest.fixture
def arpo(
    guesser_folder: Path,
    fake_backend: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Arpo:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(DIALECTS, "uitars", DialectEntry("uitars", Guesser))
    return Arpo(guesser_folder, monkeypatch, capsys)


def test_training_is_summed_up_for_scripts_and_for_people(arpo: Arpo, tmp_path: Path) -> None:
    status, out, err = arpo.begin(folder := tmp_path / "run")
    assert status == 0, err
    summary = json.loads((folder / "summary.json").read_text())
    for split in ("train", "heldout"):
        base, final = summary[f"base_{split}"], summary[f"final_{split}"]
        assert summary[f"gain_{split}"] == pytest.approx(final - base)
        for when, rate in (("base", base), ("final", final)):
            low, high = summary[f"{when}_{split}_ci95"]
            assert 0 <= low <= rate <= high <= 1
        low, high = summary[f"gain_{split}_ci95"]
        assert -1 <= low < summary[f"gain_{split}"] < high <= 1 and summary[f"crashed_{split}"] == []
    assert summary["wall_s"] > 0 and summary["peak_rss_mb"] > 100
    assert summary["env_steps"] == sum(len(one.steps) for one in rollouts(folder)) > 0
    with Run.read(folder) as run:
        scores = [one.score for one in run.summaries(update=0, source="evaluation") if one.task_id != "press-2"]
        assert len(scores) == 2 * 2
        assert {one.update for one in run.summaries(source="evaluation")} == {0, 2}
    lines = out.splitlines()
    assert lines[0].split() == ["tasks", "base", "trained", "gain"]
    assert [line.split()[0] for line in lines[1:3]] == ["train", "heldout"]
    assert all(re.search(r"[+-]\d+\.\d points \([+-]\d+ to [+-]\d+\)$", line.strip()) for line in lines[1:3]), lines
    assert lines[1].count("of 6 episodes, 0 without a score") == 2 and summary["base_train_counts"] == [6, 0]
    assert lines[-1] == f"Everything is in {folder}; look at {folder / 'curve.png'}"
    assert (folder / "curve.png").stat().st_size > 1000
    number = r" +-?[\d.]+"
    names = ("success", "reward", "all failed", "replayed")
    speeds = (r"[\d.]+ steps/s", r"\d+ tokens/s")
    shown = "  ".join(["update" + number, *(name + number + "%?" for name in names), *speeds])
    shown = shown.replace(speeds[0], r"(lag [\d.]+  gap \d\.\de-\d\d  )?" + speeds[0])  # of what was learned
    shown = shown.replace("%?  reward", r"% \(of 4 episodes, 0 without a score\)  reward")
    made = [line for line in err.splitlines() if "success" in line and line.startswith("update")]
    assert [line.split()[1] for line in made] == ["1", "2"]
    assert all(re.fullmatch(rf"{shown}(  ends [\d: -]+)?  \d:\d\d:\d\d left", line) for line in made), err
    assert (folder / summary["best_checkpoint"] / "model.safetensors").is_file()


def test_no_picture_is_promised_where_nothing_was_learned(arpo: Arpo, tmp_path: Path) -> None:
    status, out, err = arpo.begin(folder := tmp_path / "run", "train.updates=0", "eval.held_out=0")
    assert (status, out.splitlines()[-1]) == (0, f"Everything is in {folder}"), err
    assert not (folder / "curve.png").exists()


def test_held_out_tasks_are_tried_as_often_as_the_others_and_those_that_crash_are_shown(
    arpo: Arpo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FakeEnv.score

    def score(self: FakeEnv) -> float:
        if self.task is not None and self.task.id == "press-1":
            raise EnvError("the display is gone")
        return real(self)

    monkeypatch.setattr(FakeEnv, "score", score)
    folder = tmp_path / "run"
    write_list(tmp_path, make_task("press-1"), make_task("never-1", feasible=False))
    status, out, err = arpo.begin(folder, "train.updates=0", f"tasks.source={tmp_path / 'list.json'}")
    assert status == 0, err
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["crashed_train"], summary["crashed_heldout"]) == (["press-1"], [])
    told = "train: tasks without any score, since a machine failed in all of their trials: 1 (press-1)"
    assert told in out.splitlines()
    with Run.read(folder) as run:
        tries = [one.task_id for one in run.summaries(source="evaluation") if one.score is not None]
    assert {name: tries.count(name) for name in tries} == {"never-1": 2, "press-2": 2}  # press-2 is held out


def test_a_finished_run_that_is_resumed_comes_to_the_same_summary(arpo: Arpo, tmp_path: Path) -> None:
    arpo.begin(folder := tmp_path / "run")
    first = json.loads((folder / "summary.json").read_text())
    with Run.read(folder) as run:
        before = list(run.summaries())
    status, _, err = arpo("--resume", str(folder))
    assert (status, err) == (0, "")
    again = json.loads((folder / "summary.json").read_text())
    clock = {"wall_s", "peak_rss_mb"}
    assert all(again[name] >= first[name] for name in clock) and again["wall_s"] > first["wall_s"]  # of all sessions
    assert {name: first[name] for name in first if name not in clock} == {
        name: again[name] for name in again if name not in clock
    }
    with Run.read(folder) as run:
        assert list(run.summaries()) == before


def test_metrics_go_where_they_are_asked_for(arpo: Arpo, tmp_path: Path) -> None:
    status, _, err = arpo.begin(folder := tmp_path / "run", "train.track=[tensorboard]", "eval.held_out=0")
    assert status == 0, err
    lines, shown = metrics(folder), EventAccumulator(str(folder / "tensorboard"))
    shown.Reload()
    for name in set(lines[0]) - {"update"}:
        points = [(event.step, event.value) for event in shown.Scalars(name)]
        assert points == [(line["update"], pytest.approx(line[name])) for line in lines if name in line]
    assert arpo.begin(folder, "eval.held_out=0")[0] == 0  # it may go on without
    status, out, err = arpo.begin(tmp_path / "other", "train.track=[paper]")
    assert (status, out) == (2, "")
    assert err == "error: train.track.0=paper: must be 'tensorboard', 'trackio', 'wandb' or 'wandb-offline'\n"


FIXED = ("env.starts=fixed", "env.n_starts=2", "train.updates=1")


def judged(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in summary.items() if name not in ("wall_s", "peak_rss_mb")}


def test_fixed_starts_are_judged_where_they_were_trained_and_on_fresh_ones_apart(arpo: Arpo, tmp_path: Path) -> None:
    status, out, err = arpo.begin(folder := tmp_path / "run", *FIXED)
    assert status == 0, err
    starts = {start_seed(task, start) for task in ("press-1", "press-2", "never-1") for start in (0, 1)}
    assert {one.env_seed for one in rollouts(folder)} <= starts
    summary = json.loads((folder / "summary.json").read_text())
    with Run.read(folder) as run:
        for update, when in ((0, "base"), (1, "final")):
            tried = list(run.summaries(source="evaluation", update=update))
            fixed = [one for one in tried if one.env_seed < EVALUATION]
            fresh = [one for one in tried if one.env_seed >= EVALUATION]
            assert {one.env_seed for one in fixed} == starts and len(fixed) == 6
            assert len({one.env_seed for one in fresh}) == len(fresh) == 6
            for split, part in (("train", fixed), ("fresh", fresh)):
                assert summary[f"{when}_{split}"] == pytest.approx(sum(one.score or 0.0 for one in part) / 6)
                assert summary[f"{when}_{split}_counts"] == [6, 0]
    assert summary.keys() >= {"gain_train_ci95", "gain_fresh_ci95", "gain_heldout_ci95"}
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["train", "fresh", "heldout"]
    kept = json.loads((folder / "tasks.json").read_text())
    assert list(kept) == ["train", "fresh", "heldout"] and kept["fresh"] == kept["train"]
    assert arpo("--resume", str(folder))[0] == 0  # nothing is left to do
    assert judged(json.loads((folder / "summary.json").read_text())) == judged(summary)
    status, _, err = arpo.begin(folder, *FIXED, "env.n_starts=3")
    assert (status, "was begun with n_starts: 2, not n_starts: 3;" in err) == (2, True)


def test_a_run_that_is_stopped_while_it_is_judged_on_fresh_starts_comes_to_the_same(
    arpo: Arpo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arpo.begin(tmp_path / "whole", *FIXED)
    add, added = Run.add, itertools.count(1)

    def stopped(run: Run, trajectory: Trajectory) -> None:
        add(run, trajectory)
        if next(added) == 8:  # six are of `train`, two of `fresh`
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Run, "add", stopped)
        assert arpo.begin(tmp_path / "run", *FIXED)[0] == 2
    status, _, err = arpo("--resume", str(tmp_path / "run"), f"train.model={arpo.model}")
    assert status == 0, err
    whole, parts = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "run"))
    assert judged(parts) == judged(whole)


def test_fresh_starts_are_judged_as_before_without_a_split_of_their_own(arpo: Arpo, tmp_path: Path) -> None:
    arpo.begin(folder := tmp_path / "run", "train.updates=0")
    assert not [name for name in json.loads((folder / "summary.json").read_text()) if "fresh" in name]
    with Run.read(folder) as run:
        assert all(one.id.startswith("eval0-") and one.env_seed >= EVALUATION for one in run.summaries())


def test_a_begun_run_goes_on_only_as_what_it_is(arpo: Arpo, tmp_path: Path) -> None:
    arpo.begin(folder := tmp_path / "run")
    for changed, old, new in (
        ("train.lr=1e-4", "lr: 5.0e-05", "lr: 0.0001"),
        ("algorithm.name=arpo:replay=false", "name: arpo", "name: arpo:replay=false"),
        ("seed=1", "seed: 0", "seed: 1"),
    ):
        status, out, err = arpo.begin(folder, changed)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"was begun with {old}, not {new};" in err
    assert arpo.begin(folder, "train.n_envs=2", "eval.n_envs=2")[0] == 0


def test_a_run_goes_on_with_another_device_but_not_with_another_precision(
    arpo: Arpo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[Any, ...]] = []
    load = checkpoint.load_model

    def noting(*how: Any) -> Any:
        loaded.append(how)
        return load(*how)

    monkeypatch.setattr(checkpoint, "load_model", noting)
    arpo.begin(folder := tmp_path / "run", "train.updates=0", "agent.device=auto")
    loaded.clear()
    assert arpo.begin(folder, "train.updates=0", "agent.device=cpu")[0] == 0
    assert [device for _, device, _ in loaded] == [torch.device("cpu")]  # once: engine and learner are one model
    status, _, err = arpo.begin(folder, "train.updates=0", "agent.dtype=bfloat16")
    assert (status, "was begun with dtype: float32, not dtype: bfloat16;" in err) == (2, True)  # what auto came to


def test_a_run_goes_on_with_its_own_tasks_from_anywhere(
    arpo: Arpo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_list(Path(), make_task("press-1"), make_task("press-2"))
    few = ("tasks.source=list.json", "train.updates=1", "eval.held_out=0")
    folder = tmp_path / "run"
    assert arpo.begin(folder, *few)[0] == 0
    first = json.loads((folder / "summary.json").read_text())

    def resumed() -> tuple[dict[str, Any], str]:
        status, _, err = arpo("--resume", str(folder))
        assert status == 0, err
        with Run.read(folder) as run:
            assert {one.task_id for one in run.summaries()} == {"press-1", "press-2"}
        again = json.loads((folder / "summary.json").read_text())
        return {name: again[name] for name in again if name not in ("wall_s", "peak_rss_mb")}, err

    expected = {name: first[name] for name in first if name not in ("wall_s", "peak_rss_mb")}
    write_list(Path(), make_task("press-1"), make_task("press-3"))  # never trained on
    told = "tasks.source=list.json: other tasks by now (press-2 is missing); the run goes on with its own\n"
    assert resumed() == (expected, told)
    status, out, err = arpo.begin(folder, *few)  # here they are named anew
    assert (status, out, err) == (
        2,
        "",
        f"error: {folder}: was begun with other tasks than tasks.source=list.json has now: press-2 is missing; "
        "put it back as it was, or choose another folder\n",
    )
    Path("list.json").unlink()
    assert resumed() == (expected, "")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert resumed() == (expected, "")
    status, out, _ = arpo("--resume", str(folder), "--dry-run")
    assert status == 0 and " on the 2 tasks of list.json" in out


def test_a_runs_folder_stands_for_its_best_checkpoint_with_its_prompt(
    arpo: Arpo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert arpo.begin(Path("run"), "eval.held_out=0")[0] == 0
    one, two = Path("run/checkpoints/update-00001"), Path("run/checkpoints/update-00002")
    for place, success in ((one, 0.9), (two, 0.1)):
        state = json.loads((place / "state.json").read_text())
        (place / "state.json").write_text(json.dumps(state | {"recent": [success]}))
    (one / "prompt.txt").write_text("Another one: {instruction}")
    unfinished = Path("run/checkpoints/update-00003.part")  # as where the run is at work
    unfinished.mkdir()

    def evaluate(model: str, *more: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["arpo", "eval", model, "env.name=fake", "env.size=96x64", "--json", *more])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    def seen(folder: str) -> tuple[str | None, list[Trajectory]]:
        with Run.read(Path(folder)) as run:
            return run.fact("model"), [
                dataclasses.replace(t, id="", provenance=ANY, steps=()) for t in run.trajectories()
            ]

    status, out, err = evaluate("run", "--run-dir", "by-run")
    assert (status, err) == (0, f"run: its best checkpoint is {one}\n")
    assert json.loads(out)["model"] == str(one)
    assert evaluate(str(one), "--run-dir", "by-name")[::2] == (0, "")
    evaluate(str(two), "--run-dir", "other")
    assert seen("by-run") == seen("by-name") != seen("other")
    assert unfinished.is_dir()

    line = "only a training that made an update has one"
    assert evaluate("other") == (2, "", f"error: model=other: a run without a checkpoint; {line}\n")
    status, _, err = arpo.begin(Path("more"), "train.model=run", "train.updates=0", "eval.held_out=0")
    assert (status, err) == (0, f"run: its best checkpoint is {one}\n")
    begun = load_config("more/config.yaml", [])
    assert begun.train.model == str(one.absolute())  # also where the run has another best one later
    with Run.read(Path("more")) as run:
        assert run.fact("model") == seen("by-name")[0]
    (two / "state.json").write_text("{")
    status, _, err = evaluate("run")
    assert (status, err.count("\n")) == (2, 1) and err.startswith(f"error: {two / 'state.json'}: cannot be read (")


def test_a_finished_run_can_be_made_longer_and_is_judged_anew(arpo: Arpo, tmp_path: Path) -> None:
    arpo.begin(folder := tmp_path / "run", "eval.held_out=0")
    first = json.loads((folder / "summary.json").read_text())
    limits = ("train.updates=3", "train.micro_tokens=100", "train.save_every=2", "train.keep=9", "train.n_envs=1")
    status, _, err = arpo("--resume", str(folder), *limits)
    assert status == 0, err
    assert [line["update"] for line in metrics(folder)] == [0, 1, 2]
    assert checkpoints(folder) == ["update-00001", "update-00002", "update-00003"]
    with Run.read(folder) as run:
        assert {one.update for one in run.summaries(source="evaluation")} == {0, 2, 3}
        judged = [one.score for one in run.summaries(source="evaluation", update=3)]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["final_train"] == pytest.approx(sum(score or 0.0 for score in judged) / len(judged))
    assert summary["base_train"] == first["base_train"] and summary["env_steps"] > first["env_steps"]
    again = load_config(str(folder / "config.yaml"), [])
    assert (again.train.updates, again.train.micro_tokens, again.train.keep) == (3, 100, 9)


def test_a_refused_command_changes_nothing_of_a_finished_run(arpo: Arpo, tmp_path: Path) -> None:
    write_list(tmp_path, make_task("press-1"), make_task("press-2"))
    source = (f"tasks.source={tmp_path / 'list.json'}", "eval.held_out=0")
    arpo.begin(folder := tmp_path / "run", *source)
    before = {name: (folder / name).read_text() for name in ("config.yaml", "summary.json")}
    write_list(tmp_path, make_task("press-1"), make_task("press-3"))
    tries = [
        arpo.begin(folder, *source, "train.updates=5"),
        arpo("--resume", str(folder), "train.updates=1"),
        arpo("--resume", str(folder), "train.env_steps=1"),
        arpo("--resume", str(folder), "train.updatess=5"),
    ]
    assert [status for status, _, _ in tries] == [2] * 4
    said = [err.splitlines()[-1] for _, _, err in tries]
    assert "was begun with other tasks" in said[0]
    assert said[1] == f"error: train.updates=1: {folder} has made 2 already"
    assert re.fullmatch(rf"error: train.env_steps=1: {folder} has played \d+ already", said[2])
    assert said[3].endswith("a run goes on with its own settings; did you mean train.updates?")
    assert {name: (folder / name).read_text() for name in before} == before


def test_what_is_json_but_no_update_and_no_success_is_one_line(arpo: Arpo, tmp_path: Path) -> None:
    arpo.begin(folder := tmp_path / "run", "eval.held_out=0")
    lines, state = folder / "metrics.jsonl", folder / "checkpoints" / "update-00002" / "state.json"
    whole, remembered = lines.read_text(), json.loads(state.read_text())
    lines.write_text('{"update": 0}\n' + whole)
    told = f"error: {lines}: line 1 is not an update's; take it out, and the run goes on without it\n"
    assert arpo("--resume", str(folder), "train.updates=3")[::2] == (2, told)
    lines.write_text(whole)
    state.write_text(json.dumps(remembered | {"replay": {"press-1": [1]}}))
    status, _, err = arpo("--resume", str(folder), "train.updates=3")
    assert (status, err.splitlines()[-1].startswith(f"error: {state}: cannot be read (")) == (2, True)
    state.write_text(json.dumps(remembered))
    assert arpo("--resume", str(folder), "train.updates=3")[0] == 0


def test_a_run_that_is_made_longer_is_not_finished_before_it_is(
    arpo: Arpo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arpo.begin(folder := tmp_path / "run", "eval.held_out=0")
    with monkeypatch.context() as patch:
        patch.setattr(command, "train", lambda *_: (_ for _ in ()).throw(ConfigError("stopped here")))
        assert arpo("--resume", str(folder), "train.env_steps=1000", "train.updates=3")[0] == 2
    assert not (folder / "summary.json").exists()
    assert arpo("--resume", str(folder))[0] == 0
    assert len(metrics(folder)) == 3


def test_what_makes_a_run_what_it_is_cannot_be_changed_when_it_goes_on(arpo: Arpo, tmp_path: Path) -> None:
    arpo.begin(folder := tmp_path / "run", "train.updates=0", "eval.held_out=0")
    for change in ("train.lr=1e-3", "pocket", "seed=1", "algorithm.name=grpo", "run_dir=other", "train={updates: 3}"):
        status, out, err = arpo("--resume", str(folder), change)
        key = change.partition("=")[0]
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"error: {key}: a run goes on with its own settings; beside --resume only these may be")
    assert arpo("--resume", str(folder), "train.updates=soon")[2] == (
        "error: train.updates=soon: must be a whole number\n"
    )


def test_a_run_of_an_earlier_arpo_whose_name_says_too_little_goes_on(arpo: Arpo, tmp_path: Path) -> None:
    arpo.begin(folder := tmp_path / "run", "algorithm.name=arpo+:group_least=null", "eval.held_out=0")
    written = (folder / "config.yaml").read_text()
    assert "  name: arpo+:group_least=null  #" in written
    (folder / "config.yaml").write_text(written.replace("arpo+:group_least=null", "arpo+"))
    status, _, err = arpo("--resume", str(folder), "train.updates=3")
    assert status == 0, err
    assert "  name: arpo+:group_least=null  #" in (folder / "config.yaml").read_text()


def test_a_run_goes_on_from_another_working_directory(
    arpo: Arpo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").symlink_to(arpo.model)
    (tmp_path / "prompt.txt").write_text("Please: {instruction}")
    relative = ("train.model=model", "agent.prompt_file=prompt.txt")
    status, _, err = arpo.begin(folder := tmp_path / "run", *relative, "eval.held_out=0")
    assert status == 0, err
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    status, _, err = arpo("--resume", "../run", "train.updates=3", "agent.prompt_file=../prompt.txt")
    assert status == 0, err
    assert (folder / "checkpoints" / "update-00003" / "prompt.txt").read_text() == "Please: {instruction}"


def test_neither_kind_of_run_goes_on_in_the_folder_of_the_other(
    arpo: Arpo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("env.name=fake", "env.size=96x64", "tasks.source=train")
    config = load_config("pocket", [*where, "eval.trials=1"])
    run_evaluation(config, "random", judged := tmp_path / "evaluation")
    before = sorted(path.name for path in judged.iterdir())
    line = f"error: {judged}: holds an evaluation, no training; `arpo eval … --run-dir` goes on with it\n"
    assert arpo("--resume", str(judged)) == (2, "", line)
    assert arpo.begin(judged) == (2, "", line)
    assert sorted(path.name for path in judged.iterdir()) == before
    arpo.begin(trained := tmp_path / "training", "train.updates=0", "eval.held_out=0")
    config = load_config(str(trained / "config.yaml"), [])
    with pytest.raises(ConfigError, match="holds a training, no evaluation; choose another folder"):
        run_evaluation(config, "random", trained)


def test_settings_that_are_cut_short_are_not_completed_by_defaults(arpo: Arpo, tmp_path: Path) -> None:
    arpo.begin(folder := tmp_path / "run", "eval.held_out=0")
    lines = (folder / "config.yaml").read_text().splitlines(keepends=True)
    for cut in (0, len(lines) // 2, len(lines) - 1):
        (folder / "config.yaml").write_text("".join(lines[:cut]))
        line = f"error: {folder / 'config.yaml'}: is cut short, for it does not name run_dir; put a whole one back\n"
        assert arpo("--resume", str(folder)) == (2, "", line)


def test_one_process_at_a_time_trains_in_a_folder(arpo: Arpo, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Run.write(folder, ""):
        status, out, err = arpo.begin(folder)
        assert (status, out) == (2, "")
        assert err == f"error: {folder}: process {os.getpid()} is writing to this run; wait, or choose another\n"
    (folder / "config.yaml").unlink()
    assert arpo.begin(folder)[0] == 0


@pytest.mark.parametrize("where", ["a notebook", "a thread"])
def test_training_can_be_called_from(where: str, arpo: Arpo, tmp_path: Path) -> None:
    """In a notebook's cell an event loop is running already; a thread other than the main one gets no signals."""
    config = load_config("pocket", [*arpo.settings(tmp_path / "run"), "eval.held_out=0"])
    if where == "a notebook":

        async def cell() -> dict[str, Any]:
            return run_training(config)

        summary = asyncio.run(cell())
    else:
        with ThreadPoolExecutor(1) as threads:
            summary = threads.submit(run_training, config).result()
    assert json.loads(json.dumps(summary)) == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [line["update"] for line in metrics(tmp_path / "run")] == [0, 1]


def test_a_script_cannot_be_trained(arpo: Arpo, tmp_path: Path) -> None:
    status, _, err = arpo.begin(tmp_path / "run", "train.model=expert")
    assert (status, err) == (2, "error: train.model=expert: a script cannot be trained\n")
    assert not (tmp_path / "run").exists()
