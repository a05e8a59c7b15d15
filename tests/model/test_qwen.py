"""Positions and the forward pass: equal to transformers' own, and every hook fires."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import plain
from arpo.engines.base import Prompt
from arpo.images import decode
from arpo.model import qwen
from arpo.model.checkpoint import Checkpoint, load_checkpoint
from arpo.model.images import resized
from arpo.model.layout import Layout, lay_out
from arpo.model.qwen import banned_ids
from arpo.model.recompute import Recompute

SIZES = [(112, 84), (84, 112), (56, 56), (200, 90)]


def context(tiny: Checkpoint, n_images: int) -> tuple[Prompt, Layout]:
    prompt = Prompt(tiny.vocabulary.encode("some words"), ())
    for i in range(n_images):
        prompt = plain.add_screen(tiny, prompt, f"click ({i})", plain.screen(i, SIZES[i % len(SIZES)]))
    sizes = [tiny.model.sight.grid(image.width, image.height) for image in prompt.images]
    return prompt, lay_out(prompt.ids, sizes, tiny.config.image_token_id)


def pixels(tiny: Checkpoint, prompt: Prompt) -> dict[str, Any]:
    images = {one.hash: torch.from_numpy(resized(decode(one.image), tiny.model.sight).copy()) for one in prompt.images}
    return {"images": images, "shown": [one.hash for one in prompt.images]}


@pytest.mark.parametrize("n_images", [1, 2, 5])
def test_positions_equal_those_of_transformers(tiny: Checkpoint, n_images: int) -> None:
    prompt, layout = context(tiny, n_images)
    inputs = plain.reference_inputs(tiny, prompt)
    inputs.pop("pixel_values")
    expected, delta = plain.reference(tiny).model.get_rope_index(**inputs)
    assert torch.equal(layout.positions, expected[:, 0])
    assert layout.end == len(layout.ids) + int(delta)
    assert list(layout.starts)[:3] == [0, 1, 2] and layout.starts[-1] == len(layout.ids)


def test_an_image_at_the_very_beginning_and_two_in_a_row_are_laid_out(tiny: Checkpoint) -> None:
    pad = tiny.config.image_token_id
    layout = lay_out((pad, pad, 7), [(2, 3), (1, 2)], pad)
    assert layout.ids.tolist() == [pad] * 8 + [7]
    assert layout.positions.tolist() == [
        [0, 0, 0, 0, 0, 0, 3, 3, 5],
        [0, 0, 0, 1, 1, 1, 3, 3, 5],
        [0, 1, 2, 0, 1, 2, 3, 4, 5],
    ]
    assert layout.end == 6


@pytest.mark.parametrize("n_images", [0, 1, 4])
def test_the_forward_pass_equals_that_of_transformers(tiny: Checkpoint, n_images: int) -> None:
    prompt, layout = context(tiny, n_images)
    with torch.no_grad():
        ours = tiny.model(layout.ids, layout.positions, **pixels(tiny, prompt))
        theirs = plain.reference(tiny)(**plain.reference_inputs(tiny, prompt)).logits[0]
    banned = torch.zeros(ours.shape[-1], dtype=torch.bool)
    banned[list(banned_ids(tiny.config))] = True
    assert torch.allclose(ours[:, ~banned], theirs[:, ~banned], atol=1e-5)
    assert (ours[:, banned] == float("-inf")).all()


def test_weights_have_the_names_the_order_and_the_shapes_of_transformers(tiny: Checkpoint) -> None:
    ours, theirs = tiny.model, plain.reference(tiny)
    assert [(name, one.shape) for name, one in ours.named_parameters()] == [
        (name, one.shape) for name, one in theirs.named_parameters()
    ]
    assert ours.state_dict().keys() == theirs.state_dict().keys()


def test_features_may_be_given_in_place_of_images_and_an_image_that_comes_twice_is_run_once(tiny: Checkpoint) -> None:
    prompt, _ = context(tiny, 1)
    (one,), pad = pixels(tiny, prompt)["images"].values(), tiny.config.image_token_id
    size = tiny.model.sight.grid(prompt.images[0].width, prompt.images[0].height)
    layout = lay_out((5, pad, 6, pad), [size, size], pad)
    runs: list[int] = []
    hook = tiny.model.model.visual.register_forward_hook(lambda *_: runs.append(1))
    with torch.no_grad():
        features = tiny.model.model.visual(one[None])[0]
        runs.clear()
        scores = tiny.model(layout.ids, layout.positions, images={"one": one}, shown=["one", "one"])
        assert runs == [1]
        assert torch.equal(scores, tiny.model(layout.ids, layout.positions, torch.cat([features, features])))
    hook.remove()


PLANS = [Recompute(), Recompute(mlps=3), Recompute(mlps=3, layers=2), Recompute(3, 3, tower=True)]


@pytest.mark.parametrize("plan", PLANS)
def test_a_hook_on_any_module_fires_once_a_pass(tiny_folder: Path, tiny: Checkpoint, plan: Recompute) -> None:
    """So do those of FSDP, of offloading, of whoever watches a layer: nothing reaches past a module for its weights."""
    model = load_checkpoint(tiny_folder, "cpu").model.requires_grad_(True)
    prompt, layout = context(tiny, 1)
    fired: Counter[str] = Counter()
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: fired.update([name]))
    scores = model(layout.ids, layout.positions, **pixels(tiny, prompt), recompute=plan)
    holders = "model model.visual.blocks model.visual.deepstack_merger_list model.language_model.layers"
    lists = set(holders.split())  # they only hold others
    assert fired == {name: 1 for name, _ in model.named_modules() if name not in lists}
    scores[0, :5].sum().backward()
    again = {name for name, count in fired.items() if count == 2}
    for part, computed in (("0.mlp.up", plan.mlps > 0), ("1.self_attn.q", plan.layers > 1), ("2.self_attn.q", False)):
        expected = computed or plan.layers == 3
        assert (f"model.language_model.layers.{part}_proj" in again) == expected, part
    assert ("model.visual.blocks.0.attn.qkv" in again) == plan.tower
    # The last product of an MLP is needed for no gradient; a layer as a whole fires once, for FSDP.
    once = {f"model.language_model.layers.{i}{part}" for i in range(3) for part in ("", ".mlp.down_proj")}
    assert not again & (once | {"model.language_model", "model.language_model.norm", "lm_head"})


def test_a_learner_gets_gradients_through_the_same_pass_after_an_engine_has_run(tiny: Checkpoint) -> None:
    layout, features = lay_out((5, tiny.config.image_token_id, 7), [(1, 1)], tiny.config.image_token_id), torch.zeros(1)
    with torch.inference_mode():
        tiny.model(layout.ids, layout.positions, features.expand(1, tiny.config.text_config.hidden_size))
    features = torch.zeros(1, tiny.config.text_config.hidden_size, requires_grad=True)
    tiny.model(layout.ids, layout.positions, features).log_softmax(-1)[:, 5].sum().backward()
    assert features.grad is not None and features.grad.abs().sum() > 0


LENGTHS = (20, 13, 20, 1)


def sequences(seed: int = 0) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Ids, positions and the places that are wanted in each of four sequences; none in the last."""
    torch.manual_seed(seed)
    positions = torch.cat([torch.arange(length).expand(3, length) for length in LENGTHS], dim=1)
    return torch.randint(0, 200, (sum(LENGTHS),)), positions, [[1, 4, 5, 18], [0, 11], [8, 9, 10], []]


