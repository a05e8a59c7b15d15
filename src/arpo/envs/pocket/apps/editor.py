"""The text editor."""

from arpo.envs.pocket.apps.document import Document
from arpo.envs.pocket.desktop import Desktop, Dialog, Keys, Menus, Window
from arpo.envs.pocket.text_layout import width
from arpo.envs.pocket.textbox import TextBox
from arpo.envs.pocket.ui import ROW, MenuItem, Ui, clipboard_items


class Editor(Document):
    """A page of text."""

    name = "Editor"
    size = (236, 168)
    untitled = "Untitled"

    def __init__(self, desk: Desktop, window: Window) -> None:
        super().__init__(desk, window)
        self.box = TextBox(multiline=True)
        self.saved = self.content()
        window.focus = self.box

    def content(self) -> str:
        return self.box.text

    to_text = content

    def show_text(self, text: str) -> None:
        self.box.set(text)

    def view(self, ui: Ui) -> None:
        ui.area(2, 1, ui.w - 4, ui.h - 3, "text", self.box)

    def menus(self) -> Menus:
        return {"File": self.file_menu, "Edit": self._edit_menu}

    def _edit_menu(self) -> list[MenuItem]:
        box = self.window.focus = self.box
        return [
            MenuItem("Undo", box.undo if box.undo_stack else None, shortcut="Ctrl+Z"),
            *clipboard_items(self.desk, box),
            MenuItem("Replace", self.replace_dialog if box.text else None, shortcut="Ctrl+H"),
        ]

    def shortcuts(self) -> Keys:
        return {**super().shortcuts(), "ctrl+h": self.replace_dialog}

    def replace_dialog(self) -> None:
        Replace(self, self.box)


class Replace(Dialog):
    """Find a text and put another in all its places."""

    title = "Replace"
    size = (210, 106)

    def __init__(self, asker: Editor, page: TextBox) -> None:
        super().__init__(asker)
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
        count = self.page.text.count(self.find.text)
        self.note = f"Replaced: {count}" if count else "Not found."
        if count:
            text = self.page.text.replace(self.find.text, self.by.text)
            self.page.select_all()
            self.page.insert(text)
