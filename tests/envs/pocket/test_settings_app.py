"""The settings, through clicks and the screen parse."""

import random

import pytest
from machine import Machine

from arpo.agent.actions import Click, Drag
from arpo.envs.pocket.apps.settings import CHECKS, DEFAULTS, TABS, randomise


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.desk.settings.clear()
    machine.desk.launch("Settings", (60, 5))
    return machine


def test_every_setting_has_its_documented_default(machine: Machine) -> None:
    assert machine.desk.settings == DEFAULTS


def test_dark_mode_and_accent_change_the_pixels_at_once(machine: Machine) -> None:
    seen = [machine.env.pixels().tobytes()]
    for label in ("Dark mode", "Red"):
        machine.click(label)
        seen.append(machine.env.pixels().tobytes())
    assert len(set(seen)) == 3
    assert machine.desk.settings["dark"] is True and machine.desk.settings["accent"] == "Red"
    assert "checked" in machine.find("Red", kind="radio").state
    assert "checked" not in machine.find("Blue", kind="radio").state


@pytest.mark.parametrize("tab", TABS)
def test_each_checkbox_switches_its_setting_on_and_off(machine: Machine, tab: str) -> None:
    machine.click(tab, kind="tab")
    for key, label in CHECKS[tab].items():
        for _ in range(2):
            was = machine.desk.settings[key]
            machine.click(label, kind="checkbox")
            assert machine.desk.settings[key] is not was
            assert ("checked" in machine.find(label, kind="checkbox").state) is not was


def test_a_list_offers_its_choices_and_keeps_the_one_that_is_clicked(machine: Machine) -> None:
    machine.click("System", kind="tab")
    machine.click("Time zone", kind="dropdown")
    machine.click("Rome", kind="menuitem")
    assert machine.find("Time zone", kind="dropdown").value == machine.desk.settings["zone"] == "Rome"


def test_a_slider_follows_a_click_and_a_drag(machine: Machine) -> None:
    x0, _, x1, _ = machine.find("Brightness", kind="slider").box
    y = machine.find("Brightness", kind="slider").centre[1]
    machine.do(Click((x0 + x1) // 2, y))
    assert machine.desk.settings["brightness"] == 50
    machine.do(Drag((x0 + x1) // 2, y, x1 + 40, y))
    assert machine.find("Brightness", kind="slider").value == "100"


def test_mute_disables_the_volume(machine: Machine) -> None:
    machine.click("Sound", kind="tab")
    machine.click("Mute")
    slider = machine.find("Volume", kind="slider")
    assert "disabled" in slider.state
    machine.do(Click(slider.box[0] + 6, slider.centre[1]))
    assert machine.desk.settings["volume"] == DEFAULTS["volume"]


def test_do_not_disturb_disables_the_alerts(machine: Machine) -> None:
    machine.click("Alerts", kind="tab")
    machine.click("Do not disturb")
    machine.click("Chat alerts")
    assert machine.desk.settings["alert_chat"] is False


def test_reset_asks_first_and_then_sets_everything_back(machine: Machine) -> None:
    randomise(machine.desk, random.Random(5))
    before = dict(machine.desk.settings)
    machine.click("System", kind="tab")
    machine.click("Reset all")
    machine.click("Cancel")
    assert machine.desk.settings == before
    machine.click("Reset all")
    machine.click("Reset", kind="button", window="Reset settings")
    assert machine.desk.settings == DEFAULTS


def test_what_was_set_is_there_when_the_window_is_opened_again(machine: Machine) -> None:
    machine.click("Night light")
    machine.click("close")
    machine.click("Settings", kind="icon", count=2)
    assert "checked" in machine.find("Night light").state
