"""What was fetched, judged: values are read out of what an agent made, and metrics compare them.

    judge(evaluator, {"result": [path], "expected": [{"expected": …}]}, theirs=[False])       [1.0]

It runs in a sandbox, in a child with limits of memory and time (judging.py): whatever a reader here promises, a small
file may become a large one. A value that is not there scores 0, and so does a file that cannot be read as what it
should be. A metric of OSWorld's own (`theirs`) is not here: instead of a score come the values that were read for it.
"""

import json
import math
from collections.abc import Callable
from typing import Any

from arpo.envs.desktop.checks.chrome import CHROME_METRICS, PROFILE_READERS, TAB_READERS
from arpo.envs.desktop.checks.documents import DOCUMENT_METRICS
from arpo.envs.desktop.checks.getters import COMMON_READERS
from arpo.envs.desktop.checks.metrics import COMMON_METRICS
from arpo.envs.desktop.checks.programs import PROGRAM_METRICS
from arpo.envs.desktop.checks.reading import DEEPEST, reader
from arpo.envs.desktop.checks.tables import TABLE_METRICS
from arpo.envs.evaluators import Unreadable
from arpo.envs.task_format import listed

READERS: dict[str, Callable[..., Any]] = COMMON_READERS | PROFILE_READERS | TAB_READERS
METRICS: dict[str, Callable[..., float]] = (
    COMMON_METRICS | PROGRAM_METRICS | CHROME_METRICS | TABLE_METRICS | DOCUMENT_METRICS
)
LONGEST_VALUES = 1 << 19  # letters, of what OSWorld's metrics are given
Verdict = float | list[Any]


def judge(evaluator: dict[str, Any], fetched: dict[str, list[Any]], theirs: list[bool]) -> list[Verdict]:
    """Of each metric, its score or the values for it."""
    return [_one(evaluator, fetched, i, metric, theirs[i]) for i, metric in enumerate(listed(evaluator["func"]))]


def at(evaluator: dict[str, Any], key: str, i: int) -> Any:
    values = listed(evaluator.get(key))
    return values[i] if i < len(values) else None


def without_type(what: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in what.items() if key != "type"}


def _one(evaluator: dict[str, Any], fetched: dict[str, list[Any]], i: int, metric: str, theirs: bool) -> Verdict:
    asked = {key: what for key in ("result", "expected") if (what := at(evaluator, key, i))}
    try:
        values = {key: _read(what, fetched[key][i]) for key, what in asked.items()}
        if any(value is None or (isinstance(value, list) and None in value) for value in values.values()):
            return 0.0  # of several files one is not there; an expected one, too, may be the agent's to remove
        if theirs:
            return _sent([values[key] if what["type"] in READERS else None for key, what in asked.items()])
        score = float(METRICS[metric](*values.values(), **(at(evaluator, "options", i) or {})))
    except (Unreadable, RecursionError):
        return 0.0
    return min(1.0, max(0.0, score)) if math.isfinite(score) else 0.0  # a query gives whatever the agent's table says


def _read(what: dict[str, Any], fetched: Any) -> Any:
    reads = READERS.get(what["type"])
    return fetched if reads is None else reads(fetched, **without_type(what))


@reader
def _sent(values: list[Any]) -> list[Any]:
    """What was read; the others are known outside. Bytes of a database cannot be sent, and who gets it goes into it."""
    if len(json.dumps(values)) > LONGEST_VALUES or _depth(values) > DEEPEST:
        raise Unreadable("what was read is too long, or too deep")
    return values


def _depth(value: Any) -> int:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    return 0 if parts is None else 1 + max(map(_depth, parts), default=0)
