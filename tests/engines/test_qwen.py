"""Positions and the forward pass: equal to transformers' own."""

from pathlib import Path

import plain
import pytest
import torch
from arpo.engines.images import encode, resized

from arpo.engines import qwen
from arpo.engines.base import Prompt
from arpo.envs.images import decode
from arpo.model.checkpoint import Checkpoint, load_checkpoint

SIZES = [(112, 84), (84, 112), (56, 56), (200, 90)]


def context(tiny: Checkpoint, n_images: int) -> Prompt:
    prompt = Prompt(tiny.vocabulary.encode("some words"), ())
    for i in range(n_images):
        prompt = plain.add_screen(tiny, prompt, f"click ({i})", plain.screen(i, SIZES[i % len(SIZES)]))
    return prompt


@pytest.mark.parametrize("n_images", [1, 2, 5])
def test_positions_equal_those_of_transformers(tiny: Checkpoint, n_images: int) -> None:
    prompt = context(tiny, n_images)
    inputs = plain.reference_inputs(tiny, prompt)
    inputs.pop("pixel_values")
    expected, delta = tiny.model.model.get_rope_index(**inputs)
    sizes = [qwen.image_grid(image.width, image.height) for image in prompt.images]
    layout = qwen.spread(prompt.ids, sizes, tiny.config.image_token_id)
    assert torch.equal(layout.positions, expected[:, 0])
    assert layout.end == len(layout.ids) + int(delta)
    assert list(layout.starts)[:3] == [0, 1, 2] and layout.starts[-1] == len(layout.ids)


def test_an_image_at_the_very_beginning_and_two_in_a_row_are_laid_out(tiny: Checkpoint) -> None:
    pad = tiny.config.image_token_id
    layout = qwen.spread((pad, pad, 7), [(2, 3), (1, 2)], pad)
    assert layout.ids.tolist() == [pad] * 8 + [7]
    assert layout.positions.tolist() == [
        [0, 0, 0, 0, 0, 0, 3, 3, 5],
        [0, 0, 0, 1, 1, 1, 3, 3, 5],
        [0, 1, 2, 0, 1, 2, 3, 4, 5],
    ]
    assert layout.end == 6


@pytest.mark.parametrize("n_images", [0, 1, 4])
def test_the_forward_pass_equals_that_of_transformers(tiny: Checkpoint, n_images: int) -> None:
    prompt = context(tiny, n_images)
    sizes = [qwen.image_grid(image.width, image.height) for image in prompt.images]
    layout = qwen.spread(prompt.ids, sizes, tiny.config.image_token_id)
    with torch.no_grad():
        tower = tiny.model.model.visual
        seen = [encode(tower, torch.from_numpy(resized(decode(o.image)).copy())[None])[0] for o in prompt.images]
        x = qwen.embed(tiny.model, layout.ids, torch.cat(seen) if seen else None)
        hidden = qwen.run_layers(tiny.model, x, qwen.rope(tiny.model, layout.positions, x.dtype), qwen.causal)
        ours = qwen.logits(tiny.model, hidden)
        tiny.model.model.rope_deltas = None
        theirs = tiny.model(**plain.reference_inputs(tiny, prompt)).logits[0]
    banned = torch.zeros(ours.shape[-1], dtype=torch.bool)
    banned[list(qwen.banned_ids(tiny.config))] = True
    assert torch.allclose(ours[:, ~banned], theirs[:, ~banned], atol=1e-5)
    assert (ours[:, banned] == float("-inf")).all()


def test_a_learner_gets_gradients_through_the_same_pass_after_an_engine_has_run(tiny: Checkpoint) -> None:
    layout = qwen.spread((5, 6, 7), [], tiny.config.image_token_id)
    with torch.inference_mode():
        qwen.logits(tiny.model, torch.zeros(1, tiny.config.text_config.hidden_size))
        qwen.rope(tiny.model, layout.positions, torch.float32)
    x = qwen.embed(tiny.model, layout.ids).detach().requires_grad_()
    hidden = qwen.run_layers(tiny.model, x, qwen.rope(tiny.model, layout.positions, x.dtype), qwen.causal)
    qwen.logits(tiny.model, hidden).log_softmax(-1)[:, 5].sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0


@pytest.mark.parametrize("recompute", [False, True])
def test_results_at_some_places_and_their_gradients_are_those_of_the_whole(
    tiny_folder: Path, tiny: Checkpoint, recompute: bool
) -> None:
    """Rows with unlike numbers of wanted places, filled up with 0; what is there beyond them gets no gradient."""
    model, rows = load_checkpoint(tiny_folder, "cpu").model.requires_grad_(True), [[1, 4, 5, 17], [0, 18], [8]]
    wanted = torch.tensor([row + [0] * (4 - len(row)) for row in rows])
    real = torch.arange(4) < torch.tensor([[len(row)] for row in rows])
    torch.manual_seed(0)
    ids, by = torch.randint(0, 200, (3, 20)), torch.randn(7, tiny.config.text_config.hidden_size)
    factors = qwen.rope(model, torch.arange(20).expand(3, 3, 20), torch.float32)
    weights = dict(model.model.language_model.named_parameters())
    x = qwen.embed(model, ids)
    whole = qwen.run_layers(model, x, factors, qwen.causal)
    whole = torch.cat([hidden[row] for hidden, row in zip(whole, rows, strict=True)])
    some = qwen.run_layers(model, x, factors, qwen.causal_at(wanted), recompute, wanted)[real]
    assert torch.allclose(some, whole, atol=1e-5)
    found, expected = (
        torch.autograd.grad((hidden * by).sum(), list(weights.values()), retain_graph=True) for hidden in (some, whole)
    )
    for name, a, b in zip(weights, found, expected, strict=True):
        assert b.abs().max() > 0 and (a - b).abs().max() <= 1e-4 * b.abs().max(), name
