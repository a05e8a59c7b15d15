"""The file manager: the places at the left, one folder at the right, and an undo for all that moves something.

Deleting moves to the trash and asks nothing, since it can be undone; what cannot be undone (in the trash) asks first.
What is cut or copied is named in the tool bar, so that the screen tells the whole state.
"""

from collections.abc import Callable
from functools import partial

from arpo.envs.pocket.desktop import MENUBAR, TITLE, App, Desktop, Keys, Menus, Window
from arpo.envs.pocket.dialogs import InputDialog, confirm
from arpo.envs.pocket.text_layout import width
from arpo.envs.pocket.textbox import UNDO_LIMIT
from arpo.envs.pocket.ui import ROW, MenuItem, On, Ui
from arpo.envs.pocket.vfs import PLACES, TRASH, FileProblem, check_name, join, split

SIDE = 72  # the width of the list of places
TOP = 21  # the height of the tool bar
HINT = 36  # below this width there is no use in naming what was cut or copied


class FileManager(App):
    """A folder, the name selected in it, and what can be undone."""

    name = "Files"
    size = (300, 190)

    def __init__(self, desk: Desktop, window: Window) -> None:
        super().__init__(desk, window)
        self.folder = f"/{PLACES[0]}"
        self.selected = ""  # a name in the folder
        self.first = 0  # the topmost row in sight
        self.by_size = False
        self.steps: list[tuple[str, str]] = []  # (where a thing is now, where it was; "" for one that was made)

    # What is shown.

    @property
    def in_trash(self) -> bool:
        return self.folder == TRASH or self.folder.startswith(f"{TRASH}/")

    @property
    def current(self) -> str:
        """The path of what is selected, or ""."""
        path = join(self.folder, self.selected)
        return path if self.selected and self.desk.files.exists(path) else ""

    def names(self) -> list[str]:
        """The folder's content in the order of the rows."""
        names = self.desk.files.names(self.folder)
        return sorted(names, key=self._kb, reverse=True) if self.by_size else names

    def _kb(self, name: str) -> float:
        file = self.desk.files.files.get(join(self.folder, name))
        return file.kb if file else float("inf")  # folders stay in front

    def view(self, ui: Ui) -> None:
        ui.button(3, 2, 26, "Up", self.up if self.folder.count("/") > 1 else None)
        path = self.folder[1:]
        ui.text(34, 3, path, style="title")
        if self.folder == TRASH:
            label = "Empty trash"
            ui.button(ui.w - width(label) - 14, 2, width(label) + 11, label, self.ask_empty if self.names() else None)
        elif self.desk.file_clipboard and self._can_paste():  # what would be pasted, at the right
            mode, source = self.desk.file_clipboard
            text = f"{'Cut' if mode == 'cut' else 'Copied'} {split(source)[1]}"
            room = min(width(text), ui.w - 48 - width(path))
            if room >= HINT:
                ui.text(ui.w - room - 4, 3, text, room, style="faint")
        ui.panel(2, TOP, SIDE, ui.h - TOP - 2)
        for i, place in enumerate((*PLACES, TRASH[1:])):
            path = f"/{place}"
            on = On(partial(self.go, path), menu=partial(self._place_menu, path), drop=partial(self.move_into, path))
            here = self.folder == path or self.folder.startswith(f"{path}/")
            ui.row(3, TOP + 1 + i * ROW, SIDE - 2, place, on, selected=here)
        self._list(ui)

    def _list(self, ui: Ui) -> None:
        files, clipboard = self.desk.files, self.desk.file_clipboard
        names = self.names()
        x, w = SIDE + 4, ui.w - SIDE - 6
        beside = On(click=self.unselect, menu=self._background_menu)
        shown = ui.rows(x, TOP, w, ui.h - TOP - 2, len(names), self.first, partial(setattr, self, "first"), beside)
        wide = w - (2 if len(shown) == len(names) else 10)  # a scroll bar takes the rest
        if not names:
            ui.text(x + 8, TOP + 4, "This folder is empty.", w - 12, style="page-faint")
        for i, n in enumerate(shown):
            name = names[n]
            path = join(self.folder, name)
            file = files.files.get(path)
            size = f"{file.kb} kB" if file else ""
            columns = ((wide - 4 - width(size), size),) if file else ()
            icon = (name.rpartition(".")[2] if "." in name else "file") if file else "folder"
            drop = None if file else partial(self.move_into, path)
            menu = partial(self._row_menu, name)
            on = On(partial(self.select, name), self.open_selected, menu=menu, payload=path, drop=drop)
            state = ("faint",) if clipboard == ("cut", path) else ()
            ui.row(x + 1, TOP + 1 + i * ROW, wide, name, on, name == self.selected, columns, icon, state)

    # Menus and keys.

    def menus(self) -> Menus:
        return {"File": self._file_menu, "Edit": self._edit_menu, "View": self._view_menu}

    def _file_menu(self) -> list[MenuItem]:
        return [*self._new_items(), *self._trash_items(), MenuItem("Close", self.request_close, shortcut="Alt+F4")]

    def _new_items(self) -> list[MenuItem]:
        ask, kinds = None if self.in_trash else self._ask, ("folder", "file")
        return [MenuItem(f"New {kind}", ask, (f"New {kind}", "Create", self._make, "", kind)) for kind in kinds]

    def _trash_items(self) -> list[MenuItem]:
        """Menu entries for what is selected: in the trash it can be restored or deleted, elsewhere opened and so on."""
        some = bool(self.current)
        if self.in_trash:
            return [
                MenuItem("Restore", self.restore if self.current in self.desk.files.origins else None),
                MenuItem("Delete forever", self.ask_delete_forever if some else None, shortcut="Del"),
            ]
        return [
            MenuItem("Open", self.open_selected if some else None),
            MenuItem("Rename", self.ask_rename if some else None, shortcut="F2"),
            MenuItem("Delete", self.delete if some else None, shortcut="Del"),
        ]

    def _clip_items(self) -> list[MenuItem]:
        some = self.current and not self.in_trash
        return [
            MenuItem("Cut", self.clip if some else None, ("cut",), shortcut="Ctrl+X"),
            MenuItem("Copy", self.clip if some else None, ("copy",), shortcut="Ctrl+C"),
        ]

    def _edit_menu(self) -> list[MenuItem]:
        undo = MenuItem("Undo", self.undo if self.steps else None, shortcut="Ctrl+Z")
        return [undo, *self._clip_items(), self._paste_item()]

    def _paste_item(self) -> MenuItem:
        return MenuItem("Paste", self.paste if self._can_paste() and not self.in_trash else None, shortcut="Ctrl+V")

    def _view_menu(self) -> list[MenuItem]:
        return [
            MenuItem("Sort by name", self.sort, (False,), checked=not self.by_size),
            MenuItem("Sort by size", self.sort, (True,), checked=self.by_size),
        ]

    def _row_menu(self, name: str) -> list[MenuItem]:
        self.select(name)
        return self._trash_items() + ([] if self.in_trash else self._clip_items())

    def _background_menu(self) -> list[MenuItem]:
        self.unselect()
        return [*self._new_items(), self._paste_item(), *self._view_menu()]

    def _place_menu(self, path: str) -> list[MenuItem]:
        entries = [MenuItem("Open", self.go, (path,))]
        if path == TRASH:
            entries.append(MenuItem("Empty trash", self.ask_empty if self.desk.files.names(TRASH) else None))
        return entries

    def shortcuts(self) -> Keys:
        return {
            "f2": self.ask_rename,
            "delete": self.ask_delete_forever if self.in_trash else self.delete,
            "ctrl+c": partial(self.clip, "copy"),
            "ctrl+x": partial(self.clip, "cut"),
            "ctrl+v": self.paste,
            "ctrl+z": self.undo,
            "backspace": self.up,
            "alt+up": self.up,
            "enter": self.open_selected,
            "up": partial(self.step, -1),
            "down": partial(self.step, 1),
        }

    def typed(self, text: str) -> None:
        """Letters jump to the first name that begins with them."""
        match = next((name for name in self.names() if name.lower().startswith(text.lower())), None)
        if text and match:
            self.select(match)

    # Looking around.

    def go(self, folder: str) -> None:
        self.folder, self.selected, self.first = folder, "", 0

    def up(self) -> None:
        if self.folder.count("/") > 1:
            self.go(split(self.folder)[0])

    def select(self, name: str) -> None:
        """Select a row and bring it in sight."""
        self.selected = name
        names = self.names()
        if name in names:
            at = names.index(name)
            visible = (self.window.h - TITLE - MENUBAR - TOP - 4) // ROW
            self.first = max(at - visible + 1, min(self.first, at), 0)

    def unselect(self) -> None:
        self.selected = ""

    def step(self, by: int) -> None:
        names = self.names()
        if names:
            at = names.index(self.selected) + by if self.selected in names else 0
            self.select(names[max(0, min(at, len(names) - 1))])

    def sort(self, by_size: bool) -> None:
        self.by_size, self.first = by_size, 0

    def open_selected(self) -> None:
        path = self.current
        if path in self.desk.files.folders:
            self.go(path)
        elif path and self.in_trash:
            raise FileProblem("Restore the file first.")
        elif path:
            self.desk.open_file(path)

    # Changing things.

    def ask_rename(self) -> None:
        if self.current and not self.in_trash:
            # The title names the file: the list is blocked meanwhile, and the field may hold anything.
            self._ask(f"Rename {self.selected}", "Rename", self._rename, self.selected, self.current)

    def _ask(self, title: str, button: str, do: Callable[..., object], text: str = "", *args: str) -> None:
        InputDialog(self, title, button, do, text, *args)

    def _make(self, kind: str, name: str) -> None:
        path = join(self.folder, check_name(name))
        if self.desk.files.exists(path):
            raise FileProblem(f"{split(path)[1]} exists already.")
        if kind == "folder":
            self.desk.files.make_folder(path)
        else:
            self.desk.files.write(path, "")
        self._done(path, "")

    def _rename(self, path: str, name: str) -> None:
        target = join(split(path)[0], check_name(name))
        if target != path:
            self.desk.files.move(path, target)
            self._done(target, path)

    def clip(self, mode: str) -> None:
        if self.current and not self.in_trash:
            self.desk.file_clipboard = (mode, self.current)

    def _can_paste(self) -> bool:
        return self.desk.file_clipboard is not None and self.desk.files.exists(self.desk.file_clipboard[1])

    def paste(self) -> None:
        if self.desk.file_clipboard is None or not self._can_paste() or self.in_trash:
            return
        mode, source = self.desk.file_clipboard
        if mode == "cut":
            self.move_into(self.folder, source)
            self.desk.file_clipboard = None
            return
        target = join(self.folder, split(source)[1])
        if target == source:
            target = self.desk.files.free_name(target)  # a copy beside the original
        self.desk.files.copy(source, target)
        self._done(target, "")

    def move_into(self, folder: str, path: str) -> None:
        """Move a file or folder. Nothing happens if it is in that folder already, or if `path` is no path (a mail)."""
        if not path.startswith("/") or path == folder or split(path)[0] == folder:
            return
        if folder == TRASH:
            self._trash(path)
        else:
            target = join(folder, split(path)[1])
            self.desk.files.move(path, target)
            self._done(target, path)

    def delete(self) -> None:
        if self.current and not self.in_trash:
            self._trash(self.current)

    def _trash(self, path: str) -> None:
        target = self.desk.files.free_name(join(TRASH, split(path)[1]))
        self.desk.files.trash(path)
        self._done(target, path)

    def restore(self) -> None:
        if path := self.current:
            self._done(self.desk.files.restore(path), path)

    def ask_delete_forever(self) -> None:
        if self.current:
            text = f"Delete {self.selected} forever?"
            confirm(self, "Delete forever", text, "Delete", self._delete_forever, self.current)

    def _delete_forever(self, path: str) -> None:
        self.desk.files.trash(path)
        self.unselect()

    def ask_empty(self) -> None:
        confirm(self, "Empty trash", "Delete everything in the trash forever?", "Empty", self._empty)

    def _empty(self) -> None:
        for name in self.desk.files.names(TRASH):
            self.desk.files.trash(join(TRASH, name))
        if self.in_trash:
            self.go(TRASH)

    def undo(self) -> None:
        """Put the last thing back. What was made or restored goes to the trash again, so that nothing is lost."""
        if not self.steps:
            return
        now, before = self.steps.pop()
        files = self.desk.files
        if now in files.origins:
            files.restore(now)
        elif before and not before.startswith(f"{TRASH}/"):
            files.move(now, before)
        else:
            files.trash(now)
        self._settle(before)

    def _done(self, now: str, before: str) -> None:
        self.steps.append((now, before))
        del self.steps[:-UNDO_LIMIT]
        self._settle(now)

    def _settle(self, path: str) -> None:
        """After a change: stay in a folder that exists, and select what has changed if it is here."""
        while self.folder not in self.desk.files.folders:
            self.go(split(self.folder)[0])
        folder, name = split(path)
        if folder == self.folder and self.desk.files.exists(path):
            self.select(name)
        else:
            self.unselect()
