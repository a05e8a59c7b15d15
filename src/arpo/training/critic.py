"""A value head: what reward the policy expects, before each sampled token.

    critic = Critic(model, (-1.0, 1.0), torch.float32)
    model(ids, …, wanted=places)          # any pass of the policy
    critic.values()                       # at those places, between the two bounds

One linear layer on the last hidden states, so that it costs nothing beside the policy. It belongs to the learner: no
engine needs it, and published weights do not have it.
"""

from typing import Any

import torch
from torch import Tensor, nn

from arpo.model.qwen import QwenVL


class Critic:
    """See the module. It begins in the middle of its bounds, whatever it is shown.

    `dtype`: that of the weights that are trained beside it, for they have one optimiser. (Adapters are in fp32, also
    where the model is not.)
    """

    def __init__(self, model: QwenVL, bounds: tuple[float, float], dtype: torch.dtype) -> None:
        self._low, self._high = bounds
        weight = model.lm_head.weight
        self._head = nn.Linear(weight.shape[1], 1, device=weight.device, dtype=dtype)
        nn.init.zeros_(self._head.weight)
        nn.init.zeros_(self._head.bias)
        self._hidden: Tensor | None = None
        model.model.language_model.register_forward_hook(self._seen)

    def _seen(self, module: nn.Module, given: Any, hidden: Tensor) -> None:
        self._hidden = hidden

    def values(self) -> Tensor:
        """Of the pass that was made last, once."""
        assert self._hidden is not None, "no pass was made"
        hidden, self._hidden = self._hidden, None
        share = torch.sigmoid(self._head(hidden.to(self._head.weight.dtype)).squeeze(-1).float())
        return self._low + (self._high - self._low) * share

    def parameters(self) -> list[Tensor]:
        return list(self._head.parameters())

    def state(self) -> list[float]:
        """As JSON has it: a head is small."""
        return [value for weight in self.parameters() for value in weight.detach().float().flatten().tolist()]

    def restore(self, state: list[float]) -> None:
        """ValueError where it is not what `state` returns."""
        sizes, largest = [weight.numel() for weight in self.parameters()], torch.finfo(self._head.weight.dtype).max
        if len(state) != sum(sizes) or not all(isinstance(value, float) and abs(value) <= largest for value in state):
            raise ValueError("a value head of another model")
        parts = torch.split(torch.tensor(state), sizes)
        with torch.no_grad():
            for weight, mine in zip(self.parameters(), parts, strict=True):
                weight.copy_(mine.view_as(weight))
