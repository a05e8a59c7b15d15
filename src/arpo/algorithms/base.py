"""The contract of an algorithm: which groups are learned, what joins them, what each token is worth, and its loss.

    algorithm = make_algorithm(config.algorithm, config.seed)
    if algorithm.accept(group): …                          # else another task may take its place
    filled = algorithm.fill(groups, update, run.trajectory)    # replay
    credits = algorithm.advantages(group)                  # token by token, of each trajectory
    algorithm.loss(new_logprobs, tokens)                   # what the learner differentiates
    algorithm.remember(groups, update)                     # when the update is made

The records leave room for more than the four that come with arpo: advantages may differ from token to token, `returns`
are for a value head, and a method without groups takes each trajectory of a group by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from arpo.registry import Registry, made
from arpo.types import Group, Trajectory

if TYPE_CHECKING:  # torch takes seconds, and settings need only the names
    from torch import Tensor

    from arpo.config import AlgorithmConfig


@dataclass(frozen=True, slots=True)
class Credit:
    """What each sampled token of a trajectory is worth, in order. A trajectory without advantages is not learned."""

    advantages: Sequence[float] = ()
    returns: Sequence[float] = ()  # what a value head is to predict; empty: there is no value head


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """N sampled tokens of an optimiser step, each entry a tensor of N. Three log-probabilities are kept apart:

    the sampler's, perhaps of many updates ago; `old`, of the policy before this update; and `new`, of the policy now,
    with gradient, which is a separate argument of the loss.
    """

    sampler: Tensor
    old: Tensor
    advantages: Tensor
    returns: Tensor  # empty where there are none
    lengths: Tensor  # how many sampled tokens the trajectory of each token has
    trajectories: int  # how many the optimiser step has, for its mean
    replayed: Tensor  # bool
    stale: Tensor  # bool: sampled by an older policy than the one before this update
    sequence: Tensor  # which sequence a token belongs to, from 0 on


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of N tokens, and what is to be known of each."""

    total: Tensor  # with gradient; those of all parts of an optimiser step are added up
    clipped: Tensor  # bool: clipping took its gradient away
    importance: Tensor  # the weight that corrects for who sampled it; 1 where nothing is corrected


class Algorithm(Protocol):
    """A method of learning. What it remembers between updates is part of each checkpoint."""

    def accept(self, group: Group) -> bool:
        """Whether a group teaches something. If not, another task may take its place (`algorithm.redraw`)."""
        ...

    def fill(self, groups: Sequence[Group], update: int, load: Callable[[str], Trajectory]) -> list[Group]:
        """The groups to learn from, perhaps with stored trajectories in them; `load` reads one by its id."""
        ...

    def advantages(self, group: Group) -> list[Credit]:
        """One for each trajectory of the group."""
        ...

    def loss(self, new: Tensor, tokens: SampledTokens) -> Loss:
        """The loss of some tokens of an optimiser step, and of nothing else: it may be called in any process."""
        ...

    def remember(self, groups: Sequence[Group], update: int) -> None:
        """Called when the update has been made, with the groups as they were played."""
        ...

    def state(self) -> dict[str, Any]:
        """What it remembers, as JSON."""
        ...

    def restore(self, state: dict[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Method:
    """What is known of an algorithm without importing it."""

    name: str
    factory: str | Callable[[AlgorithmConfig, int], Algorithm]  # of settings and a seed; or "module:callable"
    settings: Mapping[str, Any] = field(default_factory=dict)  # keys of the section `algorithm` that the name sets
    options: Mapping[str, Any] = field(default_factory=dict)  # `algorithm.options`: its own, with defaults
    least_group: int = 1  # how many episodes of a task it needs at least


METHODS = Registry(
    "algorithm",
    "arpo.algorithms",
    (
        Method("grpo", "arpo.algorithms.grpo:Grpo", {"replay": False}, least_group=2),
        Method("dapo", "arpo.algorithms.dapo:Dapo", {"replay": False, "redraw": 3}, least_group=2),
        Method("arpo", "arpo.algorithms.arpo:Arpo", {"replay": True}, least_group=2),
        Method(
            "arpo+",
            "arpo.algorithms.arpo_plus:ArpoPlus",
            {"replay": True, "replay_tau": 8.0, "replay_truncate": 2.0, "replay_reject": 2.0, "replay_spares": True},
            least_group=2,
        ),
    ),
)


def make_algorithm(settings: AlgorithmConfig, seed: int) -> Algorithm:
    """The algorithm that the settings name."""
    name = settings.method
    if settings.replay and name in ("grpo", "dapo"):  # grpo:replay=true is another name of arpo
        name = "arpo"
    algorithm: Algorithm = made(f"algorithm.name={settings.name}", METHODS.find(name).factory, settings, seed)
    return algorithm
