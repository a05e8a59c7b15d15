"""Tasks for galculator. It writes its settings, and what its display showed, when it is quit."""

from arpo.agent.actions import Type
from arpo.envs.desktop.families.base import DesktopFamily, Params, impossible
from arpo.envs.desktop.families.moves import Look, Moves, click, press
from arpo.envs.desktop.families.parts import HOME, folder, launch, shell_says, task
from arpo.types import Json

APPS = ("galculator",)
SETTINGS = f"{HOME}/.config/galculator/galculator.conf"
ROWS = ("789/", "456*", "123-", "0.?+")  # where the buttons are
MODES = ("Basic", "Scientific", "Paper")


def _result(p: Params) -> Json:
    return task(
        f"Use the calculator to work out {p['say']}. Quit it when the display shows the result.",
        _CONFIG,
        _setting("remembered_valuex", f'"{p["result"]}"'),
    )


def _result_script(look: Look, p: Params) -> Moves:
    box = look.window("galculator")
    if p["click"]:
        for key in p["keys"]:
            yield f"The button {key}.", next(click("", box, *_button(key)))[1]
    else:
        yield "Type the calculation.", Type(p["keys"])
    yield from _quit(look)


def _mode(p: Params) -> Json:
    return task(
        f"Switch the calculator to {p['mode'].lower()} mode and quit it, so that it starts that way from now on.",
        _CONFIG,
        _setting("mode", str(MODES.index(p["mode"]))),
    )


def _mode_script(look: Look, p: Params) -> Moves:
    box = look.window("galculator")
    yield from click("Open the menu View.", box, 103, 12)
    yield from press(f"Choose {p['mode']} Mode.", *["down"] * (MODES.index(p["mode"]) + 1), "enter")
    yield from _quit(look)


def _quit(look: Look) -> Moves:
    yield from press("Quit the calculator.", "ctrl q")
    look.gone("galculator")
    look.file(SETTINGS)
    look.says("pgrep -cx galculator; true", "0\n")


def _button(key: str) -> tuple[int, int]:
    if key == "=":
        return 294, 299
    row = next(i for i, keys in enumerate(ROWS) if key in keys)
    return 34 + 65 * ROWS[row].index(key), 199 + 40 * row


def _setting(name: str, value: str) -> Json:
    """It is quit, and has kept this."""
    return shell_says('grep "^$1=" "$2"; pgrep -cx galculator', f"{name}={value}\n0\n", name, SETTINGS)


_CONFIG = [folder(f"{HOME}/.config"), launch("galculator")]

FAMILIES = (
    DesktopFamily("calculator-result", APPS, _result, _result_script, (
        {"say": "37 times 49", "keys": "37*49=", "result": "1813", "click": True},
        {"say": "1250 minus 386", "keys": "1250-386=", "result": "864", "click": True},
        {"say": "(17 + 4) times 36", "keys": "(17+4)*36=", "result": "756", "click": False},
        {"say": "864 divided by 32", "keys": "864/32=", "result": "27", "click": True},
    )),
    DesktopFamily("calculator-mode", APPS, _mode, _mode_script, ({"mode": "Scientific"}, {"mode": "Paper"})),
    impossible("calculator-impossible", APPS, lambda p: _CONFIG,
        {"say": "Let the calculator convert 50 US dollars to euros at today's rate on the internet."},
    ),
)  # fmt: skip
