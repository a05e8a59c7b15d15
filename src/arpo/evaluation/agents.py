"""Agents by name: a script, the one that comes with arpo, a checkpoint, a training run's best.

agent_for, identity = find_agent(config, "base")     # for `evaluate`
loaded = load_agent(config, "base", slots=16)         # its engine and its dialect
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from arpo.agent.dialects.base import Dialect, make_dialect
from arpo.agent.episode import Agent
from arpo.agent.player import AgentFor
from arpo.config import AgentConfig, Config
from arpo.engines.scripted import POLICIES, byte_vocabulary, scripted
from arpo.errors import ConfigError
from arpo.evaluation.run import sampling_of
from arpo.runs.checkpoints import best_in, checkpoints_in

if TYPE_CHECKING:
    from arpo.engines.local import LocalEngine


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that can act, and what tells it from any other."""

    engine: LocalEngine
    dialect: Dialect
    identity: str


def find_agent(config: Config, model: str) -> tuple[AgentFor, str]:
    """The agent to be evaluated, a script or a model, and what tells it from any other."""
    sampling = sampling_of(config.eval)
    if model in POLICIES:
        vocabulary = byte_vocabulary()
        dialect = make_dialect(config.agent, vocabulary)
        engine_for = scripted(model, dialect, vocabulary)
        return lambda task, env: Agent(engine_for(task, env), dialect, sampling), model
    loaded = load_agent(config, model, config.eval.n_envs)
    agent = Agent(loaded.engine, loaded.dialect, sampling)
    return lambda task, env: agent, loaded.identity


def find_model(model: str) -> str:
    """The model that is meant: of a training run's folder its best checkpoint, which is printed."""
    folder = Path(model)
    is_run = (folder / "config.yaml").is_file() and not (folder / "config.json").exists()  # that is a checkpoint's
    if model == "base" or not is_run:
        return model
    checkpoints = folder / "checkpoints"
    if not checkpoints_in(checkpoints):
        raise ConfigError(f"model={model}: a run without a checkpoint; only a training that made an update has one")
    best = best_in(checkpoints)
    Console(stderr=True, highlight=False).print(f"{model}: its best checkpoint is {best}", markup=False, soft_wrap=True)
    return str(best)


def load_agent(config: Config, model: str, slots: int) -> Loaded:
    """The engine and the dialect of a checkpoint; `slots`: how many episodes it plays at once."""
    # Not at the top: torch takes seconds, and a script needs none.
    from arpo.engines.local import LocalEngine
    from arpo.model.checkpoint import BASE, load_configured, own_prompt

    if "/" not in model and model != BASE and not Path(model).exists():
        if model in POLICIES:
            raise ConfigError(f"{model}: a script, which has no weights; name a checkpoint or {BASE}")
        raise ConfigError(f"{model}: neither a checkpoint nor one of {', '.join((BASE, *POLICIES))}")
    checkpoint = load_configured(model, config.agent)
    longest = checkpoint.config.text_config.max_position_embeddings
    longest = min(longest, config.agent.context or longest)
    engine = LocalEngine(checkpoint, max_context=longest, slots=slots)
    identity = f"{Path(model).resolve().name} with weights {_checksum(checkpoint.model)}"
    agent = config.agent
    if agent.prompt_file is None:
        agent = agent.model_copy(update={"prompt_file": own_prompt(model)})
    return Loaded(engine, make_dialect(agent, checkpoint.vocabulary), identity)


def with_precision(agent: AgentConfig, model: Any) -> AgentConfig:
    """With the precision that `auto` stands for on this machine: a run that is resumed elsewhere keeps it."""
    return agent.model_copy(update={"dtype": str(model.lm_head.weight.dtype).removeprefix("torch.")})


def _checksum(model: Any) -> str:
    """The sum of all weights, read as integers: exact, in one pass, and different after any update."""
    import torch

    whole = {2: torch.int16, 4: torch.int32}
    total = sum(int(part.view(whole[part.itemsize]).sum(dtype=torch.int64)) for part in model.parameters())
    return f"{total % 2**64:016x}"
