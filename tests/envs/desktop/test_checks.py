"""Checkers see what is there; a file that an agent spoiled scores 0, a checker that fails is machinery."""

from __future__ import annotations

import inspect
import json
import os
import re
import sqlite3
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from arpo.envs import evaluators
from arpo.envs.desktop.catalog import task_file
from arpo.envs.desktop.checks import GETTERS, METRICS, missing_checks, score
from arpo.envs.desktop.checks.chrome import THEIR_PROFILE_GETTERS
from arpo.envs.desktop.checks.documents import paragraphs
from arpo.envs.desktop.checks.getters import HOME, Machine, vm_terminal_output
from arpo.envs.desktop.checks.rules import KEYS
from arpo.envs.desktop.checks.tables import cells, rows_of, sheets_of
from arpo.envs.desktop.families import INSTANCES
from arpo.envs.desktop.files import FileSource
from arpo.envs.desktop.needs import refuse
from arpo.envs.desktop.sandbox import Sandbox
from arpo.envs.desktop.setup import STEPS
from arpo.envs.desktop.shims import SHOWN
from arpo.envs.evaluators import Evaluators, Unreadable
from arpo.envs.task_format import asked_for, listed
from arpo.errors import ConfigError, EnvError, TaskError
from arpo.types import Task

Start = Callable[..., Sandbox]
Json = dict[str, Any]


def task_of(func: Any, result: Any, expected: Any = None, **evaluator: Any) -> Task:
    evaluator = {"func": func, "result": result, "expected": expected, **evaluator}
    return Task("t-1", "os", "Do it.", "desktop", {"config": []}, evaluator, "mine")


def rule(rules: Any) -> Json:
    return {"type": "rule", "rules": rules}


def said(command: str) -> Json:
    return {"type": "vm_command_line", "command": command, "shell": True}


# Metrics, each with what it takes for right and what for wrong.

PAIRS: list[tuple[str, Any, Any, Any, Json]] = [
    ("exact_match", "a\n", "a", {"expected": "a\n"}, {}),
    ("match_in_list", "Bing", "Google", {"expected": ["Bing", "Microsoft Bing"]}, {}),
    ("is_in_list", ["a", "b"], ["b"], {"expected": "a"}, {}),
    ("literal_match", "Yes", "no", "yes", {"ignore_case": True}),
    ("literal_match", ["A", "b"], ["a"], ["a", "B"], {"ignore_case": True, "type": "list"}),
    ("check_include_exclude", "43 132 ok", "43 132 error", {"include": ["43 132"], "exclude": ["error"]}, {}),
    ("check_direct_json_object", "{'a': 1, 'b': 2}", "{'a': 2}", {"expected": {"a": 1}}, {}),
    (
        "check_direct_json_object",
        {"a": "one, two"},
        {"a": "two"},
        {"expected": {"a": "one"}, "expect_in_result": True},
        {},
    ),
    ("is_utc_0", "\n\n\n  Time zone: Etc/UTC (UTC, +0000)", "\n\n\n  Time zone: CET (CET, +0100)", None, {}),
    ("check_gnome_favorite_apps", "['b', 'a']\n", "['a', 'b', 'c']\n", {"expected": ["a", "b"]}, {}),
    ("is_vlc_fullscreen", {"width": 4, "height": 3}, {"width": 4, "height": 2}, {"width": 4, "height": 3}, {}),
    (
        "check_font_size",
        {"default_font_size": 24},
        {"default_font_size": 16},
        {"type": "range", "min": 16, "max": 99},
        {},
    ),
    (
        "check_history_deleted",
        [("http://a", "", 0)],
        [("http://b/c", "", 0)],
        {"type": "keywords", "keywords": ["b"]},
        {},
    ),
    ("is_expected_tabs", [{"url": "http://a/"}], [{"url": "http://b"}], {"type": "url", "urls": ["http://a"]}, {}),
]
FILES: list[tuple[str, str, str, Any, Json]] = [
    ("check_list", "one\ntwo 2", "one\ntwo", {"expect": ["^o.e$", r"\d"], "unexpect": ["three"]}, {}),
    ("check_csv", "a,b\n1,2\n", "a,b\n1,3\n", {"expect": [{"a": "1", "b": "2"}], "unexpect": [{"b": "3"}]}, {}),
    ("file_contains", "one two", "one", {"expected": ["one", "two"]}, {}),
    ("check_line_number", "12:00:01 a\n12:00:02 b\nc", "12:00:01", {"expected": "2"}, {}),
    ("check_json", '{"a": [1, 2]}', '{"a": [1]}', {"expect": [{"key": ["a", 1], "method": "eq", "ref": 2}]}, {}),
    ("check_json", '{"a": 3.04}', '{"a": "x"}', {"expect": [{"key": ["a"], "method": "approx:0.1", "ref": 3}]}, {}),
    ("check_json", "a: xyz", "a: abc", {"unexpect": [{"key": ["a"], "method": "re", "ref": "^ab"}]}, {"is_yaml": True}),
    ("check_cells", "n,v\nx,2.5\n", "n,v\nx,2\n", {"A1": "n", "B2": 2.5, "C9": None}, {}),
    ("check_qt_bgcone", "[qt]\nqt-bgcone=0\n", "qt-bgcone=1\n", {"expected_qt_bgcone": 0}, {}),
    ("check_play_and_exit", "#play-and-exit=1\n", "play-and-exit=1\n", {"expected_play_and_exit": 0}, {}),
    ("check_qt_slider_colours", "qt-slider-colours=1;2;3\n", "qt-slider-colours=1;2;200\n", {"type": "blackish"}, {}),
    ("is_vlc_recordings_folder", "input-record-path=/a\n", "input-record-path=/b\n", {"recording_file_path": "/a"}, {}),
    ("check_global_key_play_pause", "global-key-play-pause=F3\n", "", {"expected_global_key_play_pause": 1}, {}),
    ("check_config_status", "# x\n(theme Light)\n", "(theme Dark)\n", {"key": "theme", "value": "Light"}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "right", "wrong", "wanted", "options"), PAIRS, ids=[one[0] for one in PAIRS])
