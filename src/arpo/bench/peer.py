"""The peer of `arpo bench train`: the same episodes through TRL's GRPOTrainer, one sample a turn with its full history.

    peer = Peer("base", work, episodes=16, turns=5, steps=4, train=config.train, folder=folder)
    sample_s, learn_s = peer.update(episodes)

What runs is TRL's own class from its data loader to its optimiser step, with transformers' own image processor and
`generate`. A row of its dataset is one turn: the screenshots and replies up to there, as messages. It is given what
favours it: no gradient checkpointing, a frozen vision tower, as many samples at a time as it is fastest with on two
cores, and two changes of ours. TRL would sample every prompt several times; here every row is a prompt of its own, as
in episodes. And it would generate the replies of all turns in one batch, padded to the longest; here they go turn by
turn, as in episodes, which takes it a good third less time.

Timed are its optimiser steps from beginning to end: sampling is everything in `_generate` (messages to tokens, images
to patches, the replies), learning is the rest. The rows lie ready in memory, their screenshots decoded.
"""

import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset  # type: ignore[import-untyped]
from PIL import Image
from transformers import AutoTokenizer, PrinterCallback, Qwen2_5_VLProcessor, Qwen2VLImageProcessorPil, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from arpo.agent.dialects.chat import SYSTEM
from arpo.bench.sample import Episode, Work, plain_model
from arpo.config import TrainConfig
from arpo.images import decode
from arpo.model.checkpoint import find_checkpoint, load_model

AT_ONCE = 4  # samples in a forward pass: of 1, 2, 4, 10 and 20, none was faster on two cores
# The dialect's form of a conversation.
TEMPLATE = """\
{% for message in messages %}<|im_start|>{{ message.role }}
{% for part in message.content %}\
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}\
{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class Peer:
    """A trainer whose every update is one pass over the turns of new episodes."""

    def __init__(
        self,
        model: str,
        work: Work,
        episodes: int,
        turns: int,
        steps: int,
        train: TrainConfig,
        folder: Path,
    ) -> None:
        self.work, self.rows = work, episodes * turns
        tokenizer = AutoTokenizer.from_pretrained(find_checkpoint(model), padding_side="left", truncation_side="left")
        weights = plain_model(load_model(model)).requires_grad_(True)
        weights.model.visual.requires_grad_(not train.freeze_vision)
        a_step = self.rows // steps
        at_once = math.gcd(AT_ONCE, a_step)
        arguments = GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=at_once,
            gradient_accumulation_steps=a_step // at_once,
            steps_per_generation=self.rows // at_once,
            max_steps=steps,
            num_generations=episodes,  # rows of the same turn are compared with each other
            max_completion_length=work.sampling.max_tokens,
            generation_kwargs={"min_new_tokens": work.sampling.max_tokens},
            temperature=train.temperature,
            top_k=0,
            beta=0.0,
            learning_rate=train.lr,
            lr_scheduler_type="constant",
            optim="adamw_torch",
            weight_decay=train.weight_decay,
            max_grad_norm=train.grad_clip,
            gradient_checkpointing=bool(train.checkpointing),
            bf16=False,  # the weights are of the type they are, as in ours
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=False,
            remove_unused_columns=False,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        self.clock = _Clock()
        with warnings.catch_warnings(action="ignore"):
            self.trainer = _Trainer(
                model=weights,
                reward_funcs=_rewards,
                args=arguments,
                train_dataset=_dataset([{"prompt": []}] * self.rows),  # the rows come with each update
                processing_class=_Processor(Qwen2VLImageProcessorPil(), tokenizer, TEMPLATE),
                callbacks=[self.clock],
            )
        self.trainer.remove_callback(PrinterCallback)

    def update(self, episodes: list[Episode]) -> tuple[float, float]:
        """Sample the same turns anew and learn them; seconds of either."""
        self.trainer.train_dataset = _dataset(list(self.examples(episodes)))
        self.trainer.seconds = self.clock.seconds = 0.0
        with warnings.catch_warnings(action="ignore"):
            self.trainer.train()
        return self.trainer.seconds, self.clock.seconds - self.trainer.seconds

    def examples(self, episodes: list[Episode]) -> Iterator[dict[str, Any]]:
        """The rows, turn by turn."""
        for turn in range(self.rows // len(episodes)):
            for episode in episodes:
                prompt = self.work.dialect.prompt(episode.instruction)
                messages = [_message("system", _text(SYSTEM)), _message("user", _text(prompt))]
                for reply in episode.replies[:turn]:
                    messages += [
                        _message("user", {"type": "image"}),
                        _message("assistant", _text(self.work.engine.vocabulary.decode(reply[:-1]))),
                    ]
                messages.append(_message("user", {"type": "image"}))
                images = [Image.fromarray(decode(screen.image)) for screen in episode.screens[: turn + 1]]
                yield {"prompt": messages, "images": images}


class _Trainer(GRPOTrainer):
    """TRL's own, but for what the module says."""

    seconds = 0.0  # of sampling

    def _get_train_sampler(self, dataset: Any = None) -> RepeatSampler:
        rows, arguments = cast(Any, self.train_dataset), cast(Any, self.args)
        return RepeatSampler(
            data_source=rows,
            mini_repeat_count=1,
            batch_size=arguments.generation_batch_size,
            repeat_count=arguments.steps_per_generation,
            shuffle=False,
        )

    def _generate(self, prompts: list[Any]) -> Any:
        began = time.perf_counter()
        replies = super()._generate(prompts)
        self.seconds += time.perf_counter() - began
        return replies

    def _generate_single_turn(
        self, prompt_ids: list[list[int]], images: list[Any], fields: dict[str, Any], n: int, *others: Any
    ) -> tuple[list[list[int]], None]:
        grids = torch.split(torch.as_tensor(np.asarray(fields["image_grid_thw"])), [len(mine) for mine in images])
        patches = [int(grid.prod(1).sum()) for grid in grids]
        pixels = torch.split(torch.as_tensor(np.asarray(fields["pixel_values"])), patches)
        replies: list[list[int]] = []
        for start in range(0, len(prompt_ids), n):
            turn = slice(start, start + n)
            part = {
                "image_grid_thw": torch.cat(grids[turn]),
                "pixel_values": torch.cat(pixels[turn]),
                "mm_token_type_ids": fields["mm_token_type_ids"][turn],
            }
            generate: Any = super()._generate_single_turn
            replies += generate(prompt_ids[turn], images[turn], part, n, *others)[0]
        return replies, None


class _Clock(TrainerCallback):
    """How long the optimiser steps take, all that belongs to them included."""

    seconds = began = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds += time.perf_counter() - self.began


class _Processor(Qwen2_5_VLProcessor):
    """Without the half for videos, which would need torchvision."""

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            image_processor, tokenizer, None, chat_template=chat_template
        )


def _dataset(rows: list[dict[str, Any]]) -> Dataset:
    """Rows as they are: a plain one would write and read every image as a file, again for every forward pass."""

    def find(numbers: dict[str, list[int]]) -> dict[str, list[Any]]:
        return {name: [rows[number][name] for number in numbers["number"]] for name in rows[0]}

    return Dataset.from_dict({"number": range(len(rows))}).with_transform(find)


def _rewards(prompts: list[Any], **_: Any) -> list[float | None]:
    """Half of every group succeeds: no advantage is 0."""
    return [float(i % 2) for i in range(len(prompts))]


def _message(role: str, part: dict[str, str]) -> dict[str, Any]:
    return {"role": role, "content": [part]}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
