"""An episode as chat messages, made from the very tokens that the model saw. By special tokens alone: a text that looks
like one opens no message.

    for part in conversations(trajectory, vocabulary):
        part.messages   [{"role": "user", "content": [{"type": "image", "text": None}]}, …]
        part.images     the hashes of its screenshots, in that order

With full history an episode is one conversation. Where old screenshots were dropped on the way there is one for each
run of steps whose contexts extend each other, as in training.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from arpo.errors import ConfigError
from arpo.training.samples import runs_of
from arpo.types import Image, Reply, Segment, Tokens, Trajectory
from arpo.vocabulary import Vocabulary

START, END = "<|im_start|>", "<|im_end|>"
AROUND = ("<|vision_start|>", "<|vision_end|>")  # an image
ROLES = ("system", "user", "assistant")

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What the model saw and said in some steps of an episode that follow each other."""

    first_step: int  # replies before this one are shown again; they belong to the conversation before
    messages: list[Message]
    images: list[str]


def conversations(trajectory: Trajectory, vocabulary: Vocabulary) -> Iterator[Conversation]:
    """Its conversations, from the first step to the last. ConfigError where its tokens are not such ones."""
    for step in trajectory.steps:
        if vocabulary.decode(step.completion.tokens) != step.completion.text:
            raise ConfigError(
                f"the episode {trajectory.id} was played with another tokenizer; name its agent with --model"
            )
    texts = [step.completion.text.removesuffix(END) for step in trajectory.steps]
    for first, last in runs_of(trajectory.steps):
        context = trajectory.steps[last].context
        seen = [trajectory.segments[index] for index in (*context, context[-1] + 1)]
        images = [one.hash for one in seen if isinstance(one, Image)]
        messages = messages_of(seen, texts, vocabulary)
        roles = [message["role"] for message in messages]
        parts = sum(part["type"] == "image" for message in messages for part in message["content"])
        if parts != len(images) or not {*roles} <= {*ROLES} or roles[-1:] != ["assistant"]:
            raise ConfigError(f"the episode {trajectory.id}: its dialect does not speak in chat messages")
        yield Conversation(first, messages, images)


def messages_of(segments: list[Segment], replies: list[str], vocabulary: Vocabulary) -> list[Message]:
    """The messages that segments stand for; `replies`: the text of each step."""
    start, end, *around = (vocabulary.special(name) for name in (START, END, *AROUND))
    messages: list[Message] = []
    text: list[int] = []
    inside = False

    def close_text() -> None:
        if text and inside:  # else it is the newline between two messages
            _add(messages[-1], vocabulary.decode(tuple(text)))
        text.clear()

    for segment in segments:
        match segment:
            case Tokens(ids):
                for one in ids:
                    if one not in (start, end, *around):
                        text.append(one)
                        continue
                    close_text()
                    if one == start:
                        messages.append({"role": "", "content": []})
                    if one in (start, end):
                        inside = one == start
                close_text()
            case Image() if messages:
                messages[-1]["content"].append({"type": "image", "text": None})
            case Reply(step) if messages:
                messages[-1]["content"].append({"type": "text", "text": replies[step]})
                inside = False
    return messages


def _add(message: Message, text: str) -> None:
    """More text of a message, whose first line is its role."""
    if not message["role"]:
        message["role"], _, text = text.partition("\n")
    if text:
        message["content"].append({"type": "text", "text": text})
