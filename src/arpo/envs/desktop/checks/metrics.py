"""Comparisons that know of no application: metric(result, what is wanted, **options) -> 0 … 1.

Names and rules are OSWorld's, and so are the forms of what is wanted (rules.py).
"""

import difflib
import json
import re
from collections.abc import Callable
from typing import Any

from arpo.envs.desktop.checks.reading import below, csv_of, database, image, json_of, reader, text
from arpo.envs.desktop.checks.rules import matches
from arpo.envs.evaluators import Unreadable

Rules = dict[str, Any]
NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*")
TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)")


def exact_match(result: Any, rules: Rules) -> float:
    return float(result == rules["expected"])


def match_in_list(result: Any, rules: Rules) -> float:
    return float(result in rules["expected"])


def is_in_list(result: Any, rules: Rules) -> float:
    return float(_has(result, rules["expected"]))


def _has(result: Any, part: Any) -> bool:
    """Whether it is in it. What the agent made may be of another kind than texts and lists: it has nothing in it."""
    if isinstance(result, str):
        return isinstance(part, str) and part in result
    return isinstance(result, list | tuple | dict) and part in list(result)


def literal_match(result: Any, wanted: Any, type: str = "str", ignore_case: bool = False) -> float:
    def plain(value: Any) -> str:
        return str(value).lower() if ignore_case else str(value)

    if type == "list":
        both = isinstance(result, list | tuple) and isinstance(wanted, list | tuple)
        return float(both and [plain(one) for one in result] == [plain(one) for one in wanted])
    return float(plain(result) == plain(wanted))


def check_include_exclude(result: Any, rules: Rules) -> float:
    included = all(_has(result, part) for part in rules.get("include", []))
    return float(included and not any(_has(result, part) for part in rules.get("exclude", [])))


def check_numbers(result: str, rules: Rules) -> float:
    """A text names just these numbers, in this order: who lists all that might be right has not answered."""
    return float(NUMBER.findall(result) == [str(number) for number in rules["expected"]])


def check_list(path: str, rules: Rules) -> float:
    """Every pattern of `expect` is in some line of a file, and none of `unexpect` in any."""
    lines = text(path).splitlines()

    def somewhere(pattern: str) -> bool:
        return any(re.search(pattern, line) for line in lines)

    return _as_expected(rules, somewhere)


def check_csv(path: str, rules: Rules) -> float:
    names, *lines = [row for row in csv_of(path) if row] or [[]]
    rows = [dict(zip(names, line, strict=False)) for line in lines]

    def somewhere(wanted: dict[str, Any]) -> bool:
        return any(all(row.get(key) == value for key, value in wanted.items()) for row in rows)

    return _as_expected(rules, somewhere)


def _as_expected(rules: Rules, holds: Callable[[Any], bool]) -> float:
    expected = all(map(holds, rules.get("expect", [])))
    return float(expected and not any(map(holds, rules.get("unexpect", []))))


def compare_text_file(path: str, wanted: str, ignore_blanks: bool = False) -> float:
    def plain(content: str) -> str:
        return " ".join(content.split()) if ignore_blanks else content

    return float(plain(text(path)) == plain(text(wanted)))


def diff_text_file(path: str, wanted: str) -> float:
    """The share of equal lines."""
    return difflib.SequenceMatcher(None, text(path).splitlines(), text(wanted).splitlines()).ratio()


def file_contains(path: str, rules: Rules) -> float:
    content = text(path)
    return float(all(part in content for part in rules["expected"]))


def check_line_number(path: str, rules: Rules) -> float:
    """As many lines with a time of day in them as are expected."""
    return float(sum(TIME.search(line) is not None for line in text(path).splitlines()) == int(rules["expected"]))


def check_json(path: str, rules: Rules, is_yaml: bool = False) -> float:
    content = json_of(path, is_yaml)
    return _as_expected(rules, lambda one: matches(below(content, *one["key"]), one))


def check_direct_json_object(result: Any, rules: Rules) -> float:
    """An object has the expected values; with `expect_in_result` each is part of the result one."""
    if isinstance(result, str):
        try:
            result = json.loads(result.strip().replace("'", '"'))
        except ValueError as error:
            raise Unreadable(str(error)) from error
    if not isinstance(result, dict):
        return 0.0

    def right(key: str, wanted: Any) -> bool:
        value = result.get(key)
        if not rules.get("expect_in_result", False):
            return bool(value == wanted)
        return any(_has(value, one) for one in (wanted if isinstance(wanted, list) else [wanted]))

    return float(all(right(key, wanted) for key, wanted in rules["expected"].items()))


def run_sqlite3(path: str, rules: Rules) -> float:
    """The number that a query gives."""
    rows = database(path, rules["sql"])
    return reader(float)(rows[0][0] or 0) if rows else 0.0


# Pictures.


def check_image_size(path: str, rules: Rules) -> float:
    picture = image(path)
    box = picture.getchannel("A").getbbox() if rules.get("ignore_transparent") else (0, 0, *picture.size)
    width, height = (box[2] - box[0], box[3] - box[1]) if box else (0, 0)
    return float(rules.get("width", width) == width and rules.get("height", height) == height)


def check_pixels(path: str, rules: Rules) -> float:
    """{"at": [[x, y, [red, green, blue]], …], "tolerance": 8}"""
    picture, tolerance = image(path), rules.get("tolerance", 8)
    for x, y, wanted in rules["at"]:
        if not (0 <= x < picture.width and 0 <= y < picture.height):
            return 0.0
        pixel: Any = picture.getpixel((x, y))
        if any(abs(a - b) > tolerance for a, b in zip(pixel, wanted, strict=False)):
            return 0.0
    return 1.0


COMMON_METRICS: dict[str, Callable[..., float]] = {
    metric.__name__: metric
    for metric in (
        exact_match, match_in_list, is_in_list, literal_match, check_include_exclude, check_numbers, check_list,
        check_csv, compare_text_file, diff_text_file, file_contains, check_line_number, check_json,
        check_direct_json_object, run_sqlite3, check_image_size, check_pixels,
    )
}  # fmt: skip
