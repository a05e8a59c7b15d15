"""Files that an agent made, read as what they should be. What cannot be is Unreadable, and scores 0.

    text(path)   json_of(path)   csv_of(path)   xml_of(data)   archive(path)   image(path)   database(path, sql)

A small file should not become a large one, so each reader has a bound; where that fails, the process has (judging.py).
"""

import csv
import functools
import io
import json
import lzma
import sqlite3
import struct
import xml.etree.ElementTree as ET
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import yaml
from PIL import Image

from arpo.envs.evaluators import Unreadable

P = ParamSpec("P")
R = TypeVar("R")
LARGEST = 64 << 20  # bytes of all parts of an archive that are read, unpacked
DEEPEST = 200  # elements of XML in one another
MOST_PIXELS = 1 << 26
MOST_ROWS = 100_000  # of a query
MOST_WORK = 1000  # of a query, in hundred thousands of instructions: some seconds
PICTURES = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")  # for others Pillow may start programs
BAD = (
    OSError, ValueError, LookupError, ArithmeticError, EOFError, SyntaxError, RuntimeError, TypeError, AttributeError,
    struct.error, zlib.error, lzma.LZMAError, zipfile.BadZipFile, csv.Error, sqlite3.Error, yaml.YAMLError,
    Image.DecompressionBombError,
)  # fmt: skip


def reader(read: Callable[P, R]) -> Callable[P, R]:
    """What a file makes it raise is Unreadable."""

    @functools.wraps(read)
    def guarded(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return read(*arguments, **named)
        except BAD as error:
            raise Unreadable(f"{type(error).__name__}: {error}") from error

    return guarded


@reader
def text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")


@reader
def json_of(path: str, is_yaml: bool = False) -> Any:
    return yaml.safe_load(text(path)) if is_yaml else json.loads(text(path))


def below(content: Any, *keys: Any) -> Any:
    """What JSON has there; None where it has nothing."""
    for key in keys:
        try:
            content = content[key]
        except (LookupError, TypeError):
            return None
    return content


@reader
def csv_of(path: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text(path))))


@reader
def xml_of(data: bytes | str) -> ET.Element:
    return ET.fromstring(data, ET.XMLParser(target=_Tree()))


class _Tree(ET.TreeBuilder):
    """Without a document type, whose entities may grow without end, and no deeper than documents are."""

    depth = 0

    def doctype(self, *declared: str | None) -> None:
        raise ValueError("XML with a document type")

    def start(self, tag: str, attrs: dict[str, str], /) -> ET.Element:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError("XML that is too deep")
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> ET.Element:
        self.depth -= 1
        return super().end(tag)


@reader
def archive(path: str) -> dict[str, Callable[[], bytes]]:
    """The parts of a zip file by name, each unpacked when it is called."""
    packed, left = zipfile.ZipFile(path), LARGEST

    @reader
    def part(info: zipfile.ZipInfo) -> bytes:
        nonlocal left
        left -= info.file_size
        if left < 0:
            raise ValueError(f"{info.filename} is too large")
        return packed.read(info)

    return {info.filename: functools.partial(part, info) for info in packed.infolist()}


@reader
def image(path: str) -> Image.Image:
    with Image.open(path, formats=PICTURES) as encoded:
        if encoded.width * encoded.height > MOST_PIXELS:
            raise ValueError("the picture is too large")
        return encoded.convert("RGBA")


@reader
def database(path: str, sql: str) -> list[Any]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        work = count()
        connection.set_progress_handler(lambda: next(work) > MOST_WORK, 100_000)  # a view may be endless
        try:
            rows = connection.execute(sql).fetchmany(MOST_ROWS + 1)
        except MemoryError as error:  # SQLite's word for lengths that a damaged file claims
            raise ValueError("the database is damaged") from error
    if len(rows) > MOST_ROWS:
        raise ValueError("the query gives too many rows")
    return rows
