"""The vLLM engine of the settings: `engine.name=vllm`, with servers that are named or our own."""

import os
from pathlib import Path

from arpo.config import Config
from arpo.engines.base import Made
from arpo.engines.vllm.client import Published
from arpo.engines.vllm.engine import VllmEngine
from arpo.engines.vllm.guard import files_of, name_of
from arpo.engines.vllm.serve import Fleet
from arpo.errors import ConfigError
from arpo.model.checkpoint import Checkpoint, empty_model, find_checkpoint, find_dtype, load_vocabulary


def make_vllm(config: Config, model: str, slots: int) -> Made:
    outline, given = empty_model(model), config.engine
    checkpoint = Checkpoint(model, outline, load_vocabulary(model, outline.config))
    longest = outline.config.text_config.max_position_embeddings
    context, dtype = min(longest, config.agent.context or longest), find_dtype(model, config.agent)
    if given.servers:
        if not (token := os.environ.get("ARPO_TOKEN")):
            raise ConfigError("engine.servers: set the variable ARPO_TOKEN to the token that `arpo serve` printed")
        files = files_of(place := find_checkpoint(model))
        weights = Published(0, name_of(files), files, place.absolute())
        engine = VllmEngine(checkpoint, given.servers, token, weights, context, given.turn_s)
    else:
        learner = int(config.agent.device.partition(":")[2] or 0)
        fleet = Fleet(
            model, given.replicas, None, dtype, context, given.python, arguments=given.arguments, shared=learner
        )
        engine = VllmEngine(checkpoint, fleet.addresses, fleet.token, fleet.weights, context, given.turn_s, own=fleet)
        weights = fleet.weights
    identity = f"{Path(model).resolve().name} with weights {weights.name[:16]}"
    return Made(engine, checkpoint.vocabulary, identity, dtype, close=engine.aclose)
