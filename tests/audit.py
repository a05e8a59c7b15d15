"""An audit of a run's store: every episode that was begun is accounted for exactly once, whatever failed meanwhile."""

from __future__ import annotations

from collections import defaultdict

from arpo.agent.player import ATTEMPTS
from arpo.runs.store import Run
from arpo.types import Summary


def audit(run: Run, updates: int, tasks: int, group: int) -> dict[str, int]:
    """So many updates of so many tasks, each played so often: no more, no less. Says how many attempts failed.

    Of the attempts at an episode only the last may be valid; all before it failed as machines, and have no score.
    """
    attempts: dict[tuple[int, str], list[Summary]] = defaultdict(list)
    for summary in run.summaries(source="rollout"):
        episode, _, number = summary.id.rpartition("-")
        attempts[summary.update, episode].append(summary)
        assert int(number) == summary.attempt
    by_update = defaultdict(lambda: defaultdict(int))  # type: ignore[var-annotated]
    for (update, _), tries in attempts.items():
        by_update[update][tries[0].task_id] += 1
        assert [one.attempt for one in tries] == list(range(len(tries))), "none is missing, none is twice"
        assert all(not one.outcome.valid for one in tries[:-1]), "what was valid was played again"
        assert tries[-1].outcome.valid or len(tries) >= ATTEMPTS, "given up too early"
        for one in tries:
            assert (one.score is not None) == (one.reward is not None) == one.outcome.valid, "a failure is no reward"
    assert sorted(by_update) == list(range(updates))
    assert all(len(played) == tasks for played in by_update.values())
    assert all(n == group for played in by_update.values() for n in played.values())
    stored = [summary for tries in attempts.values() for summary in tries]
    failed = [summary for summary in stored if not summary.outcome.valid]
    logged = [metrics for metrics in run.metrics()]
    assert [metrics["update"] for metrics in logged] == list(range(updates))
    return {"episodes": len(attempts), "failed_attempts": len(failed)}
