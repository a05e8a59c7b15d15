"""The shell: windows, focus, menus, dialogs, taskbar, launcher, clipboard.

A Desktop is plain state: it can be copied whole (`copy.deepcopy`), and copies behave alike. It holds no pictures.
`frame()` describes what is on the screen as layers of items; events.py turns actions into changes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, TypeAlias

from arpo.envs.pocket.text_layout import fit, width
from arpo.envs.pocket.textbox import TextBox
from arpo.envs.pocket.ui import ROW, Do, Layer, Menu, MenuItem, On, Ui, states
from arpo.envs.pocket.vfs import FileProblem, FileSystem, split

TITLE = 18
MENUBAR = 17
TASKBAR = 22
MAX_WINDOWS = 6
OPENERS = {"txt": "Editor", "csv": "Sheet", "html": "Browser"}  # which application opens a kind of file
ICON = (60, 42)
SPARE = 14  # so many pixels of the screen no window covers, so that each can be moved
Menus: TypeAlias = dict[str, Callable[[], list[MenuItem]]]
"""The menu bar: names and what each opens."""
Keys: TypeAlias = dict[str, Do]
"""Keys such as "ctrl+s" and what they do."""


class Surface:
    """What keys can go to: a window or a dialog. It remembers which of its text boxes is being edited."""

    focus: TextBox | None = None


class Dialog(Surface, ABC):
    """A modal question in front of the asker's window. Subclasses draw themselves and say what Enter and Esc do."""

    title: str
    size: tuple[int, int]

    def __init__(self, asker: App | Dialog) -> None:
        self.desk: Desktop = asker.desk
        self.window: Window = asker.window
        self.window.dialogs.append(self)

    @abstractmethod
    def view(self, ui: Ui) -> None:
        """Describe the content."""

    @abstractmethod
    def accept(self) -> None:
        """The Enter key, and the default button."""

    def cancel(self) -> None:
        """The Esc key, and the close button."""
        self.dismiss()

    def dismiss(self) -> None:
        if self in self.window.dialogs:
            self.window.dialogs.remove(self)


class App(ABC):
    """One application in one window. Subclasses hold their state in plain attributes."""

    name: ClassVar[str]
    size: ClassVar[tuple[int, int]]  # of the window, on the smallest screen
    single: ClassVar[bool] = True  # launching it again brings the open window to the front

    def __init__(self, desk: Desktop, window: Window) -> None:
        self.desk = desk
        self.window = window
        self.path = ""  # the file that a document's window shows

    def title(self) -> str:
        return self.name

    def menus(self) -> Menus:
        """Empty: no menu bar."""
        return {}

    def shortcuts(self) -> Keys:
        """What keys do while no menu or dialog is open."""
        return {}

    @abstractmethod
    def view(self, ui: Ui) -> None:
        """Describe the content below the title and the menu bar."""

    def open_path(self, path: str) -> None:  # noqa: B027  (most applications open no files)
        """Show a file."""

    def typed(self, text: str) -> None:  # noqa: B027
        """Keys that were typed while no text box has the focus."""

    def request_close(self) -> None:
        """The user wants the window gone. An application with unsaved work asks first."""
        self.desk.close(self.window)


class Window(Surface):
    """A place on the screen with an application in it, and the dialogs in front of it."""

    def __init__(self, x: int, y: int, w: int, h: int) -> None:
        self.x, self.y, self.w, self.h = x, y, w, h
        self.order = 0  # its place in the taskbar
        self.minimised = False
        self.dialogs: list[Dialog] = []
        self.app: App

    @property
    def top(self) -> Surface:
        return self.dialogs[-1] if self.dialogs else self


