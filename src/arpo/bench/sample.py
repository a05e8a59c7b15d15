"""How fast the local engine samples: `arpo bench train --only sample`.

Episodes in the form of the dialect, all at once, each turn a screenshot of its own that was never shown before and a
reply of a fixed length (nothing ends it early). Everything that a turn costs the engine is timed: decoding the image,
the vision tower, the prompt, the reply; not the environments. What is reported:

    sample_tokens_per_s    sampled tokens over the time for all the episodes
    turn_cost_ratio        turn 10 over turn 2 of an episode alone: flat means that history is not computed again
    episode_core_s         processor time of a six-turn episode, when all run together
    peer_tokens_per_s      with --peer: the same turns by transformers' own `generate`, which knows no turns and so
                           reads each context from its beginning, in one batch without padding (its best case)

The agent is the one that comes with arpo, or `--model`: a folder, a hub name, or random-7b, a model of the size of
UI-TARS-1.5-7B with random weights (on a GPU: --model random-7b --size 1920x1080). It is given the prompt that it was
taught with, where its checkpoint has one.
"""

import asyncio
import inspect
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from torch import Tensor

from arpo.agent.dialects.base import Conversation, flatten
from arpo.agent.dialects.uitars import PROMPT, UITars
from arpo.bench.envs import print_rows
from arpo.config import at_least
from arpo.engines.base import Prompt, Sampling
from arpo.engines.local import LocalEngine
from arpo.errors import ConfigError
from arpo.images import decode, observe
from arpo.machine import free_memory
from arpo.model.checkpoint import Checkpoint, find_device, load_checkpoint, own_prompt
from arpo.model.images import patches, resized
from arpo.model.layout import lay_out
from arpo.model.qwen import QwenVL
from arpo.resize import Sight
from arpo.teaching.tiny import make_config, make_tokenizer
from arpo.types import Observation
from arpo.vocabulary import TokenizerVocabulary

RANDOM: dict[str, Any] = {  # by name: sizes of UI-TARS-1.5-7B, and one on which the same work can be tried anywhere
    "random-7b": {
        "vision": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16},
        "whole": [7, 15, 23, 31],
        "text": {
            "vocab_size": 152064,
            "hidden_size": 3584,
            "intermediate_size": 18944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "max_position_embeddings": 128000,
        },
    },
    "random-tiny": {
        "vision": {"depth": 2, "hidden_size": 64, "intermediate_size": 92, "num_heads": 2},
        "whole": [1],
        "text": {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3},
    },
}
CORE_TURNS = 6  # of the episodes whose processor time is taken
LATE, EARLY = 10, 2  # the turns that are compared, counted from 1
REPEATS = 3
CORPUS = [PROMPT, "Thought: the dialog is open, so I press OK next.\nAction: click(start_box='(120,44)')\n"] * 3


def bench_sample(
    model: str, size: tuple[int, int], episodes: int, turns: int, tokens: int, seed: int, peer: bool
) -> dict[str, Any]:
    """The numbers, under the names that `--json` prints."""
    at_least(1, episodes=episodes, turns=turns, tokens=tokens)
    work = Work(model, size, episodes, max(turns, LATE, CORE_TURNS), tokens, seed)
    asyncio.run(work.play(work.episodes(episodes, 2)))  # warm up
    seconds, _ = asyncio.run(work.play(work.episodes(episodes, turns)))
    _, core_seconds = asyncio.run(work.play(work.episodes(episodes, CORE_TURNS)))
    alone = [asyncio.run(work.run(work.episodes(1, LATE)[0])) for _ in range(REPEATS)]
    late, early = (statistics.median(one[turn - 1] for one in alone) for turn in (LATE, EARLY))
    numbers = {
        "model": model,
        "parameters": sum(weight.numel() for weight in work.engine.checkpoint.model.parameters()),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "size": "{}x{}".format(*size),
        "episodes": episodes,
        "turns": turns,
        "tokens_per_turn": tokens,
        "seed": seed,
        "sample_tokens_per_s": episodes * turns * tokens / seconds,
        "turn_cost_ratio": late / early,
        "turn_alone_s": early,
        "episode_core_s": core_seconds / episodes,
    }
    if peer:
        numbers["peer_tokens_per_s"] = episodes * turns * tokens / _peer_seconds(work, episodes, turns)
    return numbers