def test_a_metric_tells_right_values_from_wrong_ones(
    name: str, right: Any, wrong: Any, wanted: Any, options: Json
) -> None:
    arguments = [] if wanted is None else [wanted]
    assert (METRICS[name](right, *arguments, **options), METRICS[name](wrong, *arguments, **options)) == (1.0, 0.0)


@pytest.mark.parametrize(("name", "right", "wrong", "wanted", "options"), FILES, ids=[one[0] for one in FILES])
def test_a_metric_tells_right_files_from_wrong_ones(
    name: str, right: str, wrong: str, wanted: Any, options: Json, tmp_path: Path
) -> None:
    scores = []
    for text in (right, wrong):
        (path := tmp_path / "found.csv").write_text(text)
        scores.append(METRICS[name](str(path), wanted, **options))
    assert scores == [1.0, 0.0]


def test_texts_are_compared_with_or_without_blanks(tmp_path: Path) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    Path(ours).write_text("one  two\n")
    Path(theirs).write_text("one two")
    compare = METRICS["compare_text_file"]
    assert [compare(ours, theirs), compare(ours, theirs, ignore_blanks=True), compare(theirs, theirs)] == [0, 1, 1]
    Path(ours).write_text("One two")
    assert compare(ours, theirs, ignore_blanks=True) == 0
    assert METRICS["diff_text_file"](ours, ours) == 1


def test_pictures_are_looked_at(tmp_path: Path) -> None:
    path = str(tmp_path / "p.png")
    Image.new("RGB", (8, 6), (250, 0, 0)).save(path)
    size, pixels = METRICS["check_image_size"], METRICS["check_pixels"]
    assert [size(path, {"width": 8, "height": 6}), size(path, {"height": 6}), size(path, {"width": 6})] == [1, 1, 0]
    picture = Image.new("RGBA", (8, 6))
    picture.paste((9, 9, 9, 255), (2, 1, 5, 6))
    picture.save(tmp_path / "clear.png")
    clear = str(tmp_path / "clear.png")
    assert [size(clear, {"height": 5, "ignore_transparent": one}) for one in (True, False)] == [1, 0]
    assert pixels(path, {"at": [[0, 0, [255, 0, 0]], [7, 5, [250, 0, 0]]]}) == 1
    assert pixels(path, {"at": [[0, 0, [255, 0, 0]]], "tolerance": 2}) == 0
    assert pixels(path, {"at": [[8, 0, [250, 0, 0]]]}) == 0


