"""What dpo and kto share: how much likelier whole episodes became since training began.

    r = sum over an episode's tokens of  (log-probability now - log-probability at the start)

Their losses are functions of r. The gradient of such a loss is the sum over episodes of dloss/dr times the gradient of
the episode's log-probability. So r of every episode is looked at first, and then each token has the advantage
-dloss/dr: the gradient is exact, and episodes that are compared need not be in memory at the same time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from arpo.algorithms.advantages import exemplary
from arpo.algorithms.base import Look, Weighed
from arpo.types import Group, Sample, Trajectory


@dataclass(frozen=True, slots=True)
class Moved:
    """E episodes of an optimiser step."""

    r: Tensor  # E, in double precision, with gradient
    good: Tensor  # E, bool: which are successes
    tasks: list[str]


def signs(group: Group, solved: float) -> list[float]:
    """1 for a success, -1 for a failure, 0 for neither: advantages until r is known.

    Neither is what has no score, and a success that is not exemplary.
    """

    def sign(one: Trajectory) -> float:
        return float(exemplary(one, solved)) - float(one.score is not None and one.score < solved)

    return [sign(one) for one in group.trajectories]


def weighed(samples: Sequence[Sample], look: Look, loss: Callable[[Moved], tuple[Tensor, dict[str, float]]]) -> Weighed:
    """The advantages of the samples of an optimiser step. `loss`: of its episodes, and what is to be logged."""
    first = {sample.trajectory_id: sample for sample in reversed(samples)}
    r = dict.fromkeys(first, torch.zeros((), dtype=torch.float64))
    for sample, now, start in zip(samples, look.logprobs, look.reference, strict=True):
        # Rounded to single precision token by token, not as a sum: sums of long episodes are large.
        r[sample.trajectory_id] = r[sample.trajectory_id] + (now - start).double().sum().cpu()
    with torch.enable_grad():
        moved = Moved(
            torch.stack(list(r.values())).requires_grad_(),
            torch.tensor([one.advantages[0] > 0 for one in first.values()]),
            [one.task_id for one in first.values()],
        )
        total, metrics = loss(moved)
        (slopes,) = torch.autograd.grad(total, moved.r)
    slope = dict(zip(first, slopes.tolist(), strict=True))
    advantages = [torch.full((len(one.logprobs),), -slope[one.trajectory_id]) for one in samples]
    return Weighed(advantages, float(total.detach()), metrics)
