"""The dialogs that applications share: a message with buttons, a question for a name, a file to choose.

What a button does is a bound method (never a lambda): dialogs live on between frames and are copied with the desktop.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from arpo.envs.pocket.desktop import App, Dialog
from arpo.envs.pocket.text_layout import LINE, width
from arpo.envs.pocket.textbox import TextBox, rows_of
from arpo.envs.pocket.ui import ROW, Act, On, Ui
from arpo.envs.pocket.vfs import PLACES, FileProblem, check_name, join

Choice: TypeAlias = tuple[str, Act | None, tuple[Any, ...]]
"""A button: its label, what it does after the dialog has gone (None: nothing more), and with what."""


class Message(Dialog):
    """Some words and buttons, the first of which is the default. Esc is the last."""

    def __init__(self, asker: App | Dialog, title: str, text: str, choices: Sequence[Choice] = ()) -> None:
        super().__init__(asker)
        self.title, self.text = title, text
        self.choices = list(choices) or [("OK", None, ())]
        self.size = (210, 24 + 18 + LINE * min(3, len(rows_of(text, 190))) + ROW + 8)

    def view(self, ui: Ui) -> None:
        for i, (start, end) in enumerate(rows_of(self.text, 190)[:3]):
            ui.text(10, 8 + i * LINE, self.text[start:end].rstrip(), 190)
        widths = [max(48, width(label) + 14) for label, _, _ in self.choices]
        x = ui.w - 8 - sum(widths) - 6 * (len(widths) - 1)
        for i, (label, _, _) in enumerate(self.choices):
            ui.button(x, ui.h - ROW - 7, widths[i], label, partial(self._choose, i), default=i == 0)
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
    Message(asker, title, text, [(yes, do, args), (no, None, ())])


class InputDialog(Dialog):
    """A name. A FileProblem from `do` is shown in the dialog, which stays open."""

    size = (210, 92)

    def __init__(self, asker: App | Dialog, title: str, button: str, do: Act, name: str = "", *args: str) -> None:
        super().__init__(asker)
        self.title, self.button, self.do, self.args = title, button, do, args
        self.box = self.focus = TextBox(name)
        self.box.select_all()
        self.problem = ""

    def view(self, ui: Ui) -> None:
        x = 16 + width("Name")
        self._ask(ui, 10, 7, x, ui.w - x - 10, 28)

    def _ask(self, ui: Ui, left: int, y: int, x: int, w: int, below: int) -> None:
        """The name's field, what is wrong with it, and the buttons."""
        ui.text(left, y + 1, "Name")
        ui.field(x, y, w, "Name", self.box)
        if self.problem:
            ui.text(left, below, self.problem, style="wrong")
        ui.button(ui.w - 134, ui.h - ROW - 7, 60, self.button, self.accept, default=True)
        ui.button(ui.w - 68, ui.h - ROW - 7, 60, "Cancel", self.cancel)

    def accept(self) -> None:
        try:
            self.do(*self.args, self.box.text)
        except FileProblem as problem:
            self.problem = str(problem)
        else:
            self.dismiss()


class FileDialog(InputDialog):
    """A place, the files in it and a name. To open, the file must exist; to save over one, the user is asked."""

    size = (240, 184)

    def __init__(self, asker: App, do: Act, saving: bool, name: str = "", folder: str = "/Documents") -> None:
        title, button = ("Save as", "Save") if saving else ("Open file", "Open")
        super().__init__(asker, title, button, do, name)
        self.saving = saving
        self.folder = folder if folder.strip("/") in PLACES else "/Documents"
        self.first = 0

    def view(self, ui: Ui) -> None:
        ui.text(8, 5, "Folder")
        ui.dropdown(58, 4, ui.w - 66, "Folder", self.folder.strip("/"), PLACES, self._go)
        files = self.desk.files
        names = [name for name in files.names(self.folder) if join(self.folder, name) in files.files]
        scroll = partial(setattr, self, "first")
        for i, n in enumerate(ui.rows(8, 25, ui.w - 16, 72, len(names), self.first, scroll, On())):
            on = On(partial(self.box.set, names[n]), self.accept)
            ui.row(9, 26 + i * ROW, ui.w - 26, names[n], on, selected=names[n] == self.box.text, icon="file")
        self._ask(ui, 8, 101, 58, ui.w - 66, 121)

    def _go(self, place: str) -> None:
        self.folder, self.first = f"/{place}", 0

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
