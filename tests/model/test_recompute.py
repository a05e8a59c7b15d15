"""What a pass keeps for its gradient is what is said of it, and a plan is the least that fits."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from arpo.model.checkpoint import make_model
from arpo.model.qwen import QwenVL
from arpo.model.recompute import NOTHING, Recompute, choose, kept_bytes, tower_bytes
from arpo.model.shapes import config_of

LAYERS, TOKENS, GIB = 3, 1000, 2**30
MOST = Recompute(LAYERS, LAYERS, tower=True)


def small(family: str) -> Any:
    """Of the proportions of a large model."""
    config = config_of(family)
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 1280,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
    }
    sizes |= {"num_key_value_heads": 2, "vocab_size": 500}
    vision: dict[str, Any] = {
        "hidden_size": 128,
        "intermediate_size": 342,
        "depth": 3,
        "num_heads": 4,
        "out_hidden_size": 256,
    }
    if family == "qwen3-vl-4b":
        sizes |= {"head_dim": 64}
        vision |= {"deepstack_visual_indexes": [0, 1]}
    else:
        vision |= {"fullatt_block_indexes": [2]}
        config.text_config.rope_parameters["mrope_section"] = [4, 6, 6]
    config.text_config.update(sizes)
    config.vision_config.update(vision)
    for i, name in enumerate(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")):
        setattr(config, name, 5 + i)
    return config


class Made(TorchDispatchMode):
    """All memory that is allocated while this is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, inputs: Any = (), named: Any = None) -> Any:
        result = operation(*inputs, **(named or {}))
        given = {one.untyped_storage().data_ptr() for one in tree_leaves(inputs) if isinstance(one, Tensor)}
        for one in tree_leaves(result):
            if isinstance(one, Tensor) and one.untyped_storage().data_ptr() not in given:  # a view is nothing new
                weak = StorageWeakRef(one.untyped_storage())
                self._made[weak.cdata] = (weak, one.untyped_storage().nbytes())
        return result

    @property
    def alive(self) -> int:
        """Bytes of it that somebody holds."""
        return sum(size for weak, size in self._made.values() if not weak.expired())


@pytest.fixture(scope="module", params=["qwen2.5-vl-7b", "qwen3-vl-4b"])
def model(request: pytest.FixtureRequest) -> QwenVL:
    torch.manual_seed(0)
    return make_model(small(request.param))


@pytest.mark.parametrize("wanted", [None, 50])
@pytest.mark.parametrize("plan", [NOTHING, Recompute(2), Recompute(3), Recompute(3, 1), Recompute(3, 2), MOST])
def test_as_much_is_kept_as_is_said(model: QwenVL, plan: Recompute, wanted: int | None) -> None:
    ids, positions = torch.randint(10, 400, (TOKENS,)), torch.arange(TOKENS).expand(3, TOKENS)
    places = None if wanted is None else torch.arange(0, TOKENS, TOKENS // wanted)
    with Made() as made:
        hidden = model.model.language_model(ids, positions, wanted=places, recompute=plan)
    assert made.alive == pytest.approx(kept_bytes(model.config, plan, TOKENS, 4, wanted), rel=0.03)
    hidden.sum().backward()


@pytest.mark.parametrize("plan", [NOTHING, MOST])
def test_of_the_tower_too(model: QwenVL, plan: Recompute) -> None:
    image = {"one": torch.randint(0, 256, (20 * model.sight.patch,) * 2 + (3,), dtype=torch.uint8)}
    with Made() as made:
        ((_, tokens),) = model.model.visual(image, plan.tower)
    said = tower_bytes(model.config, plan, 400, 4)
    assert made.alive - tokens.nbytes == pytest.approx(said, rel=0.03, abs=2 * tokens.nbytes)


def test_the_least_is_computed_again_that_must_be() -> None:
    config, tokens, patches = config_of("qwen2.5-vl-7b"), 42_195, 15 * 10_764
    plans = [choose(config, tokens, patches, 2, free * GIB) for free in range(1000, 0, -5)]
    assert plans[0] == NOTHING and plans[-1] == Recompute(28, 28, tower=True)
    steps = [(plan.tower, plan.mlps, plan.layers) for plan in plans]
    assert steps == sorted(steps) and len(set(steps)) > 20
    for free, plan in ((free, choose(config, tokens, 0, 2, free * GIB)) for free in (300, 100, 60, 40)):
        assert kept_bytes(config, plan, tokens, 2) < free * GIB
    # What the design counts on: MLPs alone, and nothing but inputs and attention.
    per_layer = [kept_bytes(config, plan, tokens, 2) / 28 / 1e9 for plan in (Recompute(28), Recompute(28, 28))]
    assert per_layer == [pytest.approx(1.63, abs=0.05), pytest.approx(0.64, abs=0.05)]
