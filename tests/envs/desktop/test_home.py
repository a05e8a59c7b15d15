"""The home folder's template: made once, kept for as long as a process uses it, and nobody else's is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from arpo.envs.desktop import home
from arpo.errors import ConfigError

SIZE = (640, 480)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where templates go; making one is short."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def made(size: tuple[int, int], now: Callable[[str], object]) -> bytes:
        now("a program, 1 of 1")
        return "{}x{}".format(*size).encode()

    monkeypatch.setattr(home, "made", made)
    home._key.cache_clear()
    yield tmp_path / "arpo"
    home._key.cache_clear()


def test_it_is_made_once_for_each_size(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [home.template(SIZE), home.template((800, 600))]
    assert [path.read_bytes() for path in paths] == [b"640x480", b"800x600"]
    monkeypatch.setattr(home, "made", lambda size, now: pytest.fail("it is there"))
    assert [home.template(SIZE), home.template((800, 600))] == paths


def test_who_waits_for_the_first_one_is_told_why(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.template(SIZE)
    assert capsys.readouterr() == ("", "first desktop of 640x480, some 20 s: starting a program, 1 of 1\n")
    home.template(SIZE)
    assert capsys.readouterr() == ("", "")


def test_a_process_keeps_its_own_when_the_programs_file_changes_and_a_new_one_has_another(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = home.template(SIZE)
    changed = cache / "home.py"
    changed.write_text("# another version")
    monkeypatch.setattr(home, "__file__", str(changed))
    assert home.template(SIZE) == first
    home._key.cache_clear()  # a process that starts now
    second = home.template(SIZE)
    assert second != first and first.exists()


def test_a_cache_folder_that_cannot_be_written_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write_text("a file")
    with pytest.raises(ConfigError, match=r"cannot be written \(.+\); set XDG_CACHE_HOME to a folder"):
        home.template(SIZE)
