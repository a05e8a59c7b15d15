"""The contract of an engine: tokens and screenshots in, sampled tokens and their log-probabilities out.

    completion = await engine.generate("episode 7", Prompt(ids, images), Sampling(temperature=1.0), seed=7)
    await engine.release("episode 7")
    await engine.load(version=3, place=folder)

A session is one episode. Each turn hands over its whole context; an engine that has seen the beginning may keep its
key-value cache and compute only what is new. What is sampled follows from the seed, whatever else is being
sampled at the same time.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from arpo.types import Completion, Observation


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


class Engine(Protocol):
    """Samples replies. EngineError means that the machine failed; ContextTooLong that the prompt does not fit."""

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        """One reply, by one version of the weights from its first token to its last."""
        ...

    async def release(self, session: str) -> None:
        """Forget a session and its cache."""
        ...

    async def load(self, version: int, place: Path) -> None:
        """Use the weights at `place`. Turns under way finish on the old ones; every cache is computed anew."""
        ...
