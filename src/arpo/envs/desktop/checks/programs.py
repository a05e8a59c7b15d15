"""Settings of VLC, GIMP, LibreOffice and the system, as their own files and commands have them."""

import ast
from collections.abc import Callable
from typing import Any

from arpo.envs.desktop.checks.reading import text, xml_of
from arpo.envs.evaluators import Unreadable

REGISTRY = "{http://openoffice.org/2001/registry}"
DARK = 100  # a colour whose parts are all below is called blackish


def _vlc(path: str, key: str, otherwise: str) -> str:
    """A setting of vlcrc, where those that nobody changed are comments."""
    for line in text(path).splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() == key:
            return value.strip()
    return otherwise


def _vlc_number(key: str, otherwise: int) -> Callable[[str, dict[str, Any]], float]:
    rule = f"expected_{key.replace('-', '_')}"
    return lambda path, rules: float(_vlc(path, key, str(otherwise)) == str(rules[rule]))


def is_vlc_recordings_folder(path: str, rules: dict[str, Any]) -> float:
    return float(_vlc(path, "input-record-path", "") == rules["recording_file_path"])


def check_qt_slider_colours(path: str, rules: dict[str, Any]) -> float:
    colours = _vlc(path, "qt-slider-colours", "153;210;153;20;210;20;255;199;15;245;39;29")
    if rules["type"] == "match":
        return float(colours == rules["expected_qt_slider_colours"])
    numbers = colours.split(";")
    return float(all(number.isdecimal() and len(number) <= 3 and int(number) < DARK for number in numbers))


def check_global_key_play_pause(path: str, rules: dict[str, Any]) -> float:
    set_to = "1" if _vlc(path, "global-key-play-pause", "") else "0"
    return float(set_to == str(rules["expected_global_key_play_pause"]))


def is_vlc_fullscreen(window: dict[str, int], screen: dict[str, int]) -> float:
    return float(window == screen)


def check_config_status(path: str, rules: dict[str, Any]) -> float:
    """A line `(key … value)` of GIMP's files; two keys are its first two words."""
    keys = [rules["key"]] if isinstance(rules["key"], str) else rules["key"]
    for line in text(path).splitlines():
        words = line.strip().lstrip("(").rstrip(")").split()
        if words[: len(keys)] == keys and words[-1] == rules["value"]:
            return 1.0
    return 0.0


def check_auto_saving_time(path: str, rules: dict[str, Any]) -> float:
    """LibreOffice's registrymodifications.xcu."""
    for item in xml_of(text(path)).iter("item"):
        if item.get(f"{REGISTRY}path") == "/org.openoffice.Office.Common/Save/Document":
            for prop in item.iter("prop"):
                if prop.get(f"{REGISTRY}name") == "AutoSaveTimeIntervall":
                    return float(prop.findtext("value") == str(rules["minutes"]))
    return 0.0


def is_utc_0(status: str) -> float:
    """The output of timedatectl."""
    return float(any("Time zone:" in line and line.endswith("+0000)") for line in status.splitlines()))


def check_gnome_favorite_apps(apps: str, rules: dict[str, Any]) -> float:
    try:
        pinned = ast.literal_eval(apps.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError) as error:  # "{[]: 1}" is a TypeError
        raise Unreadable("no list of names") from error
    names = pinned if isinstance(pinned, list | tuple) else []
    return float(sorted(map(str, names)) == sorted(rules["expected"]))


PROGRAM_METRICS: dict[str, Callable[..., float]] = {
    "check_qt_bgcone": _vlc_number("qt-bgcone", 1),
    "check_qt_max_volume": _vlc_number("qt-max-volume", 125),
    "check_qt_minimal_view": _vlc_number("qt-minimal-view", 0),
    "check_play_and_exit": _vlc_number("play-and-exit", 0),
    "check_one_instance_when_started_from_file": _vlc_number("one-instance-when-started-from-file", 1),
    **{
        metric.__name__: metric
        for metric in (
            is_vlc_recordings_folder, check_qt_slider_colours, check_global_key_play_pause, is_vlc_fullscreen,
            check_config_status, check_auto_saving_time, is_utc_0, check_gnome_favorite_apps,
        )
    },
}  # fmt: skip
