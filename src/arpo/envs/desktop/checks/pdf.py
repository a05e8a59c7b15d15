"""The text of a PDF file, as far as office programs write it: read with the standard library.

    pdf_text("letter.pdf")                      "Dear Anna,\\ncome on Sunday!", a line for each piece that is placed
    check_pdf(path, {"expected": ["Dear Anna,", "come on Sunday!"]})

A page's drawing (a stream, mostly deflated) shows texts between BT and ET, by codes of a font that the file brings
along; the font's table /ToUnicode says which letters they are. Without one they are letters already.
"""

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arpo.envs.desktop.checks.reading import reader
from arpo.envs.evaluators import Unreadable

LARGEST = 32 << 20  # bytes of the file, and of all its streams, unpacked
MOST_LETTERS = 1 << 16  # of a font
OBJECT = re.compile(rb"(?<!\d)(\d{1,9}) \d{1,5} obj\b")
STREAM = re.compile(rb"stream\r?\n")
FONT_NAME = re.compile(rb"/(\w{1,40})[ \r\n]+(\d{1,9}) \d{1,5} R")
TABLE = re.compile(rb"/ToUnicode (\d{1,9}) ")
LETTER = re.compile(rb"<([0-9A-Fa-f]{2,8})>\s*<([0-9A-Fa-f]{4,32})>\s*(?:<([0-9A-Fa-f]{4,8})>)?")
SHOWN = re.compile(rb"/(\w{1,40})\s+[-\d.]+\s+Tf|<([0-9A-Fa-f\s]*)>|\(((?:[^()\\]|\\.)*)\)|\b(ET)\b", re.DOTALL)
Letters = dict[bytes, str]


def check_pdf(path: str, rules: dict[str, Any]) -> float:
    """Whether its pages have just this text, whatever blanks and ends of lines are in it."""
    return float(_plain(pdf_text(path)) == _plain("".join(rules["expected"])))


def _plain(text: str) -> str:
    return "".join(text.split())


@reader
def pdf_text(path: str) -> str:
    data = Path(path).read_bytes()
    if not data.startswith(b"%PDF-") or len(data) > LARGEST:
        raise Unreadable(f"{path}: not a PDF file, or too large")
    objects = dict(_objects(data))
    if not any(re.search(rb"/Type\s*/Page\b", head) for head, _ in objects.values()):
        raise Unreadable(f"{path}: a PDF file without a page")
    tables = {number: _letters(body) for number, (_, body) in objects.items() if b"begincmap" in body}
    fonts: dict[bytes, Letters] = {}
    for head, _ in objects.values():
        for name, number in FONT_NAME.findall(head):
            table = TABLE.search(objects.get(int(number), (b"", b""))[0])
            if table:
                fonts[name] = tables.get(int(table[1]), {})
    return "".join(_shown(body, fonts) for _, body in objects.values() if re.search(rb"\bBT\b", body))


def _objects(data: bytes) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    """By number: what an object says of itself, and its stream, unpacked."""
    places = list(OBJECT.finditer(data))
    left = LARGEST
    for place, after in zip(places, [*places[1:], None], strict=True):
        whole = data[place.end() : after.start() if after else len(data)]
        stream = STREAM.search(whole)
        head, body = (whole[: stream.start()], whole[stream.end() :]) if stream else (whole, b"")
        if b"/FlateDecode" in head:
            body = zlib.decompressobj().decompress(body, left + 1)
        left -= len(body)
        if left < 0:
            raise ValueError("its streams are too large")
        yield int(place[1]), (head, body)


def _letters(table: bytes) -> Letters:
    """Pairs of a code and its letters; three in a row are a range of codes and its first letter."""
    letters: Letters = {}
    for part in table.split(b"beginbf")[1:]:
        for first, second, third in LETTER.findall(part.partition(b"endbf")[0]):
            start, last = int(first, 16), int(second if third else first, 16)
            letter = bytes.fromhex((third or second).decode()).decode("utf-16-be")
            if not 0 <= last - start < MOST_LETTERS - len(letters):
                raise ValueError("a font with too many letters")
            for i in range(last - start + 1):
                letters[(start + i).to_bytes(len(first) // 2, "big")] = letter[:-1] + chr(ord(letter[-1]) + i)
    return letters


def _shown(body: bytes, fonts: dict[bytes, Letters]) -> str:
    text: list[str] = []
    letters = Letters()
    for font, codes, plain, end in SHOWN.findall(body):
        if font:
            letters = fonts.get(font, {})
        elif end:
            text.append("\n")
        else:
            shown = bytes.fromhex(codes.decode()) if codes else re.sub(rb"\\(.)", rb"\1", plain)
            text.append(_decoded(shown, letters))
    return "".join(text)


def _decoded(codes: bytes, letters: Letters) -> str:
    if not letters:
        return codes.decode("latin-1")
    width = len(next(iter(letters)))
    return "".join(letters.get(codes[i : i + width], "\ufffd") for i in range(0, len(codes), width))
