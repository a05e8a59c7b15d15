"""How images are prepared for a model, in the files that transformers and vLLM read; here `model/images.py` does it."""

import json
from typing import Any

from arpo.model.qwen import QwenVL
from arpo.resize import MERGE


def processor_files(model: QwenVL) -> dict[str, str]:
    """Their names and texts.

    All of it is said: what is left out vLLM takes from elsewhere, and without a mean it shows the model raw pixels.
    """
    sight, family = model.sight, model.config.model_type
    images: dict[str, Any] = {
        "size": {"shortest_edge": sight.min_pixels, "longest_edge": sight.max_pixels},
        "min_pixels": sight.min_pixels,
        "max_pixels": sight.max_pixels,
        "patch_size": sight.patch,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": sight.mean,
        "image_std": sight.std,
        "processor_class": {"qwen2_5_vl": "Qwen2_5_VLProcessor", "qwen3_vl": "Qwen3VLProcessor"}[family],
    }
    video = {"qwen2_5_vl": "Qwen2VLVideoProcessor", "qwen3_vl": "Qwen3VLVideoProcessor"}[family]
    kinds = {
        "preprocessor_config.json": {"image_processor_type": "Qwen2VLImageProcessor"},
        "video_preprocessor_config.json": {"video_processor_type": video},
    }
    return {name: json.dumps(images | kind, indent=1) + "\n" for name, kind in kinds.items()}
