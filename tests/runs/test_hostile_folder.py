"""Run folders that somebody else made: nothing outside changes, and one line says what is wrong."""

from __future__ import annotations

import io
import json
import os
import resource
import socket
import sqlite3
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_store import screen, trajectory

from arpo.config import Config, load_config, to_yaml
from arpo.errors import ArpoError, ConfigError, EnvError
from arpo.evaluation.agents import find_model
from arpo.images import decode
from arpo.runs.settings import go_on, resumed
from arpo.runs.store import Run, write_whole
from arpo.types import to_json

pytestmark = pytest.mark.attack("run folder")

GOOD = {"update": 0, "success": 0.5, "env_steps": 9, "sample_s": 1.0, "learn_s": 1.0}
GOOD |= {"reward": 0.5, "failed_groups": 0.0, "replayed_groups": 0.0, "sampled_tokens": 9}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user that no folder may touch."""
    file = tmp_path / "precious.txt"
    file.write_text("precious")
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A training's run, as somebody may have sent it."""
    config = Config().with_values({"run_dir": tmp_path / "run", "train.updates": 3})
    with Run.write(tmp_path / "run", to_yaml(config)) as run:
        run.add_image(screen(1))
        run.add(trajectory("a"))
        run.log(GOOD)
    return tmp_path / "run"


def refused(folder: Path, say: str) -> None:
    """To write, to read and to resume it: each ends in one line."""
    uses: list[Callable[[], object]] = [
        lambda: Run.write(folder, "seed: 0\n").close(),
        lambda: list(Run.read(folder).metrics()),
        lambda: resumed(folder, []),
    ]
    for use in uses:
        with pytest.raises(ConfigError, match=say) as error:
            use()
        assert "\n" not in str(error.value)


def change(folder: Path, *statements: str) -> None:
    with sqlite3.connect(folder / "run.sqlite") as db:
        for statement in statements:
            db.execute(statement)
    db.close()


def use_all(folder: Path) -> None:
    with Run.read(folder) as run:
        list(run.summaries())
        list(run.trajectories())
        run.record(0)


# Links


@pytest.mark.parametrize(
    "name",
    "run.lock metrics.jsonl config.yaml config.yaml.part summary.json summary.json.part tasks.json run.sqlite "
    "run.sqlite-wal run.sqlite-shm curve.png output.txt checkpoints tensorboard wandb".split(),
)
def test_no_link_is_followed(name: str, folder: Path, victim: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    if name in ("config.yaml", "run.sqlite"):  # said before by some
        with pytest.raises(ConfigError, match="is a link"):
            Run.write(folder, "")
    else:
        refused(folder, "is a link, a pipe or a device")
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["checkpoints/update-00001", "checkpoints/update-00001/state.json"])
def test_no_link_among_the_checkpoints_is_followed(name: str, folder: Path, victim: Path) -> None:
    (folder / name).parent.mkdir(parents=True)
    (folder / name).symlink_to(victim)
    refused(folder, "is a link, a pipe or a device")
    with pytest.raises(ConfigError, match="is a link, a pipe or a device"):
        find_model(str(folder))


def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()
    os.mkfifo(folder / "metrics.jsonl")
    refused(folder, "is a link, a pipe or a device")


def test_a_socket_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("run.lock.socket")
    refused(folder, "is a link, a pipe or a device")


@pytest.mark.parametrize("name", ["run.lock", "metrics.jsonl", "run.sqlite"])
def test_a_file_with_a_second_name_is_not_written_to(name: str, folder: Path, victim: Path) -> None:
    (folder / name).unlink()
    os.link(victim, folder / name)
    with pytest.raises(ConfigError, match="has a second name elsewhere"):
        Run.write(folder, "")
    assert victim.read_text() == "precious"


