"""A run's folder: what was added is there, once, small, readable meanwhile and after any crash."""

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import resource
import shutil
import sqlite3
import struct
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arpo.agent.actions import Action, Finish
from arpo.agent.dialects.uitars import UITars
from arpo.agent.episode import Agent, run_episode
from arpo.agent.random_actions import random_action
from arpo.engines.base import Prompt, Sampling
from arpo.engines.scripted import Policy, ScriptedEngine, byte_vocabulary
from arpo.envs.base import Env, make, make_expert
from arpo.envs.pool import LocalPool
from arpo.errors import ConfigError
from arpo.images import decode, observe, pixel_hash
from arpo.runs import store
from arpo.runs.lock import unwritten
from arpo.runs.store import FORMAT, SCHEMA, Run
from arpo.tasks.load import load_tasks
from arpo.types import Attempt, Completion, Observation, Outcome, Provenance, Reply, Step, Task, Tokens, Trajectory

CHILD = Path(__file__).with_name("writer.py")


def trajectory(name: str = "a", task_id: str = "press-1", update: int = 0, **changes: object) -> Trajectory:
    completion = Completion((1, 2), (-0.1, -0.2), "hi", 0, 1.0, 1.0, "stop")
    fields = {
        "id": name,
        "task_id": task_id,
        "attempt": 0,
        "env_seed": 2**31 + 5,
        "start": "00",
        "segments": (Tokens((5, 6)), Reply(0)),
        "steps": (Step((0,), completion, Finish(), None, "", None, 0.1, 0.2),),
        "outcome": Outcome.FINISHED,
        "score": 1.0,
        "reward": 1.0,
        "provenance": Provenance("rollout", "r", update),
    }
    return Trajectory(**(fields | changes))  # type: ignore[arg-type]


def screen(seed: int, size: tuple[int, int] = (40, 30)) -> Observation:
    return observe(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8))


