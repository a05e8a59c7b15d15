"""What the editor and the spreadsheet share: one file a window, saving, and the question about unsaved work."""

from abc import abstractmethod
from typing import ClassVar

from arpo.envs.pocket.desktop import App, Desktop, Keys, Window
from arpo.envs.pocket.dialogs import Choice, FileDialog, Message
from arpo.envs.pocket.ui import MenuItem
from arpo.envs.pocket.vfs import split


class Document(App):
    """An application whose window shows a file: `path`, "" before the first save. A star in the title: unsaved work."""

    single = False
    untitled: ClassVar[str]

    def __init__(self, desk: Desktop, window: Window) -> None:
        super().__init__(desk, window)
        self.saved: object = None  # the content as the file has it

    @abstractmethod
    def content(self) -> object:
        """What the window holds, to be compared with what was saved."""

    @abstractmethod
    def to_text(self) -> str:
        """The content as a file holds it."""

    @abstractmethod
    def show_text(self, text: str) -> None:
        """Make a file's text the content, with nothing to undo."""

    def commit(self) -> None:
        """Take an entry that is being typed into the content."""

    @property
    def unsaved(self) -> bool:
        return self.content() != self.saved

    def title(self) -> str:
        name = split(self.path)[1] if self.path else self.untitled
        return f"*{name}" if self.unsaved else name

    def file_menu(self) -> list[MenuItem]:
        self.commit()
        return [
            MenuItem("New", self.new_file, shortcut="Ctrl+N"),
            MenuItem("Open", self.open_dialog, shortcut="Ctrl+O"),
            MenuItem("Save", self.save if self.unsaved or not self.path else None, shortcut="Ctrl+S"),
            MenuItem("Save as", self.save_as),
            MenuItem("Close", self.request_close, shortcut="Alt+F4"),
        ]

    def shortcuts(self) -> Keys:
        return {"ctrl+n": self.new_file, "ctrl+o": self.open_dialog, "ctrl+s": self.save, "ctrl+shift+s": self.save_as}

    def new_file(self) -> None:
        self.desk.launch(self.name)

    def open_dialog(self) -> None:
        self.commit()
        FileDialog(self, self._open, saving=False)

    def _open(self, path: str) -> None:
        """Show a file: in the window that has it already, here if nothing is here yet, or in a new window."""
        shown = self.desk.window_with(path)
        if shown and isinstance(shown.app, type(self)):
            self.desk.raise_window(shown)
        elif not self.path and not self.unsaved:
            self.open_path(path)
        elif app := self.desk.launch(self.name):
            app.open_path(path)

    def open_path(self, path: str) -> None:
        self.show_text(self.desk.files.read(path))
        self.path, self.saved = path, self.content()

    def save(self) -> None:
        self.commit()
        if self.path:
            self.save_to(self.path)
        else:
            self.save_as()

    def save_as(self) -> None:
        self.commit()
        folder, name = split(self.path) if self.path else ("/Documents", "")
        FileDialog(self, self.save_to, True, name, folder)

    def save_to(self, path: str) -> None:
        self.desk.files.write(path, self.to_text())
        self.path, self.saved = path, self.content()

    def request_close(self) -> None:
        self.commit()
        if not self.unsaved:
            self.desk.close(self.window)
            return
        choices: list[Choice] = [
            ("Save", self._save_and_close, ()),
            ("Discard", self.desk.close, (self.window,)),
            ("Cancel", None, ()),
        ]
        text = f"{self.title().lstrip('*')} has unsaved changes."
        Message(self, "Unsaved changes", text, choices)

    def _save_and_close(self) -> None:
        if self.path:
            self._save_to_and_close(self.path)
        else:
            FileDialog(self, self._save_to_and_close, True)

    def _save_to_and_close(self, path: str) -> None:
        self.save_to(path)
        self.desk.close(self.window)
