"""A run: one folder that holds everything, written by one process and readable by others meanwhile.

    config.yaml     the settings; of those that may change (settings.py) the last
    tasks.json      the tasks, written once (tasks/kept.py)
    metrics.jsonl   one JSON object a line
    run.sqlite      the trajectories, the screenshots by hash, and what each update learned from which token
    run.lock        held by the writer; a killed one lets go of it

    with Run.write(Path("runs/first"), config=to_yaml(config)) as run:
        run.add_image(observation)                    # `await run.keep_image(…)` where an event loop runs
        run.add(trajectory)
        run.log({"update": 3, "success": 0.4})
    for trajectory in Run.read(Path("runs/first")).trajectories(task_id="files-rename-003"):
        …

Each call is one transaction (`add` two: the time comes after the episode, which can do without). A writer that is
killed loses the one under way and nothing else; after a power cut the last few may be gone too, the rest is whole
(SQLite's write-ahead log, which wants a local disk). Screens are stored once, re-encoded without loss; fifteen steps
at 448x280 take some 80 kB, all files counted: `pytest tests/runs -k disk`.

A folder may come from somebody else. No link in it is followed (arpo.files), run.sqlite must have exactly the tables of
SCHEMA, and all that is unpacked has a bound. What is wrong with it is one ConfigError.
"""

import asyncio
import contextlib
import dataclasses
import errno
import io
import itertools
import json
import os
import re
import shutil
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, Unpack

import pydantic

from arpo.beside import beside, large
from arpo.errors import ConfigError, EnvError
from arpo.files import no_link, read_bytes, refuse_links
from arpo.images import decode, opened, pixel_hash
from arpo.runs.lock import lock
from arpo.runs.record import TokenRecord, pack, unpack, unpack_names
from arpo.types import Observation, Summary, Trajectory, from_json, refuse_gaps, to_json

TASKS = "tasks.json"
EPISODE = 2**26  # bytes of an unpacked trajectory, at most: some 2 million tokens
BLOB = 2**28  # of anything in run.sqlite
LINE, LINES = 2**20, 2**28  # of a line of metrics.jsonl, and of all of it
EPISODES = "record, id, task_id, score, reward"
FORMAT = 2  # of run.sqlite; raised when an older program could not read it
LARGEST_WEBP = 16383  # pixels a side
PAGE_SIZE = 1024  # a screenshot fills its last page by half: small pages waste less

SCHEMA = f"""
    PRAGMA page_size = {PAGE_SIZE};
    PRAGMA journal_mode = WAL;
    BEGIN;
    CREATE TABLE trajectories (
        number INTEGER PRIMARY KEY,  -- in the order in which they were added
        id TEXT NOT NULL UNIQUE,
        task_id TEXT NOT NULL,
        "update" INTEGER NOT NULL,
        source TEXT NOT NULL,
        attempt INTEGER NOT NULL,
        env_seed INTEGER NOT NULL,
        outcome TEXT NOT NULL,
        score REAL,
        reward REAL,
        n_steps INTEGER NOT NULL,
        record BLOB NOT NULL  -- the whole trajectory: JSON in zlib
    );
    CREATE INDEX trajectories_by_task ON trajectories (task_id, "update");
    CREATE INDEX trajectories_by_update ON trajectories ("update");
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE images (
        hash TEXT PRIMARY KEY,
        width INTEGER NOT NULL,
        height INTEGER NOT NULL,
        image BLOB NOT NULL
    );
    CREATE TABLE records ("update" INTEGER PRIMARY KEY, record BLOB NOT NULL);  -- as arpo.runs.record packs them
    PRAGMA user_version = 1;
    COMMIT;
"""
TIMES = "CREATE TABLE times (number INTEGER PRIMARY KEY, added REAL NOT NULL)"  # when, in seconds since 1970
SECOND = f"BEGIN; {TIMES}; PRAGMA user_version = 2; COMMIT;"  # makes the second format of the first


Kept = TypeVar("Kept")
_SUMMARY = pydantic.TypeAdapter(Summary)


class Wanted(TypedDict, total=False):
    """What trajectories are asked for by."""

    id: str
    task_id: str
    update: int
    source: str


