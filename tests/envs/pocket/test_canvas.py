"""What is drawn: colours that can be told apart, text that can be read, and the words that are reported."""

import pytest
from machine import Machine

from arpo.agent.actions import Click, Type
from arpo.envs.pocket import PocketEnv
from arpo.envs.pocket.canvas import ACCENTED, COLORS, WHITE, Color, Theme, _painted, wallpaper
from arpo.envs.pocket.catalog import get_task, task_list
from arpo.envs.pocket.expert import PocketExpert
from arpo.envs.pocket.text_layout import text_mask, width


def contrast(one: Color, two: Color) -> float:
    """The ratio of two colours' brightness as the web's accessibility rules count it: from 1 to 21."""

    def light(color: Color) -> float:
        parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in color]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    dark, bright = sorted((light(one), light(two)))
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("accent", COLORS)
def test_text_stands_out_from_what_it_is_written_on_in_every_theme(dark: bool, accent: str) -> None:
    theme = Theme(dark, accent)
    for ground in (theme.panel, theme.page, theme.raised, theme.select, theme.quiet):
        assert contrast(theme.ink, ground) > 5
    assert contrast(WHITE, theme.bright) > 3.5 and contrast(WHITE, wallpaper(accent, theme)) > 4
    assert contrast(theme.link, theme.page) > 5 and contrast(theme.wrong, theme.panel) > 4.5
    for ground in (theme.panel, theme.page, theme.raised):
        assert contrast(theme.faint, ground) > 3
        assert 1.7 < contrast(theme.off, ground) < contrast(theme.faint, ground)  # disabled: faint, and yet to be read


def test_every_pixel_is_drawn_on_a_screen_whose_sides_are_odd() -> None:
    pixels = Machine(size=(1001, 811)).env.pixels()
    assert (pixels[-1] == pixels[-2]).all() and (pixels[:, -1] == pixels[:, -2]).all()


def test_a_tab_is_drawn_as_a_gap() -> None:
    assert width("\t") == 4 * width(" ") and text_mask("\t", 12, 1).getextrema() == (0, 0)


def test_a_bold_word_is_reported_once() -> None:
    machine = Machine()
    for x in (100, 101):
        machine.desk.windows.clear()
        machine.desk.launch("Files", (x, 20))
        machine.refresh()
        assert [word for word, _ in machine.env.words()].count("Documents") == 2  # the place and the heading


def test_a_word_that_is_covered_in_part_is_not_reported() -> None:
    machine = Machine()
    machine.desk.launch("Editor", (100, 100))
    machine.do(Type("zebra island"))
    _, y0, x1, _ = dict(machine.env.words())["zebra"]
    assert "island" in dict(machine.env.words())
    machine.desk.launch("Calculator", (x1 - 4, y0 - 160))  # over the last letter of the one and all of the other
    machine.refresh()
    assert not {"zebra", "island"} & {word for word, _ in machine.env.words()}


def test_disabled_and_enabled_controls_look_different() -> None:
    machine = Machine()
    machine.desk.launch("Settings", (100, 20))
    machine.refresh()
    machine.click("Alerts", kind="tab")
    box = machine.find("Mail alerts", kind="checkbox").box
    enabled = machine.env.pixels()[box[1] : box[3], box[0] : box[2]].copy()
    machine.do(Click(*machine.find("Do not disturb", kind="checkbox").centre))
    assert (machine.env.pixels()[box[1] : box[3], box[0] : box[2]] != enabled).any()


def test_only_the_accented_kinds_look_different_under_another_accent() -> None:
    env = PocketEnv()
    seen: dict[str, bool] = {}
    for task_id in [task for tasks in task_list("train").values() for task in tasks][::3]:
        task = get_task(task_id)
        env.load(task, 1)
        expert = PocketExpert(task)
        while not env.ended:
            for item in (item for layer in env.frame() for item in layer.items):
                blue, red = (_painted(item.spec, Theme(accent=accent), 1)[0] for accent in ("Blue", "Red"))
                seen[item.spec[0]] = seen.get(item.spec[0], False) or bool((blue != red).any())
            env.perform(expert.act(env)[1])
    differ = {kind for kind, differs in seen.items() if differs}
    assert differ <= ACCENTED and ACCENTED - differ <= {"icon"}  # a picked icon: no expert stops at one click
