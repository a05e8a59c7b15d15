"""The contract of an algorithm: which groups are learned, what joins them, what each token is worth, and its loss.

    algorithm = make_algorithm(config.algorithm, config.seed)
    if algorithm.seeks(group): …                           # then its task is tried more often
    if algorithm.accept(group): …                          # else another task may take its place
    filled = algorithm.fill(groups, update, run.trajectory)    # replay
    credits = algorithm.advantages(group)                  # token by token, of each trajectory
    algorithm.loss(new_logprobs, tokens)                   # what the learner differentiates
    algorithm.remember(groups, update)                     # when the update is made

Advantages may differ from token to token, `returns` are for a value head, and a method without groups takes each
trajectory of a group by itself. A method whose advantages follow from what the policy is at this very moment (dpo, kto,
ppo) has `weigh` as well: see `Weighs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from arpo.registry import Registry, made
from arpo.types import Group, Sample, Trajectory

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
    replayed: Tensor  # bool: out of the store (Sample.stored), a replayed success or an episode of another run
    stale: Tensor  # bool: sampled by an older policy than the one before this update
    reference: Tensor  # log-probabilities of the policy that training began with; empty where nobody needs them
    values: Tensor  # of the value head, with gradient; empty where there is none


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of N tokens, and what is to be known of each."""

    total: Tensor  # with gradient; those of all parts of an optimiser step are added up
    clipped: Tensor  # bool: clipping took its gradient away
    importance: Tensor  # the weight that corrects for who sampled it; 1 where nothing is corrected


@dataclass(frozen=True, slots=True)
class Look:
    """What the policy thinks of samples right before an optimiser step learns them: a tensor of tokens for each."""

    logprobs: Sequence[Tensor]
    reference: Sequence[Tensor]  # by the policy that training began with; empty where the method has no `reference`
    values: Sequence[Tensor]  # of the value head; empty where the method has no `critic`


@dataclass(frozen=True, slots=True)
class Weighed:
    """What became of the advantages."""

    advantages: Sequence[Tensor]  # of the tokens of each sample
    loss: float | None = None  # the true loss of the step, where `Algorithm.loss` has only its gradient
    metrics: Mapping[str, float] = field(default_factory=dict)  # to be logged


class Algorithm(Protocol):
    """A method of learning. What it remembers between updates is part of each checkpoint."""

    def accept(self, group: Group) -> bool:
        """Whether a group teaches something. If not, another task may take its place (`algorithm.redraw`)."""
        ...

    def seeks(self, group: Group) -> bool:
        """Whether more attempts at its task are wanted now, since all of these failed (`algorithm.group_most`)."""
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


class Weighs(Algorithm, Protocol):
    """A method with a `reference` or a `critic` (see `Method`)."""

    def weigh(self, samples: Sequence[Sample], look: Look) -> Weighed:
        """The advantages of all samples of an optimiser step, right before it."""
        ...


Needs: TypeAlias = Literal["differing", "successes", "pairs", "both"]
"""What a method learns from where it plays nothing (`arpo train --from`):

    differing    tasks whose episodes have different rewards
    successes    tasks with a success
    pairs        tasks with a success and a failure
    both         any task, where there are successes and failures in all
"""


@dataclass(frozen=True, slots=True)
class Method:
    """What is known of an algorithm without importing it."""

    name: str
    factory: str | Callable[[AlgorithmConfig, int], Algorithm]  # of settings and a seed; or "module:callable"
    settings: Mapping[str, Any] = field(default_factory=dict)  # keys of the section `algorithm` that the name sets
    options: Mapping[str, Any] = field(default_factory=dict)  # `algorithm.options`: its own, with defaults
    least_group: int = 1  # how many episodes of a task it needs at least
    reference: bool = False  # whether it looks at the policy that training began with
    critic: bool = False  # whether it has a value head
    offline: Needs | None = "differing"  # of stored episodes; None: it learns from what it plays alone
    idle: Sequence[str] = ()  # keys of the section `algorithm` that have no effect on it
    by_score: bool = False  # whether it goes by scores alone, whatever a reward is


REPLAY = ("replay", "replay_count", "replay_shortest")
UNWEIGHED = ("kl", "surprising", "partial", *REPLAY)  # of methods with a loss of their own

METHODS = Registry(
    "algorithm",
    "arpo.algorithms",
    (
        Method("grpo", "arpo.algorithms.grpo:Grpo", {"replay": False}, least_group=2),
        Method("dapo", "arpo.algorithms.dapo:Dapo", {"replay": False, "redraw": 3}, least_group=2),
        Method("arpo", "arpo.algorithms.arpo:Arpo", {"replay": True}, least_group=2),
        Method(
            "arpo+",
            "arpo.algorithms.arpo:Arpo",
            {"replay": True, "group_least": 4, "group_most": 24},
            least_group=2,
            offline=None,
        ),
        Method(
            "ppo",
            "arpo.algorithms.ppo:Ppo",
            {"replay": False},
            critic=True,
            offline=None,
            idle=("surprising", *REPLAY),
        ),
        Method(
            "rft",
            "arpo.algorithms.rft:Rft",
            {"replay": False},
            offline="successes",
            idle=UNWEIGHED,
            by_score=True,
        ),
        Method(
            "dpo",
            "arpo.algorithms.dpo:Dpo",
            {"replay": False},
            least_group=2,
            reference=True,
            offline="pairs",
            idle=UNWEIGHED,
            by_score=True,
        ),
        Method(
            "kto",
            "arpo.algorithms.kto:Kto",
            {"replay": False},
            reference=True,
            offline="both",
            idle=UNWEIGHED,
            by_score=True,
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