@pytest.mark.slow
@pytest.mark.desktop("libreoffice")
def test_what_libreoffice_writes_is_read_whatever_its_format(start: Start, tmp_path: Path) -> None:
    sandbox = start()
    sandbox.write(f"{HOME}/t.csv", b"name,sum\nTea & co,12.5\n,7\n")
    sandbox.write(f"{HOME}/t.txt", "Dear Ünal,\n\ncome  now!".encode())
    for kind, source in (("xlsx", "t.csv"), ("ods", "t.csv"), ("docx", "t.txt"), ("odt", "t.txt")):
        assert sandbox.run(["libreoffice", "--headless", "--convert-to", kind, source]).status == 0
        (tmp_path / f"t.{kind}").write_bytes(sandbox.read(f"{HOME}/t.{kind}"))
    for kind in ("xlsx", "ods"):
        table = str(tmp_path / f"t.{kind}")
        assert cells(table) == {"A1": "name", "B1": "sum", "A2": "Tea & co", "B2": 12.5, "B3": 7.0}
        assert rows_of(table) == [["name", "sum"], ["Tea & co", 12.5], [None, 7.0]]
        assert list(sheets_of(table)) == ["t"]
        assert METRICS["compare_table"](table, str(tmp_path / "t.ods"), rules=RULES) == 1
        assert METRICS["compare_table"](table, rules=[{**RULES[1], "coordinate": "B3"}]) == 0
    for kind in ("docx", "odt"):
        text = str(tmp_path / f"t.{kind}")
        assert paragraphs(text) == ["Dear Ünal,", "", "come  now!"]
        assert METRICS["check_paragraphs"](text, {"expected": ["Dear Ünal,", "come  now!"]}) == 1
        assert METRICS["compare_docx_files"](text, str(tmp_path / "t.odt")) == 1


RULES: list[Json] = [
    {"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"},
    {"type": "check_cell", "sheet_idx": 0, "coordinate": "B2", "props": {"value": {"method": "approx:1", "ref": 12}}},
    {"type": "sheet_name"},
]


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 broken", b"\xff\xfe\x00", b"<a><b></a>"], ids=repr)
def test_a_file_that_is_not_what_it_should_be_is_unreadable(data: bytes, tmp_path: Path) -> None:
    path = str(tmp_path / "found")
    Path(path).write_bytes(data)
    wanted: Json = {"expected": ["x"], "width": 1, "at": [], "minutes": 3, "sql": "SELECT 1 FROM a", "expect": []}
    for name in (
        "check_cells",
        "check_paragraphs",
        "check_image_size",
        "check_json",
        "check_auto_saving_time",
        "run_sqlite3",
    ):
        if (name, data) != ("check_json", b""):
            with pytest.raises(Unreadable):
                METRICS[name](path, wanted)


def zip_of(parts: dict[str, str | bytes]) -> bytes:
    with tempfile.TemporaryFile() as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, part in parts.items():
                packed.writestr(name, part)
        file.seek(0)
        return file.read()


def open_document(inside: str) -> bytes:
    names = {name: f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0" for name in ("office", "table", "text")}
    spaces = " ".join(f'xmlns:{name}="{uri}"' for name, uri in names.items())
    return zip_of({"content.xml": f"<office:body {spaces}>{inside}</office:body>"})


def ods(cell: str, row: str = "") -> bytes:
    return open_document(f"<table:table><table:table-row {row}>{cell}</table:table-row></table:table>")


def workbook(sheets: int, sheet: str) -> bytes:
    """Many sheets that are all the same part of the file."""
    main, links = (
        f"http://schemas.openxmlformats.org/{name}"
        for name in ("spreadsheetml/2006/main", "officeDocument/2006/relationships")
    )
    named = "".join(f'<sheet name="{i}" r:id="a"/>' for i in range(sheets))
    return zip_of(
        {
            "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{links}">{named}</workbook>',
            "xl/_rels/workbook.xml.rels": '<a><b Id="a" Target="one.xml"/></a>',
            "xl/one.xml": f'<worksheet xmlns="{main}">{sheet}</worksheet>',
        }
    )


def picture_of(width: int, height: int) -> bytes:
    def chunk(data: bytes) -> bytes:
        return struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))

    about = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(about) + chunk(b"IDAT")


def with_flag(data: bytes) -> bytes:
    """The first file of an archive is said to have a password."""
    at = data.index(b"PK\1\2") + 8
    return data[:at] + b"\1" + data[at + 1 :]


