"""The fixtures of these tests: each vocabulary of `vocabularies.py`, and the dialect over it."""

from __future__ import annotations

import pytest
import tokenizers
from vocabularies import QwenVocabulary, qwen_vocabulary, small_tokenizer, small_vocabulary

from arpo.agent.dialects.uitars import UITars
from arpo.vocabulary import Vocabulary


@pytest.fixture(params=["small", "qwen"], scope="session")
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return small_vocabulary() if request.param == "small" else qwen_vocabulary()


@pytest.fixture(scope="session")
def qwen() -> QwenVocabulary:
    return qwen_vocabulary()


@pytest.fixture(scope="session")
def tokenizer() -> tokenizers.Tokenizer:
    return small_tokenizer()


@pytest.fixture(scope="session")
def tokenizer_without_vision() -> tokenizers.Tokenizer:
    return small_tokenizer(("<|im_start|>", "<|im_end|>", "<|box_start|>", "<|box_end|>"))


@pytest.fixture(scope="session")
def uitars(vocabulary: Vocabulary) -> UITars:
    return UITars(vocabulary)
