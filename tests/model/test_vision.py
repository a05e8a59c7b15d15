"""Image preprocessing and the vision tower: equal to transformers' own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import plain
from arpo.bench.sample import plain_model
from arpo.model.checkpoint import load_model
from arpo.model.images import resized
from arpo.model.qwen import QwenVL
from arpo.resize import QWEN2_5, QWEN3, Sight
from tiny_model import make_tiny


def screenshot(width: int, height: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    return blocks.repeat(8, 0).repeat(8, 1)[:height, :width].copy()


@pytest.mark.parametrize("sight", [QWEN2_5, QWEN3], ids=["qwen2.5", "qwen3"])
@pytest.mark.parametrize("size", [(448, 280), (280, 448), (300, 200), (1920, 1080)])
def test_patches_equal_those_of_the_reference_image_processor(size: tuple[int, int], sight: Sight) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    pixels = screenshot(*size)
    # As preprocessor_config.json of the published models says it.
    published: Any = {"size": {"shortest_edge": 56 * 56, "longest_edge": 16384 * 28 * 28}}
    if sight is QWEN3:
        published = {"size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16}
        published |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    reference = Qwen2VLImageProcessorPil(**published)(pixels, return_tensors="pt")
    ours = plain.doubled(torch.from_numpy(resized(pixels, sight))[None], sight)[0]
    assert reference["image_grid_thw"].prod() == 4 * sight.tokens(*size)
    assert ours.shape == reference["pixel_values"].shape
    assert torch.allclose(ours, reference["pixel_values"], atol=1e-4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, family: str) -> QwenVL:
    folder: Path = tmp_path_factory.mktemp("tiny")
    make_tiny(folder, ["some words to learn from", "click (12,3)"], vocabulary=300, family=family)
    return load_model(folder, "cpu")


@pytest.mark.parametrize("grid", [(20, 32), (16, 20), (2, 4), (26, 18)])
def test_the_tower_gives_what_transformers_gives(model: QwenVL, grid: tuple[int, int]) -> None:
    """Of every depth, where there are several."""
    (rows, columns), sight = grid, model.sight
    size = (columns * sight.patch, rows * sight.patch)
    images = torch.stack([torch.from_numpy(screenshot(*size, seed)) for seed in range(2)])
    with torch.no_grad():
        ours = model.model.visual(images)
        tower = plain_model(model).model.visual
        out = tower(plain.doubled(images, sight).flatten(0, 1), grid_thw=torch.tensor([[1, rows, columns]] * 2))
    levels = [out.pooler_output]
    if sight is QWEN3:
        levels += out.deepstack_features
        assert len(levels) == 3
    reference = torch.stack([one.view(2, rows * columns // 4, -1) for one in levels], dim=2)
    assert torch.allclose(ours.view_as(reference), reference, atol=2e-5)
