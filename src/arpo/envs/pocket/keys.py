"""The keyboard: which key names exist, and how several keys become one combination."""

from __future__ import annotations

from collections.abc import Iterable

MODIFIERS = ("ctrl", "alt", "shift")  # in the order in which a combination names them
NAMED = frozenset(
    "enter esc tab space backspace delete insert home end pageup pagedown up down left right capslock win menu "
    "printscreen pause".split()
) | {f"f{n}" for n in range(1, 13)}


def known(key: str) -> bool:
    """Whether a key exists: a modifier, a named key, or one printable character."""
    return key in MODIFIERS or key in NAMED or (len(key) == 1 and key.isprintable())


def combination(keys: Iterable[str]) -> str:
    """ "ctrl+shift+s" for ("shift", "ctrl", "S"): modifiers in a fixed order, then the last other key."""
    keys = [key.lower() for key in keys]
    others = [key for key in keys if key not in MODIFIERS]
    return "+".join([m for m in MODIFIERS if m in keys] + others[-1:])


def printable(text: str, keep: str = "") -> str:
    """The text without control characters and other things that a keyboard cannot type."""
    if text.isprintable():
        return text
    return "".join(char for char in text if char.isprintable() or char in keep)
