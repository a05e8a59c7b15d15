"""What of a forward pass is kept for the gradient, and what is computed again: the less memory, the more time.

    plan = choose(model.config, tokens=42_195, patches=0, itemsize=2, free=60 * 2**30)
    scores = model(ids, positions, lengths, recompute=plan)

At 42,195 tokens a layer of a 7B keeps 8 GB: 5 of them inside the MLP, for two thirds of the MLP's forward pass; but for
its input and attention's result (0.6 GB), the rest costs a few multiplications too. Attention is never computed again:
its time grows with the square of the length, and its result is small.

Only the sums are here, without torch: a plan for a model that is not there needs no more (training/memory.py). How a
thing is computed again is in again.py.
"""

from dataclasses import dataclass
from typing import Any

from arpo.model.shapes import head_dim


@dataclass(frozen=True, slots=True)
class Recompute:
    """What is computed again for the gradient rather than kept; layers are counted from the first."""

    mlps: int = 0  # layers that keep nothing from inside the MLP
    layers: int = 0  # of these, layers that keep only their input and attention's result
    tower: bool = False  # blocks of the vision tower keep their input, and attention's result if it is of whole images


NOTHING = Recompute()


def kept_bytes(config: Any, recompute: Recompute, tokens: int, itemsize: int, wanted: int | None = None) -> int:
    """What a pass of the language model over so many tokens keeps for its gradient, with all weights trained.

    `wanted`: how many of the tokens lead to something, for the last layer; None: all. Scores are not counted.
    """
    text = config.text_config
    last, dim = text.num_hidden_layers - 1, head_dim(text)
    asked = tokens if wanted is None else wanted
    layers = sum(_layer_bytes(config, recompute, i, tokens, tokens, itemsize) for i in range(last))
    layers += _layer_bytes(config, recompute, last, tokens, asked, itemsize)
    end = (2 + _plain(itemsize)) * asked * text.hidden_size
    return layers + itemsize * (end + 2 * tokens * dim)  # with the rotary factors


def _plain(itemsize: int) -> bool:
    """Whether norms and gates are plain operations, which keep what lies between their steps: in fp32, on a CPU."""
    return itemsize == 4


def _layer_bytes(config: Any, recompute: Recompute, layer: int, tokens: int, asked: int, itemsize: int) -> int:
    """`asked`: queries, fewer than tokens in the last layer."""
    text, plain = config.text_config, _plain(itemsize)
    heads, dim = text.num_attention_heads, head_dim(text)
    inputs, result = tokens * text.hidden_size, asked * text.hidden_size
    keys, queries = tokens * text.num_key_value_heads * dim, asked * heads * dim
    sums = 4 * heads * asked  # of attention
    if layer < recompute.layers:
        return itemsize * (inputs + queries) + sums
    kept = (2 + plain) * inputs + 2 * (keys + queries) + result
    sums += 4 * tokens  # of the norm
    if config.model_type == "qwen3_vl":  # where queries and keys have norms
        kept += (1 + plain) * (keys + queries)
        sums += 4 * (keys + queries) // dim
    if asked < tokens:
        kept += result  # normed once more, at the places of the queries
        sums += 4 * plain * asked * tokens * heads // text.num_key_value_heads  # attention's mask
    if layer >= recompute.mlps:
        kept += (1 + plain) * result + (3 + plain) * asked * text.intermediate_size
        sums += 4 * asked
    return itemsize * kept + sums


def tower_bytes(config: Any, recompute: Recompute, patches: int, itemsize: int) -> int:
    """The same of a pass of the vision tower over so many patches."""
    vision, plain = config.vision_config, _plain(itemsize)
    if config.model_type == "qwen3_vl":
        block, norms, whole = 10 * vision.hidden_size + 2 * vision.intermediate_size, 4, vision.depth
        ends = (4 + 3 * len(vision.deepstack_visual_indexes)) * vision.hidden_size + 3 * vision.patch_size**2
    else:
        block, norms = (10 + 3 * plain) * vision.hidden_size + (3 + plain) * vision.intermediate_size, 2
        ends, whole = (4 + plain) * vision.hidden_size + 3 * vision.patch_size**2, len(vision.fullatt_block_indexes)
    blocks = itemsize * vision.depth * block + 4 * vision.depth * (vision.num_heads + norms)
    if recompute.tower:
        blocks = itemsize * (vision.depth + whole) * vision.hidden_size + 4 * whole * vision.num_heads
    return patches * (itemsize * ends + blocks)


def passing_bytes(config: Any, tokens: int, itemsize: int) -> int:
    """A layer's inside with some of its gradient, which come and go on top of what is kept: as measured on a GPU."""
    return 6 * _layer_bytes(config, NOTHING, 0, tokens, tokens, itemsize) // 5


def choose(config: Any, tokens: int, patches: int, itemsize: int, free: float) -> Recompute:
    """The least that must be computed again so that all fits into so many free bytes; the most where nothing fits.

    What frees most memory for its time comes first: the tower, then MLPs, then the rest of layers. `patches`: of a
    tower that is trained.
    """
    count = config.text_config.num_hidden_layers
    passing = passing_bytes(config, tokens, itemsize)

    def fits(plan: Recompute) -> bool:
        kept = kept_bytes(config, plan, tokens, itemsize) + tower_bytes(config, plan, patches, itemsize)
        return kept + passing <= free

    plans = [NOTHING, *(Recompute(mlps=n, tower=True) for n in range(count + 1))]
    plans += [Recompute(mlps=count, layers=n, tower=True) for n in range(1, count + 1)]
    return next(filter(fits, plans), plans[-1])
