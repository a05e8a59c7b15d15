"""A tiny Qwen2.5-VL, made offline: the same classes and the same code path as a 7B, only small.

    tokenizer = make_tokenizer(corpus)
    save_model(new_model(make_config(tokenizer, vision={}, text={})), folder)    # random weights
    save_tokenizer(tokenizer, folder)                                            # now it loads like any other

The tokenizer is a byte-level BPE of about a thousand tokens with Qwen's special tokens and its way to split text
(digits one by one), learned from a corpus that the caller gives.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig

from arpo.model.checkpoint import SPLIT, make_model
from arpo.model.qwen import QwenVL

SPECIALS = (
    "<|endoftext|> <|im_start|> <|im_end|> <|box_start|> <|box_end|> "
    "<|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|>"
).split()


def make_tokenizer(corpus: Iterable[str], size: int = 1024) -> tokenizers.Tokenizer:
    """A byte-level BPE with Qwen's special tokens at the end of the vocabulary."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in SPECIALS])
    return tokenizer


def make_config(tokenizer: tokenizers.Tokenizer, vision: dict[str, int], text: dict[str, int]) -> Qwen2_5_VLConfig:
    """A small config; `vision` and `text` override its sizes."""
    ids: dict[str, Any] = {name: tokenizer.token_to_id(name) for name in SPECIALS}
    hidden = text.get("hidden_size", 192)
    heads = text.get("num_attention_heads", 3)
    section = hidden // heads // 2
    return Qwen2_5_VLConfig(
        vision_config={
            "depth": 4,
            "hidden_size": 192,
            "intermediate_size": 384,
            "num_heads": 3,  # of 64: attention on a CPU is a fifth faster than with 6 of 32
            "fullatt_block_indexes": [1, 3],
            "out_hidden_size": hidden,
            "window_size": 112,
            **vision,
        },
        text_config={
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": hidden,
            "intermediate_size": 576,
            "num_hidden_layers": 5,
            "num_attention_heads": heads,
            "num_key_value_heads": 1,
            "max_position_embeddings": 8192,
            # A quarter of the frequencies for time (and the order of text), the rest for height and width.
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [section - 2 * (section * 3 // 8), section * 3 // 8, section * 3 // 8],
            },
            "bos_token_id": ids["<|endoftext|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
            "tie_word_embeddings": True,
            **text,
        },
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )


def new_model(config: Any) -> QwenVL:
    """A model with random weights, as transformers makes them."""
    with torch.device("meta"):
        model = make_model(config)
    make: Any = getattr(transformers, model.architecture)
    model.load_state_dict(make(config).state_dict(), assign=True)
    model.tie()
    return model


def save_tokenizer(tokenizer: tokenizers.Tokenizer, folder: Path) -> None:
    """The tokenizer's files, as transformers loads them."""
    make: Any = PreTrainedTokenizerFast
    make(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)
