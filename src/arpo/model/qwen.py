"""A Qwen2.5-VL as modules with transformers' names of weights: one forward pass, of the engine and of the learner.

    layout = lay_out(ids, sizes, image_pad)                # one image token in `ids` becomes as many as the image needs
    features = model.model.visual(images).flatten(0, 1)    # the images' tokens
    scores = model(layout.ids, layout.positions, features)

What differs between sampling and learning is where attention looks: at a cache, or at the sequence itself. So attention
is handed in as a function, and everything else is written once. Whatever uses a weight is the `forward` of a module, so
that hooks fire: those of FSDP, of LoRA, of a profiler.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from arpo.model.vision import Mlp, RmsNorm, Tower

# cuDNN's attention works out a plan for each new shape, which takes a tenth of a second; here almost every batch and
# every prompt has a new one.
torch.backends.cuda.enable_cudnn_sdp(False)

Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries ... x T x heads x dim, keys, values ... x T x kv_heads x dim) to the mix, shaped as the queries."""

Rope: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and signed sines, ... x T x 1 x head_dim."""


class QwenVL(nn.Module):
    """The whole model. `config`: transformers' own."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.model = Halves(config)
        self.lm_head = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size, bias=False)
        self.tie()

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        features: Tensor | None = None,
        images: Mapping[str, Tensor] | None = None,
        shown: Sequence[str] = (),
        wanted: Tensor | None = None,
        recompute: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Scores of the token after each of ... x T; for the rest see `TextModel`.

        `images`: in place of `features`, H x W x 3 each, for the tower; `shown`: which of them stand there, in order.
        `wanted`, ... x Q: the places whose scores are needed, then -1. The result is one row for each of them.
        """
        if images:
            tokens = {name: self.model.visual(image[None])[0] for name, image in images.items()}
            features = torch.cat([tokens[name] for name in shown])
        places = None if wanted is None else wanted.clamp(min=0)
        hidden = self.model.language_model(ids, positions, features, None, places, recompute, dtype)
        return self.scores(hidden if wanted is None else hidden[wanted >= 0])

    def scores(self, hidden: Tensor) -> Tensor:
        """Of the next token, in single precision, minus infinity for the banned ids."""
        scores: Tensor = self.lm_head(hidden).float()
        return scores.index_fill(-1, _constant(banned_ids(self.config), scores.device), float("-inf"))

    def tie(self) -> None:
        """Let the head be the embeddings, where the config says so."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.language_model.embed_tokens.weight


class Halves(nn.Module):
    """The vision tower and the language model; a module, since transformers' names of weights begin with `model.`."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.visual = Tower(config.vision_config)
        self.language_model = TextModel(config)


class TextModel(nn.Module):
    """Embeddings, decoder layers and the last norm."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        text = config.text_config
        self.image_pad: int = config.image_token_id
        self.theta: float = text.rope_parameters["rope_theta"]
        self.sections: list[int] = text.rope_parameters["mrope_section"]
        self.embed_tokens = nn.Embedding(text.vocab_size, text.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(text, i) for i in range(text.num_hidden_layers))
        self.norm = RmsNorm(text.hidden_size, eps=text.rms_norm_eps)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        features: Tensor | None = None,
        attend: Attend | None = None,
        wanted: Tensor | None = None,
        recompute: bool = False,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """From ids ... x T, at positions 3 x ... x T, to what the head takes.

        `features`: what stands in the places of the image tokens, in order; their number must agree.
        `attend`: attention where it is not that of the sequence on itself.
        `wanted`, ... x Q: the only places whose results are needed. The last layer computes only keys and
        values of the others, so `attend` must take Q queries there; the result is ... x Q x hidden.
        `recompute`: keep only what goes into each layer and compute the rest again for the gradient.
        `dtype`: of the sum of all layers, where it is not that of the embeddings.
        """
        x = self.embed_tokens(ids)
        if features is not None:
            places = (ids == self.image_pad).unsqueeze(-1).expand_as(x)
            x = x.masked_scatter(places, features.to(x.dtype))
        x = x if dtype is None else x.to(dtype)
        rope, attend = self.rope(positions, _computed_in(x)), attend or causal(wanted)
        for i, layer in enumerate(self.layers):
            inputs = (x, rope, attend, wanted if i == len(self.layers) - 1 else None)
            x = checkpoint(layer, *inputs, use_reentrant=False) if recompute else layer(*inputs)
        return self.norm(x)

    def rope(self, positions: Tensor, dtype: torch.dtype) -> Rope:
        """Rotary factors for positions 3 x ... x T, on their device, in the precision of the reference."""
        speeds = torch.split(_speeds(2 * sum(self.sections), self.theta, positions.device), self.sections)
        axes = zip(positions.unsqueeze(-1).float(), speeds, strict=True)  # a frequency belongs to one of the three axes
        angles = torch.cat([along * mine for along, mine in axes], dim=-1)
        cos, sin = angles.cos(), angles.sin()
        # The two halves of a head are rotated against each other: the first gets minus the second's sine.
        return (
            torch.cat([cos, cos], dim=-1).to(dtype).unsqueeze(-2),
            torch.cat([-sin, sin], dim=-1).to(dtype).unsqueeze(-2),
        )