class Desktop:
    """The whole machine. `apps` maps names to classes in the order of the launcher."""

    def __init__(self, size: tuple[int, int], apps: dict[str, type[App]]) -> None:
        self.w, self.h = size
        self.apps = apps
        self.files = FileSystem()
        self.settings: dict[str, Any] = {}
        self.stores: dict[str, Any] = {}  # what an application keeps while it is closed, by its name
        self.windows: list[Window] = []  # back to front
        self.menu: Menu | None = None
        self.clipboard = ""
        self.file_clipboard: tuple[str, str] | None = None  # ("cut" or "copy", path)
        self.held: list[str] = []  # keys held down by Hotkey(phase="down")
        self.icons = list(apps)  # in the order in which they lie on the desktop
        self.picked_icon = ""
        self.notice = ""  # a message that stays until the next action
        self.clock = "10:00"
        self.cascade = (70, 8)  # where the first window opens; each further one a little lower

    # Windows.

    @property
    def active(self) -> Window | None:
        """The window that keys go to."""
        return next((w for w in reversed(self.windows) if not w.minimised), None)

    def launch(self, name: str, at: tuple[int, int] | None = None) -> App | None:
        """Start an application, or bring its window to the front if it has only one."""
        kind = self.apps[name]
        if kind.single and (window := self.window_of(name)) is not None:
            self.raise_window(window)
            return window.app
        if len(self.windows) >= MAX_WINDOWS:
            self.notice = "Too many open windows"
            return None
        w, h = self.window_size(kind)
        if at is None:  # cascade
            step = 14 * len(self.windows)
            x, y = self.cascade
            at = (x + step) % (self.w - w + 1), (y + step) % (self.h - TASKBAR - h + 1)
        window = Window(*self._on_screen(*at, w, h), w, h)
        window.order = 1 + max((w.order for w in self.windows), default=0)
        window.app = kind(self, window)
        self.windows.append(window)
        return window.app

    def window_size(self, kind: type[App]) -> tuple[int, int]:
        """Windows grow with the screen, up to half as large again."""
        grow = max(1.0, min(1.5, self.w / 448, self.h / 280))
        w, h = (int(side * grow) for side in kind.size)
        return min(self.w - SPARE, w), min(self.h - TASKBAR - SPARE, h)

    def window_of(self, name: str) -> Window | None:
        return next((w for w in reversed(self.windows) if w.app.name == name), None)

    def window_with(self, path: str) -> Window | None:
        """The window that shows a file."""
        return next((w for w in reversed(self.windows) if w.app.path == path), None)

    def raise_window(self, window: Window) -> None:
        window.minimised = False
        self.windows.remove(window)
        self.windows.append(window)

    def close(self, window: Window) -> None:
        """Close without asking."""
        if window in self.windows:
            self.windows.remove(window)

    def minimise(self, window: Window) -> None:
        window.minimised = True
        self.windows.remove(window)
        self.windows.insert(0, window)

    def next_window(self) -> None:
        """Bring the hindmost window to the front, so that pressing on shows all of them in turn."""
        if self.windows:
            self.raise_window(self.windows[0])

    def open_file(self, path: str) -> None:
        """Open a file with the application for its kind; a window that shows it already comes to the front."""
        if shown := self.window_with(path):
            self.raise_window(shown)
            return
        name = OPENERS.get(path.rpartition(".")[2])
        if name is None:
            raise FileProblem(f"No app opens {split(path)[1]}.")
        app = self.launch(name)
        if app is not None:
            app.open_path(path)

    def _on_screen(self, x: int, y: int, w: int, h: int) -> tuple[int, int]:
        return max(0, min(x, self.w - w)), max(0, min(y, self.h - TASKBAR - h))

    # The clipboard.

    def copy(self) -> None:
        if (box := self.focused) and box.selected:
            self.clipboard = box.selected

    def cut(self) -> None:
        if (box := self.focused) and box.selected:
            self.clipboard = box.selected
            box.insert("")

    def paste(self) -> None:
        if box := self.focused:
            box.insert(self.clipboard)

    @property
    def focused(self) -> TextBox | None:
        """The text box that keys go to."""
        return self.active.top.focus if self.active else None

    # The screen.

    def open_menu(self, menu: Menu) -> None:
        w, h = menu.size
        menu.x = max(0, min(menu.x, self.w - w))
        menu.y = max(0, min(menu.y, self.h - h))
        self.menu = menu

    def frame(self) -> list[Layer]:
        """What is on the screen now, back to front."""
        layers = [self._background()]
        active = self.active
        for window in self.windows:
            if not window.minimised:
                layers.append(self.window_layer(window, window is active))
                layers += [self.dialog_layer(dialog, window is active) for dialog in window.dialogs]
        layers.append(self._taskbar(active))
        if self.notice:
            shown = fit(self.notice, self.w - 24)
            w = width(shown) + 16
            note = self._ui("notice", self.w - w - 4, 4, w, 20)
            note.add("notice", 0, 0, w, 20, self.notice, shown=shown)
            layers.append(note.layer)
        if self.menu:
            layers.append(self._menu_layer(self.menu))
        return layers

    def _ui(self, title: str, x: int, y: int, w: int, h: int) -> Ui:
        """For a layer that belongs to no window."""
        return Ui(self, Surface(), Layer(title, x, y, w, h), 0, True)

    def _background(self) -> Layer:
        ui = self._ui("desktop", 0, 0, self.w, self.h)
        wallpaper = self.settings.get("wallpaper", "Blue")
        on = On(click=self._pick, menu=self._background_menu)
        ui.add("wallpaper", 0, 0, self.w, self.h, extra=wallpaper, on=on)
        rows = (self.h - TASKBAR) // ICON[1]
        for i, name in enumerate(self.icons):
            state = ("selected",) if name == self.picked_icon else ()
            x, y = 2 + i // rows * ICON[0], 2 + i % rows * ICON[1]
            on = On(partial(self._pick, name), partial(self._open_icon, name), menu=partial(self._icon_menu, name))
            ui.add("icon", x, y, ICON[0] - 2, ICON[1] - 2, name, state, (name, wallpaper), on=on)
        return ui.layer

    def _pick(self, name: str = "") -> None:
        """Select an icon, or none."""
        self.picked_icon = name

    def _open_icon(self, name: str) -> None:
        self._pick()
        self.launch(name)

    def _icon_menu(self, name: str) -> list[MenuItem]:
        self._pick(name)
        return [MenuItem("Open", self._open_icon, (name,))]

    def _background_menu(self) -> list[MenuItem]:
        self._pick()
        return [
            MenuItem("Open Files", self.launch, ("Files",)),
            MenuItem("Change wallpaper", self.launch, ("Settings",)),
        ]

    def window_layer(self, window: Window, active: bool) -> Layer:
        app = window.app
        layer = Layer(app.title(), window.x, window.y, window.w, window.h, owner=window, live=not window.dialogs)
        self._frame_items(layer, active, app.request_close, partial(self.minimise, window))
        menus = app.menus()
        if menus:
            bar = Ui(self, window, layer, TITLE, active)
            bar.panel(1, 0, window.w - 2, MENUBAR, "bar")
            x = 3
            for name, entries in menus.items():
                w = width(name) + 10
                bar.add("menu", x, 0, w, MENUBAR, name, on=On(partial(self._open_bar_menu, window, name, entries, x)))
                x += w
        app.view(Ui(self, window, layer, TITLE + (MENUBAR if menus else 0), active))
        return layer

    def _open_bar_menu(self, window: Window, name: str, entries: Callable[[], list[MenuItem]], x: int) -> None:
        self.open_menu(Menu(name, entries(), window.x + x, window.y + TITLE + MENUBAR))

    def top_layer(self, window: Window) -> Layer:
        """The window, or the dialog in front of it, as it would be drawn now if it were active."""
        return self.dialog_layer(window.dialogs[-1], True) if window.dialogs else self.window_layer(window, True)

    def dialog_layer(self, dialog: Dialog, active: bool) -> Layer:
        window = dialog.window
        w, h = dialog.size
        x, y = self._on_screen(window.x + (window.w - w) // 2, window.y + (window.h - h) // 2, w, h)
        layer = Layer(dialog.title, x, y, w, h, owner=window, live=dialog is window.dialogs[-1])
        self._frame_items(layer, active and layer.live, dialog.cancel, None)
        dialog.view(Ui(self, dialog, layer, TITLE, active))
        return layer

    def _frame_items(self, layer: Layer, active: bool, close: Do, minimise: Do | None) -> None:
        owner, w, title = layer.owner, layer.w, layer.title
        assert owner is not None

        def drag(dx: int, dy: int, to_x: int, to_y: int) -> None:
            owner.x, owner.y = self._on_screen(owner.x + to_x - dx, owner.y + to_y - dy, owner.w, owner.h)

        ui = Ui(self, owner, layer, 0, active)
        state = ("active",) if active else ()
        ui.add("window", 0, 0, w, layer.h, state=state)
        buttons = 32 if minimise else 16
        shown = fit(title, w - 8 - buttons)
        ui.add("title", 1, 1, w - 2 - buttons, TITLE - 1, title, state, on=On(drag=drag), shown=shown)
        if minimise:
            ui.add("minimise", w - 33, 1, 16, TITLE - 1, "minimise", state, on=On(click=minimise), shown="")
        ui.add("close", w - 17, 1, 16, TITLE - 1, "close", state, on=On(click=close), shown="")

    def _taskbar(self, active: Window | None) -> Layer:
        ui = self._ui("taskbar", 0, self.h - TASKBAR, self.w, TASKBAR)
        ui.add("taskbar", 0, 0, self.w, TASKBAR)
        ui.add("launcher", 2, 2, 46, TASKBAR - 4, "Menu", on=On(self.open_launcher))
        w = min(84, (self.w - 95) // max(4, len(self.windows)))
        # In the order of opening, so that an entry does not move when its window comes to the front.
        for i, window in enumerate(sorted(self.windows, key=lambda w: w.order)):
            label = window.app.title()
            state = ("active",) if window is active else ("minimised",) if window.minimised else ()
            on = On(partial(self._task_clicked, window), menu=partial(self._task_menu, window))
            ui.add("task", 51 + i * (w + 1), 2, w, TASKBAR - 4, label, state, on=on, shown=fit(label, w - 6))
        ui.add("clock", self.w - 40, 4, 38, 15, self.clock)
        return ui.layer

    def open_launcher(self) -> None:
        entries = [MenuItem(name, self.launch, (name,)) for name in self.apps]
        self.open_menu(Menu("Menu", entries, 2, self.h - TASKBAR - len(entries) * ROW - 4))

    def _task_clicked(self, window: Window) -> None:
        if window is self.active:
            self.minimise(window)
        else:
            self.raise_window(window)

    def _task_menu(self, window: Window) -> list[MenuItem]:
        return [
            MenuItem("Show", self.raise_window if window is not self.active else None, (window,)),
            MenuItem("Minimise", self.minimise if not window.minimised else None, (window,)),
            MenuItem("Close", self._close_task, (window,)),
        ]

    def _close_task(self, window: Window) -> None:
        self.raise_window(window)
        if not window.dialogs:  # a question that is open already comes first
            window.app.request_close()

    def _menu_layer(self, menu: Menu) -> Layer:
        w, h = menu.size
        ui = self._ui(menu.title, menu.x, menu.y, w, h)
        ui.add("popup", 0, 0, w, h)
        for i, entry in enumerate(menu.items):
            state = states(disabled=entry.do is None, checked=entry.checked, lit=i == menu.lit)
            on = On(partial(self.choose, entry)) if entry.do else None
            shown = fit(entry.label, w - 26 - (width(entry.shortcut) + 12 if entry.shortcut else 0))
            ui.add("menuitem", 1, 2 + i * ROW, w - 2, ROW, entry.label, state, entry.shortcut, on=on, shown=shown)
        return ui.layer

    def choose(self, entry: MenuItem) -> None:
        self.menu = None
        if entry.do:
            entry.do(*entry.args)
