"""The form of a conversation with a Qwen, which its dialects share. One message a line here:

    <|im_start|>system … <|im_end|>
    <|im_start|>user  prompt with the instruction  <|im_end|>
    <|im_start|>user  <|vision_start|> screenshot <|vision_end|> <|im_end|>
    <|im_start|>assistant  sampled tokens, <|im_end|> the last of them
    <|im_start|>user  <|vision_start|> screenshot …

The markers are put in by id; all other text goes through `Vocabulary.encode`, in which nothing is special. Sampled
tokens are only pointed at, never made again from text.

A conversation cuts this into segments so that a screenshot's message can be left out without touching any other:
with full history each context extends the last; with "last N screenshots" the oldest go in blocks, because each time
that a prefix changes the engine's cache is lost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from arpo.errors import ConfigError
from arpo.files import read_bytes
from arpo.types import Image, Observation, Reply, Segment, Tokens
from arpo.vocabulary import Vocabulary

SYSTEM = "You are a helpful assistant."  # what Qwen's chat template says where nobody says anything else
END_OF_REPLY = "<|im_end|>"
LONGEST_PROMPT = 2**18  # bytes: more than any model takes
_SLOT = "{instruction}"


class ChatDialect:
    """All of a dialect but what its replies mean.

    `marks`: the special tokens of its prompt and replies; `template`: its prompt, with {instruction} where the task's
    goes, `prompt_file`: one to use in its place.
    `screenshots`: how many screenshots a context may show at most; None is all of them.
    `block`: how many of the oldest are dropped together when that number is passed.
    """

    marks: tuple[str, ...]
    template: str

    def __init__(
        self, vocabulary: Vocabulary, *, prompt_file: Path | None = None, screenshots: int | None = None, block: int = 1
    ) -> None:
        if screenshots is not None and not 1 <= block <= screenshots:
            raise ConfigError(f"block={block} with screenshots={screenshots}: it takes 1 <= block <= screenshots")
        self._vocabulary = vocabulary
        self._template = self.template if prompt_file is None else _read_prompt(prompt_file)
        self._screenshots = screenshots
        self._block = block
        self._mark_ids = {name: vocabulary.special(name) for name in self.marks}
        self._marks = re.compile("|".join(map(re.escape, self.marks)).join("()"))
        self._chat = _Chat(vocabulary)
        self.image_pad = vocabulary.special("<|image_pad|>")  # stands for an image in flattened contexts
        self.stop = self._chat.end  # the id that ends a reply

    def prompt(self, instruction: str) -> str:
        """The first user message, as text."""
        return self._template.replace(_SLOT, instruction)

    def start(self, instruction: str) -> _Conversation:
        """The conversation of a new episode, up to and including the prompt."""
        pieces = [piece.replace(_SLOT, instruction) for piece in self._marks.split(self._template)]
        prompt = self._encode([f"user\n{pieces[0]}", *pieces[1:]])
        return _Conversation(self._chat, prompt, self._screenshots, self._block)

    def _encode(self, pieces: list[str]) -> tuple[int, ...]:
        """The ids of texts at the even places with marks, by id, at the odd places between them."""
        ids: list[int] = []
        for place, piece in enumerate(pieces):
            ids += [self._mark_ids[piece]] if place % 2 else self._vocabulary.encode(piece)
        return tuple(ids)


class _Conversation:
    """One episode as segments, and which of them each turn sees. `observe` and `reply` take turns.

    A turn's own reply is always the segment that follows the last one of its context.
    """

    def __init__(self, chat: _Chat, prompt: tuple[int, ...], screenshots: int | None, block: int) -> None:
        self._chat = chat
        self._screenshots = screenshots
        self._block = block
        self._shown: list[range] = []  # where the messages of the visible screenshots are
        self._hidden: set[int] = set()  # the segments of the messages that were dropped
        self._steps = 0
        self._next = "observe"  # "reply", or "nothing" after a reply that was cut off
        self.segments: list[Segment] = [Tokens((*chat.system, chat.start, *prompt, chat.end, *chat.newline))]

    def observe(self, observation: Observation) -> tuple[int, ...]:
        """Add a screenshot. The result is the context for the reply to it, as indices into `segments`."""
        if self._next != "observe":
            raise ValueError(f"a screenshot out of turn: what can follow here is {self._next}")
        self._next = "reply"
        if self._steps:
            self.segments.append(Tokens(self._chat.newline))
        image = Image(observation.hash, observation.width, observation.height)
        message: list[Segment] = [Tokens(self._chat.before_image), image, Tokens(self._chat.after_image)]
        self._shown.append(range(len(self.segments), len(self.segments) + len(message)))
        self.segments += [*message, Tokens(self._chat.before_reply)]
        if self._screenshots is not None and len(self._shown) > self._screenshots:
            self._hidden.update(*self._shown[: self._block])
            del self._shown[: self._block]
        return tuple(index for index in range(len(self.segments)) if index not in self._hidden)

    def reply(self, tokens: Sequence[int]) -> None:
        """Add a sampled reply. One without the end token is kept like any other, but nothing can follow it."""
        if self._next != "reply":
            raise ValueError(f"a reply out of turn: what can follow here is {self._next}")
        self._next = "observe" if tokens and tokens[-1] == self._chat.end else "nothing"
        self.segments.append(Reply(self._steps))
        self._steps += 1


class _Chat:
    """The fixed parts of the conversation as ids, made once a vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        special, encode = vocabulary.special, vocabulary.encode
        self.start, self.end, self.newline = special("<|im_start|>"), special(END_OF_REPLY), encode("\n")
        self.system = (self.start, *encode(f"system\n{SYSTEM}"), self.end, *self.newline)  # the whole first message
        self.before_image = (self.start, *encode("user\n"), special("<|vision_start|>"))
        self.after_image = (special("<|vision_end|>"), self.end, *self.newline)
        self.before_reply = (self.start, *encode("assistant\n"))


def _read_prompt(path: Path) -> str:
    try:
        template = read_bytes(path, LONGEST_PROMPT).decode()
    except (OSError, ValueError) as error:  # not there, not text, not a path
        raise ConfigError(f"the prompt file {path} cannot be read: {error}") from error
    if _SLOT not in template:
        raise ConfigError(f"the prompt file {path} does not say where the instruction goes: it needs {_SLOT}")
    return template.removesuffix("\n")  # the one that editors add
