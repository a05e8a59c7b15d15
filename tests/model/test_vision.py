"""Image preprocessing and the vision tower: equal to transformers' own."""

from pathlib import Path

import numpy as np
import pytest
import torch

import plain
from arpo.bench.sample import plain_model
from arpo.model.checkpoint import load_model
from arpo.model.images import image_tokens, resized
from arpo.model.qwen import QwenVL
from tiny_model import make_tiny


def screenshot(width: int, height: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    return blocks.repeat(8, 0).repeat(8, 1)[:height, :width].copy()


@pytest.mark.parametrize("size", [(448, 280), (280, 448), (300, 200), (1920, 1080)])
def test_patches_equal_those_of_the_reference_image_processor(size: tuple[int, int]) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    pixels = screenshot(*size)
    reference = Qwen2VLImageProcessorPil(max_pixels=16384 * 28 * 28)(pixels, return_tensors="pt")
    ours = plain.doubled(torch.from_numpy(resized(pixels))[None])[0]
    assert reference["image_grid_thw"].prod() == 4 * image_tokens(*size)
    assert ours.shape == reference["pixel_values"].shape
    assert torch.allclose(ours, reference["pixel_values"], atol=1e-4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> QwenVL:
    folder: Path = tmp_path_factory.mktemp("tiny")
    make_tiny(folder, ["some words to learn from", "click (12,3)"], vocabulary=300)
    return load_model(folder, "cpu")


@pytest.mark.parametrize("size", [(448, 280), (280, 224), (56, 28), (252, 364)])
def test_the_tower_gives_what_transformers_gives(model: QwenVL, size: tuple[int, int]) -> None:
    images = torch.stack([torch.from_numpy(screenshot(*size, seed)) for seed in range(2)])
    rows, columns = size[1] // 14, size[0] // 14
    with torch.no_grad():
        ours = model.model.visual(images)
        tower = plain_model(model).model.visual
        out = tower(plain.doubled(images).flatten(0, 1), grid_thw=torch.tensor([[1, rows, columns]] * 2))
    reference = out.pooler_output.view(2, rows * columns // 4, -1)
    assert torch.allclose(ours, reference, atol=2e-5)
