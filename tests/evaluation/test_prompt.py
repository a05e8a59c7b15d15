"""Which prompt a checkpoint is asked with, and how long its context may be."""

from pathlib import Path

import pytest

from arpo.agent.dialects.uitars import UITars
from arpo.config import load_config
from arpo.evaluation.agents import find_model, load_agent
from tiny_model import make_tiny

SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    vision = {"depth": 1, "hidden_size": 64, "intermediate_size": 64, "num_heads": 2}
    make_tiny(folder, ["words"], vision, {**SMALL, "num_key_value_heads": 1}, vocabulary=300)
    (folder / "prompt.txt").write_text("Do this: {instruction}")
    return folder


def test_a_checkpoint_brings_its_own_prompt(checkpoint: Path) -> None:
    dialect = load_agent(load_config(None, []), str(checkpoint), slots=1).dialect
    assert isinstance(dialect, UITars)
    assert dialect.prompt("sing") == "Do this: sing"


def test_a_prompt_file_of_the_user_goes_before_it(checkpoint: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("Please {instruction}")
    dialect = load_agent(load_config(None, [f"agent.prompt_file={mine}"]), str(checkpoint), slots=1).dialect
    assert isinstance(dialect, UITars)
    assert dialect.prompt("sing") == "Please sing"


def test_a_context_is_as_long_as_the_settings_say_and_never_longer_than_the_model_can_take(checkpoint: Path) -> None:
    def longest(context: str) -> int:
        local = load_agent(load_config(None, [f"agent.context={context}"]), str(checkpoint), 1).made.local
        assert local is not None
        return local.max_context

    model = longest("null")
    assert longest("100") == 100
    assert longest(str(model + 1)) == model > 100


def test_base_is_the_agent_that_comes_with_arpo_whatever_folders_lie_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.yaml").touch()
    assert find_model("base") == "base"
