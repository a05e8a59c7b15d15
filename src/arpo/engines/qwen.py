"""The forward pass of a Qwen2.5-VL over transformers' weights: one for the engine, one for the learner, the same code.

    layout = spread(ids, sizes, image_pad)              # one image token in `ids` becomes as many as the image needs
    x = embed(model, layout.ids, features)              # features: the vision tower's tokens of all images, in order
    hidden = run_layers(model, x, rope(model, layout.positions, x.dtype), causal)
    scores = logits(model, hidden[wanted])              # only where asked; vision ids have probability 0

What differs between sampling and learning is where attention looks: at a cache, or at the sequence itself. So
`run_layers` is given attention as a function, and everything else is written once. The reference works positions out in
Python, image by image and on every call; here they are a few cumulative sums.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from arpo.agent.coordinates import FACTOR, smart_resize

# cuDNN's attention works out a plan for each new shape, which takes a tenth of a second; here almost every batch and
# every prompt has a new one.
torch.backends.cuda.enable_cudnn_sdp(False)

Model: TypeAlias = Any
"""A `Qwen2_5_VLForConditionalGeneration`: transformers does not type its modules."""

Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries ... x T x heads x dim, keys, values ... x T x kv_heads x dim) to the mix, shaped as the queries."""

Rope: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and signed sines, ... x T x 1 x head_dim."""


def banned_ids(config: Any) -> tuple[int, ...]:
    """The ids that stand for pictures: left out of the softmax, by the sampler and by the learner alike."""
    return (config.image_token_id, config.video_token_id, config.vision_start_token_id, config.vision_end_token_id)


def image_grid(width: int, height: int) -> tuple[int, int]:
    """(rows, columns) of image tokens that a screenshot takes."""
    new_height, new_width = smart_resize(height, width)
    return new_height // FACTOR, new_width // FACTOR


@dataclass(frozen=True, slots=True)
class Layout:
    """A context with its images spread out to T tokens."""

    ids: Tensor  # T
    positions: Tensor  # 3 x T: time, height, width
    starts: NDArray[np.int64]  # of each entry of the short ids, its first token; one more entry: T
    end: int  # the position of the token that would follow


def spread(ids: Sequence[int], sizes: Sequence[tuple[int, int]], image_pad: int) -> Layout:
    """Lay a context out. `sizes`: rows and columns of each image's tokens, in the order of the image tokens in `ids`.

    A text token is treated as an image of one row and one column. An image occupies as many positions as its longer
    side; its tokens count time from its first position on (a still: all the same), height and width from there.
    """
    short = np.asarray(ids, dtype=np.int64)
    grid = np.ones((len(short), 2), dtype=np.int64)
    grid[short == image_pad] = np.asarray(sizes, dtype=np.int64).reshape(-1, 2)
    tokens, steps = grid.prod(axis=1), grid.max(axis=1)
    starts = np.concatenate([[0], tokens.cumsum()])
    first = np.repeat(steps.cumsum() - steps, tokens)
    inside = np.arange(starts[-1]) - np.repeat(starts[:-1], tokens)
    columns = np.repeat(grid[:, 1], tokens)
    positions = np.stack([first, first + inside // columns, first + inside % columns])
    return Layout(
        ids=torch.from_numpy(np.repeat(short, tokens)),
        positions=torch.from_numpy(positions),
        starts=starts,
        end=int(steps.sum()),
    )


def rope(model: Model, positions: Tensor, dtype: torch.dtype) -> Rope:
    """Rotary factors for positions 3 x T (or 3 x B x T), on their device, in the precision of the reference."""
    rotary = model.model.language_model.rotary_emb
    section = model.config.text_config.rope_parameters["mrope_section"]
    axis = _constant(tuple(i for i, n in enumerate(section) for _ in range(n)), positions.device)
    angles = positions[axis].movedim(0, -1).float() * rotary.inv_freq.float()  # each frequency turns by its own axis
    cos, sin = angles.cos() * rotary.attention_scaling, angles.sin() * rotary.attention_scaling
    # The two halves of a head are rotated against each other: the first gets minus the second's sine.
    return (
        torch.cat([cos, cos], dim=-1).to(dtype).unsqueeze(-2),
        torch.cat([-sin, sin], dim=-1).to(dtype).unsqueeze(-2),
    )


def embed(model: Model, ids: Tensor, features: Tensor | None = None) -> Tensor:
    """Token embeddings, the images' features in the places of the image tokens (in order; their number must agree)."""
    x: Tensor = model.model.language_model.embed_tokens(ids)
    if features is None:
        return x
    places = (ids == model.config.image_token_id).unsqueeze(-1).expand_as(x)
    return x.masked_scatter(places, features.to(x.dtype))