def test_a_lock_that_becomes_a_link_at_the_last_moment_is_not_followed(
    folder: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arpo.runs.store.refuse_links", lambda *_, **__: None)  # as if it came too early
    (folder / "run.lock").unlink()
    (folder / "run.lock").symlink_to(victim)
    with pytest.raises(OSError):
        Run.write(folder, "")
    assert victim.read_text() == "precious"


def test_metrics_and_settings_that_become_links_at_the_last_moment_are_not_followed(folder: Path, victim: Path) -> None:
    with Run.write(folder, "") as run:
        (folder / "metrics.jsonl").unlink()
        (folder / "metrics.jsonl").symlink_to(victim)
        with pytest.raises(OSError):
            run.log(GOOD)
        (folder / "config.yaml.part").symlink_to(victim)
        with pytest.raises(OSError):
            write_whole(folder / "config.yaml", "seed: 1\n")
    assert victim.read_text() == "precious"


def test_a_journal_that_names_another_file_does_not_have_sqlite_delete_it(folder: Path, victim: Path) -> None:
    """SQLite rolls a journal back that it finds, and then deletes the file that stands at the journal's end."""
    page = (folder / "run.sqlite").read_bytes()[:1024]
    magic, size = bytes.fromhex("d9d505f920a163d7"), (folder / "run.sqlite").stat().st_size
    checksum = 7 + sum(page[i] for i in range(1024 - 200, 0, -200))
    header = (magic + struct.pack(">5I", 1, 7, size // 1024, 512, 1024)).ljust(512, b"\0")
    name = str(victim).encode()
    named = struct.pack(">I", 2**30 // 1024 + 1) + name + struct.pack(">2I", len(name), sum(name)) + magic
    record = struct.pack(">I", 1) + page + struct.pack(">I", checksum)
    (folder / "run.sqlite-journal").write_bytes(header + record + named)
    with pytest.raises(ConfigError, match=r"run\.sqlite-journal: is not of arpo"):
        Run.write(folder, "")
    with pytest.raises(ConfigError, match=r"run\.sqlite-journal: is not of arpo"):
        Run.read(folder)
    assert victim.read_text() == "precious"


# Programs and other places


@pytest.mark.parametrize(
    "setting",
    ["env.osworld_python=/evil/python", "env.osworld_image=evil/image", "env.osworld_disk=/evil/disk.qcow2",
     "env.files=http://evil.example/", "agent.prompt_file=/etc/passwd", "train.model=evil/model",
     "train.track=[wandb]", "train.track=[trackio]"],
)  # fmt: skip
def test_what_a_folder_names_outside_itself_counts_only_where_the_user_says_it_again(
    setting: str, folder: Path
) -> None:
    begun = load_config(None, [setting, f"run_dir={folder}"])
    (folder / "config.yaml").write_text(to_yaml(begun))
    quoted = f"'{setting}'" if "[" in setting else setting
    with pytest.raises(ConfigError, match="its settings name what is not in it") as error:
        resumed(folder, [])
    assert str(error.value).endswith(f"where you trust them add {quoted}")
    assert resumed(folder, [setting]) == begun


def test_tracking_that_stays_in_the_folder_needs_no_word(folder: Path) -> None:
    begun = load_config(None, ["train.track=[tensorboard, wandb-offline]", f"run_dir={folder}"])
    (folder / "config.yaml").write_text(to_yaml(begun))
    assert resumed(folder, []) == begun


@pytest.mark.parametrize("more", [[], ["--dry-run"]], ids=["run", "dry run"])
def test_no_program_of_a_folder_is_started(more: list[str], folder: Path, victim: Path, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\necho stolen > '{victim}'\n")
    program.chmod(0o755)
    begun = load_config(None, ["env.name=desktop", f"env.osworld_python={program}", f"run_dir={folder}"])
    (folder / "config.yaml").write_text(to_yaml(begun))
    command = [sys.executable, "-m", "arpo.cli", "train", "--resume", str(folder), *more]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.endswith(f"where you trust them add env.osworld_python={program}\n")
    assert victim.read_text() == "precious"


def test_a_run_is_in_the_folder_that_the_user_named_whatever_its_settings_say(folder: Path, tmp_path: Path) -> None:
    (folder / "config.yaml").write_text(to_yaml(Config().with_values({"run_dir": tmp_path / "other"})))
    assert resumed(folder, []).run_dir == folder
    assert not (tmp_path / "other").exists()


# run.sqlite


def limited(code: str, folder: Path, megabytes: int = 1200) -> subprocess.CompletedProcess[str]:
    """Python in a process with little memory: an attack that gets through ends in a MemoryError."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({megabytes * 2**20},) * 2)\n"
    setup = "import sys\nfrom pathlib import Path\nfrom arpo.errors import ArpoError\nfrom arpo.runs.store import Run\n"
    work = f"folder = Path({str(folder)!r})\ntry:\n    {code}\nexcept ArpoError as error:\n    print(error)\n"
    return subprocess.run(
        [sys.executable, "-c", setup + limit + work],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


def bomb(megabytes: int) -> bytes:
    packer, zeros = zlib.compressobj(9), bytes(2**20)
    return b"".join(packer.compress(zeros) for _ in range(megabytes)) + packer.flush()


def test_a_zlib_bomb_in_the_store_is_refused(folder: Path) -> None:
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.execute("UPDATE trajectories SET record = ?", (bomb(1500),))
    db.close()
    assert (folder / "run.sqlite").stat().st_size < 2_500_000
    done = limited("list(Run.read(folder).trajectories())", folder)
    assert done.stdout.endswith("an episode in it is none; put a whole one back, or begin another run (train.model=… "
                                "with a checkpoint of this one, to go on from there)\n"), done.stderr  # fmt: skip


def npz(**arrays: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in arrays.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def npy(shape: int, kind: str = "<f4", data: bytes = b"") -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"shape": (shape,), "fortran_order": False, "descr": kind})
    return file.getvalue() + data


@pytest.mark.parametrize(
    "record",
    [
        npz(old=npy(2**28, data=bytes(2**28)), lengths=npy(2**28, data=bytes(2**28)),
            clipped=npy(2**29, data=bytes(2**29)), sampler=npy(2**26, data=bytes(2**26))),
        npz(old=npy(10**12)),
        npz(old=npy(1, "|O", b"cos\nsystem\n(S'true'\ntR.")),
        npz(old=npy(1, "<U900000000", b"a")),
        b"PK\x03\x04",
        b"",
    ],
    ids=["a bomb", "a header that lies", "a pickle", "a wide text", "cut short", "empty"],
)  # fmt: skip
def test_a_training_record_that_is_none_is_refused(record: bytes, folder: Path) -> None:
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.execute("INSERT INTO records VALUES (0, ?)", (record,))
    db.close()
    done = limited("Run.read(folder).record(0)", folder)
    assert "the record of update 0 is none" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "statements",
    [
        ("DROP TABLE trajectories",
         "CREATE VIEW trajectories AS WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT i AS"
         ' number, i AS id, 0 AS task_id, 0 AS "update", 0 AS source, 0 AS attempt, 0 AS env_seed, 0 AS outcome,'
         " 0 AS score, 0 AS reward, 0 AS n_steps, zeroblob(999) AS record FROM n"),
        ("CREATE TRIGGER more AFTER INSERT ON facts BEGIN INSERT INTO images VALUES (1, 1, 1, zeroblob(99)); END",),
        ("CREATE TABLE more (a)",),
        ("CREATE VIRTUAL TABLE more USING fts5(a)",),
        ("ALTER TABLE facts ADD COLUMN more AS (hex(zeroblob(99999999)))",),
        ("CREATE INDEX more ON facts (hex(value))",),
        ("DROP TABLE records",),
    ],
    ids=["view", "trigger", "table", "virtual table", "computed column", "computed index", "no table"],
)  # fmt: skip
def test_other_tables_than_a_runs_are_refused(statements: tuple[str, ...], folder: Path) -> None:
    change(folder, *statements)
    for use in (lambda: Run.write(folder, ""), lambda: Run.read(folder)):
        with pytest.raises(ConfigError, match="its tables are not those of a run"):
            use()


def test_pages_that_lead_in_circles_end(folder: Path) -> None:
    """Table pages of one level above the leaves, all of whose children are the same one: rows without end."""
    with Run.write(folder, "") as run:
        for number in range(400):
            run.add(trajectory(f"t{number}"))
    change(folder, "PRAGMA wal_checkpoint(TRUNCATE)")
    with sqlite3.connect(folder / "run.sqlite") as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'trajectories'").fetchone()
    db.close()
    data = bytearray((folder / "run.sqlite").read_bytes())
    start = (root - 1) * 1024
    assert data[start] == 5  # a page above others
    cells = struct.unpack(">H", data[start + 3 : start + 5])[0]
    inner = [start + struct.unpack(">H", data[start + 12 + 2 * i : start + 14 + 2 * i])[0] for i in range(cells)]
    child = struct.unpack(">I", data[inner[0] : inner[0] + 4])[0]
    level = [child]
    for _ in range(8):  # a tower of pages, each with as many children as fit, all the same
        data += bytes(1024)
        page = bytearray(1024)
        page[0], page[7] = 5, 0
        count, at = 100, 1024
        for number in range(count):
            at -= 6
            page[at : at + 6] = struct.pack(">I", level[-1]) + bytes([0x81, number % 127])
            page[12 + 2 * number : 14 + 2 * number] = struct.pack(">H", at)
        page[3:5], page[5:7], page[8:12] = struct.pack(">H", count), struct.pack(">H", at), struct.pack(">I", level[-1])
        data[-1024:] = page
        level.append(len(data) // 1024)
    data[start : start + 1024] = data[-1024:]
    data[28:32] = struct.pack(">I", len(data) // 1024)
    (folder / "run.sqlite").write_bytes(data)
    with pytest.raises(ConfigError, match=r"run\.sqlite: cannot be read: interrupted"):
        use_all(folder)


@pytest.mark.parametrize(
    "change_to",
    ["score = 'one'", "score = 9e999", "score = -1.0", "reward = -9e999", "outcome = 'won'", "n_steps = 'x'",
     "id = x'00ff'", "env_seed = 1.5", "task_id = x'ff'", "\"update\" = 'y'"],
)  # fmt: skip
def test_columns_that_are_not_an_episodes_are_refused(change_to: str, folder: Path) -> None:
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.execute(f"UPDATE trajectories SET {change_to}")
    db.close()
    with Run.read(folder) as run, pytest.raises(ConfigError, match=r"run\.sqlite: cannot be read"):
        list(run.summaries())


def stored(folder: Path, text: bytes) -> None:
    with sqlite3.connect(folder / "run.sqlite") as db:
        db.execute("UPDATE trajectories SET record = ?", (zlib.compress(text),))
    db.close()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"score":1.0', b'"score":NaN'),
        (b'"score":1.0', b'"score":1e999'),
        (b'"score":1.0', b'"score":2'),
        (b'"reward":1.0', b'"reward":-1e999'),
        (b'"context":[0]', b'"context":[99]'),
        (b'"context":[0]', b'"context":[-1]'),
        (b'"kind":"tokens"', b'"kind":"reply","step":5'),
        (b'"outcome":"finished"', b'"outcome":"won"'),
        (b'"attempt":0', b'"attempt":' + b"9" * 5000),
        (b'"ignored":""', b'"ignored":' + b"[" * 100_000),
    ],
)
def test_an_episode_that_is_none_is_refused(before: bytes, after: bytes, folder: Path) -> None:
    text = to_json(trajectory("a"))
    assert before in text
    stored(folder, text.replace(before, after))
    with Run.read(folder) as run, pytest.raises(ConfigError, match="an episode in it is none"):
        list(run.trajectories())


def test_text_in_the_place_of_bytes_is_refused(folder: Path) -> None:
    change(folder, "UPDATE trajectories SET record = 'text'", "UPDATE images SET image = 'text', width = 'wide'")
    with Run.read(folder) as run:
        with pytest.raises(ConfigError, match="an episode in it is none"):
            run.trajectory("a")
        with pytest.raises(ConfigError, match="a screenshot in it is none"):
            run.image(screen(1).hash)


def test_a_blob_of_gigabytes_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arpo.runs.store.BLOB", 2**20)
    change(folder, "UPDATE images SET image = zeroblob(2000000)")
    with Run.read(folder) as run, pytest.raises(ConfigError, match=r"run\.sqlite: cannot be read: .*too big"):
        run.image(screen(1).hash)


# metrics.jsonl, config.yaml, names


@pytest.mark.parametrize(
    "line",
    [{"env_steps": "many"}, {"env_steps": float("nan")}, {"success": float("inf")}, {"update": []}, {"update": 0.5},
     {"learn_s": 10**300}, {"sample_s": None}, {"env_steps": -5}, {"success": 7.0}, {"update": -1}, {"errors": "x"},
     {"episodes": [1]}, {"loss": None}],
)  # fmt: skip
def test_metrics_that_cannot_be_counted_with_are_refused(line: dict[str, object], folder: Path) -> None:
    (folder / "metrics.jsonl").write_text(json.dumps(GOOD | line) + "\n")
    with Run.write(folder, "") as run, pytest.raises(ConfigError, match="line 1 is not an update's"):
        go_on(run, resumed(folder, []))


@pytest.mark.parametrize("line", ["[" * 100_000, '{"a":' + "9" * 5000 + "}", '{"a": "' + "x" * 2**20 + '"}'])
def test_a_line_of_metrics_that_is_deep_or_long_is_refused(line: str, folder: Path) -> None:
    (folder / "metrics.jsonl").write_text(line + "\n")
    with Run.read(folder) as run, pytest.raises(ConfigError, match="line 1 cannot be read"):
        list(run.metrics())


def test_metrics_of_gigabytes_take_no_memory(folder: Path) -> None:
    with (folder / "metrics.jsonl").open("ab") as file:
        file.truncate(2**40)
    for code in ("list(Run.read(folder).metrics())", "Run.write(folder, '')"):
        done = limited(code, folder)
        assert "metrics.jsonl: cannot be read: it has more than 268,435,456 bytes" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "text",
    ["a: &a [x,x]\nb: &b [*a,*a]\n", "env: {options: &o {a: *o}}\n", "seed: 0x" + "f" * 9000 + "\n",
     "seed: " + "9" * 9000 + "\n", "[" * 50_000, "#" * 2**19, "env.size: !!python/object/apply:os.system [ls]\n",
     "env: {size: 99999x99999}\n", "env: {workers: 1000000}\n", "eval: {trials: 1000000000}\n",
     "eval: {n_envs: 1000000000}\n", "algorithm: {group: 1000000000}\n", "train: {lag: 1000000000}\n",
     "train: {lora_rank: 1000000000}\n", "seed: .nan\n", "train: {lr: .inf}\n", "\x1b[2J: 1\n", '"\\e[2J": 1\n'],
    ids=range(18),
)  # fmt: skip
def test_settings_that_would_take_all_memory_or_speak_to_the_terminal_are_one_line(text: str, folder: Path) -> None:
    (folder / "config.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        resumed(folder, [])
    assert str(error.value).isprintable() and len(str(error.value)) < 5000


def test_no_name_speaks_to_the_terminal(folder: Path) -> None:
    for text in ("\x1b]0;mine\x07", "\x9b2J", "\u202etxt.exe", "two\nlines", "\ud800"):
        assert str(ArpoError(f"{folder}: {text}")).isprintable()
    (folder / "checkpoints" / "update-\x1b[2Jx").mkdir(parents=True)
    with pytest.raises(ConfigError, match="a run without a checkpoint"):
        find_model(str(folder))


def test_what_a_run_was_begun_with_is_not_printed_without_end(folder: Path) -> None:
    with Run.write(folder, "") as run:
        run.note("model", "\x1b" * 10**6)
        with pytest.raises(ConfigError, match="was begun with model") as error:
            run.pin("model", "base")
    assert len(str(error.value)) < 5000


# Pictures


def picture(kind: str, size: tuple[int, int] = (8, 8), **more: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size).save(file, kind, **more)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["EPS", "TIFF", "ICO", "PCX", "PPM", "TGA", "SGI", "JPEG2000"])
def test_a_screenshot_is_read_only_in_the_forms_that_screens_have(kind: str) -> None:
    """Of EPS, Pillow starts Ghostscript."""
    with pytest.raises(EnvError, match="a screenshot cannot be read"):
        decode(picture(kind))


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *more: bytes, data: bytes = b"") -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + b"".join([header, *more, chunk(b"IDAT", data or bomb(1)), chunk(b"IEND", b"")])


@pytest.mark.parametrize(
    "image",
    [png(9000, 9000), png(2**31 - 1, 2**31 - 1), png(8, 8, chunk(b"zTXt", b"a\0\0" + bomb(70))),
     png(8, 8, chunk(b"iCCP", b"a\0\0" + bomb(70))), png(8, 8)[:-30], b"", b"\x89PNG"],
    ids=["81 million pixels", "all pixels", "text", "profile", "cut short", "nothing", "a signature"],
)  # fmt: skip
@pytest.mark.filterwarnings("default")
def test_a_picture_that_would_take_all_memory_is_refused_or_read_small(image: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        assert decode(image).size == 3 * 8 * 8
    except EnvError as error:
        assert str(error).startswith("a screenshot cannot be read")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


def test_a_database_in_a_format_of_its_own_is_refused(folder: Path) -> None:
    data = bytearray((folder / "run.sqlite").read_bytes())
    data[44:48] = (9).to_bytes(4, "big")  # the schema format, of which SQLite knows four
    (folder / "run.sqlite").write_bytes(data)
    for use in (lambda: Run.read(folder), lambda: Run.write(folder, "")):
        with pytest.raises(ConfigError, match="cannot be read: unsupported file format"):
            use()


def test_tables_whose_names_are_no_text_are_refused(folder: Path) -> None:
    """SQLite names them in what it says, and that is no text either."""
    data = (folder / "run.sqlite").read_bytes()
    (folder / "run.sqlite").write_bytes(data.replace(b"tablefactsfacts", b"table\xff\xfectsfacts"))
    for use in (lambda: Run.read(folder), lambda: Run.write(folder, "")):
        with pytest.raises(ConfigError, match="cannot be read: "):
            use()
