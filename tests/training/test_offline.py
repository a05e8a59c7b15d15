"""Offline training: learning from what other runs have stored, and what is refused of it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from guesser import Guesser
from test_loop import checkpoints, equal, metrics, weights

import arpo as package
from arpo import cli
from arpo.agent.dialects.base import DIALECTS, DialectEntry
from arpo.algorithms.base import METHODS, Credit, Needs
from arpo.envs.base import BACKENDS
from arpo.errors import ArpoError
from arpo.model.checkpoint import load_checkpoint
from arpo.runs.store import Run
from arpo.training import offline
from arpo.training.learner import LocalLearner
from arpo.training.offline import teaching
from arpo.training.samples import to_samples
from arpo.types import Group, Provenance, Trajectory, to_json
from fake_env import BACKEND

FEW = ("train.updates=2", "train.rollout_tasks=2", "train.optimizer_tasks=1", "train.max_tokens=16", "train.lr=5e-5")
METHOD = ("algorithm.name=grpo", "algorithm.group=3", "algorithm.format_reward=0.0")
JUDGED = ("eval.trials=2", "eval.temperature=1.0", "eval.max_tokens=16")
WHERE = ("env.name=fake", "env.size=96x64", "eval.held_out=0")


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    """The fake environment, and the agent that can act."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BACKENDS, "fake", BACKEND)
        patch.setitem(DIALECTS, "uitars", DialectEntry("uitars", Guesser))
        patch.setenv("COLUMNS", "200")
        yield


def settings(model: Path, *more: str) -> list[str]:
    return [*FEW, *METHOD, *JUDGED, *WHERE, f"train.model={model}", *more]


