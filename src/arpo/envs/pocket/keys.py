"""The keyboard: which key names exist, and how several keys become one combination."""

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
    """ "ctrl+shift+s" for ("shift", "ctrl", "s"): modifiers in a fixed order, then the last other key."""
    keys = list(keys)
    others = [key for key in keys if key not in MODIFIERS][-1:]
    if others and others[0].isupper() and not {"ctrl", "alt"} & {*keys}:
        keys.append("shift")  # a capital letter alone is typed with the shift key
    return "+".join([m for m in MODIFIERS if m in keys] + [key.lower() for key in others])


def character(keys: str) -> str:
    """What a combination types: "a" for "a", "A" for "shift+a", "" for one that types nothing."""
    key = keys.removeprefix("shift+")
    if key == "space":
        return " "
    return (key if key == keys else key.upper()) if len(key) == 1 else ""


def printable(text: str, keep: str = "") -> str:
    """The text without control characters and other things that a keyboard cannot type."""
    if text.isprintable():
        return text
    return "".join(char for char in text if char.isprintable() or char in keep)