class Run(contextlib.AbstractContextManager["Run"]):
    """A run's folder. `Run.write` makes or continues one, `Run.read` only looks."""

    def __init__(self, folder: Path, db: sqlite3.Connection, opened: contextlib.ExitStack) -> None:
        self.folder, self._db, self._opened = folder, db, opened
        self._encoding: dict[str, asyncio.Future[bytes]] = {}  # screenshots in threads, by hash

    @classmethod
    def write(cls, folder: Path, config: str) -> Self:
        """The run in this folder, made if there is none. ConfigError where another process writes to it.

        `config` is the text of config.yaml for a new run; that of an old one stays as it is.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            refuse_links(folder, write=True)
            held = lock(folder)
        except (FileExistsError, NotADirectoryError):
            raise ConfigError(f"{folder}: is not a folder") from None
        metrics = folder / "metrics.jsonl"
        with contextlib.ExitStack() as opened, _plain_errors(folder):
            opened.callback(os.close, held)
            if not (folder / "config.yaml").exists():
                write_whole(folder / "config.yaml", config)
            # A writer that was killed may have left half a line behind; the next one must not go on in it.
            if metrics.exists() and not (text := _lines_of(metrics)).endswith(b"\n"):
                os.truncate(metrics, text.rfind(b"\n") + 1)
            db, version = _connected(folder, "rwc", opened)
            if version == 0:
                if metrics.exists():
                    raise ConfigError(
                        f"{folder}: has no run.sqlite, where the episodes are that its metrics.jsonl tells of; put it "
                        "back, or begin another run (train.model=… with a checkpoint, to go on from there)"
                    )
                db.executescript(SCHEMA)
            _refuse_other_tables(folder, db, version)
            if version < FORMAT:
                db.executescript(SECOND)
            db.execute("PRAGMA synchronous = NORMAL")
            return cls(folder, db, opened.pop_all())

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The run in this folder, for reading, also while it is written."""
        if not (folder / "run.sqlite").exists():
            raise ConfigError(f"{folder}: holds no run")
        refuse_links(folder)
        with contextlib.ExitStack() as opened, _plain_errors(folder):
            db, version = _connected(folder, "ro", opened)
            if version == 0:
                raise ConfigError(f"{folder}: holds no run yet")
            _refuse_other_tables(folder, db, version)
            db.execute("COMMIT")
            if version < FORMAT:  # an older arpo has kept no times
                db.execute("PRAGMA temp_store = MEMORY")
                db.execute(TIMES.replace("TABLE", "TEMP TABLE"))
            return cls(folder, db, opened.pop_all())

    def close(self) -> None:
        """Let go of the folder. May be called twice."""
        self._opened.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def copy(self, folder: Path, config: str) -> None:
        """A new run with other settings that begins with what this one played; there whole or not at all."""
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        with _plain_errors(part), contextlib.closing(sqlite3.connect(part / "run.sqlite")) as db:
            self._db.backup(db)
            db.execute("DELETE FROM facts")  # they are about that run
            db.commit()
        (part / "config.yaml").write_text(config, encoding="utf-8")
        if (self.folder / TASKS).exists():
            shutil.copy(self.folder / TASKS, part / TASKS)
        part.rename(folder)

    def pin(self, name: str, value: str) -> None:
        """Say what the run is of, such as its weights. ConfigError where it was begun with another value."""
        self._execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
        if (pinned := self.fact(name)) != value:
            raise ConfigError(f"{self.folder}: was begun with {name} {pinned:.200}, not {value}; choose another folder")

    def note(self, name: str, value: str) -> None:
        """Remember something about the run that may change, such as the time it has taken so far."""
        self._execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def fact(self, name: str) -> str | None:
        """What was pinned or noted last under that name."""
        row = self._execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def add(self, trajectory: Trajectory) -> None:
        """Keep a finished episode. ValueError where one of its id is there already: nothing is counted twice."""
        t, origin = trajectory, trajectory.provenance
        key = (t.id, t.task_id, origin.update, origin.source, t.attempt, t.env_seed)
        values = (*key, t.outcome, t.score, t.reward, len(t.steps), zlib.compress(to_json(t)))
        try:
            number = self._execute(f"INSERT INTO trajectories VALUES (NULL{', ?' * len(values)})", values).lastrowid
        except sqlite3.IntegrityError:
            raise ValueError(f"{self.folder}: the trajectory {t.id!r} is there already") from None
        self._execute("INSERT OR REPLACE INTO times VALUES (?, ?)", (number, time.time()))

    def trajectories(self, **wanted: Unpack[Wanted]) -> Iterator[Trajectory]:
        """Those that match, in the order in which they were added."""
        for row in self._select(EPISODES, wanted):
            yield self._unpacked(*row)

    def summaries(self, **wanted: Unpack[Wanted]) -> Iterator[Summary]:
        """The same without the steps: a hundred times as fast."""
        names = [field.name for field in dataclasses.fields(Summary)]
        for row in self._select(", ".join(f'"{name}"' for name in names), wanted):
            try:
                summary = _SUMMARY.validate_python(dict(zip(names, row, strict=True)))
                _refuse_score(summary)
            except ValueError as error:
                raise damaged(self.folder, "an episode in it is none") from error
            yield summary

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """The one of that id. KeyError where there is none."""
        return self._unpacked(*self._one(f"SELECT {EPISODES} FROM trajectories WHERE id = ?", trajectory_id))

    def add_image(self, observation: Observation) -> None:
        """Keep a screenshot, once."""
        if not self._has_image(observation.hash):
            self._write_image(observation, _smaller(observation))

    async def keep_image(self, observation: Observation) -> None:
        """The same, a large one encoded in a thread. That takes 99 % of the time; the database has one user."""
        name = observation.hash
        if not large(observation):
            self.add_image(observation)
        elif not self._has_image(name):
            if name not in self._encoding:  # or another episode of the group is at it
                self._encoding[name] = asyncio.ensure_future(asyncio.to_thread(_smaller, observation))
            try:
                image = await asyncio.shield(self._encoding[name])  # for the others, where this episode is cancelled
            finally:
                self._encoding.pop(name, None)
            self._write_image(observation, image)

    def copy_image(self, name: str, source: "Run") -> None:
        """Keep a screenshot of another run as it is there, once. ConfigError where it is missing, or is another one.

        A store from others must not put its own in the place of a screen that this run will see.
        """
        if self._has_image(name):
            return
        try:
            observation = source.image(name)
            pixels = decode(observation.image)
        except KeyError:
            raise damaged(source.folder, f"it lacks the screenshot {name:.40}") from None
        except EnvError as error:
            raise damaged(source.folder, str(error)) from None
        if pixels.shape[:2] != (observation.height, observation.width) or pixel_hash(pixels) != name:
            raise damaged(source.folder, f"the screenshot {name:.40} is another one")
        self._write_image(observation, observation.image)

    def image(self, name: str) -> Observation:
        """The screenshot of that hash: the same pixels, not the same bytes. KeyError where there is none."""
        image, width, height = self._one("SELECT image, width, height FROM images WHERE hash = ?", name)
        if not (isinstance(image, bytes) and isinstance(width, int) and isinstance(height, int)):
            raise damaged(self.folder, "a screenshot in it is none")
        return Observation(image, width, height, name)

    async def keep_record(self, update: int, records: Sequence[TokenRecord]) -> None:
        """Keep what an update learned. Where it is made again, the newer record replaces the other."""
        self._execute("INSERT OR REPLACE INTO records VALUES (?, ?)", (update, await beside(pack, records)))

    def record(self, update: int) -> list[TokenRecord]:
        """What that update learned, a trajectory at a time. KeyError where it was not made."""
        return self._recorded(update, unpack)

    def learned(self, update: int) -> list[tuple[str, str | None]]:
        """The same without the tokens: the trajectory's id, and that of the stored success that it repeats."""
        return self._recorded(update, unpack_names)

    def rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """What a SELECT gives, for who lists many episodes. Columns may hold anything where a folder is not ours."""
        with _plain_errors(self.folder):
            _limit_work(self.folder, self._db)
            return self._db.execute(query, tuple(values)).fetchall()

    def log(self, metrics: dict[str, Any]) -> None:
        """One more line of metrics.jsonl."""
        with open(self.folder / "metrics.jsonl", "ab", opener=no_link) as file:
            file.write((json.dumps(metrics, ensure_ascii=False) + "\n").encode())

    def metrics(self) -> Iterator[dict[str, Any]]:
        """What was logged, without a last line that is still being written."""
        path = self.folder / "metrics.jsonl"
        lines = _lines_of(path).split(b"\n")[:-1] if path.exists() else []
        for number, line in enumerate(lines, start=1):
            metrics = None
            with contextlib.suppress(ValueError, RecursionError):
                metrics = json.loads(line) if len(line) <= LINE else None
            if not isinstance(metrics, dict) or not metrics:
                raise ConfigError(f"{path}: line {number} cannot be read; take it out, and the run goes on without it")
            yield metrics

    def _has_image(self, name: str) -> bool:
        return self._execute("SELECT 1 FROM images WHERE hash = ?", (name,)).fetchone() is not None

    def _write_image(self, observation: Observation, image: bytes) -> None:
        values = (observation.hash, observation.width, observation.height, image)
        self._execute("INSERT OR IGNORE INTO images VALUES (?, ?, ?, ?)", values)

    def _execute(self, query: str, values: tuple[object, ...]) -> sqlite3.Cursor:
        with _plain_errors(self.folder):
            _limit_work(self.folder, self._db)
            return self._db.execute(query, values)

    def _recorded(self, update: int, read: Callable[[bytes], list[Kept]]) -> list[Kept]:
        (record,) = self._one('SELECT record FROM records WHERE "update" = ?', update)
        try:
            return read(record)
        except Exception as error:  # numpy and zipfile have many words for it
            raise damaged(self.folder, f"the record of update {update} is none") from error

    def _one(self, query: str, key: str | int) -> tuple[Any, ...]:
        for row in self._execute(query, (key,)):
            return tuple(row)
        raise KeyError(key)

    def _unpacked(self, record: bytes, *shown: object) -> Trajectory:
        try:
            text = zlib.decompressobj().decompress(record, EPISODE)
            trajectory = from_json(Trajectory, text)
            _refuse_score(trajectory)
            refuse_gaps(trajectory)
            if shown != (trajectory.id, trajectory.task_id, trajectory.score, trajectory.reward):
                raise ValueError("it is another than its summary tells of")
            return trajectory
        except (zlib.error, ValueError, TypeError) as error:  # TypeError: text where bytes should be
            raise damaged(self.folder, "an episode in it is none") from error

    def _select(self, columns: str, wanted: Wanted) -> Iterator[tuple[Any, ...]]:
        where = "".join(f' AND "{column}" = ?' for column in wanted)
        query = f"SELECT {columns} FROM trajectories WHERE TRUE{where} ORDER BY number"
        with _plain_errors(self.folder):
            _limit_work(self.folder, self._db)
            rows = self._db.execute(query, tuple(wanted.values()))
            yield from map(tuple, rows)  # not from the rows: they would be closed at the end, when the run may be too


