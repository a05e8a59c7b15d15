"""What an evaluation took: tokens and time, added up from the steps of its episodes.

To unpack an episode for a few numbers is slow, so they are noted with the run as soon as they were looked up once. Only
the attempt that counts is looked at, not those that machines broke off before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from arpo.agent.episode import as_number
from arpo.runs.store import Run

WHOLE = "evaluation seconds"
KINDS = 7  # numbers of an episode
LONGEST = 200  # characters of a note


@dataclass(frozen=True, slots=True)
class Spent:
    """Sums over episodes. Of those that are played at once each one counts, so `whole_s` can be less than the sums."""

    tokens: int | None  # sampled ones, by an endpoint's own count where it has one; None: not known
    prompt_tokens: int | None  # of all prompts together, by an endpoint's own count
    engine_s: float  # waited for replies
    env_s: float  # waited for the computer
    whole_s: float  # passed while trials were played, in all sessions of a resumed run; a killed one's last trial apart

    def cost(self, price: Sequence[float] | None) -> float | None:
        """By the price of a million tokens of prompt and of reply; None where either is not known."""
        if price is None or self.tokens is None or self.prompt_tokens is None:
            return None
        return (self.prompt_tokens * price[0] + self.tokens * price[1]) / 1e6


def spent(run: Run, episodes: Iterable[str], tokens_known: bool) -> Spent:
    """Of these episodes of the run, which must be open for writing. An endpoint that counts does so in every turn."""
    turns, counted, tokens, prompts, replies, engine_s, env_s = map(
        sum, zip((0.0,) * KINDS, *(_of(run, episode) for episode in episodes), strict=True)
    )
    if counted and counted == turns:
        return Spent(int(replies), int(prompts), engine_s, env_s, whole_s(run))
    return Spent(int(tokens) if tokens_known else None, None, engine_s, env_s, whole_s(run))


def whole_s(run: Run) -> float:
    """What was noted under WHOLE; 0 where nothing was, or no number."""
    try:
        return as_number(float(run.fact(WHOLE) or 0.0)) or 0.0
    except ValueError:
        return 0.0


def _of(run: Run, episode: str) -> list[float]:
    """Turns, those that an endpoint counted, our tokens, its own of prompts and replies, seconds of both machines."""
    noted = _read(run.fact(f"spent {episode}"))
    if noted is None:
        steps = run.trajectory(episode).steps
        usage = [step.completion.usage for step in steps if step.completion.usage is not None]
        counted = [
            len(usage),
            sum(len(step.completion.tokens) for step in steps),
            *map(sum, zip((0, 0), *usage, strict=True)),
        ]
        noted = [len(steps), *counted, sum(step.engine_s for step in steps), sum(step.env_s for step in steps)]
        run.note(f"spent {episode}", json.dumps(noted))
    return noted


def _read(text: str | None) -> list[float] | None:
    """What was noted; None where it was not, by an older arpo in another form, or by somebody else."""
    try:
        numbers = [as_number(number) for number in json.loads((text or "")[:LONGEST])]
    except (ValueError, TypeError, RecursionError):
        return None
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) == KINDS else None