def test_a_copy_goes_on_with_what_was_played_as_a_run_of_its_own(tmp_path: Path) -> None:
    with Run.write(tmp_path / "one", "seed: 0\n") as run:
        run.add(trajectory("a"))
        run.note("wall_s", "9")
        (tmp_path / "two.part").mkdir()  # of one that was killed
        run.copy(tmp_path / "two", "seed: 1\n")
        run.add(trajectory("b"))
    with Run.write(tmp_path / "two", "") as copy:
        assert ((copy.folder / "config.yaml").read_text(), copy.fact("wall_s")) == ("seed: 1\n", None)
        assert list(copy.trajectories()) == [trajectory("a")]
        with Run.read(tmp_path / "two") as reader:  # while it is written
            copy.add(trajectory("c"))
            assert [one.id for one in reader.summaries()] == ["a", "c"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_what_was_added_comes_back(tmp_path: Path) -> None:
    with Run.write(tmp_path / "deep" / "run", "seed: 0\n") as run:
        run.add(trajectory("a", "press-1", update=0))
        run.add(trajectory("b", "press-2", update=0))
        run.add(trajectory("c", "press-1", update=1, outcome=Outcome.ENV_ERROR, score=None, reward=None))
        run.log({"update": 0, "success": 0.5, "note": "ü"})
    with Run.read(tmp_path / "deep" / "run") as run:
        assert [t.id for t in run.trajectories()] == ["a", "b", "c"]
        assert [t.id for t in run.trajectories(task_id="press-1")] == ["a", "c"]
        assert [t.id for t in run.trajectories(task_id="press-1", update=1)] == ["c"]
        assert [t.id for t in run.trajectories(source="evaluation")] == []
        assert run.trajectory("b") == trajectory("b", "press-2")
        summaries = list(run.summaries(update=1))
        assert [(s.id, s.outcome, s.score, s.n_steps, s.env_seed) for s in summaries] == [
            ("c", Outcome.ENV_ERROR, None, 1, 2**31 + 5)
        ]
        assert list(run.metrics()) == [{"update": 0, "success": 0.5, "note": "ü"}]
        assert (run.folder / "config.yaml").read_text() == "seed: 0\n"
        with pytest.raises(KeyError):
            run.trajectory("d")


def test_nothing_is_counted_twice(tmp_path: Path) -> None:
    with Run.write(tmp_path, "") as run:
        run.add(trajectory("a"))
        with pytest.raises(ValueError, match="'a' is there already"):
            run.add(trajectory("a", "press-2"))
        assert len(list(run.summaries())) == 1


def test_a_run_that_goes_on_keeps_its_settings(tmp_path: Path) -> None:
    Run.write(tmp_path, "seed: 0\n").close()
    with Run.write(tmp_path, "seed: 1\n") as run:
        assert (run.folder / "config.yaml").read_text() == "seed: 0\n"


def test_a_note_is_what_was_noted_last(tmp_path: Path) -> None:
    with Run.write(tmp_path, "") as run:
        assert run.fact("wall_s") is None
        run.note("wall_s", "1.5")
        run.note("wall_s", "2.5")
    with Run.read(tmp_path) as run:
        assert run.fact("wall_s") == "2.5"


def test_a_run_is_of_one_thing(tmp_path: Path) -> None:
    with Run.write(tmp_path, "") as run:
        run.pin("weights", "12ab")
        run.pin("weights", "12ab")
        with pytest.raises(ConfigError, match="was begun with weights 12ab, not 99ff; choose another folder"):
            run.pin("weights", "99ff")


def test_a_screenshot_is_kept_once_and_pixel_for_pixel(tmp_path: Path) -> None:
    env = make("pocket")
    drawn = env.reset(load_tasks("pocket", "train")[0], 1)
    jpeg = tmp_path / "photo.jpg"
    Image.fromarray(decode(screen(1, (64, 48)).image)).save(jpeg, quality=50)
    pixels = decode(jpeg.read_bytes())
    photo = Observation(jpeg.read_bytes(), 64, 48, pixel_hash(pixels))
    with Run.write(tmp_path / "run", "") as run:
        for observation in (drawn, photo, screen(2), drawn):
            run.add_image(observation)
            again = run.image(observation.hash)
            assert dataclasses.replace(again, image=b"") == dataclasses.replace(observation, image=b"")
            assert len(again.image) <= len(observation.image)
            assert pixel_hash(decode(again.image)) == observation.hash
        with pytest.raises(KeyError):
            run.image("00")


def test_one_process_writes_and_the_next_is_told_in_one_line(tmp_path: Path) -> None:
    with Run.write(tmp_path, "") as first:
        with pytest.raises(ConfigError) as refused:
            Run.write(tmp_path, "")
        assert (
            str(refused.value) == f"{tmp_path}: process {os.getpid()} is writing to this run; wait, or choose another"
        )
        first.add(trajectory())
    with Run.write(tmp_path, "") as second:
        assert len(list(second.summaries())) == 1


def test_nobody_writes_while_a_run_is_held_still_and_several_can_hold_it(tmp_path: Path) -> None:
    with unwritten(tmp_path):  # a copy of a run, without the lock
        assert list(tmp_path.iterdir()) == []
    told = f"process {os.getpid()} is writing to this run"
    with Run.write(tmp_path, ""), pytest.raises(ConfigError, match=told), unwritten(tmp_path):
        pass
    before = (tmp_path / "run.lock").read_bytes()
    with unwritten(tmp_path), unwritten(tmp_path):
        assert (tmp_path / "run.lock").read_bytes() == before
        with pytest.raises(ConfigError):
            Run.write(tmp_path, "")
    Run.write(tmp_path, "").close()


def test_a_screenshot_of_another_run_is_copied_as_it_is_and_only_where_it_is_what_it_says(tmp_path: Path) -> None:
    with Run.write(tmp_path / "one", "") as one, Run.write(tmp_path / "other", "") as other:
        one.add_image(screen(1))
        for _ in range(2):
            other.copy_image(screen(1).hash, one)
        assert other.image(screen(1).hash) == one.image(screen(1).hash)
        with pytest.raises(ConfigError, match="cannot be read: it lacks the screenshot 00"):
            other.copy_image("00", one)
        for kept in (screen(2), dataclasses.replace(screen(3), image=b"no picture"), screen(4, (64, 48))):
            lie = dataclasses.replace(kept, hash=f"{kept.width}-{len(kept.image)}")
            one._write_image(lie, lie.image)
            with pytest.raises(ConfigError, match="cannot be read: "):
                other.copy_image(lie.hash, one)


def test_readers_see_what_is_finished_while_the_writer_goes_on(tmp_path: Path) -> None:
    with Run.write(tmp_path, "") as writer, Run.read(tmp_path) as reader:
        for number in range(3):
            writer.add(trajectory(str(number)))
            assert len(list(reader.trajectories())) == number + 1
        going = reader.trajectories()
        next(going)
        writer.add(trajectory("3"))  # a reader in the middle does not hold the writer up
        with pytest.raises(OSError, match="may not be written to"):
            reader.add(trajectory("4"))


@pytest.mark.parametrize("content", [None, b"", b"this is not a database at all, whatever it is called" * 99])
def test_a_folder_without_a_run_is_refused_in_one_line(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "run.sqlite").write_bytes(content)
    with pytest.raises(ConfigError, match=r"holds no run|cannot be read"):
        Run.read(tmp_path)


def test_a_folder_that_is_a_file_or_of_a_newer_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is not a folder"):
        Run.write(tmp_path / "file", "")
    Run.write(tmp_path / "run", "").close()
    db = sqlite3.connect(tmp_path / "run" / "run.sqlite")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(ConfigError, match="by a newer arpo"):
        Run.write(tmp_path / "run", "")
    with pytest.raises(ConfigError, match="by a newer arpo"):
        Run.write(tmp_path / "run", "")  # and the first refusal let go of the lock


def test_half_a_line_of_metrics_is_neither_read_nor_continued(tmp_path: Path) -> None:
    with Run.write(tmp_path, "") as run:
        run.log({"update": 0})
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"update": 1, "los')
        assert list(run.metrics()) == [{"update": 0}]
    with Run.write(tmp_path, "") as run:
        run.log({"update": 1})
        assert list(run.metrics()) == [{"update": 0}, {"update": 1}]


def test_a_killed_writer_loses_at_most_what_it_had_not_finished(tmp_path: Path) -> None:
    rng = random.Random(0)
    told: list[str] = []
    for _ in range(6):
        with subprocess.Popen([sys.executable, CHILD, tmp_path], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            told.append(child.stdout.readline().strip())  # it has begun
            time.sleep(rng.uniform(0, 0.2))
            child.kill()
            told += [line.strip() for line in child.stdout if line.endswith("\n")]
    with Run.write(tmp_path, "") as run:
        kept = {t.id: t for t in run.trajectories()}
        assert set(told) <= set(kept)
        assert len(kept) <= len(told) + 6  # each may have finished one of which it could not tell any more
        for t in kept.values():
            assert pixel_hash(decode(run.image(t.start).image)) == t.start
        logged = {line["id"] for line in run.metrics()}
        assert set(told) <= logged
    db = sqlite3.connect(tmp_path / "run.sqlite")
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


# Damaged


@pytest.mark.parametrize("line", [b'{"update": 1, "los\n', b"\xff\xfe\n", b"\n", b"3\n", b"{}\n"])
def test_a_damaged_line_of_metrics_is_named_and_the_run_can_go_on_without_it(line: bytes, tmp_path: Path) -> None:
    with Run.write(tmp_path, "") as run:
        run.log({"update": 0})
        path = tmp_path / "metrics.jsonl"
        path.write_bytes(path.read_bytes() + line)
        run.log({"update": 2})
        with pytest.raises(ConfigError) as refused:
            list(run.metrics())
        assert str(refused.value) == f"{path}: line 2 cannot be read; take it out, and the run goes on without it"


def test_a_lost_store_is_not_replaced_by_an_empty_one(tmp_path: Path) -> None:
    with Run.write(tmp_path, "") as run:
        run.log({"update": 0})
    (tmp_path / "run.sqlite").unlink()
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"has no run\.sqlite, where the episodes are .*; put it back, or begin"):
            Run.write(tmp_path, "")


@pytest.mark.parametrize("where", ["half", "middle", "record"])
def test_a_damaged_store_is_one_line(where: str, tmp_path: Path) -> None:
    with Run.write(tmp_path, "") as run:
        for i in range(40):
            run.add(trajectory(str(i)))
        if where == "record":
            run._db.execute("UPDATE trajectories SET record = x'00'")
    path = tmp_path / "run.sqlite"
    content = path.read_bytes()
    if where == "half":
        path.write_bytes(content[: len(content) // 2])
    elif where == "middle":
        path.write_bytes(content[:2048] + bytes([255]) * (len(content) - 2048))
    line = r"run\.sqlite: cannot be read: .*; put a whole one back, or begin another"
    with pytest.raises(ConfigError, match=line), Run.read(tmp_path) as run:
        list(run.trajectories())


# A full disk


@pytest.mark.parametrize("room", [0, 512, 4096, 40_000])
def test_a_disk_too_small_for_a_store_is_said_as_such(room: int, tmp_path: Path) -> None:
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from arpo.runs.store import Run\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({room}, {room}))\n"
        "try:\n"
        "    with Run.write(Path(sys.argv[1]), '') as run:\n"
        "        for i in range(99): run.note(str(i), 'x' * 999)\n"
        "except OSError as error: print(error.filename)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, tmp_path / "run"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "run")) or done.stdout == "None\n"


def test_a_full_database_is_a_full_disk_and_what_was_there_stays(tmp_path: Path) -> None:
    with Run.write(tmp_path, "") as run:
        run.add(trajectory("a"))
        (pages,) = run._db.execute("PRAGMA page_count").fetchone()
        run._db.execute(f"PRAGMA max_page_count = {pages}")  # SQLite has one word for this and for a full disk
        with pytest.raises(OSError, match="No space left on device") as full:
            run.add_image(screen(1, (200, 200)))
        assert full.value.filename == str(tmp_path / "run.sqlite")
        assert [t.id for t in run.trajectories()] == ["a"]


def test_of_a_line_that_does_not_fit_on_the_disk_nothing_is_read(tmp_path: Path) -> None:
    with Run.write(tmp_path, "") as run:
        run.log({"update": 0})
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "metrics.jsonl").stat().st_size + 20, limits[1]))
        try:
            with pytest.raises(OSError):
                run.log({"update": 1, "note": "x" * 200})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert list(run.metrics()) == [{"update": 0}]
    with Run.write(tmp_path, "") as run:
        run.log({"update": 1})
        assert list(run.metrics()) == [{"update": 0}, {"update": 1}]