def _connected(folder: Path, mode: str, opened: contextlib.ExitStack) -> tuple[sqlite3.Connection, int]:
    """run.sqlite, each statement a transaction, and its format: 0 for a new one."""
    address = f"{(folder / 'run.sqlite').absolute().as_uri()}?mode={mode}"
    if (journal := folder / "run.sqlite-journal").exists():  # SQLite deletes a file that is named in it
        raise ConfigError(f"{journal}: is not of arpo, which writes run.sqlite-wal; remove it")
    if mode == "ro" and not (folder / "run.sqlite-wal").exists() and not os.access(folder, os.W_OK):
        address += "&immutable=1"  # nobody writes, and SQLite could not make the files that it has beside it meanwhile
    db = opened.enter_context(contextlib.closing(sqlite3.connect(address, uri=True, isolation_level=None)))
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, BLOB)
    db.execute("PRAGMA trusted_schema = OFF")
    _limit_work(folder, db)
    if mode == "ro":
        db.execute("BEGIN")  # until its tables were looked at: a writer may change the format in between
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > FORMAT:
        raise ConfigError(f"{folder}: was written by a newer arpo (format {version}; this one knows {FORMAT})")
    return db, version


def _limit_work(folder: Path, db: sqlite3.Connection) -> None:
    """The next statement ends after more work than there can be: pages that lead in circles have no last row."""
    spent = itertools.count()

    def too_much() -> bool:
        size = sum(file.stat().st_size for file in folder.glob("run.sqlite*"))
        return next(spent) > 100 + size // 5000

    db.set_progress_handler(too_much, 10_000)