def flat(rows: Sequence[Sequence[int]]) -> Tensor:
    starts = accumulate((0, *LENGTHS))
    return torch.tensor([place + start for row, start in zip(rows, starts, strict=False) for place in row])


@pytest.mark.parametrize("plan", PLANS)
def test_sequences_behind_each_other_are_what_each_is_alone(tiny_folder: Path, plan: Recompute) -> None:
    """Values and gradients, of the log-probabilities of some tokens, whatever is computed again."""
    model = load_checkpoint(tiny_folder, "cpu").model.requires_grad_(True)
    ids, positions, rows = sequences()
    together = model(ids, positions, lengths=LENGTHS, wanted=flat(rows), temperature=0.8, recompute=plan)
    alone = []
    starts = accumulate((0, *LENGTHS))
    for start, length, row in zip(starts, LENGTHS, rows, strict=False):
        mine = slice(start, start + length)
        every = (model(ids[mine], positions[:, mine]) / 0.8).log_softmax(-1)
        alone.append(every[row, ids[mine][torch.tensor(row, dtype=torch.long) + 1]])
    expected = torch.cat(alone)
    assert torch.allclose(together, expected, atol=1e-5)
    weights, by = dict(model.model.language_model.named_parameters()), torch.randn(expected.shape)
    gradients = [torch.autograd.grad((one * by).sum(), list(weights.values())) for one in (together, expected)]
    for name, a, b in zip(weights, *gradients, strict=True):
        assert b.abs().max() > 0 and (a - b).abs().max() <= 1e-4 * b.abs().max(), name


def test_log_probabilities_of_many_places_are_computed_in_pieces(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never more scores at once than a piece has, not even for the gradient; and the same result."""
    model = load_checkpoint(tiny_folder, "cpu").model.requires_grad_(True)
    ids, positions, rows = sequences()
    seen: list[int] = []
    model.lm_head.register_forward_hook(lambda _, __, scores: seen.append(len(scores)))
    found = []
    for most in (100, 4):
        monkeypatch.setattr(qwen, "PIECE", most * 4 * model.config.text_config.vocab_size)
        values = model(ids, positions, lengths=LENGTHS, wanted=flat(rows), temperature=1.0)
        weights = [model.lm_head.weight, *model.model.language_model.layers[0].parameters()]
        found.append([values, *torch.autograd.grad(values.sum(), weights)])
    assert seen == [9, 4, 4, 1, *seen[4:]] and max(seen[4:]) <= 4
    for a, b in zip(*found, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
