"""The text editor: one file a window, unsaved work marked with a star and asked about."""

from __future__ import annotations

from collections.abc import Callable

from arpo.envs.pocket.desktop import App, Desktop, Dialog, Window
from arpo.envs.pocket.dialogs import Choice, FileDialog, Message
from arpo.envs.pocket.fonts import width
from arpo.envs.pocket.textbox import TextBox
from arpo.envs.pocket.ui import ROW, MenuItem, Ui
from arpo.envs.pocket.vfs import split

UNTITLED = "Untitled"


class Editor(App):
    """A page of text and the file that it belongs to (none before the first save)."""

    name = "Editor"
    size = (236, 168)
    single = False

    def __init__(self, desk: Desktop, window: Window) -> None:
        super().__init__(desk, window)
        self.path = ""
        self.saved = ""
        self.box = TextBox(multiline=True)
        window.focus = self.box

    @property
    def unsaved(self) -> bool:
        return self.box.text != self.saved

    def title(self) -> str:
        name = split(self.path)[1] if self.path else UNTITLED
        return f"*{name}" if self.unsaved else name

    def view(self, ui: Ui) -> None:
        ui.area(2, 1, ui.w - 4, ui.h - 3, "text", self.box)

    def menus(self) -> dict[str, Callable[[], list[MenuItem]]]:
        return {"File": self._file_menu, "Edit": self._edit_menu}

    def _file_menu(self) -> list[MenuItem]:
        return [
            MenuItem("New", self.new_file, shortcut="Ctrl+N"),
            MenuItem("Open", self.open_dialog, shortcut="Ctrl+O"),
            MenuItem("Save", self.save if self.unsaved or not self.path else None, shortcut="Ctrl+S"),
            MenuItem("Save as", self.save_as),
            MenuItem("Close", self.request_close, shortcut="Alt+F4"),
        ]

    def _edit_menu(self) -> list[MenuItem]:
        desk, box = self.desk, self.box
        self.window.focus = box
        return [
            MenuItem("Undo", box.undo if box.undo_stack else None, shortcut="Ctrl+Z"),
            MenuItem("Cut", desk.cut if box.selected else None, shortcut="Ctrl+X"),
            MenuItem("Copy", desk.copy if box.selected else None, shortcut="Ctrl+C"),
            MenuItem("Paste", desk.paste if desk.clipboard else None, shortcut="Ctrl+V"),
            MenuItem("Select all", box.select_all if box.text else None, shortcut="Ctrl+A"),
            MenuItem("Replace", self.replace_dialog if box.text else None, shortcut="Ctrl+H"),
        ]

    def shortcuts(self) -> dict[str, Callable[[], object]]:
        return {
            "ctrl+n": self.new_file,
            "ctrl+o": self.open_dialog,
            "ctrl+s": self.save,
            "ctrl+shift+s": self.save_as,
            "ctrl+h": self.replace_dialog,
        }

    def new_file(self) -> None:
        self.desk.launch(self.name)

    def open_dialog(self) -> None:
        self.window.dialogs.append(FileDialog(self.desk, self.window, "Open file", "Open", self.desk.open_file))

    def open_path(self, path: str) -> None:
        self.path = path
        self.saved = self.desk.files.read(path)
        self.box.set(self.saved)

    def save(self) -> None:
        if self.path:
            self.save_to(self.path)
        else:
            self.save_as()

    def save_as(self) -> None:
        folder, name = split(self.path) if self.path else ("/Documents", "")
        dialog = FileDialog(self.desk, self.window, "Save as", "Save", self.save_to, name, folder, saving=True)
        self.window.dialogs.append(dialog)

    def save_to(self, path: str) -> None:
        self.desk.files.write(path, self.box.text)
        self.path, self.saved = path, self.box.text

    def replace_dialog(self) -> None:
        self.window.dialogs.append(Replace(self.desk, self.window, self.box))

    def request_close(self) -> None:
        if not self.unsaved:
            self.desk.close(self.window)
            return
        text = f"{self.title().lstrip('*')} has unsaved changes."
        choices: list[Choice] = [
            ("Save", self._save_and_close, ()),
            ("Discard", self.desk.close, (self.window,)),
            ("Cancel", None, ()),
        ]
        self.window.dialogs.append(Message(self.desk, self.window, "Unsaved changes", text, choices))

    def _save_and_close(self) -> None:
        self.save()
        if not self.unsaved:  # without a name yet, the save dialog is open now and the window stays
            self.desk.close(self.window)


class Replace(Dialog):
    """Find a text and put another in all its places."""

    title = "Replace"
    size = (210, 106)

    def __init__(self, desk: Desktop, window: Window, page: TextBox) -> None:
        super().__init__(desk, window)
        self.page = page
        self.find, self.by = TextBox(), TextBox()
        self.focus = self.find
        self.note = ""

    def view(self, ui: Ui) -> None:
        x = 16 + width("Replace by")
        for y, label, box in ((6, "Find", self.find), (27, "Replace by", self.by)):
            ui.text(8, y + 1, label)
            ui.field(x, y, ui.w - x - 8, label, box)
        if self.note:
            ui.text(8, 48, self.note)
        ui.button(ui.w - 154, ui.h - ROW - 7, 80, "Replace all", self.accept if self.find.text else None, default=True)
        ui.button(ui.w - 68, ui.h - ROW - 7, 60, "Close", self.cancel)

    def accept(self) -> None:
        if not self.find.text:
            return
        found = self.page.text.count(self.find.text)
        self.note = f"Replaced: {found}" if found else "Not found."
        if found:
            text = self.page.text.replace(self.find.text, self.by.text)
            self.page.select_all()
            self.page.insert(text)
