"""The calculator: keys to click or type, exact decimal numbers, and a line that shows the whole calculation.

It is worked out when "=" is pressed, products before sums. Numbers are rounded to DIGITS digits; what cannot be shown
so (a division by zero, a number too large) is "Error" until the next digit or C.
"""

from collections.abc import Callable
from decimal import Context, Decimal, DecimalException, DivisionByZero, InvalidOperation, Overflow
from functools import partial

from arpo.envs.pocket.desktop import App, Desktop, Keys, Window
from arpo.envs.pocket.text_layout import LINE, width
from arpo.envs.pocket.ui import On, Ui

KEYS = ("C", "back", "%", "/", "7", "8", "9", "x", "4", "5", "6", "-", "1", "2", "3", "+", "+/-", "0", ".", "=")
TYPED = {"*": "x", ":": "/", ",": ".", "c": "C"}  # how else these keys may be typed
OPERATORS = "+-x/"
DIGITS = 10
MOST_NUMBERS = 12  # in one calculation
ERROR = "Error"
EXACT = Context(prec=40, Emax=200, Emin=-200, traps=[DivisionByZero, InvalidOperation, Overflow])
SHORT = Context(prec=DIGITS)


class Calculator(App):
    """The calculation so far (numbers and operators in turn), the number being entered, and whether "=" is done."""

    name = "Calculator"
    size = (160, 190)

    def __init__(self, desk: Desktop, window: Window) -> None:
        super().__init__(desk, window)
        self.parts: list[str] = []
        self.entry = "0"
        self.done = False  # the entry is a result: the next digit starts anew
        self.fresh = True  # nothing has been entered since the last operator

    @property
    def calculation(self) -> str:
        """What has been entered, such as "12 + 30 =" when that is done."""
        return " ".join([*self.parts, "="] if self.done else self.parts)

    def view(self, ui: Ui) -> None:
        ui.panel(3, 2, ui.w - 6, LINE + 21)
        shown = whole = self.calculation
        while width(shown) > ui.w - 16:
            shown = shown[1:]  # the end of a long calculation is what matters
        ui.add("text", ui.w - 8 - width(shown), 4, width(shown) + 2, LINE, whole, extra="page-faint", shown=shown)
        state = ("wrong",) if self.entry == ERROR else ()
        ui.add("display", 5, 18, ui.w - 10, 18, "Display", state, value=self.entry, shown=self.entry)
        top, gap = 41, 2
        w, h = (ui.w - 6 + gap) // 4, (ui.h - top - 3 + gap) // 5
        for i, key in enumerate(KEYS):
            ui.add("key", 3 + i % 4 * w, top + i // 4 * h, w - gap, h - gap, key, on=On(partial(self.press, key)))

    def shortcuts(self) -> Keys:
        return {
            "enter": self._equals,
            "esc": self._clear,
            "delete": self._clear,
            "backspace": self._back,
            "ctrl+c": self.copy,
            "ctrl+v": self.paste,
        }

    def typed(self, text: str) -> None:
        for char in text[:100]:
            self.press(TYPED.get(char, char))

    def press(self, key: str) -> None:
        """A key of the calculator; other characters do nothing."""
        match key:
            case "C":
                self._clear()
            case "back":
                self._back()
            case "=":
                self._equals()
            case "%":
                self._change(lambda number: EXACT.divide(number, Decimal(100)))
            case "+/-":
                self._change(EXACT.minus)
            case _ if key in OPERATORS:
                self._operator(key)
            case _ if key == "." or (key.isascii() and key.isdigit()):
                self._digit(key)

    def copy(self) -> None:
        self.desk.clipboard = self.entry

    def paste(self) -> None:
        self.typed("".join(char for char in self.desk.clipboard.strip() if char in "0123456789."))

    def _clear(self) -> None:
        self.parts, self.entry, self.done, self.fresh = [], "0", False, True

    def _digit(self, key: str) -> None:
        if self.done or self.entry == ERROR:
            self._clear()
        self.fresh = False
        if key == ".":
            if "." not in self.entry:
                self.entry += key
        elif self.entry == "0":
            self.entry = key
        elif sum(char.isdigit() for char in self.entry) < DIGITS:
            self.entry += key

    def _back(self) -> None:
        if self.done or self.entry == ERROR:
            self._clear()
        else:
            self.entry = self.entry[:-1]
            if self.entry in ("", "-", "-0"):
                self.entry = "0"

    def _operator(self, key: str) -> None:
        if self.entry == ERROR:
            return
        if self.done:
            self.parts, self.done = [], False
        if self.parts and self.fresh:
            self.parts[-1] = key  # a second operator takes the place of the first
        elif len(self.parts) < 2 * MOST_NUMBERS:
            self.parts += [_plain(self.entry), key]
            self.entry, self.fresh = "0", True

    def _equals(self) -> None:
        if self.done or not self.parts or self.entry == ERROR:
            return
        if self.fresh:
            self.parts.pop()  # "12 + =" is 12
        else:
            self.parts.append(_plain(self.entry))
        self.done = True
        try:
            self.entry = _shown(_work_out(self.parts))
        except DecimalException:
            self.entry = ERROR

    def _change(self, change: Callable[[Decimal], Decimal]) -> None:
        """Replace the entered number or the result."""
        if self.entry == ERROR:
            return
        if self.done:
            self.parts, self.done = [], False
        self.entry, self.fresh = _shown(change(Decimal(self.entry))), False


def _plain(entry: str) -> str:
    """The number without a trailing point: "5." is 5."""
    return entry.removesuffix(".")


def _work_out(parts: list[str]) -> Decimal:
    """The value of numbers and operators in turn, products first."""
    terms = [Decimal(parts[0])]
    for operator, number in zip(parts[1::2], map(Decimal, parts[2::2]), strict=True):
        if operator == "x":
            terms[-1] = EXACT.multiply(terms[-1], number)
        elif operator == "/":
            terms[-1] = EXACT.divide(terms[-1], number)
        else:
            terms.append(number if operator == "+" else EXACT.minus(number))
    total = Decimal(0)
    for term in terms:
        total = EXACT.add(total, term)
    return total


def _shown(number: Decimal) -> str:
    """A number in at most DIGITS digits, without an exponent; "Error" where it is too large."""
    rounded = SHORT.plus(number)
    if abs(rounded) >= Decimal(10) ** DIGITS:
        return ERROR
    text = f"{rounded.quantize(Decimal(1).scaleb(-DIGITS), context=EXACT):f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text
