"""Run folders of somebody else: to look at them, to find their best checkpoint, to resume them without a model."""

import contextlib
import dataclasses
import json
import random
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from arpo.api import read_run
from arpo.config import Config, to_yaml
from arpo.files import refuse_links
from arpo.images import observe, opened
from arpo.runs.checkpoints import best_in, checkpoints_in
from arpo.runs.record import TokenRecord, pack
from arpo.runs.settings import go_on, resumed, same_settings
from arpo.runs.store import Run
from arpo.tasks.kept import own_tasks
from arpo.tasks.load import judged_tasks, to_text
from arpo.training.plan import plan
from arpo.types import to_json
from attempts import attempt
from fuzz import Target, quiet
from fuzz.values import TEXTS, anything, as_text, changed, damaged, text

UPDATE = {"update": 0, "success": 0.5, "env_steps": 9, "sample_s": 1.0, "learn_s": 1.0}
STATE = {"version": 1, "replay": {}, "line": UPDATE, "recent": [0.5]}
EPISODE = attempt("a", 1.0)
SCREEN = observe(np.zeros((6, 8, 3), np.uint8))
ROW = np.zeros(2, np.float32)
RECORD = pack([TokenRecord("a", None, ROW, ROW, ROW, ROW, ROW.astype(np.bool_))])
STATE_FILE = "checkpoints/update-00001/state.json"
PLACES = {
    "trajectories": [*"id task_id update source attempt env_seed outcome score reward n_steps".split(), "record"],
    "facts": ["name", "value"],
    "images": ["hash", "width", "height", "image"],
    "records": ["update", "record"],
}


@dataclasses.dataclass(frozen=True, slots=True)
class Changes:
    files: dict[str, bytes | None]  # None: it is not there
    rows: list[tuple[str, str, Any]]  # a table, a column, its value
    use: str  # what is then done with the folder


@contextlib.contextmanager
def folder() -> Iterator[tuple[Path, Path]]:
    """One that is whole, and where it is copied to."""
    with tempfile.TemporaryDirectory() as made, quiet():
        whole = Path(made, "whole")
        config = Config().with_values({"run_dir": Path(made, "run"), "train.updates": 3})
        with Run.write(whole, to_yaml(config)) as run:
            run.add_image(SCREEN)
            run.add(EPISODE)
            run.add(attempt("b", None))
            run.log(UPDATE)
            run.note("wall_s", "9")
            run._execute("INSERT INTO records VALUES (?, ?)", (0, RECORD))
        (whole / STATE_FILE).parent.mkdir(parents=True)
        (whole / STATE_FILE).write_text(json.dumps(STATE))
        (whole / "summary.json").write_text('{"base_train": 0.5}')
        tasks = {split: ones[:9] for split, ones in judged_tasks(config).items()}
        (whole / "tasks.json").write_text(to_text(tasks))
        yield whole, Path(made, "run")


def _configuration(rng: random.Random) -> bytes:
    lines = to_yaml(Config().with_values({"run_dir": Path("run")})).splitlines()
    for _ in range(rng.randrange(3)):
        at = rng.randrange(len(lines))
        key = lines[at].partition(":")[0]
        value = rng.choice(
            [*TEXTS, "[]", "{}", "~", "1e3", "-1", "&a x", "*a", "!!python/name:os.system", "0x" + "f" * 40]
        )
        lines[at] = rng.choice([f"{key}: {value}", "", lines[at] * 2, f"{value}: 1", f"{lines[at]}\n{lines[at]}"])
    return damaged(
        rng, "\n".join(lines).encode(errors="surrogatepass"), rng.choice([0, 0, 2]), (b"\n", b": ", b"- ", b"\t")
    )


def _metrics(rng: random.Random) -> bytes:
    lines = [as_text(rng, changed(rng, UPDATE)) for _ in range(rng.randrange(4))]
    return b"\n".join(lines) + rng.choice([b"\n", b"", b"\n{", b"\n\n"])