def print_table(numbers: dict[str, Any]) -> None:
    """The same numbers for people."""
    title = (
        "{model}, {parameters:,} parameters, {device}, {threads} threads: "
        "{episodes} episodes at once, {turns} turns of {tokens_per_turn} tokens, {size}"
    ).format(**numbers)
    rows = [("sampled tokens a second", f"{numbers['sample_tokens_per_s']:,.0f}")]
    if "peer_tokens_per_s" in numbers:
        rows.append(("the same by transformers' generate", f"{numbers['peer_tokens_per_s']:,.0f}"))
    rows += [
        (f"a turn alone (turn {EARLY})", f"{1e3 * numbers['turn_alone_s']:,.0f} ms"),
        (f"turn {LATE} over turn {EARLY}", f"{numbers['turn_cost_ratio']:.2f}"),
        (f"processor time of an episode of {CORE_TURNS} turns", f"{numbers['episode_core_s']:.2f} s"),
    ]
    print_rows(title, rows)


@dataclass
class Episode:
    """A conversation whose replies are all as long as they may be; each is followed by an end that nobody sampled."""

    name: str
    instruction: str
    conversation: Conversation
    screens: list[Observation]
    replies: list[tuple[int, ...]] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def prompt(self, turn: int, image_pad: int) -> Prompt:
        indices = self.conversation.observe(self.screens[turn])
        flat = flatten(self.conversation.segments, self.replies, indices, image_pad)
        return Prompt(flat.ids, tuple(self.screens[: turn + 1]))

    def reply(self, tokens: tuple[int, ...], end: int) -> None:
        self.replies.append((*tokens, end))
        self.conversation.reply(self.replies[-1])


