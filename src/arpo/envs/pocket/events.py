"""How an action becomes an event: which item a click hits, and who gets a key.

Everything here reads the frame, that is, what is on the screen, and then calls what the hit item or the application
says it does. Coordinates are logical.
"""

from arpo.agent.actions import Action, Click, Drag, Hotkey, Scroll, Type
from arpo.envs.pocket.desktop import Desktop, Window
from arpo.envs.pocket.dialogs import Message
from arpo.envs.pocket.keys import character, combination, printable
from arpo.envs.pocket.textbox import TextBox
from arpo.envs.pocket.ui import SCROLL_ROWS, Item, Layer, Menu, text_width, visible_rows
from arpo.envs.pocket.vfs import FileProblem

KEY_LIMIT = 100  # Enter and Tab keys in one typed text, outside of pages; the rest of the text is dropped


def perform(desk: Desktop, action: Action, frame: list[Layer]) -> None:
    """Act on what the frame shows. What a user may do wrong ends in a message."""
    desk.notice = ""
    try:
        match action:
            case Click(x=x, y=y, button="right"):
                _right_click(desk, x, y, frame)
            case Click(x=x, y=y, count=count):
                _left_click(desk, x, y, count, frame)
            case Drag(x=x, y=y, to_x=to_x, to_y=to_y):
                _drag(desk, x, y, to_x, to_y, frame)
            case Scroll(x=x, y=y, direction=direction):
                _scroll(x, y, direction, frame)
            case Type(text=text):
                _type(desk, text)
            case Hotkey(keys=keys, phase="down"):
                desk.held += [key for key in keys if key not in desk.held]
            case Hotkey(keys=keys, phase="up"):
                desk.held = [key for key in desk.held if key not in keys]
            case Hotkey(keys=keys):
                _press(desk, combination((*desk.held, *keys)))
    except FileProblem as problem:
        if window := desk.active:
            Message(window.app, "Problem", str(problem))
        else:
            desk.notice = str(problem)


# The mouse.


def _layer_at(x: int, y: int, frame: list[Layer]) -> Layer:
    return next(layer for layer in reversed(frame) if layer.contains(x, y))  # the background contains every point


def _hit(desk: Desktop, x: int, y: int, frame: list[Layer]) -> tuple[Layer, Item | None]:
    """The frontmost layer under a point and its item there; the window comes to the front."""
    layer = _layer_at(x, y, frame)
    if layer.owner:
        desk.raise_window(layer.owner)
    return layer, layer.item_at(x, y) if layer.live else None


def _left_click(desk: Desktop, x: int, y: int, count: int, frame: list[Layer]) -> None:
    if desk.menu and not frame[-1].contains(x, y) and not _other_menu(desk, x, y, frame):
        desk.menu = None  # a click beside an open menu closes it and does nothing else
        return
    layer, item = _hit(desk, x, y, frame)
    if item is None or item.on is None:
        return
    on, kind = item.on, item.spec[0]
    if layer.owner and on.focus is None and kind in ("panel", "row", "cell"):
        layer.owner.top.focus = None
    if on.press:
        on.press(x - item.x, y - item.y)
    elif on.click:
        on.click()
    if count == 2 and on.double:
        on.double()
    elif count == 2 and on.click and kind in ("button", "checkbox", "key"):
        on.click()  # two quick clicks on a button are two clicks


def _other_menu(desk: Desktop, x: int, y: int, frame: list[Layer]) -> bool:
    """Whether a click hits the name of another menu than the open one: that one opens instead."""
    layer = _layer_at(x, y, frame)
    item = layer.item_at(x, y) if layer.live else None
    return bool(item and item.spec[0] in ("menu", "launcher") and desk.menu and item.label != desk.menu.title)


def _right_click(desk: Desktop, x: int, y: int, frame: list[Layer]) -> None:
    desk.menu = None
    item = _hit(desk, x, y, frame)[1]
    entries = item.on.menu() if item and item.on and item.on.menu else []
    if item and entries:
        # The menu may cover the row that it is for, so the row's words are its title.
        title = f"{item.label} {item.value}" if item.spec[0] == "row" else "context"
        desk.open_menu(Menu(title, entries, x, y))


def _drag(desk: Desktop, x: int, y: int, to_x: int, to_y: int, frame: list[Layer]) -> None:
    desk.menu = None
    item = _hit(desk, x, y, frame)[1]
    if item is None or item.on is None:
        return
    if item.on.drag:
        item.on.drag(x - item.x, y - item.y, to_x - item.x, to_y - item.y)
    elif item.on.payload:
        target = _layer_at(to_x, to_y, frame)
        under = target.item_at(to_x, to_y) if target.live else None
        if under and under.on and under.on.drop:
            under.on.drop(item.on.payload)


