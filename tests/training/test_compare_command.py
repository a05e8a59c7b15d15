"""Comparing methods: a budget of environment steps, runs that go on, and a table that says what the runs stored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guesser import settings, train_in
from PIL import Image

from arpo import cli
from arpo.bench import compare
from arpo.bench.compare_table import as_table
from arpo.errors import ConfigError
from arpo.evaluation.compare import difference, estimate
from arpo.runs.plot import COLOURS
from arpo.runs.store import Run
from arpo.seeds import evaluation_seed, start_seed
from arpo.types import Outcome, Provenance, Trajectory
from fake_env import make_task, write_list

KNOWN = "'grpo', 'dapo', 'arpo', 'arpo+', 'ppo', 'rft', 'dpo' or 'kto'"

# The budget


def spent(folder: Path) -> list[int]:
    with Run.read(folder) as run:
        return np.cumsum([line["env_steps"] for line in run.metrics()]).tolist()


@pytest.mark.parametrize(("lag", "save_every"), [(0, 1), (2, 1), (0, 9)])
def test_training_ends_after_the_update_in_which_the_budget_is_reached(
    guesser_folder: Path, tmp_path: Path, lag: int, save_every: int
) -> None:
    config = settings(updates=9, env_steps=25, lag=lag, save_every=save_every)
    train_in(tmp_path, guesser_folder, config)
    steps = spent(tmp_path)
    assert len(steps) > 1 and all(total < 25 for total in steps[:-1]) and steps[-1] >= 25
    newest = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())[-1]
    assert newest == f"update-{len(steps):05d}"  # the last update is saved, however rarely others are
    with Run.read(tmp_path) as run:
        played = len(list(run.summaries(source="rollout")))
    train_in(tmp_path, guesser_folder, config)  # nothing is left to do
    assert spent(tmp_path) == steps
    with Run.read(tmp_path) as run:
        assert len(list(run.summaries(source="rollout"))) == played


def test_what_was_spent_before_counts_when_a_run_goes_on(guesser_folder: Path, tmp_path: Path) -> None:
    train_in(tmp_path / "whole", guesser_folder, settings(updates=9, env_steps=25))
    train_in(tmp_path / "twice", guesser_folder, settings(updates=1, env_steps=25))
    train_in(tmp_path / "twice", guesser_folder, settings(updates=9, env_steps=25))
    assert spent(tmp_path / "twice") == spent(tmp_path / "whole")


def test_the_number_of_updates_stays_a_limit(guesser_folder: Path, tmp_path: Path) -> None:
    train_in(tmp_path, guesser_folder, settings(updates=2, env_steps=10_000))
    assert len(spent(tmp_path)) == 2


# The command


class Compare:
    """Runs the real entry point in this process; the runs that it starts are of patched_arpo.py."""

    def __init__(self, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._model, self._monkeypatch, self._capsys = model, monkeypatch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["arpo", "compare", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = self._capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    def two(self, out: Path, *more: str) -> tuple[int, str, str]:
        """Two methods, two seeds, two jobs, about two updates."""
        few = ("train.updates=9", "train.rollout_tasks=2", "train.optimizer_tasks=1", "train.max_tokens=16")
        method = ("algorithm.group=2", "train.lr=5e-5", "eval.trials=2", "eval.temperature=1.0", "train.env_steps=25")
        where = ("env.name=fake", "env.size=96x64", "tasks.source=train", f"train.model={self._model}")
        options = ("--algorithms", f"grpo,{VARIANT}", "--seeds", "2", "--jobs", "2", "--out", str(out))
        return self("pocket", *few, *method, *where, *options, *more)


VARIANT = "arpo:replay_count=2:group=3"
PLACES = [f"{place}-{seed}" for place in ("base", "grpo", "arpo-replay_count=2-group=3") for seed in (0, 1)]


@pytest.fixture
def arpo(
    guesser_folder: Path, fake_backend: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Compare:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(compare, "ARPO", (sys.executable, str(Path(__file__).parent / "patched_arpo.py")))
    return Compare(guesser_folder, monkeypatch, capsys)


def summaries(out: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in out.glob("*/summary.json")}


def rates(folder: Path, update: int, tasks: list[str]) -> list[float]:
    """Read the slow way, trajectory by trajectory."""
    with Run.read(folder) as run:
        judged = list(run.trajectories(source="evaluation", update=update))
    scores = [[one.score for one in judged if one.task_id == task and one.score is not None] for task in tasks]
    return [sum(values) / len(values) for values in scores]


def test_settings_that_one_of_the_methods_cannot_have_are_refused_before_anything_is_run(tmp_path: Path) -> None:
    for given, why in (
        (["algorithm.group=3"], "arpo+: algorithm.group_least=4: must be at most algorithm.group, 3"),
        (["train.lag=1"], "arpo+: train.lag=1: groups of changing size need 0"),
    ):
        methods = compare.methods_of("pocket", [*given, "train.env_steps=9"], "grpo,arpo+")
        with pytest.raises(ConfigError) as refused:
            compare.run_comparison(methods, 1, tmp_path / "out", 1, "")
        assert str(refused.value) == why
        assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_comparison_that_was_killed_goes_on_and_tells_what_its_runs_stored(
    arpo: Compare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    monkeypatch.setenv("KILL", f"{PLACES[5]} log1")  # the last of all
    status, told, err = arpo.two(out)
    assert (status, told) == (2, "")
    assert err.splitlines()[-1] == f"error: {PLACES[5]}: was killed by signal 9; the same command goes on"
    first = summaries(out)
    assert {PLACES[0], PLACES[1], PLACES[2]} <= first.keys() and PLACES[5] not in first
    assert spent(out / PLACES[5]) != [] and not (out / "table.md").exists()

    monkeypatch.delenv("KILL")
    status, told, err = arpo.two(out)
    assert status == 0, err
    assert sorted(summaries(out)) == sorted(PLACES)
    assert {name: summaries(out)[name] for name in first} == first  # not run again
    assert sorted(err.splitlines()) == sorted(f"{name} is done" for name in PLACES if name not in first)
    check_results(out)
    assert told.startswith((out / "table.md").read_text())

    # All of it once more: nothing is run, and the same is written.
    before = {name: (out / name).read_bytes() for name in ("table.md", "results.json", "curves.png")}
    monkeypatch.setattr(compare, "ARPO", ("false",))
    assert arpo.two(out)[0] == 0
    assert {name: (out / name).read_bytes() for name in before} == before

    # Neither a changed setting nor a changed model is mixed with what is there.
    status, told, err = arpo.two(out, "train.lr=1e-4")
    assert (status, told, err.count("\n")) == (2, "", 1)
    assert f"{out / 'grpo-0'}: was begun with lr: 5.0e-05, not lr: 0.0001;" in err
    with Run.write(out / "grpo-1", "") as run:
        run.note("model", "another")
    assert arpo.two(out) == (2, "", f"error: {out}: its runs began with different models; choose another folder\n")


def check_results(out: Path) -> None:
    """Everything against the stores."""
    results: dict[str, Any] = json.loads((out / "results.json").read_text())
    assert results["command"].startswith("arpo compare pocket train.updates=9 ")
    assert (results["budget"], results["seeds"]) == (25, [0, 1])
    tasks = ["never-1", "press-1", "press-2"]
    for place in PLACES[2:]:
        run = results["runs"][place]
        steps = spent(out / place)
        assert (run["updates"], run["env_steps"]) == (len(steps), steps[-1]) and steps[-1] >= 25
        assert run["seed"] == int(place[-1])
        # The base was judged once a seed, and what the runs say of it is that.
        assert rates(out / place, 0, tasks) == rates(out / f"base-{place[-1]}", 0, tasks)
    base, grpo, variant = (
        np.array([rates(out / place, len(spent(out / place)) if update else 0, tasks) for place in places])
        for places, update in ((PLACES[:2], 0), (PLACES[2:4], 1), (PLACES[4:], 1))
    )
    assert base.std() > 0 and grpo.std() > 0
    found = results["splits"]["train"]
    assert found["tasks"] == 3 and found["left_out"] == []
    expected = {
        ("base", "success"): estimate(base),
        ("grpo", "success"): estimate(grpo),
        (VARIANT, "success"): estimate(variant),
        (VARIANT, "over_base"): difference(variant, base),
        (VARIANT, "over_first"): difference(variant, grpo),
    }
    for (method, what), one in expected.items():
        assert found[method][what] == {"mean": pytest.approx(one.mean), "ci95": pytest.approx(one.ci95)}
    assert results["splits"]["heldout"]["grpo"]["success"]["mean"] == pytest.approx(grpo[:, 2].mean())
    assert results["rates"]["press-1"] == {
        method: pytest.approx(table[:, 1]) for method, table in (("base", base), ("grpo", grpo), (VARIANT, variant))
    }
    lost = [task for i, task in enumerate(tasks) if base[:, i].mean() >= 0.5 > grpo[:, i].mean()]
    assert found["grpo"]["lost"] == lost

    rows = [line.split(" | ") for line in (out / "table.md").read_text().splitlines() if line.startswith("|")]
    assert rows[0][-3:] == ["over grpo", "lost", "gained |"]
    assert [row[0] for row in rows[2::3]] == ["| train (3)", "| heldout (1)", "| all (3)"]
    assert [row[1] for row in rows[2:5]] == ["base", "grpo", VARIANT]
    assert rows[3][2].startswith(f"{grpo.mean():.1%} (")
    assert rows[4][4].startswith(f"{100 * (variant - grpo).mean():+.1f} (")
    pixels = np.asarray(Image.open(out / "curves.png")).reshape(-1, 3).astype(int)
    for colour in COLOURS[:2]:
        assert (np.abs(pixels - colour).sum(axis=1) < 20).any()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--seeds", "0"], "seeds=0: must be at least 1"),
        (["--jobs", "0"], "jobs=0: must be at least 1"),
        (["--algorithms", "grpo,sac"], f"algorithm.name=sac: must be {KNOWN}"),
        (["--algorithms", ""], f"algorithm.name=: must be {KNOWN}"),
        (["--algorithms", "arpo,arpo"], "algorithms=arpo,arpo: arpo is there twice"),
        (["--algorithms", "arpo:spares"], "algorithm.spares: a setting is written key=value, as in seed=3"),
        (["--algorithms", "arpo:group=1"], "algorithm.group=1: must be at least 2"),
        (["algorithm.name=grpo"], "algorithm.name: --algorithms names the methods"),
        (
            ["algorithm.replay=true"],
            "algorithm.replay=true: makes grpo another method; name it grpo:replay=true",
        ),
        (
            ["train.updates=0"],
            "train.updates=0: nothing would be trained; with a budget it may be as large as you like",
        ),
        (["run_dir=here"], "run_dir=here: --out says where the runs go"),
        (
            ["eval.protocol=hard"],
            "eval.protocol=hard: is for `arpo eval` and `arpo train`; arpo compare has only plain",
        ),
        (
            ["train.env_steps=null"],
            "train.env_steps=null: methods are compared under a budget, as in train.env_steps=20000",
        ),
    ],
)
def test_a_wrong_argument_is_one_line(
    arguments: list[str], line: str, arpo: Compare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = arpo("pocket", "train.env_steps=100", *arguments, "--out", "out")
    assert (status, out, err) == (2, "", f"error: {line}\n")
    assert not (tmp_path / "out").exists()


def test_a_device_that_is_not_there_is_said_before_a_run_is_begun_with_it(arpo: Compare, tmp_path: Path) -> None:
    status, out, err = arpo("train.env_steps=100", "agent.device=cuda:99", "--out", str(tmp_path / "out"))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: agent.device=cuda:99: not on this machine, which has cpu")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_run_that_cannot_be_stops_the_comparison_with_its_own_line(arpo: Compare, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    status, out, err = arpo.two(tmp_path, f"train.model={model}", "--seeds", "1")
    assert (status, out) == (2, "")
    (said,) = err.splitlines()
    assert said.startswith("error: base-0: ") and str(model) in said
    assert said.endswith(f"(all of it in {tmp_path / 'base-0' / 'output.txt'})")


def test_runs_of_other_tasks_are_not_mixed_with_what_is_there(
    arpo: Compare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A run is begun and stopped; then a task of the list is another one."""
    monkeypatch.setattr(compare, "ARPO", ("false",))
    source = f"tasks.source={write_list(tmp_path, make_task('press-1'), make_task('press-2'))}"
    assert "base-0: " in arpo.two(tmp_path / "out", source, "--jobs", "1")[2]
    write_list(tmp_path, make_task("press-1"), make_task("press-3"))
    assert arpo.two(tmp_path / "out", source) == (
        2,
        "",
        f"error: {tmp_path / 'out' / 'base-0'}: was begun with other tasks than {source} has now: press-2 is missing; "
        "put it back as it was, or choose another folder\n",
    )


