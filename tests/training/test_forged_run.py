"""Episodes and checkpoints that nobody made, in a folder that somebody else sent: one line, and nothing learned."""

from __future__ import annotations

import json
import shutil
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from guesser import TASKS, make_guesser, settings, train_in

from arpo.errors import ArpoError, ConfigError
from arpo.model.checkpoint import load_checkpoint
from arpo.runs.store import Run

pytestmark = pytest.mark.attack("run folder")

CONFIG = settings({"name": "arpo", "group": 2}, updates=2)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and a run of two updates."""
    place = tmp_path_factory.mktemp("honest")
    model = make_guesser(place / "model")
    train_in(place / "run", model, CONFIG)
    return model, place / "run"


@pytest.fixture
def sent(honest: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest[1], tmp_path / "run"))


def begin_again(folder: Path) -> None:
    """Its episodes are stored, its updates are still to be made."""
    shutil.rmtree(folder / "checkpoints")
    (folder / "metrics.jsonl").unlink()


def change(folder: Path, forge: Callable[[dict[str, Any]], object], *statements: str) -> None:
    with sqlite3.connect(folder / "run.sqlite") as db:
        for number, record in db.execute("SELECT number, record FROM trajectories").fetchall():
            forge(episode := json.loads(zlib.decompress(record)))
            values = (zlib.compress(json.dumps(episode).encode()), number)
            db.execute("UPDATE trajectories SET record = ? WHERE number = ?", values)
        for statement in statements:
            db.execute(statement)
    db.close()


def first(episode: dict[str, Any], token: int) -> None:
    episode["segments"][0]["ids"][3] = token


def said(episode: dict[str, Any], **values: Any) -> None:
    for step in episode["steps"]:
        step["completion"] |= values


def seen(episode: dict[str, Any], context: list[int]) -> None:
    for step in episode["steps"]:
        step["context"] = context


def other_screens(episode: dict[str, Any]) -> None:
    for segment in episode["segments"]:
        if segment["kind"] == "image":
            segment["hash"] = "0" * 32


@pytest.mark.parametrize(
    ("forge", "say"),
    [
        (lambda one: first(one, 10**9), "tokens that no episode of this model can have"),
        (lambda one: first(one, -1), "tokens that no episode of this model can have"),
        (lambda one: first(one, 10**30), "tokens that no episode of this model can have"),
        (other_screens, "lacks 0000"),
        (lambda one: seen(one, []), "an episode in it is none"),
        (lambda one: seen(one, [0]), "an episode in it is none"),
        (lambda one: seen(one, [-1]), "an episode in it is none"),
        (lambda one: said(one, version=-5), "sampled with version -5"),
        (lambda one: said(one, version=-(10**30)), "sampled with version -1000"),
        (lambda one: one.update(score=1.0, reward=1.0), "an episode in it is none"),
        (lambda one: one.update(id="another"), "an episode in it is none"),
        (lambda one: one.update(task_id="another"), "an episode in it is none"),
    ],
    ids=range(12),
)
def test_episodes_that_no_agent_played_are_one_line(
    forge: Callable[[dict[str, Any]], object], say: str, sent: Path, honest: tuple[Path, Path]
) -> None:
    begin_again(sent)
    change(sent, forge)
    with pytest.raises(ArpoError, match=say) as error:
        train_in(sent, honest[0], CONFIG)
    assert str(error.value).isprintable()


def test_a_placeholder_of_a_screenshot_without_one_is_one_line(sent: Path, honest: tuple[Path, Path]) -> None:
    pad = load_checkpoint(honest[0], "cpu").vocabulary.special("<|image_pad|>")
    begin_again(sent)
    change(sent, lambda one: first(one, pad))
    with pytest.raises(ArpoError, match="tokens that no episode of this model can have"):
        train_in(sent, honest[0], CONFIG)


@pytest.mark.parametrize(
    "statement",
    ["UPDATE trajectories SET reward = 1e308", "UPDATE trajectories SET score = NULL",
     "UPDATE trajectories SET outcome = 'env_error'", "UPDATE images SET width = 0", "UPDATE images SET width = -5",
     "UPDATE images SET width = 1000000000"],
)  # fmt: skip
def test_columns_that_do_not_go_together_are_one_line(statement: str, sent: Path, honest: tuple[Path, Path]) -> None:
    begin_again(sent)
    change(sent, lambda one: None, statement)
    with pytest.raises(ArpoError):
        train_in(sent, honest[0], CONFIG)


def remember(folder: Path, **values: Any) -> None:
    state = folder / "checkpoints" / "update-00002" / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | values))


def failures(folder: Path) -> list[str]:
    with Run.read(folder) as run:
        return [one.id for one in run.summaries() if one.score == 0.0]


def test_a_failure_is_not_replayed_as_a_success(sent: Path, honest: tuple[Path, Path]) -> None:
    name = failures(sent)[0]
    remember(sent, replay={task.id: [[name, 0]] for task in TASKS})
    with pytest.raises(ConfigError, match=f"{name}: is not a success at press-"):
        train_in(sent, honest[0], CONFIG.with_values({"train.updates": 6}))


@pytest.mark.parametrize("update", [10**9, 10**400, -1])
def test_a_success_of_no_update_is_refused(update: int, sent: Path, honest: tuple[Path, Path]) -> None:
    remember(sent, replay={task.id: [["a", update], ["a", 0]] for task in TASKS})
    with pytest.raises(ConfigError, match="a success is an id and an update"):
        train_in(sent, honest[0], CONFIG.with_values({"train.updates": 6}))


@pytest.mark.parametrize("steps", [-(10**9), 10**400])
def test_steps_from_which_a_negative_or_endless_learning_rate_follows_are_refused(
    steps: int, sent: Path, honest: tuple[Path, Path]
) -> None:
    remember(sent, steps=steps)
    with pytest.raises(ConfigError, match="no number of steps"):
        train_in(sent, honest[0], CONFIG.with_values({"train.updates": 6}))


def test_a_line_of_metrics_in_a_checkpoint_that_lacks_what_is_shown_is_refused(
    sent: Path, honest: tuple[Path, Path]
) -> None:
    (sent / "metrics.jsonl").write_text("")
    few = {"update": 1, "success": 0.5, "env_steps": 9, "sample_s": 1.0, "learn_s": 1.0}
    remember(sent, line=few)
    with pytest.raises(ConfigError, match="its metrics are not those of an update"):
        train_in(sent, honest[0], CONFIG.with_values({"train.updates": 6}))
