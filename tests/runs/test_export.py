"""`arpo export RUN DIR`: what `datasets` reads back is what was played, and a folder is there whole or not at all."""

from __future__ import annotations

import dataclasses
import io
import json
import sqlite3
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import disable_progress_bars, load_dataset  # type: ignore[import-untyped]
from pyarrow import parquet as pq  # type: ignore[import-untyped]

from arpo import cli
from arpo.config import load_config
from arpo.engines.scripted import byte_vocabulary
from arpo.evaluation.command import run_evaluation
from arpo.export import command, parquet
from arpo.images import decode, pixel_hash
from arpo.runs.store import Run
from arpo.types import Image, Outcome, Provenance, Reply, Tokens, Trajectory, to_json
from fake_env import make_task, write_list

HOSTILE = "Press \"it\":\n---\n- 'now' <script>alert(1)</script>\n```\n# [x](javascript:1) \x1b[31m é 你 <|im_end|>"


@pytest.fixture(autouse=True)
def _quiet(fake_backend: None) -> Iterator[None]:
    disable_progress_bars()
    yield


def play(folder: Path, agent: str = "random", *settings: str, trials: int = 4) -> Path:
    """An evaluation of three tasks, one of which cannot be done and one of which is somebody's."""
    tasks = [make_task("press-1"), make_task("press-2", instruction=HOSTILE), make_task("never-1", feasible=False)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    source = write_list(folder.parent, *tasks)
    words = ["env.name=fake", "env.size=96x64", f"eval.trials={trials}", f"tasks.source={source}", *settings]
    run_evaluation(load_config(None, words), agent, folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        import fake_env
        from arpo.envs.base import BACKENDS

        patch.setitem(BACKENDS, "fake", fake_env.BACKEND)
        return play(tmp_path_factory.mktemp("runs") / "trials")


def loaded(folder: Path, table: str | None = None) -> list[dict[str, Any]]:
    read = load_dataset(str(folder), table, split="train", cache_dir=str(folder.parent / "cache"))
    return list(read)


def stored(folder: Path) -> dict[str, Trajectory]:
    with Run.read(folder) as run:
        return {one.id: one for one in run.trajectories()}


def error_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> str:
    """The one line that the command ends with."""
    monkeypatch.setattr(sys, "argv", ["arpo", "export", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert ended.value.code == 2 and said.out == ""
    *_, line = said.err.splitlines()
    assert said.err == f"{line}\n", said.err
    return line


def test_every_episode_comes_back_with_what_is_known_of_it(run: Path, tmp_path: Path) -> None:
    command.export_episodes(run, tmp_path / "out")
    rows, episodes = loaded(tmp_path / "out", "trajectories"), stored(run)
    assert [row["id"] for row in rows] == list(episodes)
    for row in rows:
        one = episodes[row["id"]]
        assert (row["task"], row["outcome"], row["score"], row["reward"]) == (
            one.task_id,
            one.outcome,
            one.score,
            one.reward,
        )
        assert (row["source"], row["update"], row["n_steps"], row["env_seed"]) == (
            "evaluation",
            0,
            len(one.steps),
            one.env_seed,
        )
        assert row["instruction"] == (HOSTILE if one.task_id == "press-2" else "Press the button [once].")
        assert [step["reply"] for step in row["steps"]] == [step.completion.text for step in one.steps]
        kinds = [step["action"] and json.loads(step["action"])["kind"] for step in row["steps"]]
        assert kinds == [step.action and step.action.kind for step in one.steps]


def test_a_conversation_has_the_messages_and_the_very_screens_that_the_agent_saw(run: Path, tmp_path: Path) -> None:
    command.export_episodes(run, tmp_path / "out")
    rows, episodes = loaded(tmp_path / "out"), stored(run)
    assert [row["id"] for row in rows] == list(episodes)
    for row in rows:
        one = episodes[row["id"]]
        system, prompt, *turns = row["messages"]
        assert system == {"role": "system", "content": [{"type": "text", "text": "You are a helpful assistant."}]}
        assert prompt["role"] == "user" and prompt["content"][0]["text"].endswith(f"The task: {row['instruction']}")
        assert turns[::2] == [{"role": "user", "content": [{"type": "image", "text": None}]}] * len(one.steps)
        said = [step.completion.text.removesuffix("<|im_end|>") for step in one.steps]
        assert turns[1::2] == [{"role": "assistant", "content": [{"type": "text", "text": text}]} for text in said]
        shown = [segment.hash for segment in one.segments if isinstance(segment, Image)]
        images = [image.convert("RGB") for image in row["images"]]
        assert [image.size for image in images] == [(96, 64)] * len(shown)
        encoded = [io.BytesIO() for _ in images]
        for image, file in zip(images, encoded, strict=True):
            image.save(file, "PNG")
        assert [pixel_hash(decode(file.getvalue())) for file in encoded] == shown


def test_where_old_screens_were_dropped_a_row_shows_what_a_run_of_steps_saw(tmp_path: Path) -> None:
    folder = play(tmp_path / "short", "random", "agent.screenshots=1", trials=6)
    command.export_episodes(folder, tmp_path / "out")
    rows, episodes = loaded(tmp_path / "out"), stored(folder)
    assert max(len(one.steps) for one in episodes.values()) > 1
    assert len(rows) == sum(len(one.steps) for one in episodes.values())
    for row in rows:
        assert len(row["images"]) == 1
        replies = [message for message in row["messages"] if message["role"] == "assistant"]
        assert len(replies) == row["first_step"] + 1


def test_only_what_was_solved_is_written_where_that_is_asked_for(tmp_path: Path) -> None:
    folder = play(tmp_path / "failing", "fail", trials=2)
    command.export_episodes(folder, tmp_path / "out", solved=True)
    rows = loaded(tmp_path / "out", "trajectories")
    assert [(row["task"], row["solved"]) for row in rows] == [("never-1", True)] * 2
    assert len(loaded(tmp_path / "out")) == 2


def test_an_episode_that_a_machine_broke_off_is_told_of_but_is_no_conversation(tmp_path: Path) -> None:
    folder = play(tmp_path / "broken", "fail", trials=1)
    name = "../../etc/<b>`passwd`\n"
    with Run.write(folder, "") as run:
        whole = next(run.trajectories())
        broken = {"id": name, "outcome": Outcome.ENV_ERROR, "score": None, "reward": None, "attempt": 1}
        fields = {field: getattr(whole, field) for field in Trajectory.__slots__} | broken
        run.add(Trajectory(**fields | {"provenance": Provenance("evaluation", "r", 0)}))
    command.export_episodes(folder, tmp_path / "out")
    assert [row["id"] for row in loaded(tmp_path / "out", "trajectories")][-1] == name
    assert len(loaded(tmp_path / "out")) == 3
    assert "1 have no score" in (tmp_path / "out" / "README.md").read_text()
    assert {path.name for path in (tmp_path / "out").rglob("*")} == {
        "README.md",
        "data",
        "trajectories",
        "part-00000.parquet",
    }


def test_a_large_run_is_written_in_parts_that_are_one_table(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.export_episodes(run, tmp_path / "one")
    monkeypatch.setattr(parquet, "GROUP", 1)
    monkeypatch.setattr(parquet, "FILE", 3000)
    command.export_episodes(run, tmp_path / "many")
    files = sorted((tmp_path / "many" / "data").iterdir())
    groups = [pq.ParquetFile(file).metadata.num_row_groups for file in files]
    assert len(files) > 1 and sum(groups) == len(stored(run)) and max(groups) > 1
    assert [row["id"] for row in loaded(tmp_path / "many")] == [row["id"] for row in loaded(tmp_path / "one")]


def test_a_run_that_is_being_written_is_exported_as_it_stands(tmp_path: Path) -> None:
    folder = play(tmp_path / "live", "fail", trials=1)
    with Run.write(folder, ""):
        command.export_episodes(folder, tmp_path / "out")
    assert len(loaded(tmp_path / "out")) == 3


@pytest.mark.attack("run folder")
def test_the_card_says_what_is_there_and_nothing_of_it_is_obeyed(tmp_path: Path) -> None:
    folder = play(tmp_path / "<img src=x>`\n---\nx: [", "fail", trials=1)
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.execute("UPDATE facts SET value = ?", (f"fail`<script>{HOSTILE}",))
    db.close()
    command.export_episodes(folder, tmp_path / "out", model="fail")
    card = (tmp_path / "out" / "README.md").read_text()
    _, head, body = card.split("---\n", 2)
    assert yaml.safe_load(head)["configs"][0] == {
        "config_name": "conversations",
        "data_files": "data/*.parquet",
        "default": True,
    }
    assert "\n---\n" not in body and "\x1b" not in card and str(tmp_path) not in card
    for line in body.splitlines():  # what is somebody's stands in a code span
        outside = "".join(line.split("`")[::2])
        assert line.count("`") % 2 == 0 and "<script>" not in outside and "<img" not in outside
    assert "3, of which 1 have a score of 1 or more" in body
    assert loaded(tmp_path / "out")


def test_a_place_that_is_taken_is_refused_and_left_alone(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("full", "file", "link"):
        line = f"error: {tmp_path / name}: is there already; choose a new folder, or an empty one"
        assert error_of(capsys, monkeypatch, run, tmp_path / name) == line
    (tmp_path / "new.part").mkdir()
    assert "new.part: is there already" in error_of(capsys, monkeypatch, run, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "link", "new.part"]
    (tmp_path / "empty").mkdir()
    command.export_episodes(run, tmp_path / "empty")
    assert loaded(tmp_path / "empty")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("DELETE FROM images", "it lacks the screenshot"),
        ("UPDATE images SET image = CAST('%!PS-Adobe-3.0 EPSF-3.0' AS BLOB)", "is none; put a whole one back"),
        ("DELETE FROM trajectories", "has no episode to export"),
        ("UPDATE trajectories SET record = x'00'", "an episode in it is none"),
    ],
)
def test_a_damaged_run_is_one_line_and_leaves_nothing_behind(
    change: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = play(tmp_path / "run", "fail", trials=1)
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.execute(change)
    db.close()
    capsys.readouterr()
    assert line in error_of(capsys, monkeypatch, folder, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


@pytest.mark.attack("run folder")
@pytest.mark.parametrize(
    "change",
    [
        {"env_seed": 2**70},
        {"attempt": -(2**64)},
        {"segments": ()},
        {"segments": (Tokens((-1,)), Reply(0)), "steps": 1},
        {"segments": (Image("00", 3, 3), Reply(0)), "steps": 1},
    ],
)
def test_a_forged_episode_is_one_line_and_leaves_nothing_behind(
    change: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = play(tmp_path / "run", "fail", trials=1)
    whole = next(iter(stored(folder).values()))
    if "steps" in change:
        change = change | {"steps": (dataclasses.replace(whole.steps[0], context=(0,)),)}
    forged = zlib.compress(to_json(dataclasses.replace(whole, **change)))
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.execute("UPDATE trajectories SET record = ? WHERE id = ?", (forged, whole.id))
    db.close()
    capsys.readouterr()
    assert error_of(capsys, monkeypatch, folder, tmp_path / "out").startswith("error: ")
    assert not list(tmp_path.glob("out*"))


def test_a_run_of_an_older_arpo_has_no_instructions(tmp_path: Path) -> None:
    folder = play(tmp_path / "old", "fail", trials=1)
    (folder / "tasks.json").unlink()
    command.export_episodes(folder, tmp_path / "out")
    assert {row["instruction"] for row in loaded(tmp_path / "out", "trajectories")} == {None}
    assert len(loaded(tmp_path / "out")) == 3


def test_settings_or_tasks_that_cannot_be_read_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = play(tmp_path / "odd", "fail", trials=1)
    capsys.readouterr()
    tasks, settings = folder / "tasks.json", folder / "config.yaml"
    tasks.write_text(tasks.read_text().replace("Press the button", "Press \\ud800 the button"))
    assert "tasks.json: Invalid JSON" in error_of(capsys, monkeypatch, folder, tmp_path / "out")
    settings.unlink()
    assert "config.yaml" in error_of(capsys, monkeypatch, folder, tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_who_played_must_be_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = play(tmp_path / "run", "fail", trials=1)
    line = error_of(capsys, monkeypatch, folder, tmp_path / "out", "--model", "base")
    assert (
        line == f"error: {folder}: --model base: did not play its episodes; name that one with --model (its folder "
        "or hub name)"
    )
    monkeypatch.setattr(command, "byte_vocabulary", lambda: Upside(byte_vocabulary()))
    line = error_of(capsys, monkeypatch, folder, tmp_path / "out")
    assert f"{folder}: does not tell which agent played its episodes; name that one with --model" in line
    assert not list(tmp_path.glob("out*"))


class Upside:
    """A vocabulary that nobody played with."""

    def __init__(self, vocabulary: Any) -> None:
        self._vocabulary = vocabulary

    def decode(self, ids: tuple[int, ...]) -> str:
        return str(self._vocabulary.decode(ids))[::-1]


def test_without_pyarrow_the_way_to_get_it_is_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("arpo.export.parquet", "arpo.export.episodes"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delattr("arpo.export.parquet", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    line = "error: Parquet needs pyarrow, which is not installed: pip install 'arpo[export]'"
    assert error_of(capsys, monkeypatch, run, tmp_path / "out") == line
    assert not list(tmp_path.iterdir())


def test_a_folder_without_a_run_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert error_of(capsys, monkeypatch, tmp_path, tmp_path / "out") == f"error: {tmp_path}: holds no run"
    assert "is no run, and no checkpoint" in error_of(capsys, monkeypatch, tmp_path, tmp_path / "out", "--checkpoint")
    both = error_of(capsys, monkeypatch, tmp_path, tmp_path / "out", "--checkpoint", "--solved")
    assert both.startswith("error: --checkpoint: takes no --solved")
    model = error_of(capsys, monkeypatch, tmp_path, tmp_path / "out", "--checkpoint", "--model", "base")
    assert model.endswith("and --model only with --share")
    share = error_of(capsys, monkeypatch, tmp_path, tmp_path / "out", "--share", "0.5")
    assert share == "error: --share: is of an agent; add --checkpoint"
    far = error_of(capsys, monkeypatch, tmp_path, tmp_path / "out", "--checkpoint", "--share", "2")
    assert far == "error: --share 2: must be more than 0 and at most 1"
