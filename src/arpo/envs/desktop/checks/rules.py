"""Rules for one value, as checkers of JSON files and of cells have them: `{"method": "approx:0.1", "ref": 3}`.

eq, ne, lt, le, gt and ge compare; "approx:0.1" is a number that near; "re" is a pattern that is searched for.
"""

from __future__ import annotations

import operator
import re
from typing import Any

WITH_ORDER = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


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
    except (TypeError, ValueError):
        return False  # a number was wanted, and it is none
    if method == "re":
        return re.search(ref, str(value)) is not None
    raise ValueError(f"the method {method!r} of a rule is not known here")
