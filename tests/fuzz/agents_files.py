"""Files that an agent left, read and judged: a number from 0 to 1, whatever is in them.

An exception would be no score at all, so an agent that fails would make one.
"""

import contextlib
import io
import json
import random
import sqlite3
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arpo.envs.desktop.checks.judge import judge
from arpo.envs.desktop.checks.reading import PICTURES as READ
from arpo.envs.evaluators import moved
from fuzz import Target, quiet
from fuzz.values import as_text, changed, damaged, pictures, text

Parts = dict[str, bytes]


def _zip(parts: Parts, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", method) as packed:
        for name, data in parts.items():
            packed.writestr(zipfile.ZipInfo(name), data, method)
    return written.getvalue()


WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
SHEET = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
OPEN = " ".join(
    f'xmlns:{name}="urn:oasis:names:tc:opendocument:xmlns:{of}:1.0"'
    for name, of in {"o": "office", "t": "table", "x": "text", "s": "style", "f": "xsl-fo-compatible"}.items()
)
DOCX: Parts = {
    "word/document.xml": f"<w:document {WORD}><w:body><w:p><w:r><w:t>Dear</w:t><w:tab/><w:t>A</w:t><w:br/></w:r></w:p>"
    "<w:p/></w:body></w:document>".encode()
}
ODT: Parts = {
    "content.xml": f'<o:doc {OPEN}><s:style s:name="P1"><s:prop f:font-weight="bold"/></s:style><o:body>'
    '<x:p x:style-name="P1">Dear<x:s x:c="3"/><x:tab/>A<x:span>b</x:span></x:p><x:h>c</x:h></o:body></o:doc>'.encode()
}
XLSX: Parts = {
    "xl/workbook.xml": f'<workbook {SHEET} xmlns:r="{LINKS}"><sheets><sheet name="One" r:id="rId1"/></sheets>'
    "</workbook>".encode(),
    "xl/_rels/workbook.xml.rels": b'<Relationships><Relationship Id="rId1" Target="worksheets/sheet1.xml"/>'
    b"</Relationships>",
    "xl/sharedStrings.xml": f"<sst {SHEET}><si><t>Month</t></si></sst>".encode(),
    "xl/worksheets/sheet1.xml": f'<worksheet {SHEET}><sheetData><row r="1"><c r="A1" t="s"><v>0</v></c><c r="B2">'
    '<v>12.5</v></c><c r="C3" t="inlineStr"><is><t>x</t></is></c></row></sheetData></worksheet>'.encode(),
}
ODS: Parts = {
    "content.xml": f'<o:doc {OPEN}><t:table t:name="One"><t:table-row t:number-rows-repeated="2"><t:table-cell '
    'o:value-type="string"><x:p>Month</x:p></t:table-cell><t:table-cell o:value-type="float" o:value="12.5" '
    't:formula="of:=SUM([.B2:.B5])"/><t:table-cell t:number-columns-repeated="16000"/></t:table-row></t:table></o:doc>'
    "".encode()
}
XML_WORDS = (
    b"<", b">", b"/>", b"</", b'="', b"&amp;", b"&#x0;", b"&x;", b"<!DOCTYPE a [<!ENTITY x 'y'>]>", b"<![CDATA[",
    b"]]>",
    b"<?xml version='1.0' encoding='utf-16'?>", b"<!--", b"nan", b"1e999", b"-1", b"9" * 30, b"NaN", b"inf",
    b"<a>" * 300,
    b'x:c="99999"', b'r="AAAAAAAA99999999"', b'r=""', b"\xff",
)  # fmt: skip
PDF_FONT = zlib.compress(b"begincmap 1 beginbfchar <01> <0041> endbfchar beginbfrange <02> <04> <0042> endbfrange")
PDF = (
    b"%PDF-1.4\n1 0 obj <</Type /Page /F1 2 0 R>> endobj\n2 0 obj <</ToUnicode 3 0 R>> endobj\n"
    b"3 0 obj <</Filter /FlateDecode>> stream\n" + PDF_FONT + b"\nendstream endobj\n"
    b"4 0 obj <<>> stream\nBT /F1 12 Tf <0102> Tj (a\\)b) Tj ET\nendstream endobj\n"
)
PDF_WORDS = (
    b" obj", b"5 0 obj ", b"stream\n", b"/FlateDecode", b"BT", b"ET", b"<", b">", b"(", b")", b"\\", b"beginbfchar ",
    b"beginbfrange <00> <ffffffff> <0041> endbf", b"<ffff> <d800>", b"begincmap", b"/ToUnicode 3 ",
    b"<fffffff0> <10ffff>",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """How a file, or a text that a command gave, is judged. `read`: the getter whose reader gets a value out of it."""

    metric: str
    rules: Any
    name: str = ""  # of the file; else it is a text
    read: str = "vm_file"
    named: dict[str, Any] = field(default_factory=dict)  # of the getter
    options: dict[str, Any] = field(default_factory=dict)
    beside: bytes | None = None  # a second file, in place of rules


@dataclass(frozen=True, slots=True)
class Given:
    case: Case
    data: bytes
    theirs: bool  # the metric is OSWorld's: the value goes on


def _maker(cases: list[Case], data: Callable[[random.Random, Case], bytes]) -> Callable[[random.Random], Given]:
    def make(rng: random.Random) -> Given:
        case = rng.choice(cases)
        return Given(case, data(rng, case), rng.random() < 0.1)

    return make


def run(folder: Path, given: Given) -> None:
    case = given.case
    fetched: Any = given.data.decode("utf-8", "replace")
    if case.name:
        fetched = str(folder / case.name)
        Path(fetched).write_bytes(given.data)
    wanted: dict[str, Any] = {"type": "rule", "rules": case.rules}
    if case.beside is not None:
        (folder / f"wanted-{case.name}").write_bytes(case.beside)
        wanted = {"type": "cloud_file", "path": "https://x/a", "dest": "a"}
    rules = case.rules if case.beside is None else str(folder / f"wanted-{case.name}")
    evaluator = {"func": case.metric, "result": {"type": case.read, **case.named}, "options": case.options}
    values = {"result": [fetched], "expected": [rules]}
    if case.metric not in ("is_utc_0",):
        evaluator["expected"] = wanted
    (verdict,) = judge(evaluator, values, [given.theirs])
    if isinstance(verdict, list):
        assert given.theirs
        json.dumps(moved(json.loads(json.dumps(verdict)), "/a", "/b"))  # as it goes on to OSWorld's client
    else:
        assert isinstance(verdict, float) and 0.0 <= verdict <= 1.0, verdict


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made, quiet():
        yield Path(made)


# Documents and tables: a zip file of XML.

PARTS = {".docx": DOCX, ".odt": ODT, ".xlsx": XLSX, ".ods": ODS}
METHODS = [
    *[zipfile.ZIP_STORED] * 9,
    *[zipfile.ZIP_DEFLATED] * 9,
    zipfile.ZIP_BZIP2,
    zipfile.ZIP_LZMA,
]  # the last are slow


def _office(rng: random.Random, case: Case) -> bytes:
    parts = dict(PARTS[Path(case.name).suffix if rng.random() < 0.95 else rng.choice(list(PARTS))])
    for name in list(parts):
        if rng.random() < 0.6:
            parts[name] = damaged(rng, parts[name], 4, XML_WORDS)
        if rng.random() < 0.03:
            del parts[name]
    if rng.random() < 0.05:
        parts[text(rng).encode("utf-8", "replace").decode()[:99] or "x"] = b""
    whole = _zip(parts, rng.choice(METHODS))
    return (
        damaged(rng, whole, 4, (b"PK\1\2", b"PK\3\4", b"PK\5\6", b"\xff" * 4, b"\0" * 8))
        if rng.random() < 0.4
        else whole
    )


DOCUMENTS = [
    Case("check_paragraphs", {"expected": ["Dear A", ""]}, "a.docx"),
    Case("check_paragraphs", {"expected": ["Dear"]}, "a.odt"),
    Case("compare_docx_files", None, "a.docx", beside=_zip(DOCX)),
    Case("compare_docx_files", None, "a.odt", beside=_zip(ODT), options={"ignore_blanks": False, "ignore_case": True}),
    Case("check_style", {"text": "Dear", "property": "font-weight", "expected": "bold", "only": True}, "a.odt"),
]
CHECK_CELL = {
    "type": "check_cell",
    "sheet_idx": 0,
    "coordinate": "B2",
    "props": {"value": {"method": "approx:1", "ref": 3}},
}
TABLES = [
    *(Case("check_cells", {"A1": "Month", "B2": 12.5, "A9": None}, name) for name in ("a.xlsx", "a.ods")),
    *(Case("check_cells", {"A1": 1}, name, options={"only": True, "sheet": "One"}) for name in ("a.xlsx", "a.ods")),
    Case("check_cells", {"B1": 12.5}, "a.ods", options={"formulas": {"B1": ["B2", "B3"]}}),
    Case("compare_table", None, "a.xlsx", beside=_zip(XLSX), options={"rules": [
        {"type": "sheet_name"}, {"type": "sheet_data", "sheet_idx0": 0, "sheet_idx1": "EI0"}, CHECK_CELL]}),
    Case("compare_table", None, "a.ods", beside=_zip(ODS), options={"rules": [CHECK_CELL]}),
    *(Case(metric, {"expected": ["None", "x"]}, "a.xlsx", read="content_from_vm_file", options=options,
           named={"path": "a.xlsx", "file_type": "xlsx", "file_content": "last_row"})
      for metric, options in (("exact_match", {}), ("literal_match", {"type": "list"}), ("is_in_list", {}))),
]  # fmt: skip

# Texts.

JSON: Any = {"a": {"b": [1, 2.5, "x", None, True]}, "c": "d", "date": "2020-01-01"}
YAML = b"a:\n  b: [1, 2.5, x, null]\nc: d\nwhen: 2020-01-01\nkey: &x {n: 0x1f}\nagain: *x\n<<: *x\n"
METHOD_NAMES = ["eq", "ne", "lt", "ge", "approx:0.1", "re"]
RULES = {"expect": [{"key": ["a", "b", 1], "method": name, "ref": "2" if name == "re" else 2} for name in METHOD_NAMES],
         "unexpect": [{"key": ["c"], "method": "eq", "ref": "x"}]}  # fmt: skip
XCU = b"""<oor:items xmlns:oor="http://openoffice.org/2001/registry">
<item oor:path="/org.openoffice.Office.Common/Save/Document">
<prop oor:name="AutoSaveTimeIntervall"><value>3</value></prop></item></oor:items>"""
VLC = b"qt-max-volume=125\n#qt-bgcone=1\nqt-slider-colours=1;2;3\ninput-record-path=/a\nglobal-key-play-pause=x\n"
LINES = b'Name,Age\nAnna,3\n"a\nb",""\n12:34:56 done 1,200.5\n'
TEXT_CASES: list[tuple[bytes, list[Case]]] = [
    (LINES, [
        Case("check_list", {"expect": ["An+a"], "unexpect": ["x$"]}, "a.txt"),
        Case("check_csv", {"expect": [{"Name": "Anna"}], "unexpect": [{"Age": "9"}]}, "a.csv"),
        Case("check_cells", {"A1": "Name", "B2": 3}, "a.csv"),
        Case("compare_text_file", None, "a.txt", beside=LINES, options={"ignore_blanks": True}),
        Case("diff_text_file", None, "a.txt", beside=LINES),
        Case("file_contains", {"expected": ["Anna"]}, "a.txt"),
        Case("check_line_number", {"expected": "1"}, "a.txt"),
        Case("check_include_exclude", {"include": ["Anna"], "exclude": ["x"]}),
        Case("check_numbers", {"expected": [3]}),
        Case("exact_match", {"expected": "Anna"}), Case("literal_match", "Anna", options={"ignore_case": True}),
        Case("is_in_list", {"expected": "Anna"}), Case("match_in_list", {"expected": ["Anna"]}),
    ]),
    (VLC, [
        Case("check_qt_max_volume", {"expected_qt_max_volume": 125}, "vlcrc"),
        Case("check_qt_slider_colours", {"type": "blackish"}, "vlcrc"),
        Case("is_vlc_recordings_folder", {"recording_file_path": "/a"}, "vlcrc"),
        Case("check_global_key_play_pause", {"expected_global_key_play_pause": 1}, "vlcrc"),
    ]),
    (b"(theme \"Dark\")\n(undo-size 100 yes)\n()\n", [
        Case("check_config_status", {"key": "theme", "value": '"Dark"'}, "gimprc"),
        Case("check_config_status", {"key": ["undo-size", "100"], "value": "yes"}, "gimprc"),
    ]),
    (XCU, [Case("check_auto_saving_time", {"minutes": 3}, "registrymodifications.xcu")]),
    (b"Time zone: UTC (UTC, +0000)\n", [Case("is_utc_0", None)]),
    (b"['a.desktop', 'b.desktop']", [Case("check_gnome_favorite_apps", {"expected": ["a.desktop"]})]),
    (b"a.desktop\na.desktop\nx\n\n", [Case("exact_match", {"expected": "a.desktop"}, read="default_video_player")]),
    (b"d/a\0f/a/b\0f/c\0l/d\0", [
        Case("exact_match", {"expected": {"type": "directory", "name": "x", "children": []}}, read="list_directory",
             named={"path": "~/x"}),
    ]),
    (YAML, [Case("check_json", RULES, "a.yaml", options={"is_yaml": True})]),
]  # fmt: skip
TEXT_WORDS = (
    b"\n", b"\r", b"=", b",", b'"', b"'", b"\0", b"\xff", b"[", b"[" * 300, b"{", b"]", b"(", b")", b"- ", b": ",
    b"&a ", b"*a",
    b"!!python/object:os.system ", b"!!binary x", b"? ", b"0x" + b"f" * 5000, b"1" * 5000, b".inf", b".nan",
    b"1e999", b"d/", b"f/", b"1:1:1:1", b"<<: ", b"|", b"12:34:56", b"-1" * 40, b"\xe2\x80\xa8", b"\x1b[2J",
)  # fmt: skip


def make_text(rng: random.Random) -> Given:
    data, cases = rng.choice(TEXT_CASES)
    return Given(rng.choice(cases), damaged(rng, data, 5, TEXT_WORDS + XML_WORDS[:14]), rng.random() < 0.1)


PREFERENCES: Any = {
    "enable_do_not_track": True,
    "safebrowsing": {"enhanced": True},
    "session": {"restore_on_startup": 5},
    "profile": {"name": "x", "default_content_setting_values": {"cookies": 4}},
    "default_search_provider_data": {"template_url_data": {"short_name": "Bing"}},
    "webkit": {"webprefs": {"default_font_size": 20}},
}
BOOKMARKS: Any = {"roots": {"bookmark_bar": {"children": [
    {"type": "folder", "name": "Liked Authors", "children": [{"type": "url", "url": "https://a/"}]},
    {"type": "url", "name": "b", "url": "https://b/"},
]}}}  # fmt: skip
TABS: Any = [{"type": "page", "title": "t", "url": "https://a/", "id": "1"}, {"type": "worker"}]
TRUE = {"expected": "true"}
JSON_CASES: list[tuple[Any, list[Case]]] = [
    (JSON, [Case("check_json", RULES, "a.json"),
            Case("check_direct_json_object", {"expected": {"c": "d"}, "expect_in_result": True}),
            Case("check_direct_json_object", {"expected": {"a": ["b"]}})]),
    (PREFERENCES, [
        *(Case("exact_match", TRUE, "preferences", read=name) for name in (
            "enable_do_not_track", "enable_safe_browsing", "new_startup_page", "data_delete_automacally")),
        *(Case(metric, {"expected": ["x", "Bing"], "include": ["x"]}, "preferences", read=name)
          for name in ("profile_name", "default_search_engine")
          for metric in ("match_in_list", "exact_match", "is_in_list", "literal_match", "check_include_exclude",
                         "check_direct_json_object")),
        Case("check_font_size", {"type": "range", "min": 10, "max": 30}, "preferences", read="chrome_font_size"),
        Case("check_font_size", {"type": "value", "value": 20}, "preferences", read="chrome_font_size"),
    ]),
    (BOOKMARKS, [
        Case("is_expected_bookmarks", {"type": kind, "names": ["b"], "urls": ["https://a/"]}, "b", read="bookmarks")
        for kind in ("bookmark_bar_folders_names", "bookmark_bar_websites_urls", "liked_authors_websites_urls")
    ]),
    (TABS, [Case("is_expected_tabs", {"type": "url", "urls": ["https://a"]}, "tabs", read="open_tabs_info")]),
]  # fmt: skip


def make_json(rng: random.Random) -> Given:
    value, cases = rng.choice(JSON_CASES)
    case = rng.choice(cases)
    if case.metric == "check_direct_json_object" and case.read != "vm_file":
        case = Case(case.metric, {"expected": {"c": "d"}}, case.name, case.read)
    value = changed(rng, value, 4)
    if rng.random() < 0.05:  # deep, but not so deep that it cannot be read
        for _ in range(rng.choice([100, 300, 900])):
            value = [value]
        value = {"profile": {"name": value}, "roots": value}
    return Given(case, as_text(rng, value), rng.random() < 0.2)


# Databases.


def _database(*statements: str) -> bytes:
    with tempfile.TemporaryDirectory() as made:
        with contextlib.closing(sqlite3.connect(f"{made}/a")) as db:
            db.execute("PRAGMA page_size = 512")
            for statement in statements:
                db.execute(statement)
            db.commit()
        return Path(made, "a").read_bytes()


VALUES = [
    "1",
    "NULL",
    "1e999",
    "-1e999",
    "'x'",
    "'0x1'",
    "x'ff'",
    "CAST(x'ff' AS TEXT)",
    "9223372036854775807",
    "zeroblob(99)",
]
COUNT = "SELECT count(*) FROM urls WHERE url LIKE '%a%'"
ONE = "SELECT last_visit_time FROM urls LIMIT 1"
DATABASE_CASES = [
    Case("run_sqlite3", {"sql": COUNT}, "a.db"), Case("run_sqlite3", {"sql": ONE}, "a.db"),
    Case("check_history_deleted", {"type": "keywords", "keywords": ["a"]}, "history", read="history"),
]  # fmt: skip
DATABASES = [
    _database("CREATE TABLE urls (url, title, last_visit_time)", f"INSERT INTO urls VALUES ({a}, {b}, {a})")
    for a, b in zip(VALUES, VALUES[1:] + VALUES[:1], strict=True)
] + [
    _database("CREATE VIEW urls AS SELECT 'a' url, 'b' title, 3 last_visit_time"),
    _database("CREATE TABLE urls (url PRIMARY KEY, title, last_visit_time) WITHOUT ROWID",
              "INSERT INTO urls VALUES (1, 2, 3)"),
    _database("CREATE VIEW urls AS WITH RECURSIVE c(x) AS (VALUES(1) UNION ALL SELECT x+1 FROM c LIMIT 5000) "
              "SELECT x url, x title, x last_visit_time FROM c"),
    _database("CREATE VIRTUAL TABLE urls USING fts5(url, title, last_visit_time)", "INSERT INTO urls VALUES (1, 2, 3)"),
]  # fmt: skip
_databases = _maker(
    DATABASE_CASES, lambda rng, _: damaged(rng, rng.choice(DATABASES), 6, (b"\xff" * 4, b"\0\1", b"SELECT ", b"urls"))
)

# Pictures.

PICTURE_CASES = [
    Case("check_image_size", {"width": 12, "height": 9}, "a.png"),
    Case("check_image_size", {"height": 9, "ignore_transparent": True}, "a.png"),
    Case("check_pixels", {"at": [[1, 1, [255, 0, 0]]]}, "a.png"),
]


PICTURES = pictures(READ)
_picture = _maker(
    PICTURE_CASES,
    lambda rng, _: damaged(rng, rng.choice(PICTURES), 5, (b"\xff" * 4, b"\0" * 4, b"IDAT", b"fcTL", b"\x7f\xff")),
)

TARGETS = [
    Target("documents", _maker(DOCUMENTS, _office), run, folder, ()),
    Target("tables", _maker(TABLES, _office), run, folder, ()),
    Target(
        "pdfs",
        _maker(
            [Case("check_pdf", {"expected": ["AB", "a)b"]}, "a.pdf")], lambda rng, _: damaged(rng, PDF, 6, PDF_WORDS)
        ),
        run,
        folder,
        (),
    ),
    Target("texts", make_text, run, folder, ()),
    Target("json", make_json, run, folder, ()),
    Target("databases", _databases, run, folder, ()),
    Target("pictures", _picture, run, folder, ()),
]