def make_files(rng: random.Random) -> Changes:
    """Texts, and bytes of the database."""
    made: dict[str, bytes | None] = {}
    if rng.random() < 0.5:
        made["config.yaml"] = _configuration(rng)
    if rng.random() < 0.5:
        made["metrics.jsonl"] = _metrics(rng)
    if rng.random() < 0.3:
        made[STATE_FILE] = as_text(rng, changed(rng, STATE))
    if rng.random() < 0.2:
        made["summary.json"] = as_text(rng, anything(rng))
    if rng.random() < 0.2:
        made[rng.choice(["tasks.json", "run.lock", "run.sqlite-wal", "run.sqlite-journal", "x"])] = rng.randbytes(40)
    if rng.random() < 0.1:
        made[rng.choice(["config.yaml", "metrics.jsonl", "run.sqlite", STATE_FILE, "tasks.json"])] = None
    return Changes(made, [], rng.choice(["look", "look", "best", "resume", "write"]))


def make_rows(rng: random.Random) -> Changes:
    return Changes({}, [_row(rng) for _ in range(rng.randrange(1, 4))], _use(rng))


def _use(rng: random.Random) -> str:
    return "look" if rng.random() < 0.95 else "write"


def _row(rng: random.Random) -> tuple[str, str, Any]:
    table = rng.choice(list(PLACES))
    column = rng.choice([*PLACES[table], PLACES[table][-1]])
    if column == "record" and rng.random() < 0.8:
        if table == "records":
            return table, column, damaged(rng, RECORD, 4, (b"\xff" * 4, b"<f4", b"|O", b"(2,)", b"PK\1\2", b"descr"))
        whole = zlib.compress(as_text(rng, changed(rng, json.loads(to_json(EPISODE)), 4)))
        return table, column, damaged(rng, whole, 1) if rng.random() < 0.1 else whole
    if column == "image":
        return table, column, damaged(rng, SCREEN.image, 3)
    strange = [None, -1, 0.5, 2**63 - 1, float("inf"), b"\xff", b"", text(rng).encode(errors="replace").decode()]
    return table, column, rng.choice(strange)


def make_database(rng: random.Random) -> Changes:
    return Changes({"run.sqlite": rng.randbytes(8)}, [], _use(rng))  # the bytes are damaged where they are known


def run(folders: tuple[Path, Path], given: Changes) -> None:
    whole, place = folders
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(whole, place)
    for name, data in given.files.items():
        (place / name).unlink(missing_ok=True)
        if name == "run.sqlite" and data is not None:
            rng = random.Random(data)
            data = damaged(
                rng, (whole / name).read_bytes(), 8, (b"\xff\xff", b"\0\0\0\1", b"CREATE VIEW ", b"trajectories")
            )
        if data is not None:
            (place / name).write_bytes(data)
    if given.rows:
        with contextlib.closing(sqlite3.connect(place / "run.sqlite")) as db:
            db.execute("PRAGMA synchronous = OFF")  # else most of the time is the disk's
            for table, column, value in given.rows:
                with contextlib.suppress(sqlite3.IntegrityError):  # nobody can make it so
                    db.execute(f'UPDATE {table} SET "{column}" = ?', (value,))
            db.commit()
    USES[given.use](place)


def _look(place: Path) -> None:
    with read_run(place) as run:
        list(run.metrics())
        for summary in run.summaries():
            assert summary.score is None or 0.0 <= summary.score <= 1.0
        for episode in run.trajectories():
            to_json(episode)
        with contextlib.suppress(KeyError):
            opened(run.image(SCREEN.hash).image)
        with contextlib.suppress(KeyError):
            assert all(len(one.old) == len(one.new) == len(one.clipped) for one in run.record(0))
        run.fact("wall_s")


def _best(place: Path) -> None:
    refuse_links(place)
    if checkpoints_in(place / "checkpoints"):
        best_in(place / "checkpoints")


def _resume(place: Path) -> None:
    config = resumed(place, [])
    plan(config, own_tasks(config))
    to_yaml(config)


def _write(place: Path) -> None:
    with Run.write(place, to_yaml(Config())) as run:
        config = resumed(place, [])
        same_settings(run, config)
        go_on(run, config)


USES = {"look": _look, "best": _best, "resume": _resume, "write": _write}
TARGETS = [
    Target("run-files", make_files, run, folder),
    Target("run-rows", make_rows, run, folder),
    Target("run-database", make_database, run, folder),
]
