"""Positions and the forward pass: equal to transformers' own, and every hook fires."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import plain
from arpo.engines.base import Prompt
from arpo.images import decode
from arpo.model.checkpoint import Checkpoint, load_checkpoint
from arpo.model.images import image_grid, resized
from arpo.model.layout import Layout, lay_out
from arpo.model.qwen import banned_ids

SIZES = [(112, 84), (84, 112), (56, 56), (200, 90)]


def context(tiny: Checkpoint, n_images: int) -> tuple[Prompt, Layout]:
    prompt = Prompt(tiny.vocabulary.encode("some words"), ())
    for i in range(n_images):
        prompt = plain.add_screen(tiny, prompt, f"click ({i})", plain.screen(i, SIZES[i % len(SIZES)]))
    sizes = [image_grid(image.width, image.height) for image in prompt.images]
    return prompt, lay_out(prompt.ids, sizes, tiny.config.image_token_id)


def pixels(prompt: Prompt) -> dict[str, Any]:
    images = {one.hash: torch.from_numpy(resized(decode(one.image)).copy()) for one in prompt.images}
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
        ours = tiny.model(layout.ids, layout.positions, **pixels(prompt))
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
    (one,), pad = pixels(prompt)["images"].values(), tiny.config.image_token_id
    size = image_grid(prompt.images[0].width, prompt.images[0].height)
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


@pytest.mark.parametrize("recompute", [False, True])
def test_a_hook_on_any_module_fires_once_a_pass(tiny_folder: Path, tiny: Checkpoint, recompute: bool) -> None:
    """So do those of FSDP, of offloading, of whoever watches a layer: nothing reaches past a module for its weights."""
    model = load_checkpoint(tiny_folder, "cpu").model.requires_grad_(True)
    prompt, layout = context(tiny, 1)
    fired: Counter[str] = Counter()
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: fired.update([name]))
    scores = model(layout.ids, layout.positions, **pixels(prompt), recompute=recompute)
    lists = {"model", "model.visual.blocks", "model.language_model.layers"}  # they only hold others
    assert fired == {name: 1 for name, _ in model.named_modules() if name not in lists}
    scores[0, :5].sum().backward()
    again = {name for name, count in fired.items() if count == 2}
    assert bool(again) == recompute
    assert all(name.startswith("model.language_model.layers.") for name in again)


def test_a_learner_gets_gradients_through_the_same_pass_after_an_engine_has_run(tiny: Checkpoint) -> None:
    layout, features = lay_out((5, tiny.config.image_token_id, 7), [(1, 1)], tiny.config.image_token_id), torch.zeros(1)
    with torch.inference_mode():
        tiny.model(layout.ids, layout.positions, features.expand(1, tiny.config.text_config.hidden_size))
    features = torch.zeros(1, tiny.config.text_config.hidden_size, requires_grad=True)
    tiny.model(layout.ids, layout.positions, features).log_softmax(-1)[:, 5].sum().backward()
    assert features.grad is not None and features.grad.abs().sum() > 0


@pytest.mark.parametrize("recompute", [False, True])
def test_results_at_some_places_and_their_gradients_are_those_of_the_whole(
    tiny_folder: Path, tiny: Checkpoint, recompute: bool
) -> None:
    """Rows with unlike numbers of wanted places, filled up with -1; what is there beyond them gets no gradient."""
    model, rows = load_checkpoint(tiny_folder, "cpu").model.requires_grad_(True), [[1, 4, 5, 17], [0, 18], [8]]
    wanted = torch.tensor([row + [-1] * (4 - len(row)) for row in rows])
    torch.manual_seed(0)
    ids, positions = torch.randint(0, 200, (3, 20)), torch.arange(20).expand(3, 3, 20)
    some = model(ids, positions, wanted=wanted, recompute=recompute)
    whole = torch.cat([one[row] for one, row in zip(model(ids, positions), rows, strict=True)])
    real = torch.isfinite(whole)
    assert some.shape == whole.shape and torch.allclose(some[real], whole[real], atol=1e-4)
    weights, by = dict(model.model.language_model.named_parameters()), torch.randn(whole.shape)[real]
    found, expected = (
        torch.autograd.grad((scores[real] * by).sum(), list(weights.values()), retain_graph=True)
        for scores in (some, whole)
    )
    for name, a, b in zip(weights, found, expected, strict=True):
        assert b.abs().max() > 0 and (a - b).abs().max() <= 1e-4 * b.abs().max(), name
