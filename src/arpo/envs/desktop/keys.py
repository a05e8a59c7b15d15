"""Names of keys and characters as X calls them: keysyms.

    keysyms(("ctrl", "s"))      (0xffe3, 0x73)
    typed("é\\n")                (0xe9, 0xff0d)

The names are those that a dialect hands on (it has its own aliases: `return`, `cmd`, `pgup`). Every character of
Unicode has a keysym; whether some key of the keyboard gives it is the X server's business.
"""

from collections.abc import Iterable

from arpo.errors import ActionError

NAMED = {
    "ctrl": 0xFFE3, "shift": 0xFFE1, "alt": 0xFFE9, "altgr": 0xFE03, "win": 0xFFEB, "menu": 0xFF67,
    "enter": 0xFF0D, "tab": 0xFF09, "esc": 0xFF1B, "backspace": 0xFF08, "delete": 0xFFFF, "insert": 0xFF63,
    "space": 0x20, "home": 0xFF50, "end": 0xFF57, "pageup": 0xFF55, "pagedown": 0xFF56,
    "left": 0xFF51, "up": 0xFF52, "right": 0xFF53, "down": 0xFF54, "printscreen": 0xFF61, "pause": 0xFF13,
    "capslock": 0xFFE5, "numlock": 0xFF7F, "scrolllock": 0xFF14, **{f"f{n}": 0xFFBD + n for n in range(1, 25)},
}  # fmt: skip


def keysyms(names: Iterable[str]) -> tuple[int, ...]:
    """Of keys by their names, or of characters. ActionError for a name that no key has."""
    return tuple(map(_keysym, names))


def typed(text: str) -> tuple[int, ...]:
    """The keys that write a text. Characters that are no text (control characters, halves of pairs) write nothing."""
    known = {"\n": NAMED["enter"], "\t": NAMED["tab"]}
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return tuple(known.get(c) or _character(c) for c in text if c in known or _is_text(c))


def _keysym(name: str) -> int:
    if name in NAMED:
        return NAMED[name]
    if len(name) == 1 and _is_text(name):
        return _character(name)
    raise ActionError(f"unknown key {name!r}")


def _is_text(c: str) -> bool:
    return ord(c) >= 0x20 and not 0x7F <= ord(c) < 0xA0 and not 0xD800 <= ord(c) < 0xE000


def _character(c: str) -> int:
    code = ord(c)
    return code if code < 0x100 else 0x01000000 + code  # X's rule: Latin-1 as it is, all else as Unicode
