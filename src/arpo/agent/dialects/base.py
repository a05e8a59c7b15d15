"""The contract of a dialect: the bridge between a model's tokens and a computer. A model family is a dialect.

    conversation = dialect.start("Rename draft.txt to plan.txt.")
    context = conversation.observe(screenshot)         # which of its segments the next reply sees
    prompt = flatten(conversation.segments, replies, context, dialect.image_pad)
    conversation.reply(completion.tokens)
    parsed = dialect.parse(completion.text, env.size)  # a thought and an action, or a ParseError

A dialect knows the prompt, the grammar of the replies with its coordinates, and the form of the conversation. Sampled
tokens are only pointed at (`Reply`), never made again from text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from arpo.agent.actions import Action
from arpo.registry import Registry, made
from arpo.types import Image, Observation, Reply, Segment, Tokens

if TYPE_CHECKING:
    from arpo.config import AgentConfig
    from arpo.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a reply says."""

    thought: str
    action: Action
    ignored: str  # what followed the action


class Conversation(Protocol):
    """One episode as segments. `observe` and `reply` take turns."""

    @property
    def segments(self) -> Sequence[Segment]: ...

    def observe(self, observation: Observation) -> tuple[int, ...]:
        """Add a screenshot; returns the context of the reply to it, as indices into `segments`.

        The reply's own segment is always the one that follows the last one of its context.
        """
        ...

    def reply(self, tokens: Sequence[int]) -> None:
        """Add what was sampled."""
        ...


class Dialect(Protocol):
    """One model family's way to speak about a computer."""

    @property
    def image_pad(self) -> int:
        """The id that stands for an image in flattened contexts."""
        ...

    @property
    def stop(self) -> int:
        """The id that ends a reply."""
        ...

    def start(self, instruction: str) -> Conversation:
        """The conversation of a new episode, up to and including the prompt."""
        ...

    def parse(self, text: str, screen_size: tuple[int, int]) -> Parsed:
        """A reply's thought and action on a screen of (width, height). ParseError where there is none."""
        ...

    def format(self, thought: str, action: Action, screen_size: tuple[int, int]) -> tuple[int, ...]:
        """The tokens of a reply that `parse` reads as this thought and action: what scripts and experts say."""
        ...


@dataclass(frozen=True, slots=True)
class DialectEntry:
    """What is known of a dialect without importing it."""

    name: str
    factory: str | Callable[..., Dialect]  # (vocabulary, prompt_file=, screenshots=, block=); or "module:callable"


DIALECTS = Registry(
    "dialect",
    "arpo.dialects",
    [
        DialectEntry("uitars", "arpo.agent.dialects.uitars:UITars"),
        DialectEntry("qwen3vl", "arpo.agent.dialects.qwen3:Qwen3"),
    ],
)


def make_dialect(agent: AgentConfig, vocabulary: Vocabulary) -> Dialect:
    """The dialect that the settings under `agent` describe."""
    shown = {"prompt_file": agent.prompt_file, "screenshots": agent.screenshots, "block": agent.block}
    factory = DIALECTS.find(agent.dialect).factory
    dialect: Dialect = made(f"agent.dialect={agent.dialect}", factory, vocabulary, **shown)
    return dialect


@dataclass(frozen=True, slots=True)
class FlatContext:
    """A context as one sequence. `ids` has one image token where a screenshot stands; `images` names them in order."""

    ids: tuple[int, ...]
    images: tuple[str, ...]
    sampled: tuple[bool, ...]


def flatten(
    segments: Sequence[Segment],
    replies: Sequence[Sequence[int]],
    indices: Sequence[int],
    image_pad: int,
    first_step: int = 0,
) -> FlatContext:
    """The sequence that a choice of segments stands for; `replies` holds the sampled tokens of each step.

    Tokens of steps before `first_step` count as given, not as sampled: a Sample that starts after screenshots were
    dropped shows the earlier replies again and must not train them twice.
    """
    ids: list[int] = []
    images: list[str] = []
    sampled: list[bool] = []
    for index in indices:
        match segments[index]:
            case Tokens(tokens):
                ids += tokens
                sampled += [False] * len(tokens)
            case Image(hash=name):
                ids.append(image_pad)
                images.append(name)
                sampled.append(False)
            case Reply(step):
                ids += replies[step]
                sampled += [step >= first_step] * len(replies[step])
    return FlatContext(tuple(ids), tuple(images), tuple(sampled))