def _scroll(x: int, y: int, direction: str, frame: list[Layer]) -> None:
    layer = _layer_at(x, y, frame)
    dx, dy = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}[direction]
    for item in reversed(layer.items if layer.live else []):
        if item.on and item.on.scroll and item.contains(x, y):
            item.on.scroll(dx * SCROLL_ROWS, dy * SCROLL_ROWS)
            return


# The keyboard.


def _type(desk: Desktop, text: str) -> None:
    """Text goes where the caret is; Enter and Tab are keys, except that a page takes them as text."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    keys = 0
    while text and keys <= KEY_LIMIT:
        if text[0] not in "\n\t":
            desk.menu = None  # letters do not choose from a menu; an Enter does
        box, window = desk.focused, desk.active
        if box and box.multiline and not desk.menu:
            box.insert(printable(text, keep="\n\t"))
            _reveal(desk, box)
            return
        end = next((i for i, char in enumerate(text) if char in "\n\t"), len(text))
        if box:
            box.insert(printable(text[:end]))
        elif end and window and not window.dialogs:
            window.app.typed(printable(text[:end]))
        if end < len(text):
            _press(desk, "enter" if text[end] == "\n" else "tab")
        text = text[end + 1 :]
        keys += 1


def _press(desk: Desktop, keys: str) -> None:
    """A combination such as "ctrl+s" goes to the menu, the shell, the text box, the dialog or the application."""
    window = desk.active
    if desk.menu:
        _menu_key(desk, desk.menu, keys)
    elif keys == "win":
        desk.open_launcher()
    elif keys == "alt+tab":
        desk.next_window()
    elif keys == "alt+f4" and window:
        (window.dialogs[-1].cancel if window.dialogs else window.app.request_close)()
    elif window and not _text_key(desk, window, keys):
        _window_key(desk, window, keys)


def _menu_key(desk: Desktop, menu: Menu, keys: str) -> None:
    if keys in ("esc", "win", "alt"):
        desk.menu = None
    elif keys in ("up", "down") and menu.items:
        at = menu.lit if menu.lit >= 0 else -1 if keys == "down" else 0
        menu.lit = (at + (1 if keys == "down" else -1)) % len(menu.items)
    elif keys == "enter" and menu.lit >= 0 and menu.items[menu.lit].do:
        desk.choose(menu.items[menu.lit])


def _text_key(desk: Desktop, window: Window, keys: str) -> bool:
    """Give a key to the text box that has the focus; False if it is none of its keys."""
    box = window.top.focus
    item = _item_of(desk, box) if box else None
    if box is None or item is None:
        return False
    modifiers, _, key = keys.rpartition("+") if not keys.endswith("+") else (keys[:-1], "", "+")
    if "alt" in modifiers:
        return False
    if keys in ("ctrl+c", "ctrl+x", "ctrl+v"):
        {"c": desk.copy, "x": desk.cut, "v": desk.paste}[key]()
    elif char := character(keys):
        box.insert(char)
    elif box.multiline and keys in ("enter", "tab"):
        box.insert("\n" if key == "enter" else "\t")
    elif keys == "enter" and item.on and item.on.enter:
        item.on.enter()
    elif not box.key(key, "ctrl" in modifiers, "shift" in modifiers, text_width(item.spec[1])):
        return False
    _reveal(desk, box)
    return True


def _window_key(desk: Desktop, window: Window, keys: str) -> None:
    shortcuts = {} if window.dialogs else window.app.shortcuts()
    if keys in shortcuts:
        shortcuts[keys]()
    elif keys in ("tab", "shift+tab"):
        _next_field(desk, window, 1 if keys == "tab" else -1)
    elif window.dialogs:
        if keys == "enter":
            window.dialogs[-1].accept()
        elif keys == "esc":
            window.dialogs[-1].cancel()
    elif char := character(keys):
        window.app.typed(char)


def _item_of(desk: Desktop, box: TextBox) -> Item | None:
    """The item that a text box is edited in. Keys may follow each other within one action, so no frame is at hand."""
    items = desk.top_layer(desk.active).items if desk.active else []
    return next((item for item in items if item.on and item.on.focus is box), None)


def _next_field(desk: Desktop, window: Window, step: int) -> None:
    boxes = [item.on.focus for item in desk.top_layer(window).items if item.on and item.on.focus]
    if boxes:
        start = -1 if step > 0 else 0
        at = next((i for i, box in enumerate(boxes) if box is window.top.focus), start) + step
        box = window.top.focus = boxes[at % len(boxes)]
        box.select_all()


def _reveal(desk: Desktop, box: TextBox) -> None:
    """Scroll a page so that the caret is in sight."""
    item = _item_of(desk, box) if box.multiline else None
    if item:
        row = box.row_of(box.caret, box.rows(text_width(item.spec[1])))
        visible = visible_rows(item.spec[2])
        box.first_row = max(row - visible + 1, min(box.first_row, row))
