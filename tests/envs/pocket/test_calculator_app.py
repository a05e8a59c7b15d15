"""The calculator, by its keys and by the keyboard."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import Machine

from arpo.agent.actions import Type
from arpo.envs.pocket.apps.calculator import DIGITS, ERROR, KEYS, Calculator
from arpo.envs.pocket.desktop import Desktop, Window


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.desk.launch("Calculator", (100, 20))
    return machine


def press(machine: Machine, keys: str) -> str:
    """Click keys one after the other; returns the display."""
    for key in keys.split():
        machine.click(key, kind="key")
    return machine.find("Display").value


def typed(text: str) -> tuple[str, str]:
    """(line, number) after typing into a new calculator."""
    app = Calculator(Desktop((448, 280), {}), Window(0, 0, 160, 190))
    app.typed(text)
    return app.calculation, app.entry


def test_clicked_keys_add_up(machine: Machine) -> None:
    assert press(machine, "1 2 + 3 0 =") == "42"
    assert machine.shows("12 + 30 =", kind="text")


def test_the_keyboard_does_the_same(machine: Machine) -> None:
    machine.do(Type("6*7"))
    machine.keys("enter")
    assert machine.find("Display").value == "42"
    machine.keys("esc")
    assert machine.find("Display").value == "0"


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ("0.1+0.2=", "0.3"),
        ("2+3*4=", "14"),
        ("10/4=", "2.5"),
        ("1/3=", "0.3333333333"),
        ("5-8=", "-3"),
        ("12+=", "12"),
        ("5x0+3=", "3"),
        ("7+-2=", "5"),
        ("=", "0"),
        ("3*4=5", "5"),
        ("3*4=+5=", "17"),
        ("1..5", "1.5"),
        ("007", "7"),
    ],
)
def test_calculations(keys: str, shown: str) -> None:
    assert typed(keys)[1] == shown


def test_a_division_by_zero_is_an_error_until_the_next_digit(machine: Machine) -> None:
    assert press(machine, "5 / 0 =") == ERROR
    assert press(machine, "+") == ERROR
    assert press(machine, "8") == "8"


def test_a_number_that_is_too_large_is_an_error() -> None:
    assert typed("9999999999x9999999999=")[1] == ERROR


def test_back_takes_one_digit_and_c_everything(machine: Machine) -> None:
    assert press(machine, "1 2 3 back") == "12"
    assert press(machine, "back back back") == "0"
    assert press(machine, "4 + 5 C") == "0"
    assert not machine.shows("4 +", kind="text")


def test_sign_and_percent_change_the_number(machine: Machine) -> None:
    assert press(machine, "8 +/-") == "-8"
    assert press(machine, "C 2 5 %") == "0.25"


def test_no_more_digits_are_taken_than_fit() -> None:
    assert typed("1" * 30)[1] == "1" * DIGITS


def test_the_result_goes_to_the_clipboard_and_back(machine: Machine) -> None:
    press(machine, "6 x 7 =")
    machine.keys("ctrl", "c")
    assert machine.desk.clipboard == "42"
    press(machine, "C")
    machine.keys("ctrl", "v")
    assert machine.find("Display").value == "42"


@given(st.integers(0, 9999), st.sampled_from("+-x"), st.integers(0, 9999))
@settings(deadline=None)
def test_two_whole_numbers_give_what_they_should(a: int, operator: str, b: int) -> None:
    right = {"+": a + b, "-": a - b, "x": a * b}[operator]
    assert typed(f"{a}{operator}{b}=") == (f"{a} {operator} {b} =", str(right))


@given(st.lists(st.sampled_from(KEYS), max_size=60))
@settings(deadline=None)
def test_no_keys_break_it_and_the_display_stays_short(keys: list[str]) -> None:
    app = Calculator(Desktop((448, 280), {}), Window(0, 0, 160, 190))
    for key in keys:
        app.press(key)
        assert app.entry == ERROR or (Decimal(app.entry).is_finite() and len(app.entry) <= DIGITS + 4)