class Work:
    """The episodes: screenshots are drawn and encoded before anything is timed, and no two are alike."""

    def __init__(self, model: str, size: tuple[int, int], episodes: int, turns: int, tokens: int, seed: int) -> None:
        """With an engine for so many episodes at once, of up to so many turns."""
        if model in RANDOM:
            checkpoint = Checkpoint(model, random_model(model, seed), TokenizerVocabulary(random_tokenizer()))
        else:
            checkpoint = load_checkpoint(model)
        longest = turns * (checkpoint.model.sight.tokens(*size) + tokens + 64) + 1024
        self.engine = LocalEngine(checkpoint, max_context=longest, slots=episodes)
        self.dialect = UITars(checkpoint.vocabulary, prompt_file=None if model in RANDOM else own_prompt(model))
        self.size = size
        self.sampling = Sampling(temperature=1.0, max_tokens=tokens)
        self.random = np.random.default_rng(seed)

    def episodes(self, n: int, turns: int, alike: bool = False) -> list[Episode]:
        instructions = [f"Rename the file number {0 if alike else i} to report.txt." for i in range(n)]
        return [
            Episode(str(i), text, self.dialect.start(text), [self._screen() for _ in range(turns)])
            for i, text in enumerate(instructions)
        ]

    async def play(self, episodes: list[Episode]) -> tuple[float, float]:
        """Seconds and processor seconds for these episodes at once."""
        began, began_core = time.perf_counter(), time.process_time()
        await asyncio.gather(*map(self.run, episodes))
        return time.perf_counter() - began, time.process_time() - began_core

    async def run(self, episode: Episode) -> list[float]:
        """Seconds of each turn of one episode."""
        seconds = []
        for turn in range(len(episode.screens)):
            prompt = episode.prompt(turn, self.dialect.image_pad)
            began = time.perf_counter()
            completion = await self.engine.generate(episode.name, prompt, self.sampling, seed=int(episode.name))
            seconds.append(time.perf_counter() - began)
            episode.reply(completion.tokens, self.dialect.stop)
            episode.logprobs += completion.logprobs
        await self.engine.release(episode.name)
        return seconds

    def _screen(self) -> Observation:
        """Flat rectangles, as on a desktop."""
        width, height = self.size
        blocks = self.random.integers(0, 256, (height // 20 + 1, width // 40 + 1, 3), dtype=np.uint8)
        return observe(blocks.repeat(20, 0).repeat(40, 1)[:height, :width].copy())


@cache
def random_tokenizer() -> tokenizers.Tokenizer:
    """A small one: only its ids matter."""
    return make_tokenizer(CORPUS)


def random_model(name: str, seed: int, fill: bool = True) -> QwenVL:
    """A model of RANDOM with random weights, or whatever lies in memory, made where it will be: it is not carried."""
    shape = RANDOM[name]
    config: Any = make_config(random_tokenizer(), vision=shape["vision"], text=shape["text"])
    config.vision_config.fullatt_block_indexes = shape["whole"]
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = False
    device = find_device()
    with torch.device("meta"):
        model = QwenVL(config).eval().requires_grad_(False)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    needed = sum(weight.numel() for weight in model.parameters()) * dtype.itemsize
    if device.type == "cpu" and needed > (free := free_memory()):
        raise ConfigError(f"model={name}: takes {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free")
    model = model.to(dtype).to_empty(device=device)
    torch.manual_seed(seed)
    for weight_name, weight in model.named_parameters() if fill else ():
        weight.fill_(1.0) if "norm" in weight_name or "ln_q" in weight_name else weight.normal_(std=0.02)
    return model


def plain_model(model: QwenVL) -> Any:
    """transformers' own, with the same weights."""
    make: Any = getattr(transformers, model.architecture)
    weight = model.lm_head.weight
    with weight.device:
        plain = make(model.config).to(weight.dtype).eval()
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    return plain.requires_grad_(False)


def _peer_seconds(work: Work, n: int, turns: int) -> float:
    """The same turns by plain `generate`, one batch a turn. The instructions are one, so that no context is padded."""
    model = plain_model(work.engine.checkpoint.model)
    seconds: list[float] = []
    for warm_up in (True, False):
        episodes = work.episodes(n, turns, alike=True)
        seconds = []
        for turn in range(1 if warm_up else turns):
            prompts = [episode.prompt(turn, work.dialect.image_pad) for episode in episodes]
            began = time.perf_counter()
            replies = plain_generate(model, work.engine.checkpoint.model.sight, prompts, work.sampling.max_tokens)
            seconds.append(time.perf_counter() - began)
            for episode, reply in zip(episodes, replies, strict=True):
                episode.reply(tuple(reply), work.dialect.stop)
    return sum(seconds)


@torch.inference_mode()
def plain_generate(model: Any, sight: Sight, prompts: list[Prompt], tokens: int) -> list[list[int]]:
    inputs = plain_inputs(model, sight, [(prompt.ids, prompt.images) for prompt in prompts])
    out = model.generate(
        **inputs, do_sample=True, temperature=1.0, top_k=0, min_new_tokens=tokens, max_new_tokens=tokens
    )
    replies: list[list[int]] = out[:, inputs["input_ids"].shape[1] :].tolist()
    # Plain generate may draw image tokens; such a reply could not be shown again.
    return [[token if token != model.config.image_token_id else 0 for token in reply] for reply in replies]


def plain_inputs(
    model: Any, sight: Sight, contexts: Sequence[tuple[Sequence[int], Sequence[Observation]]]
) -> dict[str, Tensor]:
    """What transformers' model takes for contexts of one length, each ids and screenshots."""
    pad, device = model.config.image_token_id, model.device
    layouts = [lay_out(ids, [sight.grid(one.width, one.height) for one in images], pad) for ids, images in contexts]
    ids = torch.stack([layout.ids for layout in layouts]).to(device)
    images = [image for _, of_context in contexts for image in of_context]
    pixels = torch.stack([torch.from_numpy(resized(decode(image.image), sight).copy()) for image in images]).to(device)
    doubled = patches(pixels, sight).unsqueeze(3).expand(-1, -1, -1, 2, -1).flatten(2)  # two frames, as of a video
    rows, columns = sight.grid(images[0].width, images[0].height)
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": doubled.flatten(0, 1).to(model.dtype),
        "image_grid_thw": torch.tensor([[1, 2 * rows, 2 * columns]] * len(images), device=device),
    }
    if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
        inputs["mm_token_type_ids"] = (ids == pad).int()
    return inputs
