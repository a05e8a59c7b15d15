"""Rules for one value, as checkers of JSON files and of cells have them: `{"method": "approx:0.1", "ref": 3}`.

eq, ne, lt, le, gt and ge compare; "approx:0.1" is a number that near; "re" is a pattern that is searched for.

Also what the rules of each metric may say, so that a misspelt one is refused before it is played: many would hold then.
"""

import operator
import re
from typing import Any

WITH_ORDER = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
KEYS: dict[str, tuple[str, str]] = {  # what they must have, and may; where they must nothing, one of these. Some that
    # OSWorld's files have mean nothing there either: result_not_list, ignore_list_order, "type:".
    "exact_match": ("expected", ""),
    "match_in_list": ("expected", ""),
    "is_in_list": ("expected", ""),
    "file_contains": ("expected", ""),
    "check_line_number": ("expected", ""),
    "check_paragraphs": ("expected", ""),
    "check_pdf": ("expected", ""),
    "check_numbers": ("expected", ""),
    "check_gnome_favorite_apps": ("expected", ""),
    "check_direct_json_object": ("expected", "expect_in_result result_not_list ignore_list_order"),
    "check_include_exclude": ("", "include exclude"),
    "check_list": ("", "expect unexpect"),
    "check_csv": ("", "expect unexpect"),
    "check_json": ("", "expect unexpect"),
    "check_image_size": ("", "width height ignore_transparent"),
    "check_pixels": ("at", "tolerance"),
    "check_style": ("text property expected", "only"),
    "run_sqlite3": ("sql", ""),
    "check_font_size": ("type", "value min max"),
    "check_history_deleted": ("keywords", "type"),
    "is_expected_bookmarks": ("type", "names urls"),
    "is_expected_tabs": ("type urls", ""),
    "check_config_status": ("key value", "type type:"),
    "check_auto_saving_time": ("minutes", ""),
    "is_vlc_recordings_folder": ("recording_file_path", ""),
    "check_qt_slider_colours": ("type", "expected_qt_slider_colours"),
    "check_qt_bgcone": ("expected_qt_bgcone", ""),
    "check_qt_max_volume": ("expected_qt_max_volume", ""),
    "check_qt_minimal_view": ("expected_qt_minimal_view", ""),
    "check_play_and_exit": ("expected_play_and_exit", ""),
    "check_one_instance_when_started_from_file": ("expected_one_instance_when_started_from_file", ""),
    "check_global_key_play_pause": ("expected_global_key_play_pause", ""),
}


def refuse_rules(metric: str, rules: Any) -> None:
    """ValueError for rules that a metric does not know, or that say nothing."""
    if metric == "check_cells":
        if not rules or not all(re.fullmatch("[A-Z]+[1-9][0-9]*", name) for name in rules):
            raise ValueError("its rules are values of cells by their names: {'B7': 1219}")
    elif metric in KEYS:
        must, may = (set(names.split()) for names in KEYS[metric])
        if lacking := must - rules.keys():
            raise ValueError(f"its rules lack {', '.join(sorted(lacking))}")
        if unknown := rules.keys() - must - may:
            raise ValueError(f"its rules have an unknown {', '.join(sorted(unknown))}")
        if not must and not any(rules.values()):
            raise ValueError(f"its rules must have one of {', '.join(sorted(may))}")
    if metric == "check_json":
        for one in (one for side in rules.values() for one in side):
            refuse_rule(one, "key")


def refuse_rule(rule: dict[str, Any], *more: str) -> None:
    """The same for one value."""
    if rule.keys() != {"method", "ref", *more}:
        raise ValueError(f"{rule} must have {', '.join([*more, 'method', 'ref'])}")
    matches("", rule)


def matches(value: Any, rule: dict[str, Any]) -> bool:
    """Whether a value is as a rule {"method": …, "ref": …} has it."""
    method, ref = rule["method"], rule["ref"]
    if value is None:
        return bool(method == "eq" and ref is None)
    try:
        if method in WITH_ORDER:
            return bool(WITH_ORDER[method](value, ref))
        if method.startswith("approx:"):
            return abs(float(value) - ref) <= float(method.removeprefix("approx:"))
    except (TypeError, ValueError, OverflowError):
        return False  # a number was wanted, and it is none
    if method == "re":
        try:
            return isinstance(value, str | int | float) and re.search(ref, str(value)) is not None
        except ValueError:
            return False  # a number of more digits than Python writes
    raise ValueError(f"the method {method!r} of a rule is not known here")
