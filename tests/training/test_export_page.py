"""What docs/export.md says is so: its commands run, in their order, and so do its examples."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from datasets import disable_progress_bars  # type: ignore[import-untyped]
from guesser import settings, train_in
from transformers.utils.logging import disable_progress_bar

from arpo import cli
from arpo.runs.store import Run

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")


def test_the_commands_and_the_examples_of_the_page_run(
    guesser_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    disable_progress_bars()
    disable_progress_bar()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    many = settings({"group": 6}, updates=2, rollout_tasks=5)  # so that the tiny agent solves some of them
    train_in(Path("runs/first"), guesser_folder, many.with_values({"run_dir": Path("runs/first")}))
    with Run.write(Path("runs/first"), Path("runs/first/config.yaml").read_text()) as run:
        run.note("model", f"{guesser_folder.name} with weights 0")  # as `arpo train` does
        n_solved = sum(one.score == 1.0 for one in run.summaries())
    assert n_solved, "the tiny agent solved nothing"
    commands = re.findall(r"^    (arpo export .*)$", PAGE, re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        words = shlex.split(command, comments=True)
        words += ["--model", str(guesser_folder)] * ("--share" in words)  # the page's run began with base
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert not ended.value.code, capsys.readouterr().err
    capsys.readouterr()
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(examples) == 3
    for example in examples:
        made = compile(example, "docs/export.md", "exec")
        if "SFTTrainer" not in example:  # that one needs torchvision; test_export_model.py does without
            exec(made, {})
    assert re.search(r"'role': 'assistant'.* \(96, 64\) \w+\n", capsys.readouterr().out)
    for folder in ("episodes", "solved", "agent", "second", "milder"):
        assert (tmp_path / folder / "README.md").is_file()
