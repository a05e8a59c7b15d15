"""Text to token ids and back, with the special tokens kept apart.

A screenshot's caption, a file name or an instruction may hold the letters `<|im_start|>`. If those became the special
token, whoever writes the text could open a turn of the conversation. So there are two doors: `encode` takes any text
and never gives a special id, and `special` gives the id of a special token that the code itself names.
"""

import json
from typing import Protocol

import tokenizers

from arpo.errors import ConfigError


class Vocabulary(Protocol):
    """What a dialect needs of a tokenizer."""

    def encode(self, text: str) -> tuple[int, ...]:
        """The ids of a text in which nothing is special, whatever it looks like."""

    def special(self, name: str) -> int:
        """The id of a special token, such as "<|im_end|>". ConfigError where the vocabulary has none of that name."""

    def decode(self, ids: tuple[int, ...]) -> str:
        """The text of ids, special tokens written out."""


class TokenizerVocabulary:
    """The vocabulary of a Hugging Face tokenizer (of a transformers tokenizer: its `backend_tokenizer`).

    The tokenizer looks for all of its added tokens in a text before anything else, also for those that it does not
    call special, such as Qwen's `<tool_call>`; its switch `encode_special_tokens` stops that for the special ones only.
    So text goes through a copy that has no added tokens at all. The copy also neither truncates nor pads, whatever
    others set on the original.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {token.content: index for index, token in tokenizer.get_added_tokens_decoder().items()}
        self._added_ids = frozenset(self._added.values())
        plain = json.loads(tokenizer.to_str())
        plain |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
        self._plain = tokenizers.Tokenizer.from_str(json.dumps(plain))

    def encode(self, text: str) -> tuple[int, ...]:
        # A lone surrogate, which JSON can smuggle into a string, has no UTF-8 form: it becomes a question mark.
        clean = text.encode("utf-8", "replace").decode("utf-8")
        ids = tuple(self._plain.encode(clean, add_special_tokens=False).ids)
        if not self._added_ids.isdisjoint(ids):
            # Only a tokenizer that knows not every byte does this: its "unknown" token is a special one.
            raise ConfigError(
                "the tokenizer turns plain text into special tokens; use one with a byte-level vocabulary"
            )
        return ids

    def special(self, name: str) -> int:
        if name not in self._added:
            raise ConfigError(f"the tokenizer has no special token {name!r}, which the dialect needs")
        return self._added[name]

    def decode(self, ids: tuple[int, ...]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text