def _refuse_other_tables(folder: Path, db: sqlite3.Connection, version: int) -> None:
    """ConfigError where it has other tables than that format: a view or a trigger can stand for any amount of work."""
    with contextlib.closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(SCHEMA + (SECOND if version == FORMAT else ""))
        query = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name LIMIT 100"
        if db.execute(query).fetchall() != empty.execute(query).fetchall():
            raise damaged(folder, "its tables are not those of a run")


@contextlib.contextmanager
def _plain_errors(folder: Path) -> Iterator[None]:
    """SQLite's words for a full disk and for a damaged file as everybody else's."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):  # said by who calls, and a bug of ours
        raise
    except UnicodeDecodeError:  # of SQLite's own words, which name what is damaged
        raise damaged(folder, "it is damaged") from None
    except sqlite3.DatabaseError as error:
        match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF:  # none: text in it that is no UTF-8
            case sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / "run.sqlite")) from None
            case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN:
                why = "a full disk?" if os.access(folder, os.W_OK) else "its folder may not be written to; copy it"
                raise OSError(errno.EIO, f"{error} ({why})", str(folder / "run.sqlite")) from None
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                raise OSError(
                    errno.EBUSY, "another program holds it; end that, then again", str(folder / "run.sqlite")
                ) from None
            case sqlite3.SQLITE_READONLY:
                raise OSError(errno.EROFS, "may not be written to", str(folder / "run.sqlite")) from None
            case (
                sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_TOOBIG | sqlite3.SQLITE_INTERRUPT
                | sqlite3.SQLITE_ERROR  # "unsupported file format"
            ):  # fmt: skip
                raise damaged(folder, str(error)) from None
        raise


def damaged(folder: Path, why: str) -> ConfigError:
    """What is said where run.sqlite is not what this program wrote."""
    return ConfigError(
        f"{folder / 'run.sqlite'}: cannot be read: {why}; put a whole one back, or begin another run "
        "(train.model=… with a checkpoint of this one, to go on from there)"
    )


def _lines_of(metrics: Path) -> bytes:
    try:
        return read_bytes(metrics, LINES)
    except ValueError as error:
        raise ConfigError(f"{metrics}: cannot be read: {error}") from None


def _refuse_score(episode: Trajectory | Summary) -> None:
    """ValueError for numbers that no checker and no reward gave."""
    if episode.outcome.valid != (episode.score is not None) or not 0.0 <= (episode.score or 0.0) <= 1.0:
        raise ValueError(f"score {episode.score}")
    if episode.reward is not None and not abs(episode.reward) < 1e100:
        raise ValueError(f"reward {episode.reward}")


def _smaller(observation: Observation) -> bytes:
    """The screenshot's bytes, or fewer that decode to the same pixels: WebP takes 40 % of pocket's PNG bytes.

    Of its efforts ("quality") 30 is best for small ones: 20 saves half the time and costs a quarter more bytes, more
    saves hardly one. For large ones half the time is worth that (docs/results/screens.md).
    """
    if max(observation.width, observation.height) > LARGEST_WEBP:
        return observation.image
    written, effort = io.BytesIO(), 20 if large(observation) else 30
    opened(observation.image).save(written, "WEBP", lossless=True, method=1, quality=effort)
    return min(written.getvalue(), observation.image, key=len)


def write_whole(path: Path, text: str) -> None:
    """A file that is either whole or not there."""
    part = path.with_name(f"{path.name}.part")
    with open(part, "w", encoding="utf-8", opener=no_link) as file:
        file.write(text)
    part.replace(path)


def folder_name(text: str) -> str:
    """The text as a part of a folder's name: without slashes, colons and spaces."""
    return re.sub(r"[^\w.+=-]+", "-", text)


def new_folder(*names: str) -> Path:
    """A folder under runs/ that is another every second."""
    return Path("runs") / "-".join([*map(folder_name, names), time.strftime("%Y%m%d-%H%M%S")])