REPEATED = 'table:number-columns-repeated="{}"'.format
VALUE = 'office:value-type="float" office:value="{}"'.format
SPOILED: list[tuple[str, str, bytes, Json]] = [
    ("a date that is none", "check_json", b"a: 2024-13-45", {"is_yaml": True}),
    ("depth in YAML", "check_json", b"[" * 2000, {"is_yaml": True}),
    ("a long field", "check_csv", b'"' + b"x" * 200_000, {}),
    ("a long field in cells", "check_cells", b'"' + b"x" * 200_000, {}),
    ("a picture for no memory", "check_image_size", picture_of(40_000, 40_000), {}),
    ("a password", "check_paragraphs", with_flag(open_document("")), {}),
    ("bits that are wrong", "check_paragraphs", open_document("")[:41] + b"\xff" + open_document("")[42:], {}),
    ("rows that are no number", "check_cells.ods", ods("", 'table:number-rows-repeated="x"'), {}),
    ("a value that is no number", "check_cells.ods", ods(f"<table:table-cell {VALUE('x')}/>"), {}),
    ("columns that go back", "check_cells.ods", ods(f"<table:table-cell {REPEATED(-9)} {VALUE(1)}/>" * 2), {}),
    (
        "too many cells",
        "check_cells.ods",
        ods(f"<table:table-cell {REPEATED(999)} {VALUE(1)}/>" * 99, 'table:number-rows-repeated="999"'),
        {},
    ),
    ("the same sheet for ever", "check_cells.xlsx", workbook(100, "<c/>" + " " * (1 << 20)), {}),
    ("blanks that are no number", "check_paragraphs", open_document('<text:p><text:s text:c="x"/></text:p>'), {}),
    ("too many blanks", "check_paragraphs", open_document('<text:p><text:s text:c="999999999"/></text:p>'), {}),
    ("depth", "check_paragraphs", open_document("<text:p>" * 999 + "</text:p>" * 999), {}),
    (
        "entities in other letters",
        "check_paragraphs",
        zip_of({"content.xml": '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'.encode("utf-16")}),
        {},
    ),
]


@pytest.mark.parametrize(("name", "data", "options"), [one[1:] for one in SPOILED], ids=[one[0] for one in SPOILED])
def test_a_file_that_an_agent_spoiled_is_unreadable_and_costs_little(
    name: str, data: bytes, options: Json, tmp_path: Path
) -> None:
    metric, _, kind = name.partition(".")
    path = tmp_path / f"found.{kind or 'csv'}"
    path.write_bytes(data)
    with pytest.raises(Unreadable):
        METRICS[metric](str(path), {"expected": [], "expect": [], "A1": 1}, **options)


def test_a_grid_of_far_cells_is_not_built(tmp_path: Path) -> None:
    (path := tmp_path / "t.xlsx").write_bytes(workbook(1, '<c r="A1"><v>1</v></c><c r="ZZZZ9999999"><v>1</v></c>'))
    with pytest.raises(Unreadable):
        rows_of(str(path))


@pytest.mark.parametrize("endless", ["SELECT n FROM c", "SELECT max(n) FROM c", "SELECT 'words'"])
def test_a_query_of_an_agents_database_ends(endless: str, tmp_path: Path) -> None:
    path = str(tmp_path / "found.sqlite")
    with sqlite3.connect(path) as connection:
        counting = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c)"
        connection.execute(f"CREATE VIEW pages AS {counting} {endless}")
    connection.close()
    with pytest.raises(Unreadable):
        METRICS["run_sqlite3"](path, {"sql": "SELECT * FROM pages"})


# Scores.


@pytest.mark.desktop
def test_the_expected_file_may_be_called_as_the_agents_is(start: Start, tmp_path: Path) -> None:
    sandbox = start()
    (tmp_path / "a.txt").write_text("wanted")
    gold = {"type": "cloud_file", "path": "https://files/a.txt", "dest": "a.txt"}
    file = {"type": "vm_file", "path": f"{HOME}/a.txt", "dest": "a.txt"}
    for written, expected in (("another", 0), ("wanted", 1)):
        sandbox.write(f"{HOME}/a.txt", written.encode())
        assert score(sandbox, task_of("compare_text_file", file, gold), "", FileSource(str(tmp_path))) == expected


@pytest.mark.desktop
def test_metrics_are_joined_as_osworld_joins_them(start: Start) -> None:
    sandbox = start()
    for name in ("ab", "abcd", "xy"):
        sandbox.write(f"{HOME}/{name}", "\n".join(name).encode())
    half, whole, none = ({"type": "vm_file", "path": f"{HOME}/{name}"} for name in ("ab", "abcd", "xy"))

    def both(first: Json, second: Json, conj: str) -> float:
        return score(sandbox, task_of(["diff_text_file"] * 2, [first, second], [whole] * 2, conj=conj), "")

    assert both(whole, half, "and") == pytest.approx((1 + 2 / 3) / 2)
    assert both(whole, none, "and") == 0
    in_part = replace(task_of(["diff_text_file"] * 2, [whole, none], [whole] * 2), partial=0.3)
    assert score(sandbox, in_part, "") == pytest.approx(0.3 / 2)
    assert both(half, none, "or") == pytest.approx(2 / 3)
    assert score(sandbox, task_of("exact_match", {"type": "answer"}, rule({"expected": "42"})), "42") == 1
    assert score(sandbox, task_of("is_utc_0", said("echo 'Time zone: UTC (UTC, +0000)'")), "") == 1


