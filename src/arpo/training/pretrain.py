"""Make the base agent: a tiny Qwen2.5-VL that reads the pocket desktop and imitates its experts.

One run, four losses at once:

    replies    next-token loss on the expert's replies and on readings (lessons.py)
    words      each visual token names the words centred in its patches, in the language model's own vocabulary:
               the head's output is compared with the word embeddings, so a visual token "speaks" what it shows
    kinds      likewise the kind of control; a plain linear head
    places     likewise the digits of its coordinates: the tower has relative positions only, and without this a
               visual token does not know where on the screen it stands

The heads are dropped afterwards. The learning rate follows the clock, not a number of steps, so a run fits into any
given time. What one run hands to the next is the weights alone (fp32, in shards under 16 MB): small enough to carry
from machine to machine; a continued run warms the optimiser and the heads up again.
"""

from __future__ import annotations

import json
import math
import queue
import random
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen2_5_VLForConditionalGeneration

from arpo.agent import grammar
from arpo.engines.images import encode
from arpo.engines.qwen import causal, embed, rope, run_layers
from arpo.envs.pocket import PocketEnv
from arpo.envs.pocket.catalog import get_task, task_list
from arpo.envs.pocket.expert import Expert
from arpo.errors import ConfigError
from arpo.training.lessons import IGNORE, KINDS, Batch, Lessons, Teacher, collate
from arpo.training.tiny import make_config, make_tokenizer, new_model, save_tokenizer

PROMPT = "Task: {instruction}"
SHARD = "15MB"


@dataclass(frozen=True)
class Pretraining:
    """The settings of a run."""

    out: Path
    seconds: float  # how long to train; the learning rate falls to zero at the end
    start: Path | None = None  # a checkpoint to go on from
    size: tuple[int, int] = (448, 280)
    workers: int = 1
    tokens: int = 16_384  # a batch
    lr: float = 1e-3
    warmup: float = 0.03  # of the time
    words_weight: float = 1.0
    kinds_weight: float = 0.2
    seed: int = 0
    report_s: float = 30.0
    vision: dict[str, int] = field(default_factory=dict)  # sizes of a new model, where they differ from tiny.py's
    text: dict[str, int] = field(default_factory=dict)
    recent: int = 8  # batches kept on the device to be seen again
    test_batches: int = 1  # held-out batches of each kind that are measured with each report


class Heads(nn.Module):
    """What is asked of each visual token: four words and four kinds, one for each of its patches."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.words = nn.Linear(hidden, 4 * hidden)
        self.none = nn.Parameter(torch.zeros(hidden))  # the "word" of a patch without one
        self.kinds = nn.Linear(hidden, 4 * (len(KINDS) + 1))
        self.places = nn.Linear(hidden, 4 * 6 * 10)  # x and y of what is centred there, three digits each

    def word_logits(self, features: Tensor, embeddings: Tensor) -> Tensor:
        slots = self.words(features).unflatten(-1, (4, -1))
        return slots @ torch.cat([embeddings, self.none[None]]).T

    def kind_logits(self, features: Tensor) -> Tensor:
        return self.kinds(features).unflatten(-1, (4, -1))

    def place_logits(self, features: Tensor) -> Tensor:
        return self.places(features).unflatten(-1, (4, 6, 10))


def corpus(episodes: int) -> Iterator[str]:
    """Text as the agent meets it: instructions, screens, replies of the expert."""
    env = PocketEnv()
    families = sorted({task[:-4] for tasks in task_list("train").values() for task in tasks})
    for i in range(episodes):
        task = get_task(f"{families[i % len(families)]}-{i % 4:03d}")
        env.load(task, i)
        expert = Expert(task)
        yield task.instruction
        while not env.ended:
            yield " ".join(word for word, _ in env.words())
            thought, action = expert.act(env)
            call = grammar.format_action(action, lambda x, y: (x, y))
            yield grammar.format_reply(thought, call.replace(grammar.BOX_START, "").replace(grammar.BOX_END, ""))
            env.perform(action)


def to_slots(grid: Tensor) -> Tensor:
    """B x rows x columns of patches to B x tokens x 4, in the order of the visual tokens."""
    batch, rows, columns = grid.shape
    return grid.view(batch, rows // 2, 2, columns // 2, 2).transpose(2, 3).reshape(batch, -1, 4)


class Pupil(nn.Module):
    """The model with the heads that are dropped afterwards."""

    model: Any
    heads: Heads

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.heads = Heads(model.config.text_config.hidden_size)

    def forward(self, batch: Batch, new_heads: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits of the tokens to be learned, and of words, kinds and places.

        `new_heads`: heads that have learned nothing yet must not push a tower that has.
        """
        model = self.model
        embeddings = model.get_input_embeddings().weight
        features = encode(model.model.visual, batch["screens"])
        x = embed(model, batch["ids"], features.flatten(0, 1))
        hidden = run_layers(model, x, rope(model, batch["positions"], x.dtype), causal)
        replies = hidden[:, :-1][batch["learn"][:, 1:]] @ embeddings.T
        heads = self.heads
        if new_heads:
            features, embeddings = features.detach(), embeddings.detach()
        words, kinds = heads.word_logits(features, embeddings), heads.kind_logits(features)
        return replies, words, kinds, heads.place_logits(features)


