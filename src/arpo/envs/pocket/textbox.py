"""The text that a user edits: caret, selection, undo. One class for single-line fields and the editor's page.

A TextBox is state only. It knows characters and positions; pixels come in as a width to wrap at, and drawing and
clicks translate through `rows`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from arpo.envs.pocket.text_layout import advance, wrap

FIELD_LIMIT = 200  # characters in a single-line field; what is typed beyond is dropped, as a form does
PAGE_LIMIT = 20_000
UNDO_LIMIT = 30
Rows: TypeAlias = Sequence[tuple[int, int]]
"""Where each row of a text starts and ends."""


@lru_cache(maxsize=16)  # a long page is laid out once an edit, and not in every frame; few, since it may be long
def rows_of(text: str, limit: int) -> Rows:
    """The rows of a text that wraps at a width. Rows of a wrapped line touch each other."""
    rows: list[tuple[int, int]] = []
    offset = 0
    for line in text.split("\n"):
        rows += [(offset + start, offset + end) for start, end in wrap(line, limit)]
        offset += len(line) + 1
    return tuple(rows)


@dataclass(slots=True, eq=False)  # two boxes with equal text are still two boxes
class TextBox:
    """Text with a caret; `anchor` is the other end of the selection (equal to the caret: nothing is selected)."""

    text: str = ""
    multiline: bool = False
    caret: int = 0
    anchor: int = 0
    first_row: int = 0  # the topmost visible row of a multi-line box
    undo_stack: list[tuple[str, int]] = field(default_factory=list)
    redo_stack: list[tuple[str, int]] = field(default_factory=list)

    @property
    def limit(self) -> int:
        return PAGE_LIMIT if self.multiline else FIELD_LIMIT

    @property
    def selection(self) -> tuple[int, int]:
        return min(self.caret, self.anchor), max(self.caret, self.anchor)

    @property
    def selected(self) -> str:
        start, end = self.selection
        return self.text[start:end]

    def move(self, caret: int, extend: bool = False) -> None:
        """Put the caret somewhere; without `extend` the selection is gone."""
        self.caret = max(0, min(caret, len(self.text)))
        if not extend:
            self.anchor = self.caret

    def select_all(self) -> None:
        self.anchor, self.caret = 0, len(self.text)

    def set(self, text: str) -> None:
        """Replace everything, as a program does: the undo history starts anew."""
        self.text = text[: self.limit]
        self.undo_stack.clear()
        self.redo_stack.clear()
        self.first_row = 0
        self.move(0 if self.multiline else len(self.text))

    def insert(self, text: str) -> None:
        """Type or paste over the selection."""
        if not self.multiline:
            text = text.replace("\n", " ")
        start, end = self.selection
        room = self.limit - (len(self.text) - (end - start))
        text = text[: max(0, room)]
        if text or start != end:
            self._remember()
            self.text = self.text[:start] + text + self.text[end:]
            self.move(start + len(text))

    def delete(self, forward: bool, word: bool = False) -> None:
        """Delete the selection, or the character (or word) next to the caret."""
        start, end = self.selection
        if start == end:
            other = self._word_edge(forward) if word else self.caret + (1 if forward else -1)
            start, end = max(0, min(start, other)), min(len(self.text), max(end, other))
        if start != end:
            self._remember()
            self.text = self.text[:start] + self.text[end:]
            self.move(start)

    def undo(self) -> None:
        self._swap(self.undo_stack, self.redo_stack)

    def redo(self) -> None:
        self._swap(self.redo_stack, self.undo_stack)

    def _remember(self) -> None:
        self.undo_stack.append((self.text, self.caret))
        del self.undo_stack[:-UNDO_LIMIT]
        self.redo_stack.clear()

    def _swap(self, source: list[tuple[str, int]], target: list[tuple[str, int]]) -> None:
        if source:
            target.append((self.text, self.caret))
            self.text, caret = source.pop()
            self.move(caret)

    def _word_edge(self, forward: bool) -> int:
        at, step = self.caret, 1 if forward else -1
        seen = False
        while 0 <= (look := at if forward else at - 1) < len(self.text):
            alnum = self.text[look].isalnum()
            if seen and not alnum:
                break
            seen = seen or alnum
            at += step
        return at

    def rows(self, limit: int) -> Rows:
        """The rows as shown in a box of this width."""
        return rows_of(self.text, limit) if self.multiline else [(0, len(self.text))]

    def row_of(self, position: int, rows: Rows) -> int:
        """The row that shows a position; at a wrap the later one."""
        return bisect_right(rows, position, key=lambda row: row[0]) - 1

    def position(self, row: tuple[int, int], x: float) -> int:
        """The position in a row nearest to a horizontal offset."""
        for i in range(*row):
            step = advance(self.text[i])
            if x < step / 2:
                return i
            x -= step
        return row[1]

    def key(self, key: str, ctrl: bool, shift: bool, limit: int) -> bool:
        """Handle an editing key; False if it is none. Clipboard keys belong to the desktop."""
        match key:
            case "backspace" | "delete":
                self.delete(forward=key == "delete", word=ctrl)
            case "left" | "right":
                forward = key == "right"
                start, end = self.selection
                if start != end and not shift:
                    self.move(end if forward else start)
                else:
                    step = self.caret + (1 if forward else -1)
                    self.move(self._word_edge(forward) if ctrl else step, extend=shift)
            case "up" | "down" | "home" | "end" | "pageup" | "pagedown":
                self._move_in_rows(key, ctrl, shift, self.rows(limit))
            case "a" if ctrl:
                self.select_all()
            case "z" if ctrl:
                self.redo() if shift else self.undo()
            case "y" if ctrl:
                self.redo()
            case _:
                return False
        return True

    def _move_in_rows(self, key: str, ctrl: bool, shift: bool, rows: Rows) -> None:
        row = self.row_of(self.caret, rows)
        if key == "home":
            target = 0 if ctrl else rows[row][0]
        elif key == "end":
            target = len(self.text) if ctrl else rows[row][1]
        else:
            x = sum(map(advance, self.text[rows[row][0] : self.caret]))
            row += {"up": -1, "down": 1, "pageup": -8, "pagedown": 8}[key]
            if row < 0:
                target = 0
            elif row >= len(rows):
                target = len(self.text)
            else:
                target = self.position(rows[row], x + 0.01)
        self.move(target, extend=shift)
