"""PPO, proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347): a value head in place of a group.

    V    = what the head expects of the episode's reward, before each sampled token
    A    = sum over later tokens of  gae^l d,   d = V of the next token - V, at the last token  R - V
    loss = GRPO's clipped loss with these A  +  value_weight * mean over episodes of the mean over tokens of  (V - R)^2

V is bounded to the range that rewards can have, from `format_reward` to 1, and is taught the reward itself, not a
mixture with its own guesses (both as BPCO does, arXiv 2608.23566, where rewards are sparse). At gae=1, A = R - V.
Advantages are not normalised. The head is a linear layer on the policy's last hidden states, and its error teaches the
policy's layers too.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from arpo.algorithms.base import Credit, Look, Loss, SampledTokens, Weighed
from arpo.algorithms.grpo import Grpo
from arpo.algorithms.loss import clipped_surrogate, token_weights
from arpo.types import Group, Sample, Trajectory


class Ppo(Grpo):
    """See the module."""

    def advantages(self, group: Group) -> list[Credit]:
        return [self._credit(one) if one.outcome.valid else Credit() for one in group.trajectories]

    def accept(self, group: Group) -> bool:
        return any(one.outcome.valid for one in group.trajectories)

    def _credit(self, trajectory: Trajectory) -> Credit:
        rewards = [trajectory.reward or 0.0] * sum(len(step.completion.tokens) for step in trajectory.steps)
        return Credit(rewards, rewards)  # what they are worth is known when the head has been asked

    def weigh(self, samples: Sequence[Sample], look: Look) -> Weighed:
        places: dict[str, list[int]] = {}  # the samples of each episode, in order
        for i, sample in enumerate(samples):
            places.setdefault(sample.trajectory_id, []).append(i)
        advantages: list[Tensor] = [torch.empty(0)] * len(samples)
        for mine in places.values():
            values = torch.cat([look.values[i] for i in mine])
            estimates = gae(values, samples[mine[0]].returns[0], self.settings.gae)
            parts = torch.split(estimates, [len(look.values[i]) for i in mine])
            for i, part in zip(mine, parts, strict=True):
                advantages[i] = part
        values = torch.cat(list(look.values))
        rewards = torch.tensor([value for sample in samples for value in sample.returns], device=values.device)
        return Weighed(advantages, metrics={"value_error": float((values - rewards).square().mean().sqrt())})

    def loss(self, new: Tensor, tokens: SampledTokens) -> Loss:
        loss = clipped_surrogate(new, tokens, self.settings)
        low, high = self.settings.rewards
        error = (tokens.values - tokens.returns.clamp(low, high)).square()  # a reward of one's own may lie outside
        taught = self.settings.value_weight * (token_weights(tokens, self.settings) * error).sum()
        return Loss(loss.total + taught, loss.clipped, loss.importance)


def gae(values: Tensor, reward: float, decay: float) -> Tensor:
    """Generalised advantage estimates of the tokens of an episode with one reward at its end, undiscounted."""
    steps = torch.cat([values[1:], values.new_tensor([reward])]) - values
    advantages, so_far = [], values.new_zeros(())
    for step in steps.flip(0):
        so_far = step + decay * so_far
        advantages.append(so_far)
    return torch.stack(advantages).flip(0)