def losses(pupil: Pupil, batch: Batch, new_heads: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loss of replies, words, kinds and places."""
    replies, words, kinds, places = pupil(batch, new_heads)
    target = batch["ids"][:, 1:][batch["learn"][:, 1:]]
    filled = to_slots(batch["places"][:, 0]) != IGNORE
    digits = torch.stack([to_slots(batch["places"][:, i]) for i in range(6)], dim=-1)
    return (
        F.cross_entropy(replies.float(), target),
        _dense(words, to_slots(batch["words"])),
        _dense(kinds, to_slots(batch["kinds"])),
        F.cross_entropy(places[filled].flatten(0, 1).float(), digits[filled].flatten()),
    )


def _dense(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy over all slots; an empty slot is the last class and weighs a tenth."""
    none = logits.shape[-1] - 1
    weight = torch.ones(none + 1, device=logits.device)
    weight[none] = 0.1
    filled = target != IGNORE
    return F.cross_entropy(logits.flatten(0, 2).float(), target.masked_fill(~filled, none).flatten(), weight)


def pretrain(settings: Pretraining) -> None:
    """Train for the given time and leave a checkpoint, its prompt.txt, and what was measured in metrics.jsonl."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(settings.seed)
    tokenizer, model = _begin(settings)
    pupil = Pupil(model).to(device)
    optimizer = torch.optim.AdamW(
        pupil.parameters(), settings.lr, weight_decay=0.01, betas=(0.9, 0.98), fused=device == "cuda"
    )
    prompt_file = settings.out / "prompt.txt"
    tests = _tests(tokenizer, prompt_file, settings)
    lessons = Recent(_lessons(settings, prompt_file), device, settings.recent, settings.seed)
    began = reported = time.monotonic()
    step = images = 0
    done = 0.0
    while done < 1:
        done = (time.monotonic() - began) / settings.seconds
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * min(done / settings.warmup, 0.5 + 0.5 * math.cos(math.pi * min(done, 1.0)))
        batch = lessons.next()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            reply, word, kind, place = losses(pupil, batch, settings.start is not None and done < settings.warmup)
        loss: Any = reply + settings.words_weight * word + settings.kinds_weight * (kind + place)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(pupil.parameters(), 1.0)
        optimizer.step()
        step += 1
        images += len(batch["screens"])
        if time.monotonic() - reported > settings.report_s or done >= 1:
            line: dict[str, float] = {"seconds": round(time.monotonic() - began), "steps": step, "images": images}
            line |= {"fresh": lessons.fresh, "reply": round(reply.item(), 4), "word": round(word.item(), 4)}
            _report(settings.out, line | {"place": round(place.item(), 4)} | _measure(pupil, tests, device))
            reported = time.monotonic()
    lessons.close()
    model.save_pretrained(settings.out, max_shard_size=SHARD)


def _begin(settings: Pretraining) -> tuple[tokenizers.Tokenizer, Any]:
    """The tokenizer and the model, new or from a checkpoint; the tokenizer and the prompt go to the out folder."""
    if settings.start and not (settings.start / "tokenizer.json").exists():
        raise ConfigError(f"start={settings.start}: there is no checkpoint with a tokenizer.json")
    settings.out.mkdir(parents=True, exist_ok=True)
    (settings.out / "prompt.txt").write_text(PROMPT)
    if settings.start:
        tokenizer = tokenizers.Tokenizer.from_file(str(settings.start / "tokenizer.json"))
        model: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(settings.start, dtype=torch.float32)
    else:
        tokenizer = make_tokenizer(corpus(400))
        model = new_model(make_config(tokenizer, settings.vision, settings.text))
    save_tokenizer(tokenizer, settings.out)
    size = {"parameters": sum(p.numel() for p in model.parameters()), "vocabulary": tokenizer.get_vocab_size()}
    _report(settings.out, size)
    return tokenizer, model


def _lessons(settings: Pretraining, prompt_file: Path) -> Any:
    """Batches without end, made by worker processes."""
    tokenizer = str(settings.out / "tokenizer.json")
    return torch.utils.data.DataLoader(
        Lessons(tokenizer, prompt_file, settings.seed + 1, settings.size, settings.tokens),
        batch_size=None,
        num_workers=settings.workers,
        prefetch_factor=4 if settings.workers else None,
    )


def _report(out: Path, line: Mapping[str, float]) -> None:
    text = json.dumps(line)
    print(text, flush=True)
    with (out / "metrics.jsonl").open("a") as log:
        log.write(f"{text}\n")


class Recent:
    """The newest batches, kept on the device. A GPU learns faster than the desktops make lessons, so it sees each a
    few times, in random order."""

    def __init__(self, source: Any, device: str, capacity: int, seed: int) -> None:
        self.device, self.capacity = device, capacity
        self.kept: list[Batch] = []
        self.fresh = 0
        self._rng = random.Random(seed)
        self._queue: queue.Queue[Batch] = queue.Queue(8)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._feed, args=(source,), daemon=True)
        self._thread.start()

    def next(self) -> Batch:
        """A batch that was not seen before if one is ready, else one of the kept ones."""
        try:
            batch = self._queue.get(block=len(self.kept) < min(16, self.capacity))
        except queue.Empty:
            return self._rng.choice(self.kept)
        batch = {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}
        self.fresh += 1
        if len(self.kept) < self.capacity:
            self.kept.append(batch)
        else:
            self.kept[self._rng.randrange(self.capacity)] = batch
        return batch

    def close(self) -> None:
        self._closed.set()
        while not self._queue.empty():
            self._queue.get()
        self._thread.join(5)

    def _feed(self, source: Any) -> None:
        for batch in source:
            if self._closed.is_set():
                return
            self._queue.put(batch)


def _tests(tokenizer: tokenizers.Tokenizer, prompt_file: Path, settings: Pretraining) -> dict[str, list[Batch]]:
    """Episodes and readings of held-out instances, the same in every run."""
    tests = {}
    for split in ("heldout", "heldout_families"):
        teacher = Teacher(tokenizer, prompt_file, 7, settings.size)
        ids = [task for tasks in task_list(split).values() for task in tasks]
        teacher.task = lambda t=teacher, ids=ids: get_task(t.rng.choice(ids))  # type: ignore[method-assign, misc]
        tests[f"{split}_episodes"] = [
            collate([teacher.episode() for _ in range(8)]) for _ in range(settings.test_batches)
        ]
        tests[f"{split}_readings"] = [
            collate([teacher.reading() for _ in range(32)]) for _ in range(settings.test_batches)
        ]
    return tests


@torch.no_grad()
def _measure(pupil: Pupil, tests: dict[str, list[Batch]], device: str) -> dict[str, float]:
    """Words named by visual tokens; tokens and whole answers that the model would give, each after the right ones."""
    found: dict[str, float] = {}
    for name, batches in tests.items():
        tokens, answers, reading = [], [], []
        for batch in batches:
            batch = {key: tensor.to(device) for key, tensor in batch.items()}
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                replies, words, _, _ = pupil(batch)
            learn = batch["learn"][:, 1:]
            right = torch.ones_like(learn)
            right[learn] = replies.argmax(-1) == batch["ids"][:, 1:][learn]
            tokens.append(right[learn].float().mean().item())
            starts = learn & ~F.pad(learn, (1, 0))[:, :-1]
            run = starts.flatten().cumsum(0)[learn.flatten()] - 1  # which answer each learned token belongs to
            wrong = torch.zeros(int(starts.sum()), device=device).index_add_(0, run, (~right[learn]).float())
            answers.append((wrong == 0).float().mean().item())
            target = to_slots(batch["words"])
            filled = target != IGNORE
            reading.append((words.argmax(-1)[filled] == target[filled]).float().mean().item())
        for key, values in (("tokens", tokens), ("answers", answers), ("reading", reading)):
            found[f"{name}_{key}"] = round(sum(values) / len(values), 4)
    return found