def test_who_ends_a_comparison_ends_its_runs(arpo: Compare, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    monkeypatch.setattr(
        compare, "ARPO", ("sh", "-c", f"echo $$ > {begun}.part; mv {begun}.part {begun}; exec sleep 99")
    )

    def end() -> None:
        while not begun.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    ending = threading.Thread(target=end)
    ending.start()
    assert arpo.two(tmp_path / "out", "--jobs", "1")[0] == 130
    ending.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(begun.read_text()), 0)
    assert signal.getsignal(signal.SIGTERM) is not signal.default_int_handler


def test_a_comparison_that_is_killed_leaves_no_run_behind(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    run = f"echo $$ > {begun}.part; mv {begun}.part {begun}; exec sleep 99"
    script = (
        "import sys; from arpo import cli; from arpo.bench import compare\n"
        f"compare.ARPO = ('sh', '-c', {run!r})\n"
        f"sys.argv = ['arpo', 'compare', 'pocket-compare', '--jobs', '1', '--out', {str(tmp_path / 'out')!r}]\n"
        "cli.main()"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as comparison:
        while not begun.exists():
            assert comparison.poll() is None
            time.sleep(0.01)
        comparison.kill()
    pid = int(begun.read_text())
    for _ in range(1000):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("its run goes on")


@pytest.mark.parametrize("content", ["", "{", "3", "\x80"])
def test_a_damaged_summary_is_one_line_with_the_way_back(content: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_bytes(content.encode("latin-1"))
    Run.write(tmp_path, "").close()
    with pytest.raises(
        ConfigError, match=r"summary\.json: cannot be read; remove it, and the same command makes it anew"
    ):
        compare.Finished.read(tmp_path)


# Fixed starts


def store_run(comparison: compare.Comparison, method: str, seed: int, scores: dict[str, list[float | None]]) -> None:
    """A finished run as `arpo train` leaves it. `scores`: of each kind and task, as in `fixed press-1`, its trials."""
    made = int(method != "base")
    line = {"update": 0, "success": 0.5, "reward": 0.5, "failed_groups": 0.0, "replayed_groups": 0.0, "env_steps": 9}
    with Run.write(comparison._begin(method, seed), "") as run:
        (run.folder / "summary.json").write_text('{"env_steps": 9}')
        if made:
            run.log(line | {"sampled_tokens": 9, "sample_s": 1.0, "learn_s": 1.0})
        for key, trials in scores.items():
            kind, task = key.split()
            for trial, score in enumerate(trials):
                env_seed = start_seed(task, 0) if kind == "fixed" else evaluation_seed(seed, task, trial)
                outcome = Outcome.ENV_ERROR if score is None else Outcome.FINISHED
                where = Provenance("evaluation", "r", made)
                name = f"{kind}{made}-{task}-{trial}-0"
                run.add(Trajectory(name, task, 0, env_seed, "", (), (), outcome, score, score, where))


@pytest.fixture
def fixed(fake_backend: None, tmp_path: Path) -> compare.Comparison:
    """Two methods, two seeds: a task is always solved where it was trained, and seldom elsewhere."""
    methods = compare.methods_of("pocket-compare", ["env.name=fake", "env.starts=fixed"], "grpo,arpo")
    one, two, three = (make_task(f"press-{i}") for i in (1, 2, 3))
    tasks = {"train": [one, two], "fresh": [one, two], "heldout": [three]}
    comparison = compare.Comparison(methods, range(2), tmp_path, tasks)
    by_heart: dict[str, list[float | None]] = {
        "fixed press-1": [1, 1],
        "fixed press-2": [1, 0],
        "eval press-1": [0, 0],
        "eval press-2": [0, 1],
        "eval press-3": [0, 0],
    }
    for seed in (0, 1):
        store_run(comparison, "base", seed, {key: [0, 0] for key in by_heart})
        store_run(comparison, "grpo", seed, by_heart | {"fixed press-2": [0, 0]})
        store_run(comparison, "arpo", seed, by_heart)
    return comparison


def test_trained_starts_and_fresh_ones_of_the_same_tasks_are_compared_apart(fixed: compare.Comparison) -> None:
    results = fixed.results()
    means = {split: numbers["arpo"]["success"]["mean"] for split, numbers in results["splits"].items()}
    assert means == {"train": 0.75, "fresh": 0.25, "heldout": 0.0, "all": pytest.approx(0.5)}  # of 3 tasks, each once
    assert results["rates"]["press-2"] == {"base": [0.0, 0.0], "grpo": [0.0, 0.0], "arpo": [0.5, 0.5]}
    assert results["fresh_rates"]["press-2"] == {"base": [0.0, 0.0], "grpo": [0.5, 0.5], "arpo": [0.5, 0.5]}
    assert list(results["fresh_rates"]) == ["press-1", "press-2"]
    assert results["counts"]["arpo"] == [20, 0]
    table = as_table({"command": "arpo compare", **results})
    assert (
        "| fresh (2) | base | 0.0% " in table and "fresh: the same tasks on starts that training never shows" in table
    )


def test_success_and_differences_are_told_in_points_by_method_and_split(fixed: compare.Comparison) -> None:
    results = fixed.results()
    assert list(results["success"]) == ["base", "grpo", "arpo"] and list(results["differences"]) == ["arpo"]
    assert results["success"]["grpo"]["train"]["mean"] == 50.0
    assert results["success"]["arpo"]["train"]["mean"] == 75.0
    arpo, grpo = (np.array([rates, rates]) for rates in ([1.0, 0.5], [1.0, 0.0]))
    more = difference(arpo, grpo)
    assert results["differences"]["arpo"]["train"] == {
        "mean": 25.0,
        "low": pytest.approx(100 * more.ci95[0]),
        "high": pytest.approx(100 * more.ci95[1]),
    }
    for numbers in (results["success"]["arpo"], results["differences"]["arpo"]):
        assert list(numbers) == ["train", "fresh", "heldout", "all"]
        assert all(one["low"] <= one["mean"] <= one["high"] for one in numbers.values())
    assert results["differences"]["arpo"]["fresh"]["mean"] == 0.0
    json.dumps(results, allow_nan=False)


def test_a_task_that_has_no_score_where_it_was_trained_is_left_out_there_alone(fixed: compare.Comparison) -> None:
    with Run.write(fixed.folder("arpo", 0), "") as run:
        lost = "UPDATE trajectories SET score = NULL, reward = NULL, outcome = 'env_error'"
        run._db.execute(f"{lost} WHERE id LIKE 'fixed1-press-2-%'")
        run._db.commit()
    splits = fixed.results()["splits"]
    left_out = {split: numbers["left_out"] for split, numbers in splits.items()}
    assert left_out == {"train": ["press-2"], "fresh": [], "heldout": [], "all": ["press-2"]}


@pytest.mark.slow
def test_a_comparison_on_fixed_starts_tells_what_its_runs_stored(arpo: Compare, tmp_path: Path) -> None:
    status, _, err = arpo.two(tmp_path / "out", "env.starts=fixed", "--algorithms", "grpo,arpo", "--seeds", "1")
    assert status == 0, err
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert list(results["success"]["arpo"]) == ["train", "fresh", "heldout", "all"]
    summary = json.loads((tmp_path / "out" / "arpo-0" / "summary.json").read_text())
    for split in ("train", "fresh", "heldout"):
        for method, when in (("base", "base"), ("arpo", "final")):
            assert results["success"][method][split]["mean"] == pytest.approx(100 * summary[f"{when}_{split}"])


# The curve


def lines(*updates: tuple[int, float]) -> list[dict[str, Any]]:
    return [{"env_steps": steps, "success": success} for steps, success in updates]


def test_a_curve_is_the_mean_of_the_seeds_over_the_steps_that_were_learned_from() -> None:
    runs = [lines(*((10, value) for value in np.linspace(start, start + 0.5, 11))) for start in (0.1, 0.3)]
    found = compare.curve(runs, 110)
    assert found["x"][0] == 0 and found["x"][-1] == 100  # the last policy that played had learned from 100
    middle = len(found["x"]) // 2
    assert found["y"][middle] == pytest.approx(0.2 + 0.005 * found["x"][middle], abs=0.005)
    assert all(low < mean < high for low, mean, high in zip(found["low"], found["y"], found["high"], strict=True))
    half = 12.7062 * 0.1 / 1  # Student's of one degree of freedom, the standard error of 0.1 and 0.3
    assert found["high"][0] == pytest.approx(min(1.0, found["y"][0] + half))


def test_a_curve_of_one_seed_has_no_band_and_one_of_one_update_is_a_point() -> None:
    assert compare.curve([lines((30, 0.25), (30, 0.75))], 60).keys() == {"x", "y"}
    found = compare.curve([lines((30, 0.25)), lines((20, 0.75), (20, 0.5))], 20)
    assert found["x"] == [0.0] and found["y"] == [pytest.approx(0.5, abs=0.01)]
