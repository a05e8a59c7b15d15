"""A Qwen2.5-VL as modules with transformers' names of weights: one forward pass, of the engine and of the learner.

    layout = lay_out(ids, sizes, image_pad)                # one image token in `ids` becomes as many as the image needs
    features = model.model.visual(images).flatten(0, 1)    # the images' tokens
    scores = model(layout.ids, layout.positions, features)

What differs between sampling and learning is where attention looks: at a cache, or at the sequence itself. So attention
is handed in as a function, and everything else is written once. Whatever uses a weight is the `forward` of a module, so
that hooks fire: those of FSDP, of LoRA, of a profiler.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arpo.model.again import again, again_but_attention
from arpo.model.attention import Attend as Attend
from arpo.model.attention import packed
from arpo.model.kernels import rotate
from arpo.model.recompute import NOTHING, Recompute
from arpo.model.shapes import head_dim
from arpo.model.vision import Mlp, RmsNorm, Tower
from arpo.resize import Sight

PIECE = 2**28  # bytes of scores at once, where log-probabilities of many places are asked for

Rope: TypeAlias = tuple[Tensor, Tensor]
"""Cosines and signed sines, T x 1 x head_dim."""


class QwenVL(nn.Module):
    """The whole model. `config`: transformers' own."""

    architecture = "Qwen2_5_VLForConditionalGeneration"  # transformers' class of the same weights

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.model = Halves(*self.halves(config))
        self.lm_head = nn.Linear(config.text_config.hidden_size, config.text_config.vocab_size, bias=False)
        self.tie()

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        features: Tensor | None = None,
        images: Mapping[str, Tensor] | None = None,
        shown: Sequence[str] = (),
        lengths: Sequence[int] | None = None,
        wanted: Tensor | None = None,
        temperature: float | None = None,
        recompute: Recompute = NOTHING,
    ) -> Tensor:
        """Scores of the token after each of T; for the rest see `TextModel`.

        `images`: in place of `features`, H x W x 3 each, for the tower; `shown`: which of them stand there, in order.
        `wanted`, Q: the places whose scores are needed; the result has one row for each of them.
        `temperature`: what is asked for is the log-probability, at this temperature, of the token that follows each
        wanted place. Then scores of only so many places exist at a time.
        """
        if images:
            seen = self.model.visual(images, recompute.tower)
            tokens = {name: one for names, some in seen for name, one in zip(names, some.unbind(), strict=True)}
            nothing = seen[0][1][0, :0]  # where a rank calls the tower only because the others do
            features = torch.cat([tokens[name] for name in shown] or [nothing])
        hidden = self.model.language_model(ids, positions, features, None, wanted, lengths, recompute)
        if temperature is None:
            return self.scores(hidden)
        assert wanted is not None
        next_ids = ids[wanted.to(ids.device) + 1]
        most = max(1, PIECE // (4 * self.config.text_config.vocab_size))
        if len(next_ids) <= most:
            return self._logprobs(hidden, next_ids, temperature)
        pieces = zip(torch.split(hidden, most), torch.split(next_ids, most), strict=True)
        return torch.cat([again(self._logprobs, *piece, temperature) for piece in pieces])

    def _logprobs(self, hidden: Tensor, ids: Tensor, temperature: float) -> Tensor:
        return -F.cross_entropy(self.scores(hidden) / temperature, ids, reduction="none")

    @staticmethod
    def halves(config: Any) -> "tuple[Tower, TextModel]":
        """What another family has others of."""
        return Tower(config.vision_config), TextModel(config)

    @property
    def sight(self) -> Sight:
        """How it sees a screenshot."""
        return self.model.visual.sight

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

    def __init__(self, visual: Tower, language_model: "TextModel") -> None:
        super().__init__()
        self.visual = visual
        self.language_model = language_model


class TextModel(nn.Module):
    """Embeddings, decoder layers and the last norm."""

    @staticmethod
    def attention(text: Any, layer: int) -> "Attention":
        return Attention(text, layer)

    def __init__(self, config: Any) -> None:
        super().__init__()
        text = config.text_config
        self.image_pad: int = config.image_token_id
        self.theta: float = text.rope_parameters["rope_theta"]
        self.sections: list[int] = text.rope_parameters["mrope_section"]
        self.embed_tokens = nn.Embedding(text.vocab_size, text.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(text, self.attention(text, i)) for i in range(text.num_hidden_layers))
        self.norm = RmsNorm(text.hidden_size, eps=text.rms_norm_eps)

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        features: Tensor | None = None,
        attend: Attend | None = None,
        wanted: Tensor | None = None,
        lengths: Sequence[int] | None = None,
        recompute: Recompute = NOTHING,
    ) -> Tensor:
        """From ids T, at positions 3 x T, to what the head takes.

        `features`: what stands in the places of the image tokens, in order; their number must agree. Where they are
        N x levels x hidden, the first level does, and each of the others is added there after one of the first layers.
        `attend`: attention where it is not that of sequences on themselves.
        `wanted`, Q, ascending: the only places whose results are needed. The last layer computes only keys and values
        of the others, so `attend` must take Q queries there; the result is Q x hidden.
        `lengths`: of the sequences that lie behind each other in the T tokens; None: it is one.
        """
        x = self.embed_tokens(ids)
        seen, deep = ids, list[Tensor]()
        if features is not None:
            seen = (ids == self.image_pad).nonzero().squeeze(1)
            features, *deep = (features,) if features.ndim == 2 else features.unbind(1)
            x = x.index_copy_(0, seen, features.to(x.dtype))
        if attend is None:
            attend = packed(lengths or [len(ids)], None if wanted is None else wanted.tolist())
        places, rope = None if wanted is None else wanted.to(x.device), self.rope(positions, _computed_in(x))
        for i, layer in enumerate(self.layers):
            inputs = (x, rope, attend, places if i == len(self.layers) - 1 else None)
            x = layer(*inputs, keep_mlp=i >= recompute.mlps, keep=i >= recompute.layers)
            if i < len(deep):
                x = x.index_add(0, seen, deep[i].to(x.dtype))
        return self.norm(x)

    def rope(self, positions: Tensor, dtype: torch.dtype) -> Rope:
        """Rotary factors for positions 3 x T, on their device, in the precision of the reference."""
        angles = self.angles(positions)
        cos, sin = angles.cos(), angles.sin()
        # The two halves of a head are rotated against each other: the first gets minus the second's sine.
        return (
            torch.cat([cos, cos], dim=-1).to(dtype).unsqueeze(-2),
            torch.cat([-sin, sin], dim=-1).to(dtype).unsqueeze(-2),
        )

    def angles(self, positions: Tensor) -> Tensor:
        """T x head_dim / 2: each frequency belongs to one of the three axes, here one section after another."""
        parts = torch.split(speeds(2 * sum(self.sections), self.theta, positions.device), self.sections)
        axes = zip(positions.unsqueeze(-1).float(), parts, strict=True)
        return torch.cat([along * mine for along, mine in axes], dim=-1)


