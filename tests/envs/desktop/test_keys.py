"""Names of keys: all that a dialect hands on are known here, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.agent import grammar
from arpo.agent.actions import Hotkey
from arpo.envs.desktop.keys import NAMED, keysyms, typed
from arpo.envs.pocket import keys as pocket
from arpo.errors import ActionError

SAID = (
    "ctrl", "control", "ctl", "shift", "alt", "option", "altgr", "cmd", "command", "super", "meta", "win", "windows",
    "enter", "return", "esc", "escape", "tab", "space", "spacebar", "backspace", "del", "delete", "ins", "insert",
    "home", "end", "pgup", "pageup", "page up", "page_up", "pgdn", "pgdown", "page-down", "left", "arrow_left",
    "arrowright", "uparrow", "down", "caps lock", "capslock", "num_lock", "scroll lock", "prtsc", "print screen",
    "pause", "menu", "plus", "minus", "+", "-", "a", "7", "/", *(f"F{n}" for n in range(1, 13)),
)  # fmt: skip


@pytest.mark.parametrize("said", SAID)
def test_a_key_that_a_model_names_is_known(said: str) -> None:
    action = grammar.parse(f"Action: hotkey(key='{said}')", lambda x, y: (0, 0)).action
    assert isinstance(action, Hotkey)
    assert len(keysyms(action.keys)) == 1


def test_no_name_is_an_alias_that_the_dialect_has_already_resolved() -> None:
    assert not NAMED.keys() & grammar._KEY_ALIASES.keys()


def test_the_keys_of_the_other_desktop_are_known() -> None:
    assert len(keysyms([*pocket.MODIFIERS, *pocket.NAMED])) == len({*pocket.MODIFIERS, *pocket.NAMED})


def test_no_two_names_are_one_key() -> None:
    assert len(set(NAMED.values())) == len(NAMED)


@pytest.mark.parametrize("name", ["", "nosuch", "ctrl+s", "Enter", "f25", "\x07", "\x85", "\ud800"])
def test_an_unknown_key_is_refused_before_any_is_pressed(name: str) -> None:
    with pytest.raises(ActionError, match="unknown key"):
        keysyms(("ctrl", name))


def test_characters_have_their_keysyms() -> None:
    assert keysyms(("ctrl", "s")) == (0xFFE3, 0x73)
    assert typed("é€你🙂\t\n") == (0xE9, 0x010020AC, 0x01004F60, 0x0101F642, 0xFF09, 0xFF0D)


def test_every_kind_of_new_line_is_one_enter() -> None:
    assert typed("a\r\nb\rc\nd") == typed("a\nb\nc\nd")


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc"])))
def test_every_character_that_is_text_is_typed_as_one_key(text: str) -> None:
    assert len(typed(text)) == len(text)


@given(st.text(st.characters(categories=["Cc", "Cs"], exclude_characters="\n\t\r")))
def test_what_is_no_text_types_nothing(text: str) -> None:
    assert typed(text) == ()