@pytest.mark.desktop
def test_a_missing_value_and_a_spoiled_file_score_0_and_a_broken_checker_is_machinery(start: Start) -> None:
    sandbox = start()
    sandbox.write(f"{HOME}/t.xlsx", b"not a spreadsheet")
    for result in (
        {"type": "vm_file", "path": f"{HOME}/none.csv", "dest": "none.csv"},
        {"type": "vm_file", "path": f"{HOME}/t.xlsx", "dest": "t.xlsx"},
        {"type": "vm_file", "path": HOME, "dest": "folder"},
        {"type": "vm_file", "path": [f"{HOME}/t.xlsx", "/none"], "dest": ["a", "b"], "multi": True, "gives": [0, 1]},
        {"type": "vm_command_line", "command": [f"{HOME}/no-such-program"]},
    ):
        assert score(sandbox, task_of("check_cells", result, rule({"A1": 1})), "") == 0
    with pytest.raises(EnvError, match=r"^t-1: its checker failed: KeyError: 'expected'$"):
        score(sandbox, task_of("exact_match", said("true"), rule({})), "")
    missing = {"type": "vm_command_line", "command": ["no-such-program"]}
    with pytest.raises(EnvError, match=r"^the checker needs the program no-such-program, which is not installed$"):
        score(sandbox, task_of("exact_match", missing, rule({"expected": ""})), "")