class DecoderLayer(nn.Module):
    def __init__(self, text: Any, attention: "Attention") -> None:
        super().__init__()
        self.self_attn = attention
        self.mlp = Mlp(text, bias=False)
        self.input_layernorm = RmsNorm(text.hidden_size, eps=text.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(text.hidden_size, eps=text.rms_norm_eps)

    def forward(
        self,
        x: Tensor,
        rope: Rope,
        attend: Attend,
        wanted: Tensor | None = None,
        keep_mlp: bool = True,
        keep: bool = True,
    ) -> Tensor:
        """`keep_mlp`, `keep`: what happens inside the MLP, and in all of it, for the gradient; see `Recompute`."""
        if not keep:
            return again_but_attention(self._mixed, x, rope, attend, wanted, True)
        return self._mixed(x, rope, attend, wanted, keep_mlp)

    def _mixed(self, x: Tensor, rope: Rope, attend: Attend, wanted: Tensor | None, keep_mlp: bool) -> Tensor:
        mixed = self.self_attn(self.input_layernorm(x), rope, attend, wanted)
        x = (x if wanted is None else x[wanted]) + mixed
        return x + (self._within(x) if keep_mlp else again(self._within, x))

    def _within(self, x: Tensor) -> Tensor:
        within: Tensor = self.mlp(self.post_attention_layernorm(x))
        return within


class Attention(nn.Module):
    def __init__(self, text: Any, layer: int, bias: bool = True) -> None:
        super().__init__()
        self.layer, self.dim = layer, head_dim(text)
        queries, keys = text.num_attention_heads * self.dim, text.num_key_value_heads * self.dim
        self.q_proj = nn.Linear(text.hidden_size, queries, bias)
        self.k_proj = nn.Linear(text.hidden_size, keys, bias)
        self.v_proj = nn.Linear(text.hidden_size, keys, bias)
        self.o_proj = nn.Linear(queries, text.hidden_size, bias=False)

    def forward(self, x: Tensor, rope: Rope, attend: Attend, wanted: Tensor | None) -> Tensor:
        cos, sin = rope
        k = rotate(self.keys(x), cos, sin)
        v = self.v_proj(x).unflatten(-1, (-1, self.dim))
        if wanted is not None:
            x, cos, sin = (t[wanted] for t in (x, cos, sin))
        q = rotate(self.queries(x), cos, sin)
        return self.o_proj(attend(self.layer, q, k, v).flatten(-2))

    def queries(self, x: Tensor) -> Tensor:
        return self.q_proj(x).unflatten(-1, (-1, self.dim))

    def keys(self, x: Tensor) -> Tensor:
        return self.k_proj(x).unflatten(-1, (-1, self.dim))


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
def speeds(dim: int, theta: float, device: torch.device) -> Tensor:
    """By how much each pair of a head's numbers turns from one position to the next."""
    return (1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))).to(device)


def _computed_in(x: Tensor) -> torch.dtype:
    """The precision of products with x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