class Sampled(ScriptedEngine):
    """Scripted replies with log-probabilities as a sampler has them: single precision, hardly compressible."""

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        completion = await super().generate(session, prompt, sampling, seed)
        rng = random.Random(seed)
        drawn = (struct.unpack("f", struct.pack("f", -rng.expovariate(3)))[0] for _ in completion.tokens)
        return dataclasses.replace(completion, logprobs=tuple(drawn))


def erring_expert(task: Task) -> Policy:
    """The expert, with something random every other turn and never an end: many different screens."""
    expert, turns = make_expert(task.env, task), iter(range(100))

    def act(env: Env, seed: int) -> tuple[str, Action]:
        thought, action = expert.act(env) if next(turns) % 2 else ("Hm, let me try this.", None)
        if action is None or isinstance(action, Finish):
            return "Hm, let me try this.", random_action(random.Random(seed), env.size)
        return thought, action

    return act


def test_fifteen_steps_take_well_under_200_kb_on_disk(tmp_path: Path) -> None:
    vocabulary = byte_vocabulary()
    dialect = UITars(vocabulary)
    sizes: list[int] = []

    async def play(task: Task, run: Run) -> Trajectory:
        async with LocalPool(partial(make, "pocket"), 1).lease() as lease:
            agent = Agent(Sampled(erring_expert(task), lease.env, dialect, vocabulary), dialect, Sampling())
            attempt = Attempt(task, 0, "a", 0, env_seed=1, sample_seed=2, provenance=Provenance("rollout", "r", 0))
            return await run_episode(attempt, lease, agent, run.keep_image)

    for task in load_tasks("pocket", "subset32"):
        if task.feasible:
            with Run.write(tmp_path / task.id, "seed: 0\n") as run:
                played = asyncio.run(play(task, run))
                run.add(played)
            assert len(played.steps) == 15
            sizes.append(sum(file.stat().st_size for file in (tmp_path / task.id).iterdir()))
    print(json.dumps({"mean": sum(sizes) / len(sizes), "largest": max(sizes)}))
    assert sum(sizes) / len(sizes) < 100_000
    assert max(sizes) < 150_000


