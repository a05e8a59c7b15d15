"""The Python API: light to import, and what README and docs/extending.md show of it runs as it is written."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import arpo
from arpo import api
from arpo.errors import ConfigError

ROOT = Path(__file__).parents[1]
EXPERT = ("tasks.source=shell-open-000", "eval.n_envs=1")


def run(script: str, folder: Path) -> str:
    """The script in a process of its own, in that folder."""
    (folder / "script.py").write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def test_import_arpo_loads_nothing_and_the_api_no_torch(tmp_path: Path) -> None:
    script = """if True:
        import sys
        import arpo
        print([name for name in sys.modules if name.startswith("arpo")])
        from arpo import *
        assert train is arpo.train and not hasattr(arpo, "nothing")
        print([name for name in ("torch", "transformers") if name in sys.modules])"""
    assert run(script, tmp_path).splitlines() == ["['arpo']", "[]"]


def test_every_name_is_there_and_says_what_it_is() -> None:
    named = {name: getattr(arpo, name) for name in api.__all__}
    assert [name for name, value in named.items() if inspect.isfunction(value) and not value.__doc__] == []


@pytest.mark.slow
def test_the_lines_in_the_readme_run(tmp_path: Path) -> None:
    example = blocks("README.md")[0]
    assert 8 <= len([line for line in example.splitlines() if line]) <= 12
    out = run(example, tmp_path)
    assert re.search(r"^[01]\.0 \[Click\(", out), out
    assert (tmp_path / "runs" / "first" / "summary.json").exists()


@pytest.mark.slow
def test_the_page_on_extending_runs_from_top_to_bottom(tmp_path: Path) -> None:
    out = run("\n\n".join(blocks("docs/extending.md")), tmp_path)
    assert "by chance: (" in out
    with arpo.read_run(tmp_path / "runs" / "button") as training:
        played = list(training.summaries(source="rollout"))
        assert len(played) == 2 and all(one.task_id == "button-press" for one in played)
        assert all(one.reward == pytest.approx((one.score or 0.0) - 0.02 * one.n_steps) for one in played)
        assert len(list(training.metrics())) == 1
    for name in ("quick", "wins"):
        assert (tmp_path / "runs" / name / "summary.json").exists()


class Half:
    """A reward that is an object."""

    def __call__(self, task: arpo.Task, trajectory: arpo.Trajectory) -> float:
        return (trajectory.score or 0.0) / 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rft", "dpo", "kto"])
def test_a_reward_that_a_method_does_not_look_at_is_refused(method: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"reward: has no effect on {method}, which goes by the checker's score"):
        arpo.train("pocket", f"algorithm.name={method}", run_dir=tmp_path / "run", reward=Half())
    assert not (tmp_path / "run").exists()


def test_a_reward_may_be_an_object_and_a_run_stays_with_its_own(tmp_path: Path) -> None:
    one = ("tasks.source=shell-open-000", "tasks.max_steps=1", "train.rollout_tasks=1", "train.optimizer_tasks=1")
    none = ("train.updates=0", "eval.trials=1", "eval.held_out=0")
    assert "base_train" in arpo.train("pocket", *one, *none, run_dir=tmp_path, reward=Half())
    with pytest.raises(ConfigError, match="reward"):
        arpo.train("pocket", *one, *none, run_dir=tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "run.sqlite", isolation_level=None)) as db:
        db.execute("DELETE FROM facts WHERE name = 'reward'")  # as an older arpo left it
    with pytest.raises(ConfigError, match=r"was begun with reward its own, not .*Half"):
        arpo.train("pocket", *one, *none, run_dir=tmp_path, reward=Half())


def test_it_is_called_from_a_thread_and_inside_an_event_loop(tmp_path: Path) -> None:
    async def cell() -> arpo.Evaluation:
        return arpo.evaluate("expert", *EXPERT, run_dir=tmp_path / "cell")

    rates = [asyncio.run(cell()).success()[0]]
    thread = threading.Thread(
        target=lambda: rates.append(arpo.evaluate("expert", *EXPERT, run_dir=tmp_path / "thread").success()[0])
    )
    thread.start()
    thread.join()
    assert rates == [1.0, 1.0]


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^train.updates=many: must be a whole number$"):
        arpo.train("pocket", "train.updates=many")
    with pytest.raises(ConfigError, match="holds no run"):
        arpo.read_run(tmp_path)
    with pytest.raises(ConfigError, match="unknown environment 'pockets': choose from pocket, desktop, osworld"):
        arpo.make_env("pockets")
