"""What else a folder from somebody else may try: programs beside it, second names, packed records, the terminal."""

from __future__ import annotations

import bz2
import io
import json
import os
import sqlite3
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from test_hostile_folder import limited
from test_store import trajectory

from arpo import cli
from arpo.agent.dialects.uitars import UITars
from arpo.bench import compare
from arpo.config import Config, to_yaml
from arpo.engines.scripted import byte_vocabulary
from arpo.errors import ConfigError, printable
from arpo.evaluation.command import run_evaluation
from arpo.runs.store import Run
from arpo.tasks.kept import same_tasks
from arpo.tasks.load import load_tasks
from arpo.types import Provenance

ATTACK = pytest.mark.attack("run folder")


@ATTACK
def test_no_module_in_the_working_directory_is_run_by_a_comparison(tmp_path: Path) -> None:
    for name in ("arpo", "json", "typer", "numpy"):
        (tmp_path / f"{name}.py").write_text("import os; os.mkdir('ran')")
    done = subprocess.run([*compare.ARPO, "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout[:5]) == (0, "arpo "), done.stderr
    assert not (tmp_path / "ran").exists()


def comparison(out: Path) -> compare.Comparison:
    methods = compare.methods_of("pocket-compare", [], "grpo")
    return compare.Comparison(methods, range(1), out, {"train": load_tasks("pocket", "files-rename-003")})


@ATTACK
def test_a_result_with_a_second_name_is_not_written_to(tmp_path: Path) -> None:
    (victim := tmp_path / "precious.txt").write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.json").hardlink_to(victim)
    methods = compare.methods_of("pocket-compare", [], "grpo")
    with pytest.raises(ConfigError, match="has a second name elsewhere"):
        compare.run_comparison(methods, 1, tmp_path / "out", 1, "arpo compare")
    assert victim.read_text() == "precious"


@ATTACK
def test_a_run_that_says_it_is_finished_but_made_no_update_is_one_line(tmp_path: Path) -> None:
    compared = comparison(tmp_path)
    for method in ("base", "grpo"):
        folder = compared._begin(method, 0)
        (folder / "summary.json").write_text('{"env_steps": 9}')
    with pytest.raises(ConfigError, match=r"grpo-0: has made no update; remove its summary\.json"):
        compared.results()


@ATTACK
def test_an_output_of_a_terabyte_is_not_read_for_its_last_line(tmp_path: Path) -> None:
    with (tmp_path / "output.txt").open("wb") as output:
        output.truncate(2**40)
        output.seek(0, os.SEEK_END)
        output.write(b"\nerror: the reason\n")
    assert compare._why(tmp_path, 2).startswith("the reason (all of it in ")


@ATTACK
def test_a_record_packed_so_that_4_kb_become_gigabytes_is_refused(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        packer, zeros = bz2.BZ2Compressor(9), bytes(1 << 20)  # piece by piece: the test itself takes no memory
        archive.writestr("old.npy", b"".join(packer.compress(zeros) for _ in range(1500)) + packer.flush())
    data = bytearray(packed.getvalue())
    assert len(data) < 4000
    for begin, method in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):  # in both of its heads, it is bz2 of 100 bytes
        at = data.index(begin)
        data[at + method : at + method + 2] = zipfile.ZIP_BZIP2.to_bytes(2, "little")
        data[at + method + 14 : at + method + 18] = (100).to_bytes(4, "little")
    with Run.write(tmp_path / "run", "seed: 0\n"):
        pass
    with sqlite3.connect(tmp_path / "run" / "run.sqlite") as db:
        db.execute("INSERT INTO records VALUES (0, ?)", (bytes(data),))
    db.close()
    done = limited("Run.read(folder).record(0)", tmp_path / "run")
    assert "the record of update 0 is none" in done.stdout, done.stderr
    with Run.read(tmp_path / "run") as run, pytest.raises(ConfigError) as error:
        run.record(0)
    assert "keeps to no size" in str(error.value.__cause__)


@ATTACK
def test_a_dry_run_of_settings_that_speak_to_the_terminal_is_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config().with_values({"run_dir": tmp_path / "run", "tasks.source": "\x1b[2J\x1b]0;mine\x07"})
    tasks = load_tasks("pocket", "train")
    with Run.write(tmp_path / "run", to_yaml(config)) as run:
        same_tasks(run, {"train": tasks}, config)
    monkeypatch.setattr(sys, "argv", ["arpo", "train", "--resume", str(tmp_path / "run"), "--dry-run"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    said = capsys.readouterr().out
    assert "What would be done" in said and said.replace("\n", "").isprintable()


@ATTACK
@pytest.mark.usefixtures("fake_backend")
def test_an_episode_of_a_task_that_was_not_asked_for_is_no_picture(tmp_path: Path) -> None:
    config = Config.model_validate({"env": {"name": "fake", "size": "96x64"}})
    run_evaluation(config, "expert", tmp_path / "run")
    foreign = trajectory("x", "nobody-1", score=0.0, reward=0.0, provenance=Provenance("evaluation", "r", 0))
    with Run.write(tmp_path / "run", "") as run:
        run.add(foreign)
    run_evaluation(config, "expert", tmp_path / "run", tmp_path / "pictures")
    assert [file.name for file in (tmp_path / "pictures").iterdir()] == ["success.gif"]


@pytest.mark.attack("checkpoint")
def test_a_prompt_of_a_terabyte_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "prompt.txt").open("wb") as file:
        file.write(b"{instruction}")
        file.truncate(2**40)
    with pytest.raises(ConfigError, match=r"prompt\.txt cannot be read: it has more than 262,144 bytes"):
        UITars(byte_vocabulary(), prompt_file=tmp_path / "prompt.txt")


@pytest.mark.parametrize(
    "text", ["Enregistrer\u00a0sous", "ファイル\u3000を", "👩\u200d💻", "\u0645\u06cc\u200c\u062e", "ümläut ½ “q”"]
)
def test_honest_text_is_printed_as_it_is(text: str) -> None:
    assert printable(text) == text
    assert printable(f"{text}\x1b[2J\u202e\n") == f"{text}\\x1b[2J\\u202e\\n"


@ATTACK
def test_a_summary_does_not_say_which_method_a_run_was(tmp_path: Path) -> None:
    compared = comparison(tmp_path)
    line = {"update": 0, "success": 0.5, "reward": 0.5, "failed_groups": 0.0, "replayed_groups": 0.0, "env_steps": 9}
    for method in ("base", "grpo"):
        with Run.write(compared._begin(method, 0), "") as run:
            (run.folder / "summary.json").write_text('{"env_steps": 9, "method": "other", "seed": 7, "updates": 99}')
            made = int(method != "base")
            if made:
                run.log(line | {"sampled_tokens": 9, "sample_s": 1.0, "learn_s": 1.0})
            where = Provenance("evaluation", "r", made)
            run.add(trajectory(f"eval{made}-files-rename-003-0-0", "files-rename-003", provenance=where))
    (one,) = compared.results()["runs"].values()
    assert (one["method"], one["seed"], one["updates"]) == ("grpo", 0, 1)
    json.dumps(one, allow_nan=False)
