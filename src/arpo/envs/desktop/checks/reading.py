"""Files that an agent made, read as what they should be. What cannot be is Unreadable, and scores 0.

text(path)   json_of(path)   xml_of(data)   archive(path)   image(path)   database(path, sql)
"""

from __future__ import annotations

import json
import sqlite3
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import yaml
from PIL import Image

R = TypeVar("R")
LARGEST = 64 << 20  # bytes of a part of an archive, unpacked
BAD = (OSError, ValueError, ET.ParseError, zipfile.BadZipFile, KeyError, EOFError, SyntaxError, RecursionError)


class Unreadable(Exception):
    """The file is not what it should be."""


def text(path: str) -> str:
    return _read(lambda: Path(path).read_text(encoding="utf-8"), path)


def json_of(path: str, is_yaml: bool = False) -> Any:
    try:
        return yaml.safe_load(text(path)) if is_yaml else _read(lambda: json.loads(text(path)), path)
    except yaml.YAMLError as error:
        raise Unreadable(f"{path}: {error}") from error


def xml_of(data: bytes | str) -> ET.Element:
    if (b"<!ENTITY" if isinstance(data, bytes) else "<!ENTITY") in data:  # type: ignore[operator]
        raise Unreadable("an XML file with entities of its own: it may grow without end")
    return _read(lambda: ET.fromstring(data), "XML")


def archive(path: str) -> dict[str, Callable[[], bytes]]:
    """The parts of a zip file by name, each unpacked when it is called."""
    packed = _read(lambda: zipfile.ZipFile(path), path)

    def part(info: zipfile.ZipInfo) -> bytes:
        if info.file_size > LARGEST:
            raise Unreadable(f"{path}: {info.filename} is too large")
        return _read(lambda: packed.read(info), path)

    return {info.filename: lambda info=info: part(info) for info in packed.infolist()}  # type: ignore[misc]


def image(path: str) -> Image.Image:
    def decoded() -> Image.Image:
        with Image.open(path) as encoded:
            return encoded.convert("RGBA")

    return _read(decoded, path)


def database(path: str, sql: str) -> list[Any]:
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            return connection.execute(sql).fetchall()
    except sqlite3.Error as error:
        raise Unreadable(f"{path}: {error}") from error


def _read(read: Callable[[], R], what: str) -> R:
    try:
        return read()
    except BAD as error:
        raise Unreadable(f"{what}: {error}") from error
