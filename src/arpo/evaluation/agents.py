"""Agents by name: a script, the one that comes with arpo, a checkpoint, a training run's best.

agent_for, identity = find_agent(config, "base")     # for `evaluate`
loaded = load_agent(config, "base", slots=16)         # its engine and its dialect
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from arpo.agent.dialects.base import Dialect, make_dialect
from arpo.agent.player import AgentFor
from arpo.config import Config
from arpo.engines.base import ENGINES, Engine, Made, make_engine, nothing
from arpo.engines.scripted import POLICIES, byte_vocabulary, scripted
from arpo.errors import ConfigError
from arpo.evaluation.run import judged_agent
from arpo.files import refuse_links
from arpo.runs.checkpoints import best_in, checkpoints_in


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that can act, and what a run has to know of it."""

    made: Made
    dialect: Dialect

    @property
    def engine(self) -> Engine:
        return self.made.engine


def find_agent(config: Config, model: str) -> tuple[AgentFor, str, Callable[[], Awaitable[object]]]:
    """The agent to be evaluated, a script or a model; what tells it from any other; what ends its engine."""
    if model in POLICIES:
        vocabulary = byte_vocabulary()
        dialect = make_dialect(config.agent, vocabulary)
        engine_for = scripted(model, dialect, vocabulary)
        return lambda task, env: judged_agent(engine_for(task, env), dialect, config.eval), model, nothing
    loaded = load_agent(config, model, config.eval.n_envs)
    agent = judged_agent(loaded.engine, loaded.dialect, config.eval)
    return lambda task, env: agent, loaded.made.identity, loaded.made.close


def find_model(model: str) -> str:
    """The model that is meant: of a training run's folder its best checkpoint, which is printed."""
    folder = Path(model)
    is_run = (folder / "config.yaml").is_file() and not (folder / "config.json").exists()  # that is a checkpoint's
    if model == "base" or not is_run:
        return model
    refuse_links(folder)
    checkpoints = folder / "checkpoints"
    if not checkpoints_in(checkpoints):
        raise ConfigError(f"model={model}: a run without a checkpoint; only a training that made an update has one")
    best = best_in(checkpoints)
    Console(stderr=True, highlight=False).print(f"{model}: its best checkpoint is {best}", markup=False, soft_wrap=True)
    return str(best)


def load_agent(config: Config, model: str, slots: int) -> Loaded:
    """The engine and the dialect of a model; `slots`: how many episodes it plays at once."""
    agent = config.agent
    if ENGINES.find(config.engine.name).trains:  # others have models of their own
        # Not at the top: torch takes seconds, and a script needs none.
        from arpo.model.checkpoint import BASE, own_prompt

        if "/" not in model and model != BASE and not Path(model).exists():
            if model in POLICIES:
                raise ConfigError(f"{model}: a script, which has no weights; name a checkpoint or {BASE}")
            raise ConfigError(f"{model}: neither a checkpoint nor one of {', '.join((BASE, *POLICIES))}")
        if agent.prompt_file is None:
            agent = agent.model_copy(update={"prompt_file": own_prompt(model)})
    made = make_engine(config, model, slots)
    return Loaded(made, make_dialect(agent, made.vocabulary))
