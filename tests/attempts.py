"""Episodes and groups for these tests, as far as the method looks at them."""

from __future__ import annotations

from arpo.agent.actions import Finish
from arpo.types import Completion, Group, Outcome, Provenance, Step, Tokens, Trajectory


def attempt(name: str, score: float | None, outcome: Outcome | None = None, task: str = "t") -> Trajectory:
    """An episode of one reply. Without an outcome: finished, or broken off by a machine where there is no score."""
    if outcome is None:
        outcome = Outcome.FINISHED if score is not None else Outcome.ENV_ERROR
    return Trajectory(
        id=name,
        task_id=task,
        attempt=0,
        env_seed=7,
        start="screen-0",
        segments=(Tokens((5, 6)),),
        steps=(Step((0,), Completion((1, 2), (-0.1, -0.2), "", 0, 1.0, 1.0, "stop"), Finish(), None, "", None, 0, 0),),
        outcome=outcome,
        score=score,
        reward=None if score is None else score - (outcome in (Outcome.UNPARSABLE, Outcome.CUT_OFF)),
        provenance=Provenance("rollout", "r", 3),
    )


def group(*members: float | tuple[float, Outcome] | Trajectory | None, task: str = "t") -> Group:
    """The group of these scores; None is an invalid member, an outcome can be given along."""

    def made(place: int, member: float | tuple[float, Outcome] | Trajectory | None) -> Trajectory:
        match member:
            case Trajectory():
                return member
            case (score, outcome):
                return attempt(f"{task}-{place}", score, outcome, task)
            case score:
                return attempt(f"{task}-{place}", score, task=task)

    return Group(task, tuple(made(place, member) for place, member in enumerate(members)))