def run_layers(
    model: Model, x: Tensor, factors: Rope, attend: Attend, recompute: bool = False, wanted: Tensor | None = None
) -> Tensor:
    """All decoder layers and the last norm on embeddings ... x T x hidden.

    `recompute`: keep only what goes into each layer and compute the rest again for the gradient.
    `wanted`, ... x Q: the only places whose results are needed. All others end with the keys and values of the last
    layer, where `attend` must know what to do with Q queries; the result is ... x Q x hidden.
    """
    text = model.config.text_config
    heads, kv_heads = text.num_attention_heads, text.num_key_value_heads
    dim = text.hidden_size // heads
    layers = model.model.language_model.layers

    def run(i: int, layer: Any, x: Tensor) -> Tensor:
        attention, h = layer.self_attn, norm(layer.input_layernorm, x)
        k = _rotate(attention.k_proj(h).unflatten(-1, (kv_heads, dim)), factors)
        v = attention.v_proj(h).unflatten(-1, (kv_heads, dim))
        cos, sin = factors
        if wanted is not None and i == len(layers) - 1:
            x, h, cos, sin = (_take(t, wanted) for t in (x, h, cos, sin))
        q = _rotate(attention.q_proj(h).unflatten(-1, (heads, dim)), (cos, sin))
        x = x + attention.o_proj(attend(i, q, k, v).flatten(-2))
        out: Tensor = x + layer.mlp(norm(layer.post_attention_layernorm, x))
        return out

    for i, layer in enumerate(layers):
        x = checkpoint(run, i, layer, x, use_reentrant=False) if recompute else run(i, layer, x)
    return norm(model.model.language_model.norm, x)


def norm(layer: Any, x: Tensor) -> Tensor:
    """The reference's RMS norm, to the bit, as one operation."""
    return F.rms_norm(x, x.shape[-1:], layer.weight.to(x.dtype), layer.variance_epsilon)


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of a whole sequence, or of a batch of equal lengths, on itself."""
    q, k, v = (t.transpose(-3, -2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(-3, -2)


def causal_at(places: Tensor) -> Attend:
    """The same, also for fewer queries: those at `places`, B x Q with Q < T. All heads of a key head ask together."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.shape[1] == k.shape[1]:
            return causal(layer, q, k, v)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        seen = torch.arange(k.shape[2], device=k.device) <= places.repeat(1, q.shape[1] // k.shape[1])[:, None, :, None]
        mixed = F.scaled_dot_product_attention(q.reshape(*k.shape[:2], -1, k.shape[3]), k, v, attn_mask=seen)
        return mixed.reshape(q.shape).transpose(1, 2)

    return attend


def logits(model: Model, hidden: Tensor) -> Tensor:
    """Scores of the next token, in single precision, minus infinity for the banned ids."""
    scores: Tensor = model.lm_head(hidden).float()
    return scores.index_fill(-1, _constant(banned_ids(model.config), scores.device), float("-inf"))


@lru_cache(maxsize=64)
def _constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """A small tensor that every call needs, made once a device, and so that the learner may use it too."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device)


def _take(x: Tensor, places: Tensor) -> Tensor:
    """Of ... x T x whatever the entries at places ... x Q."""
    index = places.reshape(*places.shape, *(1 for _ in range(x.ndim - places.ndim)))
    return torch.take_along_dim(x, index, dim=places.ndim - 1)


def _rotate(x: Tensor, factors: Rope) -> Tensor:
    cos, signed_sin = factors
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)
