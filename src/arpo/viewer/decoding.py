"""Sampled tokens as pieces of text, one a token, from a tokenizer's table alone.

A run does not say which tokenizer it was played with. So those that may be meant are tried: that of its newest
checkpoint, that of `base`, that of scripts. One is right where its pieces make exactly the text that was stored.
Otherwise there are no pieces, and the text is shown whole. A table is data: nothing of a foreign tokenizer runs.
"""

import codecs
import contextlib
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from arpo.engines.scripted import SPECIALS
from arpo.files import read_bytes
from arpo.runs.checkpoints import checkpoints_in

TOKENIZER = 2**25  # bytes of a tokenizer.json
BASE = Path(__file__).parent.parent / "models" / "base" / "tokenizer.json"

Table = Mapping[int, bytes | str]
"""What each id stands for: bytes of a text, or a special token."""


def pieces(tokens: Sequence[int], text: str, tables: Sequence[Table]) -> list[str] | None:
    """The text cut into as many pieces as there are tokens; None where no table makes this text of them.

    A letter that several tokens share goes to the last of them.
    """
    for table in tables:
        cut = _cut(tokens, table, len(text))
        if cut is not None and "".join(cut) == text:
            return cut
    return None


def tables_of(run: Path) -> list[Table]:
    """Those that a run's tokens may be of, the likeliest first."""
    found = []
    for checkpoint in checkpoints_in(run / "checkpoints")[-1:]:
        file = checkpoint / "tokenizer.json"
        with contextlib.suppress(OSError):
            found.append(read_table(file, file.stat().st_mtime_ns))
    return [table for table in (*found, read_table(BASE, 0), _of_scripts()) if table]


@functools.lru_cache(maxsize=8)
def read_table(file: Path, changed: int) -> Table:
    """Of a tokenizer of bytes; empty where it is none. `changed`: when, so that a new one is read."""
    try:
        raw = json.loads(read_bytes(file, TOKENIZER))
        letters = _letters()
        table: dict[int, bytes | str] = {}
        for word, number in raw["model"]["vocab"].items():
            with contextlib.suppress(KeyError):  # a letter that is no byte: such a token makes no text
                table[int(number)] = bytes(letters[letter] for letter in word)
        for added in raw["added_tokens"]:
            table[int(added["id"])] = str(added["content"])
        return table
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


@functools.cache
def _of_scripts() -> Table:
    """As engines/scripted.py numbers them: a token a byte, then the special ones."""
    letters = _letters()
    table: dict[int, bytes | str] = {i: bytes([letters[letter]]) for i, letter in enumerate(sorted(letters))}
    return table | {len(letters) + i: name for i, name in enumerate(SPECIALS)}


@functools.cache
def _letters() -> dict[str, int]:
    """The letter by which byte-level tokenizers write each byte: itself where it can be seen, else one from 256 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


def _cut(tokens: Sequence[int], table: Table, most: int) -> list[str] | None:
    """None where they make more than so many letters: in a forged table one can stand for millions of them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    cut: list[str] = []
    letters = 0
    for token in tokens:
        part = table.get(token)
        if part is None or letters > most:
            return None
        if isinstance(part, str):
            cut.append(decoder.decode(b"", final=True) + part)
            decoder.reset()
        else:
            cut.append(decoder.decode(part))
        letters += len(cut[-1])
    if cut:
        cut[-1] += decoder.decode(b"", final=True)
    return cut