def test_a_run_of_the_first_format_is_read_and_becomes_the_second_when_it_is_written(tmp_path: Path) -> None:
    """Also what is left where a process is killed between the two."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("")
    with contextlib.closing(sqlite3.connect(folder / "run.sqlite")) as db:
        db.executescript(SCHEMA)
    with Run.read(folder) as run:
        assert run.rows("SELECT * FROM times") == list(run.trajectories()) == []
    with Run.write(folder, "") as run:
        run.add(trajectory("a"))
    with Run.read(folder) as run:
        ((number, added),) = run.rows("SELECT * FROM times")
        assert number == 1 and abs(added - time.time()) < 3600
        assert run.rows("PRAGMA user_version") == [(FORMAT,)]


def test_a_store_that_is_held_by_others_or_may_not_be_written_to_is_said_as_such(tmp_path: Path) -> None:
    with (
        Run.write(tmp_path / "run", "") as run,
        contextlib.closing(sqlite3.connect(run.folder / "run.sqlite")) as other,
    ):
        run._db.execute("PRAGMA busy_timeout = 10")  # milliseconds; else this would wait for seconds
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OSError, match="another program holds it"):
            run.add(trajectory("a"))
        other.rollback()
        run._db.execute("PRAGMA query_only = ON")
        with pytest.raises(OSError, match="may not be written to"):
            run.add(trajectory("a"))
        run._db.execute("PRAGMA query_only = OFF")
        run.add(trajectory("a"))
        assert [one.id for one in run.trajectories()] == ["a"]


@pytest.mark.parametrize(("left", "said"), [((), "['a']"), (("-wal", "-shm"), "['a']"), (("-wal",), "copy it")])
def test_a_run_that_may_not_be_written_to_can_be_read(left: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """After its end, while it is written, and what a careless copy leaves."""
    if shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap to make a folder read-only, also for root: make desktop")
    folder = tmp_path / "copy"
    with Run.write(tmp_path / "run", "") as run:
        run.add(trajectory("a"))
        if left:
            shutil.copytree(run.folder, folder)
    if not left:
        shutil.copytree(run.folder, folder)
    for name in {"-wal", "-shm"} - {*left}:
        (folder / f"run.sqlite{name}").unlink(missing_ok=True)
    read = (
        "import pathlib, sys\nfrom arpo.runs.store import Run\n"
        "print([one.id for one in Run.read(pathlib.Path(sys.argv[1])).trajectories()])"
    )
    walls = ["bwrap", "--bind", "/", "/", "--dev", "/dev", "--ro-bind", str(folder), str(folder)]
    ran = subprocess.run([*walls, sys.executable, "-c", read, str(folder)], capture_output=True, text=True)
    assert said in (ran.stdout + ran.stderr).splitlines()[-1]


def test_a_format_that_changes_while_a_run_is_opened_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run.write(tmp_path, "").close()
    with contextlib.closing(sqlite3.connect(tmp_path / "run.sqlite")) as db:
        db.executescript("DROP TABLE times; PRAGMA user_version = 1;")
    look = store._refuse_other_tables

    def after_a_writer(folder: Path, db: sqlite3.Connection, version: int) -> None:
        monkeypatch.setattr(store, "_refuse_other_tables", look)
        Run.write(folder, "").close()
        look(folder, db, version)

    monkeypatch.setattr(store, "_refuse_other_tables", after_a_writer)
    with Run.read(tmp_path) as run:
        assert run.rows("SELECT * FROM times") == []
    with Run.read(tmp_path) as run:
        assert run.rows("PRAGMA user_version") == [(FORMAT,)]
