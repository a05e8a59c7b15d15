"""To compute again for the gradient what was not kept: see recompute.py."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

aten = torch.ops.aten
_ATTENTION = {
    aten._flash_attention_forward.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
}


def again(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """Call it; all that the gradient needs of its inside is computed again."""
    result: Tensor = checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)
    return result


def again_but_attention(function: Callable[..., Tensor], *inputs: Any) -> Tensor:
    """The same, and what attention gave is kept."""
    result: Tensor = checkpoint(
        function, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=_keeping_attention
    )
    return result


def _keeping_attention() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    contexts: tuple[Any, Any] = create_selective_checkpoint_contexts(_kept)  # type: ignore[no-untyped-call]
    return contexts


def _kept(context: Any, operation: Any, *inputs: Any, **named: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _ATTENTION else CheckpointPolicy.PREFER_RECOMPUTE