@pytest.fixture(scope="module")
def played(world: None, guesser_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training."""
    folder = tmp_path_factory.mktemp("played") / "first"
    package.train(*settings(guesser_folder, "tasks.source=train", "train.rollout_tasks=3"), run_dir=folder)
    return folder


@pytest.fixture(scope="module")
def tried(world: None, guesser_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation."""
    folder = tmp_path_factory.mktemp("tried") / "trials"
    package.evaluate(guesser_folder, *JUDGED, *WHERE, "eval.trials=4", "tasks.source=train", "seed=7", run_dir=folder)
    return folder


@pytest.fixture(scope="module")
def learned(played: Path, guesser_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An offline training from it."""
    folder = tmp_path_factory.mktemp("learned") / "second"
    package.train(*settings(guesser_folder), run_dir=folder, from_runs=[played])
    return folder


def stored(folder: Path, source: str) -> list[Trajectory]:
    with Run.read(folder) as run:
        return list(run.trajectories(source=source))


def test_the_stored_episodes_are_learned_and_nothing_is_played_but_to_judge(
    learned: Path, played: Path, guesser_folder: Path
) -> None:
    lines = metrics(learned)
    assert [line["update"] for line in lines] == [0, 1]
    for line in lines:
        assert line["env_steps"] == 0 and line["stored_episodes"] == line["episodes"] == 6
        assert line["learned_tokens"] > 0 and "lag" not in line and "replay_age" in line
    last = learned / "checkpoints" / "update-00002"
    begun = {name: value.detach() for name, value in load_checkpoint(guesser_folder, "cpu").model.named_parameters()}
    trained = {name: value.detach() for name, value in load_checkpoint(last, "cpu").model.named_parameters()}
    assert not equal(begun, trained)
    assert stored(learned, "rollout") == []
    assert {one.provenance.update for one in stored(learned, "evaluation")} == {0, 2}
    summary = json.loads((learned / "summary.json").read_text())
    assert summary["env_steps"] == 0 and summary["best_checkpoint"] == "checkpoints/update-00002"
    assert {"base_train", "final_train"} <= summary.keys()
    assert not (learned / "curve.png").exists()  # of what another run played


def test_each_episode_is_copied_once_with_its_screens_and_says_where_it_comes_from(learned: Path, played: Path) -> None:
    there = {f"from0-{one.id}": one for one in stored(played, "rollout")}
    here = {one.id: one for one in stored(learned, "offline")}
    assert here.keys() == there.keys() and len(here) == 2 * 3 * 3
    with Run.read(learned) as run:
        for name, one in here.items():
            other = there[name]
            assert one.provenance == Provenance("offline", "first", other.provenance.update)
            assert [step.completion.tokens for step in one.steps] == [step.completion.tokens for step in other.steps]
            assert {step.completion.version for step in one.steps} == {0}
            assert (one.score, one.env_seed, one.outcome) == (other.score, other.env_seed, other.outcome)
            for screen in [one.start, *(step.observation for step in one.steps if step.observation)]:
                assert run.image(screen).hash == screen
        with Run.read(played) as source:
            assert {step.completion.version for one in source.trajectories(source="rollout") for step in one.steps} == {
                0,
                1,
            }


def test_a_stored_episode_is_never_taken_for_a_fresh_one(
    played: Path, guesser_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("compared with a sampler that was another")

    monkeypatch.setattr(LocalLearner, "self_test", refuse)
    package.train(*settings(guesser_folder, "train.updates=1"), run_dir=tmp_path / "run", from_runs=[played])
    one = stored(tmp_path / "run", "offline")[0]
    n = sum(len(step.completion.tokens) for step in one.steps)
    for provenance, is_stored in ((one.provenance, True), (replace(one.provenance, source="rollout"), False)):
        group = Group(one.task_id, (replace(one, provenance=provenance),))
        samples = to_samples(group, [Credit([1.0] * n)], image_pad=8)
        assert {sample.stored for sample in samples} == {is_stored}


def test_the_reward_is_what_the_new_settings_make_of_the_score(
    played: Path, guesser_folder: Path, tmp_path: Path
) -> None:
    few = settings(guesser_folder, "train.updates=0", "algorithm.format_reward=-0.5")
    package.train(*few, run_dir=tmp_path / "run", from_runs=[played])
    for one in stored(tmp_path / "run", "offline"):
        assert one.reward == pytest.approx((one.score or 0.0) - 0.5 * (one.steps[-1].parse_error is not None))


def test_the_source_may_vanish_and_the_run_goes_on_to_the_same_numbers(
    learned: Path, played: Path, guesser_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, folder = tmp_path / "first", tmp_path / "run"
    shutil.copytree(played, source)
    package.train(*settings(guesser_folder, "train.updates=1"), run_dir=folder, from_runs=[source])
    shutil.rmtree(source)
    monkeypatch.setattr(sys, "argv", ["arpo", "train", "--resume", str(folder), "train.updates=2"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert metrics(folder) == metrics(learned)
    last = Path("checkpoints", "update-00002")
    assert equal(weights(folder / last), weights(learned / last))
    again = package.train(*settings(guesser_folder), run_dir=folder, from_runs=[source])  # the same call again
    assert again["best_checkpoint"] == str(last)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_numbers_and_copies_nothing_twice(
    learned: Path,
    played: Path,
    guesser_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "run"

    def arpo(*arguments: str, kill: str = "") -> subprocess.CompletedProcess[str]:
        env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "KILL": kill and f"run {kill}"}
        command = [sys.executable, str(Path(__file__).parent / "patched_arpo.py"), "train", *arguments]
        return subprocess.run(command, env=os.environ | env, capture_output=True, text=True)

    begun = arpo("--from", str(played), *settings(guesser_folder, f"run_dir={folder}"), kill="add4")
    assert begun.returncode == -9, begun.stderr
    assert len(stored(folder, "offline")) == 4
    monkeypatch.setattr(sys, "argv", ["arpo", "train", "--resume", str(folder)])
    with pytest.raises(SystemExit):
        cli.main()
    told = f"error: {folder}: not all of its episodes are copied yet; say again --from which runs\n"
    assert capsys.readouterr().err == told
    again = arpo("--resume", str(folder), "--from", str(played), kill="step3")
    assert again.returncode == -9, again.stderr
    assert len(stored(folder, "offline")) == 2 * 3 * 3 and len(metrics(folder)) == 1
    done = arpo("--resume", str(folder))
    assert done.returncode == 0, done.stderr
    assert metrics(folder) == metrics(learned)
    assert checkpoints(folder) == checkpoints(learned)
    last = Path("checkpoints", "update-00002")
    assert equal(weights(folder / last), weights(learned / last))
    assert {one.id for one in stored(folder, "offline")} == {one.id for one in stored(learned, "offline")}


def test_two_runs_are_joined_and_tasks_can_be_chosen(
    played: Path, tried: Path, guesser_folder: Path, tmp_path: Path
) -> None:
    few = settings(guesser_folder, "train.updates=1")
    package.train(*few, run_dir=tmp_path / "joined", from_runs=[played, tried])
    episodes = stored(tmp_path / "joined", "offline")
    assert [one.provenance.run for one in episodes] == ["first"] * 18 + ["trials"] * 12
    assert {one.id.partition("-")[0] for one in episodes} == {"from0", "from1"}
    package.train(*few, "train.rollout_tasks=1", "tasks.source=press-1", run_dir=tmp_path / "one", from_runs=[tried])
    assert {one.task_id for one in stored(tmp_path / "one", "offline")} == {"press-1"}
    assert {one.task_id for one in stored(tmp_path / "one", "evaluation")} == {"press-1"}


def test_an_episode_that_several_runs_have_is_learned_once(
    learned: Path, played: Path, tried: Path, guesser_folder: Path, tmp_path: Path
) -> None:
    few = settings(guesser_folder, "train.updates=0", "eval.trials=1")
    package.train(*few, run_dir=tmp_path / "both", from_runs=[tried, played])
    package.train(*few, run_dir=tmp_path / "run", from_runs=[learned, tmp_path / "both"])  # all of one is in the other
    assert len(stored(tmp_path / "run", "offline")) == len(stored(tmp_path / "both", "offline"))
    told = refused(guesser_folder, runs=[played, learned], run_dir=tmp_path / "other")
    assert told == (
        f"{learned}: has no episode of these tasks with a score and with steps that those before it have not"
    )


def test_one_run_to_learn_from_needs_no_list(played: Path, guesser_folder: Path, tmp_path: Path) -> None:
    few = settings(guesser_folder, "train.updates=0", "eval.trials=1")
    sources: tuple[Path | str, ...] = (played, str(played))
    for number, source in enumerate(sources):
        package.train(*few, run_dir=tmp_path / str(number), from_runs=source)
        assert len(stored(tmp_path / str(number), "offline")) == 18


@pytest.mark.skipif(sys.platform != "linux", reason="names of other bytes than UTF-8")
def test_a_source_may_have_any_name(played: Path, guesser_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / os.fsdecode(b"\xff first")
    shutil.copytree(played, source)
    few = settings(guesser_folder, "train.updates=0", "eval.trials=1")
    package.train(*few, run_dir=tmp_path / "run", from_runs=[source])
    assert {one.provenance.run for one in stored(tmp_path / "run", "offline")} == {r"\udcff first"}


def test_replay_finds_its_successes_in_the_copy(
    learned: Path, guesser_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offline, "DRAWS", 1)  # so that some groups fail as a whole
    more = ("algorithm.name=arpo", "algorithm.group=2", "train.updates=8", "eval.trials=1")
    package.train(*settings(guesser_folder, *more), run_dir=tmp_path / "run", from_runs=[learned])  # of an offline one
    lines = metrics(tmp_path / "run")
    assert any(line["replayed_groups"] for line in lines)
    assert {one.id.rpartition("from0")[0] for one in stored(tmp_path / "run", "offline")} == {"from0-"}


@pytest.mark.parametrize("why", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device", "run.sqlite")])
def test_a_stopped_copy_says_how_to_go_on(
    why: BaseException,
    played: Path,
    guesser_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, few = tmp_path / "run", settings(guesser_folder, "train.updates=0", "eval.trials=1")

    def stop(*_: object) -> None:
        raise why

    with monkeypatch.context() as patch:
        patch.setattr(Run, "copy_image", stop)
        with pytest.raises(type(why)):
            package.train(*few, run_dir=folder, from_runs=[played])
    told = capsys.readouterr().err
    assert told.startswith(f"stopped; to resume: arpo train --resume {folder} --from {played}")
    package.train(*few, run_dir=folder, from_runs=[played])  # or the same again
    assert len(stored(folder, "offline")) == 18


def test_the_plan_says_what_would_be_learned(
    played: Path,
    learned: Path,
    guesser_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    new = ["--from", str(played), *settings(guesser_folder, f"run_dir={tmp_path / 'new'}")]
    for arguments in (new, ["--resume", str(learned)]):
        monkeypatch.setattr(sys, "argv", ["arpo", "train", "--dry-run", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capsys.readouterr()
        assert ended.value.code == 0, told.err
        assert "grpo from 18 stored episodes; nothing is played to learn" in told.out
        assert "an update: 2 tasks x up to 3 of them" in told.out and "source: stored" in told.out
    assert not (tmp_path / "new").exists()


# What cannot be learned from


def refused(model: Path, *more: str, runs: list[Path], run_dir: Path) -> str:
    with pytest.raises(ArpoError) as error:
        package.train(*settings(model, *more), run_dir=run_dir, from_runs=runs)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            "algorithm.partial=0.5",
            "algorithm.partial=0.5: has no meaning where stored episodes are learned (--from); set algorithm.partial=0",
        ),
        ("train.lag=1", "train.lag=1: has no meaning where stored episodes are learned (--from); set train.lag=0"),
        ("train.env_steps=9", "set train.env_steps=null"),
        ("train.curriculum=true", "set train.curriculum=false"),
        ("algorithm.name=grpo:group_least=2", "set algorithm.group_least=null"),
        ("algorithm.name=grpo:group_most=9", "set algorithm.group_most=null"),
        ("env.size=128x64", "env.size=128x64: {run} was played with env.size=96x64; to learn from it, say so"),
        ("env.name=pocket", "env.name=pocket: {run} was played with env.name=fake; to learn from it, say so"),
        ("agent.dialect=qwen3vl", "{run} was played with agent.dialect=uitars"),
        ("agent.screenshots=1", "agent.screenshots=1: {run} was played with agent.screenshots=null"),
        ("train.rollout_tasks=3", "train.rollout_tasks=3: must be at most 2: of so many tasks {run} has episodes"),
        ("tasks.source=press-9", "unknown task 'press-9'"),
        ("tasks.source=never-1", "algorithm.name=grpo: needs a task whose episodes have different rewards"),
    ],
)
def test_settings_that_do_not_fit_are_one_line_and_nothing_is_begun(
    change: str, why: str, played: Path, guesser_folder: Path, tmp_path: Path
) -> None:
    told = refused(guesser_folder, change, runs=[played], run_dir=tmp_path / "run")
    assert why.format(run=played) in told
    assert not (tmp_path / "run").exists()


def test_runs_that_are_none_or_at_work_are_one_line(
    played: Path, learned: Path, guesser_folder: Path, tmp_path: Path
) -> None:
    folder, source = tmp_path / "run", tmp_path / "first"
    (tmp_path / "empty").mkdir()
    told = refused(guesser_folder, runs=[tmp_path / "empty"], run_dir=folder)
    assert told == f"{tmp_path / 'empty'}: holds no run"
    assert refused(guesser_folder, runs=[played, played], run_dir=folder) == f"--from {played}: is named twice"
    shutil.copytree(played, source)
    with Run.write(source, ""):
        told = refused(guesser_folder, runs=[source], run_dir=folder)
    assert told == f"{source}: process {os.getpid()} is writing to this run; wait, or choose another"
    (source / "tasks.json").unlink()
    told = refused(guesser_folder, runs=[source], run_dir=folder)
    assert told == f"{source}: has kept no tasks; name those of its episodes: tasks.source=…"
    (source / "run.sqlite").write_bytes(b"no database, but long enough to be read as one" * 100)
    assert f"{source / 'run.sqlite'}: cannot be read" in refused(guesser_folder, runs=[source], run_dir=folder)
    assert not folder.exists()
    assert "is the folder of this run itself" in refused(guesser_folder, runs=[learned], run_dir=learned)
    told = refused(guesser_folder, "tasks.source=train", "train.rollout_tasks=3", runs=[learned], run_dir=played)
    assert told == f"{played}: was begun without --from; choose another folder"
    told = refused(guesser_folder, runs=[source], run_dir=learned)
    assert told == f"{learned}: was begun with other runs than --from names; choose another folder"
    with pytest.raises(ArpoError, match=r"^tasks\.source=stored: are the tasks of stored episodes; say --from"):
        package.train(*settings(guesser_folder, "tasks.source=stored"), run_dir=folder)


def test_tasks_of_one_name_that_are_not_one_are_not_joined_but_where_only_their_limits_differ(
    played: Path, tried: Path, guesser_folder: Path, tmp_path: Path
) -> None:
    source, folder = tmp_path / "first", tmp_path / "run"
    shutil.copytree(played, source)
    kept = (source / "tasks.json").read_text()
    (source / "tasks.json").write_text(kept.replace('"max_steps": 5', '"max_steps": 9'))
    package.train(
        *settings(guesser_folder, "train.updates=0", "eval.trials=1"), run_dir=folder, from_runs=[source, tried]
    )
    assert {task["max_steps"] for task in json.loads((folder / "tasks.json").read_text())["train"]} == {9}
    (source / "tasks.json").write_text(kept.replace("Press the button", "Leave the button"))
    told = refused(guesser_folder, runs=[source, tried], run_dir=tmp_path / "other")
    assert told == (f"{tried}: press-1 has another instruction there than elsewhere; episodes of both cannot be joined")


def test_a_run_of_another_model_or_prompt_is_one_line(played: Path, guesser_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(guesser_folder, other)
    (other / "prompt.txt").write_text("Something else: {instruction}")
    told = refused(other, runs=[played], run_dir=tmp_path / "run")
    assert told.startswith(f"{played}: its episodes are not of this model: another tokenizer, prompt or choice of")
    assert not (tmp_path / "run").exists()


def test_an_agent_is_not_judged_on_screens_that_it_has_learned(
    tried: Path, guesser_folder: Path, tmp_path: Path
) -> None:
    told = refused(guesser_folder, "seed=7", runs=[tried], run_dir=tmp_path / "run")
    assert told == (
        f"seed=7: {tried} has episodes on the screens that this training is judged on; "
        "with another seed these are others: seed=8"
    )


@pytest.mark.parametrize(
    ("needs", "keep", "why"),
    [
        ("successes", lambda score: score < 1, "needs a success, which"),
        ("both", lambda score: score == 1, "needs successes and failures, which"),
        ("pairs", lambda score: score == 1, "needs a task with a success and a failure, which"),
        (None, lambda score: True, "learns from what it plays alone, not with --from"),
    ],
)
def test_what_a_method_needs_must_be_there(
    needs: Needs | None,
    keep: Callable[[float], bool],
    why: str,
    played: Path,
    guesser_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = tmp_path / "first"
    shutil.copytree(played, source)
    with Run.read(source) as run:
        gone = [one.id for one in run.summaries() if one.score is not None and not keep(one.score)]
    with sqlite3.connect(source / "run.sqlite") as db:
        db.executemany("DELETE FROM trajectories WHERE id = ?", [(name,) for name in gone])
    db.close()
    monkeypatch.setitem(METHODS, "grpo", replace(METHODS["grpo"], offline=needs))
    assert f"algorithm.name=grpo: {why}" in refused(guesser_folder, runs=[source], run_dir=tmp_path / "run")


def test_which_tasks_teach() -> None:
    episodes = {"won": [(1.0, 1.0)], "lost": [(0.0, 0.0), (0.0, -1.0)], "mixed": [(1.0, 1.0), (0.5, 0.5)]}
    found: dict[Needs, set[str]] = {
        "differing": {"lost", "mixed"},
        "successes": {"won", "mixed"},
        "pairs": {"mixed"},
        "both": {"won", "lost", "mixed"},
    }
    for needs, tasks in found.items():
        assert teaching(needs, episodes, solved=1.0) == tasks
        assert teaching(needs, {}, solved=1.0) == set()
    assert teaching("both", {"won": episodes["won"]}, solved=1.0) == set()


@pytest.mark.attack("run folder")
def test_a_screen_that_is_another_than_its_name_says_is_refused(
    played: Path, guesser_folder: Path, tmp_path: Path
) -> None:
    source = tmp_path / "first"
    shutil.copytree(played, source)
    with sqlite3.connect(source / "run.sqlite") as db:
        db.execute("UPDATE images SET image = (SELECT image FROM images ORDER BY hash LIMIT 1)")
    db.close()
    told = refused(guesser_folder, runs=[source], run_dir=tmp_path / "run")
    assert told.startswith(f"{source / 'run.sqlite'}: cannot be read: the screenshot ")


@pytest.mark.attack("run folder")
@pytest.mark.parametrize("logprob", [1e308, 0.5, -1e308])
def test_log_probabilities_that_none_can_be_are_refused(
    logprob: float, played: Path, guesser_folder: Path, tmp_path: Path
) -> None:
    source = tmp_path / "first"
    shutil.copytree(played, source)
    with Run.read(source) as run:
        one = next(run.trajectories(source="rollout"))
    said = one.steps[0].completion
    forged = replace(said, logprobs=(logprob,) * len(said.tokens))
    record = to_json(replace(one, steps=(replace(one.steps[0], completion=forged), *one.steps[1:])))
    with sqlite3.connect(source / "run.sqlite") as db:
        db.execute("UPDATE trajectories SET record = ? WHERE id = ?", (zlib.compress(record), one.id))
    db.close()
    assert f"{source}: its episodes are not of this model" in refused(
        guesser_folder, runs=[source], run_dir=tmp_path / "run"
    )


@pytest.mark.attack("run folder")
def test_a_begun_run_that_could_not_have_begun_so_is_one_line(
    learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def resumed(folder: Path) -> str:
        monkeypatch.setattr(sys, "argv", ["arpo", "train", "--resume", str(folder), "train.updates=3"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2
        return capsys.readouterr().err.strip().rpartition("\n")[2]

    other, fewer = tmp_path / "other", tmp_path / "fewer"
    shutil.copytree(learned, other)
    (other / "config.yaml").write_text((other / "config.yaml").read_text().replace("name: grpo", "name: ppo"))
    assert "algorithm.name=ppo: learns from what it plays alone, not with --from" in resumed(other)
    shutil.copytree(learned, fewer)
    with sqlite3.connect(fewer / "run.sqlite") as db:
        db.execute("DELETE FROM trajectories WHERE source = 'offline'")
    db.close()
    assert f"{fewer / 'run.sqlite'}: cannot be read: copied episodes are missing" in resumed(fewer)


def test_what_methods_need_of_stored_episodes() -> None:
    needs = {name: METHODS.find(name).offline for name in METHODS}
    own = {"arpo+": None, "ppo": None, "rft": "successes", "dpo": "pairs", "kto": "both"}
    assert needs == dict.fromkeys(("grpo", "dapo", "arpo"), "differing") | own


@pytest.mark.parametrize("method", ["rft", "dpo", "kto"])
def test_offline_methods_learn_from_stored_episodes(
    method: str, played: Path, guesser_folder: Path, tmp_path: Path
) -> None:
    few = settings(guesser_folder, f"algorithm.name={method}", "train.optimizer_tasks=2", "eval.trials=1")
    package.train(*few, run_dir=tmp_path / "run", from_runs=[played])
    first, second = metrics(tmp_path / "run")
    assert first["learned_tokens"] > 0 and second["learned_tokens"] > 0
    if method != "rft":  # at the start nothing has moved
        assert first["loss"] == pytest.approx({"dpo": 0.6931, "kto": 0.5}[method], abs=1e-3)
        assert second["loss"] != pytest.approx(first["loss"], abs=1e-6)


def test_with_fixed_starts_stored_tasks_are_judged_on_fresh_ones_too_and_the_run_is_resumed(
    played: Path, guesser_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = settings(guesser_folder, "env.starts=fixed", "train.updates=1", "eval.trials=1")
    summary = package.train(*few, run_dir=tmp_path / "run", from_runs=[played])
    assert {"base_train", "base_fresh", "final_fresh"} <= summary.keys()
    again = ["--resume", str(tmp_path / "run"), "train.updates=2", f"train.model={guesser_folder}"]
    monkeypatch.setattr(sys, "argv", ["arpo", "train", *again])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert len(metrics(tmp_path / "run")) == 2


def test_a_training_that_paid_for_parts_is_not_learned_from(guesser_folder: Path, played: Path, tmp_path: Path) -> None:
    """Its scores do not say what was solved."""
    paid = shutil.copytree(played, tmp_path / "paid")
    text = (paid / "config.yaml").read_text()
    assert "partial: 0.0" in text
    (paid / "config.yaml").write_text(text.replace("partial: 0.0", "partial: 0.5"))
    with pytest.raises(ArpoError, match=r"paid: was trained with algorithm\.partial=0\.5: its scores are of parts"):
        package.train(*settings(guesser_folder), run_dir=tmp_path / "new", from_runs=[paid])


def test_an_evaluation_in_which_fail_was_said_for_the_agent_is_not_learned_from(
    guesser_folder: Path, tmp_path: Path
) -> None:
    package.evaluate(guesser_folder, *JUDGED, *WHERE, "eval.protocol=standard", "seed=7", run_dir=tmp_path / "trials")
    with pytest.raises(ArpoError, match=r"was judged with eval\.protocol=standard: it may score what the agent never"):
        package.train(*settings(guesser_folder), run_dir=tmp_path / "new", from_runs=[tmp_path / "trials"])
    assert not (tmp_path / "new").exists()
