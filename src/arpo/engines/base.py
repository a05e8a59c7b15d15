"""The contract of an engine: tokens and screenshots in, sampled tokens and their log-probabilities out.

    completion = await engine.generate("episode 7", Prompt(ids, images), Sampling(temperature=1.0), seed=7)
    await engine.release("episode 7")
    await engine.load(version=3, weights=Weights(folder))

A session is one episode. Each turn hands over its whole context; an engine that has seen the beginning may keep its
key-value cache and compute only what is new. What is sampled follows from the seed, whatever else is being
sampled at the same time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from arpo.registry import Registry, made
from arpo.types import Completion, Observation
from arpo.vocabulary import Vocabulary

if TYPE_CHECKING:
    from torch import Tensor  # which takes seconds, and a script needs none

    from arpo.config import Config


@dataclass(frozen=True, slots=True)
class Prompt:
    """A flattened context: one image token in `ids` for each screenshot, in the order of `images`."""

    ids: tuple[int, ...]
    images: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. `stop`: the ids that end a reply, and belong to it."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 128
    stop: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Weights:
    """A version of the weights, until the learner's next update.

    Those that a learner in this process holds are written to the folder only for an engine that asks for its path.
    """

    folder: Path
    tensors: Callable[[], Iterator[tuple[str, Tensor]]] | None = None  # each by its name in the model; not copies
    save: Callable[[Path], None] | None = None  # None: they are in the folder

    def path(self) -> Path:
        """The folder, in Hugging Face's form. For an engine that can take the tensors it would be a detour."""
        if self.save is not None:
            self.save(self.folder)
        return self.folder


class Engine(Protocol):
    """Samples replies. EngineError means that the machine failed; ContextTooLong that the prompt does not fit."""

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        """One reply, by one version of the weights from its first token to its last."""
        ...

    async def release(self, session: str) -> None:
        """Forget a session and its cache."""
        ...

    async def load(self, version: int, weights: Weights) -> None:
        """Use these weights. Turns under way finish on the old ones; every cache is computed anew."""
        ...


async def nothing() -> None:
    """What ends an engine that holds nothing."""


@dataclass(frozen=True, slots=True)
class Made:
    """An engine, and what a run has to know of it."""

    engine: Engine
    vocabulary: Vocabulary
    identity: str  # what tells its model from any other
    dtype: str  # that it computes in
    local: Any = None  # the engine, where it shares this process with the learner: visual tokens, and memory
    close: Callable[[], Awaitable[object]] = nothing  # called at the end


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """What is known of an engine without importing it."""

    name: str
    factory: str | Callable[[Config, str, int], Made]  # of settings, a model and how many episodes there are at once
    trains: bool = True  # whether it gives log-probabilities of tokens and takes new weights
    options: Mapping[str, Any] = field(default_factory=dict)  # `engine.options`: its own, with defaults


ENGINES = Registry(
    "engine",
    "arpo.engines",
    [
        EngineEntry("local", "arpo.engines.local.make:make_local"),
        EngineEntry("vllm", "arpo.engines.vllm.make:make_vllm"),
        EngineEntry("openai", "arpo.engines.openai:make_openai", trains=False),
    ],
)


def make_engine(config: Config, model: str, slots: int) -> Made:
    """The engine that the settings under `engine` describe; `slots`: how many episodes it plays at once."""
    found: Made = made(
        f"engine.name={config.engine.name}", ENGINES.find(config.engine.name).factory, config, model, slots
    )
    return found
