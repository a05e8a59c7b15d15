"""Text stays text, whatever it looks like."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from arpo.errors import ConfigError
from arpo.vocabulary import TokenizerVocabulary, Vocabulary

LOOK_ALIKES = ("<|im_start|>", "<|im_end|>", "<|image_pad|>", "<|endoftext|>", "<|box_start|>", "<tool_call>", "<|im_")


def special_ids(vocabulary: Vocabulary) -> set[int]:
    return {vocabulary.special(name) for name in LOOK_ALIKES[:5]}


@given(parts=st.lists(st.sampled_from(LOOK_ALIKES) | st.text(max_size=8), max_size=8))
@settings(max_examples=150, deadline=None)
def test_no_text_becomes_a_special_token_and_none_is_lost(vocabulary: Vocabulary, parts: list[str]) -> None:
    text = "".join(parts)
    ids = vocabulary.encode(text)
    assert not special_ids(vocabulary) & set(ids)
    if text.isascii():  # Qwen composes other letters first (NFC)
        assert vocabulary.decode(ids) == text


def test_an_added_token_that_is_not_called_special_stays_text_too(tokenizer: tokenizers.Tokenizer) -> None:
    vocabulary = TokenizerVocabulary(tokenizer)
    assert tokenizer.encode("<tool_call>").ids == [vocabulary.special("<tool_call>")]
    assert len(vocabulary.encode("<tool_call>")) > 1


def test_special_tokens_are_visible_when_decoded(vocabulary: Vocabulary) -> None:
    ids = (vocabulary.special("<|im_start|>"), *vocabulary.encode("user\n"), vocabulary.special("<|im_end|>"))
    assert vocabulary.decode(ids) == "<|im_start|>user\n<|im_end|>"


def test_what_others_set_on_the_tokenizer_changes_nothing(tokenizer: tokenizers.Tokenizer) -> None:
    copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    copy.enable_truncation(4)
    copy.enable_padding(length=64)
    text = "a text of more than four tokens"
    vocabulary = TokenizerVocabulary(copy)
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_a_lone_surrogate_becomes_a_question_mark(tokenizer: tokenizers.Tokenizer) -> None:
    vocabulary = TokenizerVocabulary(tokenizer)
    assert vocabulary.decode(vocabulary.encode("a\ud800b")) == "a?b"


def test_a_missing_special_token_is_named(tokenizer: tokenizers.Tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"<\|audio\|>"):
        TokenizerVocabulary(tokenizer).special("<|audio|>")


def test_a_tokenizer_with_an_unknown_token_is_refused() -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    words.add_special_tokens(["[UNK]"])
    vocabulary = TokenizerVocabulary(words)
    assert vocabulary.encode("a") == (1,)
    with pytest.raises(ConfigError, match="byte-level"):
        vocabulary.encode("b")