@pytest.mark.desktop
def test_each_score_has_a_cache_folder_of_its_own_that_goes_with_it(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = start()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sandbox.write(f"{HOME}/a.txt", b"one")
    last = [{"type": "execute", "parameters": {"command": "cat a.txt", "shell": True, "stdout": "kept"}}]
    task = task_of(
        "file_contains", {"type": "cache_file", "path": "kept"}, rule({"expected": ["one"]}), postconfig=last
    )
    assert score(sandbox, task, "") == 1
    task = task_of("file_contains", {"type": "cache_file", "path": "kept"}, rule({"expected": ["one"]}))
    assert score(sandbox, task, "") == 0  # nothing is left of the one before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.desktop("xterm")
def test_windows_terminals_and_folders_are_seen(start: Start) -> None:
    sandbox = start()
    sandbox.launch(["xterm", "-T", "mine", "-e", "sh", "-c", "echo hello there; touch said; exec sleep 100"])
    sandbox.run("mkdir -p d/e && touch d/b d/a d/e/c; until [ -e said ]; do sleep 0.02; done")
    tree = {
        "type": "directory",
        "name": "d",
        "children": [
            {"type": "file", "name": "a"},
            {"type": "file", "name": "b"},
            {"type": "directory", "name": "e", "children": [{"type": "file", "name": "c"}]},
        ],
    }
    expected = {
        "vm_terminal_output": "hello there",
        "list_directory": tree,
        "vm_screen_size": {"width": 640, "height": 480},
    }
    for getter, value in expected.items():
        result = {"type": getter} | ({"path": f"{HOME}/d"} if getter == "list_directory" else {})
        assert score(sandbox, task_of("exact_match", result, rule({"expected": value})), "") == 1, getter


@pytest.mark.desktop("xterm")
def test_a_terminal_that_is_slow_to_answer_is_waited_for(start: Start) -> None:
    sandbox = start()
    second = "until [ -e go ]; do sleep 0.02; done; echo second; touch said"
    sandbox.launch(["xterm", "-e", "sh", "-c", f"echo first; {second}; exec sleep 100"])
    shown = {"type": "vm_terminal_output"}
    machine = Machine(sandbox, Path(), FileSource(), "")  # no score yet: an xterm that stood still prints no more
    while vm_terminal_output(machine) != "first":
        pass
    # The order is fixed by what is seen, not by time: it is stopped before there is more to show, and goes on only
    # after it was asked, which begins by removing its last answer.
    sandbox.run("pkill -STOP -x xterm; touch go; until [ -e said ]; do sleep 0.02; done")
    goes_on = f"while [ -e {SHOWN} ]; do sleep 0.02; done; sleep 0.5; pkill -CONT -x xterm"
    sandbox.run(f"( {goes_on} ) >/dev/null 2>&1 &")
    assert score(sandbox, task_of("check_include_exclude", shown, rule({"include": ["second"]})), "") == 1


@pytest.mark.desktop
def test_the_browsers_profile_is_read(start: Start) -> None:
    sandbox = start()
    fresh = {"enable_do_not_track": "false", "new_startup_page": "true", "default_search_engine": "Google"}
    for getter, value in fresh.items():
        assert score(sandbox, task_of("exact_match", {"type": getter}, rule({"expected": value})), "") == 1
    settings = {
        "enable_do_not_track": True,
        "session": {"restore_on_startup": 4},
        "profile": {"name": "Thomas", "default_content_setting_values": {"cookies": 4}},
        "safebrowsing": {"enabled": True},
        "default_search_provider_data": {"template_url_data": {"short_name": "Bing"}},
    }
    bar = {"children": [{"type": "folder", "name": "Favorites", "children": []}, {"type": "url", "url": "http://a"}]}
    profile = f"{HOME}/.config/google-chrome/Default"
    sandbox.write(f"{profile}/Preferences", json.dumps(settings).encode())
    sandbox.write(f"{profile}/Bookmarks", json.dumps({"roots": {"bookmark_bar": bar}}).encode())
    expected = {
        "enable_do_not_track": "true", "new_startup_page": "false", "profile_name": "Thomas",
        "default_search_engine": "Bing", "data_delete_automacally": "true", "enable_safe_browsing": "true",
    }  # fmt: skip
    for getter, value in expected.items():
        assert score(sandbox, task_of("exact_match", {"type": getter}, rule({"expected": value})), "") == 1, getter
    for rules in (
        {"type": "bookmark_bar_folders_names", "names": ["Favorites"]},
        {"type": "bookmark_bar_websites_urls", "urls": ["http://a"]},
    ):
        assert score(sandbox, task_of("is_expected_bookmarks", {"type": "bookmarks"}, rule(rules)), "") == 1


# What is not here.


def test_checkers_that_are_not_here_are_named_with_their_options() -> None:
    file = {"type": "vm_file", "path": "/a", "dest": "a"}
    assert missing_checks(task_of("exact_match", said("ls"), rule({}))) == []
    assert missing_checks(task_of("infeasible", None)) == []
    assert missing_checks(task_of(["compare_pdfs", "exact_match"], [file, {"type": "page_info", "url": "x"}])) == [
        "compare_pdfs",
        "page_info",
    ]
    assert missing_checks(task_of("compare_docx_files", file, file, options={"fuzzy_match": True})) == [
        "compare_docx_files (fuzzy_match)"
    ]
    assert missing_checks(task_of("exact_match", {**file, "time_suffix": True})) == ["vm_file (time_suffix)"]
    rules = [*RULES, {"type": "chart"}, {"type": "check_cell", "props": {"bgcolor": {}}}]
    assert missing_checks(task_of("compare_table", file, file, options={"rules": rules})) == [
        "compare_table (chart)",
        "compare_table (check_cell of style)",
    ]
    with pytest.raises(TaskError) as refused:
        refuse(task_of("compare_pdfs", file, file), {})
    assert str(refused.value) == (
        "t-1: this environment lacks its checkers compare_pdfs; OSWorld's client may have them: "
        "set env.osworld_python to its interpreter"
    )


def test_a_misspelt_checker_has_a_nearest_name() -> None:
    for task, near in (
        (task_of("exact_mach", said("ls"), rule({"expected": 1})), "exact_mach; did you mean exact_match?"),
        (task_of("exact_match", {"type": "vm_fil"}, rule({"expected": 1})), "vm_fil; did you mean vm_file?"),
    ):
        with pytest.raises(TaskError, match=re.escape(f"t-1: this environment lacks its checkers {near}; OSWorld's")):
            refuse(task, {})


def test_the_rules_of_every_metric_that_has_some_are_known() -> None:
    with_rules = {name for name, one in METRICS.items() if "rules" in list(inspect.signature(one).parameters)[1:2]}
    assert with_rules == KEYS.keys()


FILE: Json = {"type": "vm_file", "path": "/a", "dest": "a"}
CELL: Json = {"type": "check_cell", "sheet_idx": 0, "coordinate": "A1"}
BROKEN: list[tuple[Task, str]] = [
    (task_of("exact_match", said("ls"), rule({"expcted": 1})), "its rules lack expected"),
    (task_of("exact_match", said("ls")), "exact_match: missing a required argument: 'rules'"),
    (task_of("exact_match", said("ls"), {"type": "rule", "ruls": {}}), "lacks its checkers rule (ruls)"),
    (task_of("exact_match", {"type": "vm_command_line"}, rule({"expected": 1})), "vm_command_line: missing"),
    (task_of("exact_match", None, rule({"expected": 1})), "result is missing"),
    (task_of("exact_match", said("ls"), rule({"expected": 1}), conj="OR"), "conj: Input should be 'and' or 'or'"),
    (task_of("exact_match", said("ls"), rule({"expected": 1}), expcted={}), "expcted: Extra inputs"),
    (task_of(["exact_match"], [said("ls")], [rule({"expected": 1})] * 2), "lists of the same length"),
    (task_of("exact_match", [said("ls")], rule({"expected": 1})), "lists of the same length"),
    (task_of("check_include_exclude", said("ls"), rule({"includ": ["a"]})), "an unknown includ"),
    (task_of("check_include_exclude", said("ls"), rule({"include": []})), "must have one of exclude, include"),
    (task_of("check_list", FILE, rule({"expected": ["a"]})), "an unknown expected"),
    (task_of("check_json", FILE, rule({"expect": [{"key": ["a"], "method": "eq"}]})), "must have key, method, ref"),
    (task_of("check_json", FILE, rule({"expect": [{"key": ["a"], "method": "is", "ref": 1}]})), "method 'is'"),
    (task_of("check_cells", FILE, rule({"b7": 1})), "values of cells by their names"),
    (task_of("compare_table", FILE), "compare_table: missing a required argument: 'rules'"),
    (task_of("compare_table", FILE, options={"rules": []}), "without rules"),
    (task_of("compare_table", FILE, options={"rules": [{**CELL, "props": {}}]}), "check_cell lacks props"),
    (task_of("file_contains", {**FILE, "dest": "../a"}, rule({"expected": []})), "not paths to elsewhere"),
    (task_of("file_contains", {**FILE, "dest": "/tmp/a"}, rule({"expected": []})), "not paths to elsewhere"),
    (task_of("file_contains", {"type": "cache_file", "path": "/etc/passwd"}, rule({"expected": []})), "not paths"),
    (task_of("diff_text_file", {"type": "vm_file", "path": ["/a", "/b/a"], "multi": True}, FILE), "give each its own"),
    (
        task_of("exact_match", {"type": "vm_command_line", "command": ["no-such-program"]}, rule({"expected": 1})),
        "its checker needs the program no-such-program, which is not installed",
    ),
]


@pytest.mark.parametrize(("task", "reason"), BROKEN, ids=[reason for _, reason in BROKEN])
def test_a_checker_that_is_misspelt_is_refused_before_it_is_played(task: Task, reason: str) -> None:
    with pytest.raises(TaskError) as refused:
        refuse(task, {})
    assert reason in str(refused.value) and str(refused.value).startswith("t-1: ")
    assert "\n" not in str(refused.value)


# OSWorld's evaluators, by their own interpreter. A stand-in package shows the conversation, the client the real thing.

STANDIN = """
import os
def compare_pdfs(found, wanted, scale=1.0):
    print("chatter")
    return scale * (open(found).read() == open(wanted).read())
def dies(found): os._exit(3)
def raises(found): raise RuntimeError("no good")
"""
STANDIN_GETTERS = """
import os
def get_twice(env, config):
    text = env.controller.get_file(config["path"]).decode()
    path = os.path.join(env.cache_dir, "twice")
    open(path, "w").write(text * 2)
    return path if env.controller.get_file("/none") is None else None
def get_over_http(env, config): return env.vm_ip
def get_by_way_of(env, config): return get_over_http(env, config)
def get_cookie_data(env, config): return "none"
def get_unknown_call(env, config): return env.controller.start_recording()
"""


@pytest.fixture
def standin(tmp_path: Path) -> Iterator[Evaluators]:
    folder = tmp_path / "lib" / "desktop_env" / "evaluators"
    folder.mkdir(parents=True)
    for init in (folder.parent / "__init__.py", folder / "__init__.py"):
        init.touch()
    (folder / "metrics.py").write_text(STANDIN)
    (folder / "getters.py").write_text(STANDIN_GETTERS)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/lib exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    client = evaluators.evaluators(str(python))
    yield client
    client.close()


@pytest.mark.desktop
def test_other_checkers_are_asked_of_the_osworld_interpreter(start: Start, standin: Evaluators, tmp_path: Path) -> None:
    sandbox = start()
    sandbox.write(f"{HOME}/a.txt", b"ab")
    sandbox.write(f"{HOME}/b.txt", b"abab")
    twice = {"type": "twice", "path": f"{HOME}/a.txt"}
    file = {"type": "vm_file", "path": f"{HOME}/b.txt", "dest": "b.txt"}
    task = task_of("compare_pdfs", twice, file, options={"scale": 0.5})
    assert missing_checks(task, standin) == []
    assert score(sandbox, task, "", osworld=standin) == 0.5
    for getter in ("over_http", "by_way_of", "unknown_call"):
        assert missing_checks(task_of("exact_match", {"type": getter}), standin) == [getter]
    with pytest.raises(EnvError, match=r"evaluator raises failed: RuntimeError: no good"):
        score(sandbox, task_of("raises", file), "", osworld=standin)
    with pytest.raises(EnvError, match="ended"):
        score(sandbox, task_of("dies", file), "", osworld=standin)
    assert score(sandbox, task, "", osworld=standin) == 0.5  # there is a new one


@pytest.mark.desktop("xterm")
def test_the_browser_is_closed_before_osworlds_client_reads_its_profile(start: Start, standin: Evaluators) -> None:
    sandbox = start()
    sandbox.launch(["xterm", "-class", "Chromium", "-e", "sleep", "100"])
    while not sandbox.ask("windows"):
        sandbox.ask("settle", limit_s=0.1, quiet_s=0.1, busy=1.0)
    task = task_of("exact_match", {"type": "cookie_data"}, rule({"expected": "none"}))
    assert score(sandbox, task, "", osworld=standin) == 1
    assert sandbox.run("for i in $(seq 100); do pgrep xterm || exit 0; sleep 0.1; done; exit 1").status == 0


@pytest.mark.desktop
def test_an_interpreter_without_osworlds_client_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has not got OSWorld's client: ModuleNotFoundError"):
        Evaluators(sys.executable).has_metric("compare_pdfs")
    with pytest.raises(ConfigError, match=r"^env\.osworld_python=.*/none: No such file"):
        Evaluators(str(tmp_path / "none")).has_metric("compare_pdfs")


OSWORLD = Path(__file__).parents[4] / "shared" / "osworld"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
PYTHON = CACHE / "arpo" / "osworld-client" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.desktop
@pytest.mark.skipif(not PYTHON.exists(), reason="OSWorld's client is not installed: `make osworld-client` does it")
def test_osworlds_client_scores_what_is_not_here(start: Start) -> None:
    sandbox = start()
    settings = json.dumps({"editor.fontSize": 20}).encode()
    sandbox.write(f"{HOME}/settings.json", settings)
    sandbox.write(f"{HOME}/Desktop/web.desktop", b"[Desktop Entry]\nName=Web\n")
    client = Evaluators(str(PYTHON))
    try:
        for size, expected in ((20, 1.0), (21, 0.0)):
            file = {"type": "vm_file", "path": f"{HOME}/settings.json", "dest": "settings.json"}
            task = task_of("check_json_settings", file, rule({"expected": {"editor.fontSize": size}}))
            assert missing_checks(task) == ["check_json_settings"] and missing_checks(task, client) == []
            assert score(sandbox, task, "", osworld=client) == expected
        shortcut = task_of(
            "is_shortcut_on_desktop", {"type": "shortcuts_on_desktop"}, rule({"type": "name", "name": "Web"})
        )
        assert score(sandbox, shortcut, "", osworld=client) == 1.0
    finally:
        client.close()


@pytest.mark.slow
@pytest.mark.desktop
@pytest.mark.skipif(not PYTHON.exists(), reason="OSWorld's client is not installed: `make osworld-client` does it")
def test_osworlds_client_agrees_with_our_metrics(tmp_path: Path) -> None:
    client = Evaluators(str(PYTHON))
    differ, compared = [], 0
    try:
        for name, right, wrong, wanted, options in [*PAIRS, *FILES]:
            if not client.has_metric(name):
                continue
            for found in (right, wrong):
                if (name, right, wrong, wanted, options) in FILES:
                    (path := tmp_path / "found.csv").write_text(found)
                    found = str(path)
                arguments = [found] if wanted is None else [found, wanted]
                compared += 1
                if client.metric(name, arguments, options, tmp_path) != METRICS[name](*arguments, **options):
                    differ.append((name, found))
    finally:
        client.close()
    assert differ == [] and compared > 40


def test_the_worker_needs_nothing_of_ours() -> None:
    folder = Path(evaluators.__file__).parent / "desktop"
    start = f"import sys; sys.path = [*sys.path, {str(folder)!r}]; from guest import osworld_worker as it; it.main()"
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start, "1"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert json.loads(said.stdout)["error"].startswith("ModuleNotFoundError: No module named 'desktop_env'")


@pytest.mark.skipif(not OSWORLD.is_dir(), reason="OSWorld's own files are not beside this checkout")
def test_some_task_uses_each_checker_and_each_setup_step() -> None:
    """Ours, or one of OSWorld's 369: what none uses is not kept."""
    theirs = [json.loads(path.read_text("utf-8")) for path in OSWORLD.glob("examples/*/*.json")]
    used = set()
    for task in [*map(task_file, INSTANCES), *theirs]:
        evaluator = task["evaluator"]
        used |= {*listed(evaluator["func"]), *(what["type"] for what in asked_for(evaluator))}
        used |= {step["type"] for step in [*task.get("config", []), *evaluator.get("postconfig", [])]}
    assert {*METRICS, *GETTERS, *THEIR_PROFILE_GETTERS, *STEPS} - used == set()
    assert len(theirs) == 369
