"""The local engine of the settings: `engine.name=local`."""

from pathlib import Path
from typing import Any

import torch

from arpo.config import Config
from arpo.engines.base import Made
from arpo.engines.local.engine import LocalEngine
from arpo.model.checkpoint import load_configured


def make_local(config: Config, model: str, slots: int) -> Made:
    checkpoint = load_configured(model, config.agent)
    longest = checkpoint.config.text_config.max_position_embeddings
    engine = LocalEngine(checkpoint, max_context=min(longest, config.agent.context or longest), slots=slots)
    identity = f"{Path(model).resolve().name} with weights {_checksum(checkpoint.model)}"
    dtype = str(checkpoint.model.lm_head.weight.dtype).removeprefix("torch.")
    return Made(engine, checkpoint.vocabulary, identity, dtype, local=engine)


def _checksum(model: Any) -> str:
    """The sum of all weights, read as integers: exact, in one pass, and different after any update."""
    whole = {2: torch.int16, 4: torch.int32}
    total = sum(int(part.view(whole[part.itemsize]).sum(dtype=torch.int64)) for part in model.parameters())
    return f"{total % 2**64:016x}"
