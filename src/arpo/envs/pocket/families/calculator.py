"""Tasks of the calculator."""

from random import Random

from arpo.envs.pocket.apps.calculator import Calculator
from arpo.envs.pocket.desktop import Desktop
from arpo.envs.pocket.families.base import Family, Params, clutter, hide, open_perhaps
from arpo.envs.pocket.screen import Move, ParsedScreen
from arpo.envs.pocket.words import drawn, one_of


def shows(desk: Desktop, *calculations: str) -> bool:
    """Whether the calculator shows one of these calculations, done: "12 + 30"."""
    window = desk.window_of("Calculator")
    app = window.app if window else None
    return isinstance(app, Calculator) and app.done and app.calculation in [f"{one} =" for one in calculations]


def both_ways(a: object, operator: str, b: object) -> list[str]:
    """A calculation and, where the order does not matter, the other way round."""
    return [f"{a} {operator} {b}", *([] if operator == "-" else [f"{b} {operator} {a}"])]


def read(s: ParsedScreen) -> tuple[str, str]:
    """(calculation, number) on the calculator's display."""
    calculation = s.find(kind="text", window="Calculator")
    number = s.find("Display", window="Calculator")
    return calculation.label if calculation else "", number.value if number else ""


def press(s: ParsedScreen, key: str) -> Move | None:
    return s.click(key, kind="key", thought=f"Press {key}.")


def press_on(s: ParsedScreen, entry: str, number: int, then: str) -> Move | None:
    """The next key of a number that is being entered, or what follows it; C where it went wrong."""
    text = str(number)
    if entry == "0":
        return press(s, text[0])
    if entry == text:
        return press(s, then)
    return press(s, text[len(entry)]) if text.startswith(entry) else press(s, "C")


class CalculatorFamily(Family):
    """Something to be worked out. The calculator is open or not, and then perhaps with something on it."""

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        clutter(desk, rng)
        app = open_perhaps(desk, rng, "Calculator")
        if isinstance(app, Calculator) and rng.random() < 0.4:
            app.typed(rng.choice(["7", "250", "3+", "81-6", "5*5="]))


class Sum(CalculatorFamily):
    """Two numbers, key by key with the mouse."""

    name = "calculator-simple"
    asks = "Calculate {a} {operator} {b} in the Calculator."
    random_params = drawn(a=one_of(range(11, 100)), operator=one_of("+-x"), b=one_of(range(11, 100)))

    def check(self, desk: Desktop, p: Params) -> bool:
        return shows(desk, *both_ways(p["a"], p["operator"], p["b"]))

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if move := s.arrive("Calculator"):
            return move
        calculation, entry = read(s)
        if calculation == "":
            return press_on(s, entry, p["a"], p["operator"])
        if calculation == f"{p['a']} {p['operator']}":
            return press_on(s, entry, p["b"], "=")
        return press(s, "C")


class Chain(CalculatorFamily):
    """Three numbers, typed."""

    name = "calculator-chain"
    asks = "Type {a} {first} {b} {second} {c} into the Calculator and press Enter."

    def random_params(self, rng: Random) -> Params:
        a, b, c = (rng.randrange(2, 200) for _ in range(3))
        return {"a": a, "first": rng.choice("+-"), "b": b, "second": rng.choice("+-"), "c": c}

    def check(self, desk: Desktop, p: Params) -> bool:
        return shows(desk, f"{p['a']} {p['first']} {p['b']} {p['second']} {p['c']}")

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if move := s.arrive("Calculator"):
            return move
        calculation, entry = read(s)
        begun = f"{p['a']} {p['first']} {p['b']} {p['second']}"
        if (calculation, entry) == (begun, str(p["c"])):
            return s.keys("enter", thought="Press Enter.")
        if (calculation, entry) == ("", "0"):
            return s.type(f"{begun} {p['c']}".replace(" ", ""))
        return s.keys("esc", thought="Clear the Calculator.")


class Correct(CalculatorFamily):
    """A calculation whose last digit is wrong."""

    name = "calculator-correct"
    asks = "The Calculator has {a} + {wrong}. Make it {a} + {b} and press =."

    def random_params(self, rng: Random) -> Params:
        b = rng.randrange(11, 100)
        wrong = b - b % 10 + (b + rng.randrange(1, 10)) % 10
        return {"a": rng.randrange(11, 100), "b": b, "wrong": wrong}

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        super().setup(desk, p, rng)
        app = desk.launch("Calculator")
        assert isinstance(app, Calculator)
        app.typed(f"c{p['a']}+{p['wrong']}")
        if rng.random() < 0.4:
            hide(desk, "Calculator")

    def check(self, desk: Desktop, p: Params) -> bool:
        return shows(desk, *both_ways(p["a"], "+", p["b"]))

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if move := s.arrive("Calculator"):
            return move
        calculation, entry = read(s)
        right = str(p["b"])
        if calculation == f"{p['a']} +" and entry != "0":
            if entry == right:
                return press(s, "=")
            return press(s, right[len(entry)]) if right.startswith(entry) else press(s, "back")
        if (calculation, entry) == ("", "0"):
            return s.type(f"{p['a']}+{right}")
        return s.type(right) if (calculation, entry) == (f"{p['a']} +", "0") else press(s, "C")