class DecoderLayer(nn.Module):
    def __init__(self, text: Any, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(text, layer)
        self.mlp = Mlp(text, bias=False)
        self.input_layernorm = RmsNorm(text.hidden_size, eps=text.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(text.hidden_size, eps=text.rms_norm_eps)

    def forward(self, x: Tensor, rope: Rope, attend: Attend, wanted: Tensor | None = None) -> Tensor:
        mixed = self.self_attn(self.input_layernorm(x), rope, attend, wanted)
        x = (x if wanted is None else _take(x, wanted)) + mixed
        return x + self.mlp(self.post_attention_layernorm(x))


class Attention(nn.Module):
    def __init__(self, text: Any, layer: int) -> None:
        super().__init__()
        self.layer, self.dim = layer, text.hidden_size // text.num_attention_heads
        keys = text.num_key_value_heads * self.dim
        self.q_proj = nn.Linear(text.hidden_size, text.hidden_size)
        self.k_proj = nn.Linear(text.hidden_size, keys)
        self.v_proj = nn.Linear(text.hidden_size, keys)
        self.o_proj = nn.Linear(text.hidden_size, text.hidden_size, bias=False)

    def forward(self, x: Tensor, rope: Rope, attend: Attend, wanted: Tensor | None) -> Tensor:
        cos, sin = rope
        k = _rotate(self.k_proj(x).unflatten(-1, (-1, self.dim)), cos, sin)
        v = self.v_proj(x).unflatten(-1, (-1, self.dim))
        if wanted is not None:
            x, cos, sin = (_take(t, wanted) for t in (x, cos, sin))
        q = _rotate(self.q_proj(x).unflatten(-1, (-1, self.dim)), cos, sin)
        return self.o_proj(attend(self.layer, q, k, v).flatten(-2))


def causal(places: Tensor | None = None) -> Attend:
    """Attention of a whole sequence, or of a batch of equal lengths, on itself.

    `places`, B x Q with Q < T: where the queries stand in a layer that has only Q of them. All heads of a key head ask
    together there.
    """

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.transpose(-3, -2) for t in (q, k, v))
        if places is None or q.shape[-2] == k.shape[-2]:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(-3, -2)
        seen = torch.arange(k.shape[2], device=k.device) <= places.repeat(1, q.shape[1] // k.shape[1])[:, None, :, None]
        mixed = F.scaled_dot_product_attention(q.reshape(*k.shape[:2], -1, k.shape[3]), k, v, attn_mask=seen)
        return mixed.reshape(q.shape).transpose(1, 2)

    return attend


def banned_ids(config: Any) -> tuple[int, ...]:
    """The ids that stand for pictures: left out of the softmax, by the sampler and by the learner alike."""
    return (config.image_token_id, config.video_token_id, config.vision_start_token_id, config.vision_end_token_id)


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # so that the learner may use it too
def _constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """A small tensor that every call needs, made once a device."""
    return torch.tensor(values, device=device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _speeds(dim: int, theta: float, device: torch.device) -> Tensor:
    """By how much each pair of a head's numbers turns from one position to the next."""
    return (1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))).to(device)


def _computed_in(x: Tensor) -> torch.dtype:
    """The precision of products with x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _take(x: Tensor, places: Tensor) -> Tensor:
    """Of ... x T x whatever the entries at places ... x Q."""
    index = places.reshape(*places.shape, *(1 for _ in range(x.ndim - places.ndim)))
    return torch.take_along_dim(x, index, dim=places.ndim - 1)


def _rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)
