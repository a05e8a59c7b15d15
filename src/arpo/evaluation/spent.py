"""What an evaluation took: tokens and time, added up from the steps of its episodes.

To unpack an episode for three numbers is slow, so they are noted with the run as soon as they were looked up once. Only
the attempt that counts is looked at, not those that machines broke off before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from arpo.agent.episode import as_number
from arpo.runs.store import Run

WHOLE = "evaluation seconds"
LONGEST = 200  # characters of a note


@dataclass(frozen=True, slots=True)
class Spent:
    """Sums over episodes. Of those that are played at once each one counts, so `whole_s` can be less than the sums."""

    tokens: int | None  # sampled ones; None where the engine's are not those of a model
    engine_s: float  # waited for replies
    env_s: float  # waited for the computer
    whole_s: float  # passed while trials were played, in all sessions of a resumed run; a killed one's last trial apart


def spent(run: Run, episodes: Iterable[str], tokens_known: bool) -> Spent:
    """Of these episodes of the run, which must be open for writing."""
    tokens, engine_s, env_s = map(sum, zip((0, 0.0, 0.0), *(_of(run, episode) for episode in episodes), strict=True))
    return Spent(int(tokens) if tokens_known else None, engine_s, env_s, whole_s(run))


def whole_s(run: Run) -> float:
    """What was noted under WHOLE; 0 where nothing was, or no number."""
    try:
        return as_number(float(run.fact(WHOLE) or 0.0)) or 0.0
    except ValueError:
        return 0.0


def _of(run: Run, episode: str) -> tuple[int, float, float]:
    noted = _read(run.fact(f"spent {episode}"))
    if noted is None:
        steps = run.trajectory(episode).steps
        tokens = sum(len(step.completion.tokens) for step in steps)
        noted = tokens, sum(step.engine_s for step in steps), sum(step.env_s for step in steps)
        run.note(f"spent {episode}", json.dumps(noted))
    return noted


def _read(text: str | None) -> tuple[int, float, float] | None:
    """What was noted; None where it was not, or where somebody else wrote there."""
    try:
        numbers = [as_number(number) for number in json.loads((text or "")[:LONGEST])]
    except (ValueError, TypeError, RecursionError):
        return None
    match numbers:
        case [float(tokens), float(engine_s), float(env_s)]:
            return int(tokens), engine_s, env_s
    return None
