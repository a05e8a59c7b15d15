"""The reference: transformers' own forward pass over whole contexts, and what the tests feed to both."""

from __future__ import annotations

import inspect
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from arpo.bench.sample import plain_model
from arpo.engines.base import Prompt
from arpo.images import decode, observe
from arpo.model.checkpoint import Checkpoint
from arpo.model.images import patches, resized
from arpo.model.layout import lay_out
from arpo.model.qwen import QwenVL, banned_ids
from arpo.resize import Sight
from arpo.types import Observation

_references: WeakKeyDictionary[QwenVL, Any] = WeakKeyDictionary()


def reference(checkpoint: Checkpoint) -> Any:
    """transformers' own model over the very same tensors."""
    if checkpoint.model not in _references:
        _references[checkpoint.model] = plain_model(checkpoint.model)
    model = _references[checkpoint.model]
    model.model.rope_deltas = None  # of its last call
    return model


def doubled(images: torch.Tensor, sight: Sight) -> torch.Tensor:
    """B x patches x their numbers, what transformers' tower takes: two frames, as of a video."""
    return patches(images, sight).unsqueeze(3).expand(-1, -1, -1, 2, -1).flatten(2)


def screen(seed: int, size: tuple[int, int] = (112, 84)) -> Observation:
    rng = np.random.default_rng(seed)
    width, height = size
    blocks = rng.integers(0, 256, (height // 7 + 1, width // 7 + 1, 3), dtype=np.uint8)
    return observe(blocks.repeat(7, 0).repeat(7, 1)[:height, :width].copy())


def add_screen(checkpoint: Checkpoint, prompt: Prompt, text: str, image: Observation, after: str = "go") -> Prompt:
    """A context that goes on with a text, a screenshot and another text."""
    words = checkpoint.vocabulary
    start, pad, end = (words.special(f"<|{name}|>") for name in ("vision_start", "image_pad", "vision_end"))
    ids = (*prompt.ids, *words.encode(text), start, pad, end, *words.encode(after))
    return Prompt(ids, (*prompt.images, image))


def reference_inputs(checkpoint: Checkpoint, prompt: Prompt) -> dict[str, torch.Tensor]:
    pad = checkpoint.config.image_token_id
    sight = checkpoint.model.sight
    sizes = [sight.grid(image.width, image.height) for image in prompt.images]
    ids = lay_out(prompt.ids, sizes, pad).ids[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if prompt.images:
        pixels = [torch.from_numpy(resized(decode(image.image), sight).copy())[None] for image in prompt.images]
        inputs["pixel_values"] = torch.cat([doubled(one, sight)[0] for one in pixels])
        inputs["image_grid_thw"] = torch.tensor([[1, 2 * rows, 2 * columns] for rows, columns in sizes])
    if "mm_token_type_ids" in inspect.signature(reference(checkpoint).forward).parameters:
        inputs["mm_token_type_ids"] = (ids == pad).int()
    return inputs


def reference_logprobs(
    checkpoint: Checkpoint, prompt: Prompt, tokens: tuple[int, ...], temperature: float = 1.0
) -> torch.Tensor:
    """Log-probabilities of all next tokens at each place of a reply, banned ids out: len(tokens) x vocabulary."""
    whole = Prompt((*prompt.ids, *tokens), prompt.images)
    with torch.no_grad():
        scores = reference(checkpoint)(**reference_inputs(checkpoint, whole)).logits[0].float()
    scores[:, list(banned_ids(checkpoint.config))] = float("-inf")
    return (scores[-len(tokens) - 1 : -1] / temperature).log_softmax(-1)
