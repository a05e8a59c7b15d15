"""The text box: what typing, selecting and undoing do to a text."""

from hypothesis import given
from hypothesis import strategies as st

from arpo.envs.pocket.text_layout import fit, width, wrap
from arpo.envs.pocket.textbox import FIELD_LIMIT, PAGE_LIMIT, TextBox


def box(text: str, caret: int | None = None, multiline: bool = True) -> TextBox:
    made = TextBox(text, multiline)
    made.move(len(text) if caret is None else caret)
    return made


def test_typing_replaces_the_selection() -> None:
    b = box("one two")
    b.anchor, b.caret = 4, 7
    b.insert("six")
    assert b.text == "one six" and b.caret == 7 and b.selected == ""


def test_backspace_and_delete_take_a_character_or_with_ctrl_a_word() -> None:
    b = box("one two", caret=4)
    b.key("delete", ctrl=False, shift=False, limit=100)
    assert b.text == "one wo"
    b.key("backspace", ctrl=True, shift=False, limit=100)
    assert b.text == "wo"


def test_a_field_turns_newlines_into_spaces_and_stops_at_its_limit() -> None:
    b = box("", multiline=False)
    b.insert("a\nb" + "x" * 1000)
    assert b.text.startswith("a b") and len(b.text) == FIELD_LIMIT


def test_a_page_stops_at_its_limit_when_100_000_characters_are_typed() -> None:
    b = box("")
    b.insert("word " * 20_000)
    assert len(b.text) == PAGE_LIMIT


def test_up_and_down_keep_the_column_where_the_lines_allow_it() -> None:
    b = box("abcdef\nab\nabcdef", caret=4)
    b.key("down", ctrl=False, shift=False, limit=200)
    assert b.caret == len("abcdef\nab")
    b.key("up", ctrl=False, shift=False, limit=200)
    assert b.caret == 2


def test_shift_and_arrows_select() -> None:
    b = box("abc", caret=0)
    for _ in range(2):
        b.key("right", ctrl=False, shift=True, limit=100)
    assert b.selected == "ab"


@given(st.lists(st.text(max_size=8), max_size=8))
def test_undo_goes_back_through_every_edit_and_redo_forward_again(pieces: list[str]) -> None:
    b = box("")
    states = [b.text]
    for piece in pieces:
        b.insert(piece)
        if b.text != states[-1]:
            states.append(b.text)
    for text in reversed(states[:-1]):
        b.undo()
        assert b.text == text
    for text in states[1:]:
        b.redo()
        assert b.text == text


KEYS = st.sampled_from("left right up down home end backspace delete pageup pagedown a y z".split())


@given(st.booleans(), st.lists(st.one_of(st.text(max_size=20), st.tuples(KEYS, st.booleans(), st.booleans()))))
def test_no_sequence_of_keys_puts_the_caret_outside_the_text(multiline: bool, events: list) -> None:
    b = TextBox("start", multiline)
    for event in events:
        if isinstance(event, str):
            b.insert(event)
        else:
            key, ctrl, shift = event
            b.key(key, ctrl, shift, limit=60)
        assert 0 <= b.caret <= len(b.text) and 0 <= b.anchor <= len(b.text)


@given(st.text(alphabet="ab cdé", max_size=80), st.integers(12, 90))
def test_wrapped_rows_cover_the_line_and_fit(line: str, limit: int) -> None:
    rows = wrap(line, limit)
    assert "".join(line[start:end] for start, end in rows) == line
    assert all(width(line[start:end].rstrip()) <= limit + 1 for start, end in rows)


@given(st.text(max_size=40), st.integers(10, 120))
def test_a_label_is_shown_whole_or_cut_with_an_ellipsis_within_its_room(text: str, room: int) -> None:
    shown = fit(text, room)
    assert shown == text or (shown.endswith("…") and width(shown) <= room + 1)
