"""The dialogs that applications share: a message with buttons, a question for a name, a file to choose.

What a button does is a bound method (never a lambda): dialogs live on between frames and are copied with the desktop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from arpo.envs.pocket.desktop import App, Desktop, Dialog, Window
from arpo.envs.pocket.fonts import LINE, width
from arpo.envs.pocket.textbox import TextBox, rows_of
from arpo.envs.pocket.ui import ROW, Act, On, Ui
from arpo.envs.pocket.vfs import PLACES, FileProblem, check_name, join

Choice: TypeAlias = tuple[str, Act | None, tuple[Any, ...]]
"""A button: its label, what it does after the dialog has gone (None: nothing more), and with what."""


class Message(Dialog):
    """Some words and buttons, the first of which is the default. Esc is the last."""

    def __init__(self, desk: Desktop, window: Window, title: str, text: str, choices: Sequence[Choice] = ()) -> None:
        super().__init__(desk, window)
        self.title, self.text = title, text
        self.choices = list(choices) or [("OK", None, ())]
        self.size = (210, 24 + 18 + LINE * min(3, len(rows_of(text, 190))) + ROW + 8)

    def view(self, ui: Ui) -> None:
        for i, (start, end) in enumerate(rows_of(self.text, 190)[:3]):
            ui.text(10, 8 + i * LINE, self.text[start:end].rstrip(), 190)
        widths = [max(48, width(label) + 14) for label, _, _ in self.choices]
        x = ui.w - 8 - sum(widths) - 6 * (len(widths) - 1)
        for i, (label, _, _) in enumerate(self.choices):
            ui.button(x, ui.h - ROW - 7, widths[i], label, lambda i=i: self._choose(i), default=i == 0)  # type: ignore[misc]
            x += widths[i] + 6

    def _choose(self, index: int) -> None:
        self.dismiss()
        _, do, args = self.choices[index]
        if do:
            do(*args)

    def accept(self) -> None:
        self._choose(0)

    def cancel(self) -> None:
        self._choose(len(self.choices) - 1)


def confirm(asker: App | Dialog, title: str, text: str, yes: str, do: Act, *args: Any, no: str = "Cancel") -> None:
    """Ask whether something is to be done."""
    choices: list[Choice] = [(yes, do, args), (no, None, ())]
    asker.window.dialogs.append(Message(asker.desk, asker.window, title, text, choices))


class Prompt(Dialog):
    """A name. A FileProblem from `do` is shown in the dialog, which stays open."""

    size = (210, 92)

    def __init__(
        self, desk: Desktop, window: Window, title: str, button: str, do: Act, text: str = "", *args: str
    ) -> None:
        super().__init__(desk, window)
        self.title, self.button, self.do, self.args = title, button, do, args
        self.box = TextBox(text)
        self.box.select_all()
        self.focus = self.box
        self.problem = ""

    def view(self, ui: Ui) -> None:
        ui.text(10, 8, "Name")
        x = 16 + width("Name")
        ui.field(x, 7, ui.w - x - 10, "Name", self.box)
        if self.problem:
            ui.text(10, 28, self.problem, style="wrong")
        ui.button(ui.w - 134, ui.h - ROW - 7, 60, self.button, self.accept, default=True)
        ui.button(ui.w - 68, ui.h - ROW - 7, 60, "Cancel", self.cancel)

    def accept(self) -> None:
        try:
            self.do(*self.args, self.box.text)
        except FileProblem as problem:
            self.problem = str(problem)
        else:
            self.dismiss()


class FileDialog(Dialog):
    """A place, the files in it and a name. To open, the file must exist; to save over one, the user is asked."""

    size = (240, 184)

    def __init__(
        self, desk: Desktop, window: Window, do: Act, saving: bool, name: str = "", folder: str = "/Documents"
    ) -> None:
        super().__init__(desk, window)
        self.title, self.button = ("Save as", "Save") if saving else ("Open file", "Open")
        self.do, self.saving = do, saving
        self.folder = folder if folder.strip("/") in PLACES else "/Documents"
        self.first = 0
        self.box = TextBox(name)
        self.box.select_all()
        self.focus = self.box
        self.problem = ""

    def view(self, ui: Ui) -> None:
        ui.text(8, 5, "Folder")
        ui.dropdown(58, 4, ui.w - 66, "Folder", self.folder.strip("/"), PLACES, self._go)
        files = self.desk.files
        names = [name for name in files.names(self.folder) if join(self.folder, name) in files.files]
        for i, n in enumerate(ui.rows(8, 25, ui.w - 16, 72, len(names), self.first, self._scroll, On())):
            on = On(click=lambda n=n: self._pick(names[n]), double=self.accept)  # type: ignore[misc]
            ui.row(9, 26 + i * ROW, ui.w - 26, names[n], on, selected=names[n] == self.box.text, icon="file")
        ui.text(8, 102, "Name")
        ui.field(58, 101, ui.w - 66, "Name", self.box)
        if self.problem:
            ui.text(8, 121, self.problem, style="wrong")
        ui.button(ui.w - 134, ui.h - ROW - 7, 60, self.button, self.accept, default=True)
        ui.button(ui.w - 68, ui.h - ROW - 7, 60, "Cancel", self.cancel)

    def _go(self, place: str) -> None:
        self.folder, self.first = f"/{place}", 0

    def _scroll(self, first: int) -> None:
        self.first = first

    def _pick(self, name: str) -> None:
        self.box.set(name)

    def accept(self) -> None:
        try:
            path = join(self.folder, check_name(self.box.text))
        except FileProblem as problem:
            self.problem = str(problem)
            return
        taken = path in self.desk.files.files
        if path in self.desk.files.folders:
            self.problem = "A folder has this name."
        elif self.saving and taken:
            text = f"{self.box.text.strip()} exists already. Replace it?"
            confirm(self, "Replace file", text, "Replace", self._finish, path)
        elif self.saving or taken:
            self._finish(path)
        else:
            self.problem = "No such file."

    def _finish(self, path: str) -> None:
        self.dismiss()
        self.do(path)
