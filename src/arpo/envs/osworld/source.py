"""Actions as Python source for a machine of OSWorld's, whose server takes nothing else.

Each is one of the fixed templates below. The model's text only ever stands in them as a base64 literal.
"""

import base64

from arpo.agent.actions import Action, CallUser, Click, Drag, Fail, Finish, Hotkey, Scroll, Type, Wait
from arpo.errors import ActionError

WAIT_S = 2.0
NOTCHES = 5  # of the wheel, for one gesture
# What pyautogui writes for "<" is ">", here and in press: https://github.com/asweigart/pyautogui/issues/198
WRITE = """
for i, part in enumerate(t.split('<')):
    if i: pyautogui.hotkey('shift', ',')
    pyautogui.write(part, interval=0.01)
"""
PASTE = "__import__('pyperclip').copy(t); pyautogui.hotkey('ctrl', 'v')"  # what pyautogui cannot write at all
KEYS = {"super": ("win",), "print": ("printscreen",), "<": ("shift", ",")}  # that pyautogui calls otherwise


def source(action: Action) -> str:
    """An action as Python source for the machine. Numbers and known names stand as they are, text as base64."""
    match action:
        case Click(x, y, button, count):
            return f"pyautogui.click({x:d}, {y:d}, clicks={count:d}, interval=0.05, button={button!r})"
        case Drag(x, y, to_x, to_y):
            return f"pyautogui.moveTo({x:d}, {y:d}); pyautogui.dragTo({to_x:d}, {to_y:d}, duration=0.5, button='left')"
        case Scroll(x, y, "up" | "down" as direction):
            notches = NOTCHES if direction == "up" else -NOTCHES
            return f"pyautogui.scroll({notches:d}, x={x:d}, y={y:d})"
        case Scroll(x, y, direction):
            notches = NOTCHES if direction == "right" else -NOTCHES
            return f"pyautogui.hscroll({notches:d}, x={x:d}, y={y:d})"
        case Type(text):
            literal = base64.b64encode(text.encode("utf-8", "ignore")).decode()
            how = WRITE if text.isascii() else PASTE
            return f"t = __import__('base64').b64decode('{literal}').decode()\n{how}"
        case Hotkey(keys, phase):
            names = [repr(name) for key in keys for name in _key(key)]
            if phase == "press":
                return f"pyautogui.hotkey({', '.join(names)})"
            return "; ".join(f"pyautogui.key{phase.capitalize()}({name})" for name in names)
        case Wait():
            return f"time.sleep({WAIT_S:g})"
        case Finish() | Fail() | CallUser():
            raise ValueError("an ending action is not done by the machine")


def _key(name: str) -> tuple[str, ...]:
    """A key for pyautogui. Only letters, digits and single printable characters get through."""
    if name.isascii() and (name.isalnum() or (len(name) == 1 and name.isprintable())):
        return KEYS.get(name, (name,))
    raise ActionError(f"unknown key {name!r}")
