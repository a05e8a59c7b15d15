"""Make the base agent: a tiny Qwen2.5-VL that reads the pocket desktop and imitates its experts.

One run, four losses at once:

    replies    next-token loss on the expert's replies and on readings (lessons.py)
    words      each visual token names the words centred in its patches, in the language model's own vocabulary:
               the head's output is compared with the word embeddings, so a visual token "speaks" what it shows
    kinds      likewise the kind of control; a plain linear head
    places     likewise the digits of where its patches are: the tower has relative positions only, and without this a
               visual token does not know where on the screen it stands

An agent needs no heads, but a run that continues from the checkpoint does. The learning rate follows the clock and not
the number of steps, so a run fits into any given time. A checkpoint is the weights and the heads (fp32, in files under
16 MB, small enough to carry from machine to machine), without the optimiser: a continued run warms up again. A run that
is stopped (Ctrl-C, SIGTERM) saves a checkpoint first, and its last line says how to continue.
"""

import asyncio
import contextlib
import json
import math
import shlex
import shutil
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from arpo.agent import grammar
from arpo.agent.coordinates import Scaling
from arpo.agent.dialects.uitars import UITars
from arpo.agent.episode import Agent, run_episode
from arpo.engines.base import Sampling
from arpo.engines.local import LocalEngine
from arpo.envs.pocket import PocketEnv
from arpo.envs.pocket.catalog import get_task, task_list
from arpo.envs.pocket.expert import PocketExpert
from arpo.envs.pool import LocalPool
from arpo.errors import ConfigError, EngineError
from arpo.model.checkpoint import Checkpoint, load_model, save_model
from arpo.model.qwen import QwenVL
from arpo.seeds import derive, training_seed
from arpo.tasks.load import load_tasks
from arpo.teaching.lessons import IGNORE, KINDS, PATCH, LessonBatch, Lessons, Teacher, collate
from arpo.teaching.tiny import make_config, make_tokenizer, new_model, save_tokenizer
from arpo.training.checkpoint import on_disk
from arpo.types import Attempt, Observation, Provenance, Task
from arpo.vocabulary import TokenizerVocabulary

PROMPT = "Task: {instruction}"
HEADS = "heads.safetensors"
FIRST = {"prompt.txt", "tokenizer.json", "tokenizer_config.json", "metrics.jsonl", "part"}  # there before a checkpoint
LONGEST = 15  # screenshots of an episode


@dataclass(frozen=True)
class Pretraining:
    """The settings of a run."""

    out: Path
    seconds: float  # how long to train
    start: Path | None = None  # a checkpoint to go on from
    size: tuple[int, int] = (448, 280)
    workers: int = 1
    screens: int = 24  # of a batch, at most
    lr: float = 1e-3  # the highest, after the warm-up …
    end_lr: float = 0.0  # … and at the end
    warmup: float = 0.03  # of the time
    words_weight: float = 0.5  # for each of a word's two tokens
    kinds_weight: float = 0.2
    places_weight: float = 0.3
    seed: int = 0
    report_s: float = 30.0
    success_s: float = 120.0  # how often episodes are played …
    episodes: int = 64  # … and how many
    vision: dict[str, int] = field(default_factory=dict)  # sizes of a new model, where they differ from tiny.py's
    text: dict[str, int] = field(default_factory=dict)


class Heads(nn.Module):
    """What is asked of each visual token: words, kinds and places, one for each of its four patches."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.words = nn.Linear(hidden, 4 * 2 * hidden)  # the first token of a word, and the second
        self.none = nn.Parameter(torch.zeros(hidden))  # the "token" of a patch without one
        self.kinds = nn.Linear(hidden, 4 * (len(KINDS) + 1))
        self.places = nn.Linear(hidden, 4 * 6 * 10)  # x and y of the patch's middle, three digits each

    def word_logits(self, features: Tensor, embeddings: Tensor) -> Tensor:
        slots = self.words(features).unflatten(-1, (4, 2, -1))
        return slots @ torch.cat([embeddings, self.none[None]]).T


def corpus(episodes: int) -> Iterator[str]:
    """Text as the agent meets it: instructions, screens, replies of the expert."""
    env = PocketEnv()
    families = sorted({task[:-4] for tasks in task_list("train").values() for task in tasks})
    for i in range(episodes):
        task = get_task(f"{families[i % len(families)]}-{i % 4:03d}")
        env.load(task, i)
        expert = PocketExpert(task)
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


def patch_places(size: tuple[int, int]) -> Tensor:
    """The digits of the middle of every patch, as a model writes it: tokens x 4 x 6."""
    scaling = Scaling.of(*size)
    digits = torch.zeros(6, size[1] // PATCH, size[0] // PATCH, dtype=torch.int64)
    for row in range(digits.shape[1]):
        for column in range(digits.shape[2]):
            x, y = scaling.to_model(column * PATCH + PATCH // 2, row * PATCH + PATCH // 2)
            digits[:, row, column] = torch.tensor([int(digit) for digit in f"{x:03d}{y:03d}"])
    return to_slots(digits).permute(1, 2, 0)


class Pupil(nn.Module):
    """The model with the heads that only learning needs."""

    places: Tensor

    def __init__(self, model: QwenVL, size: tuple[int, int]) -> None:
        super().__init__()
        self.model = model
        self.heads = Heads(model.config.text_config.hidden_size)
        self.register_buffer("places", patch_places(size), persistent=False)


def answer(pupil: Pupil, batch: LessonBatch, features: Tensor) -> Tensor:
    """Logits of the tokens to be learned."""
    text = pupil.model.model.language_model
    ids, positions = batch["ids"].long(), batch["positions"].long()
    hidden = text(ids.flatten(), positions.flatten(1), features.flatten(0, 1), lengths=[ids.shape[1]] * len(ids))
    return hidden[batch["learn"].long() - 1] @ text.embed_tokens.weight.T


def losses(pupil: Pupil, batch: LessonBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of replies, words, kinds and places."""
    heads, embeddings = pupil.heads, pupil.model.model.language_model.embed_tokens.weight
    features = pupil.model.model.visual(batch["screens"])
    replies = batch["ids"].flatten()[batch["learn"].long()].long()
    words = torch.stack([to_slots(batch["words"][:, i]) for i in range(2)], dim=-1)
    places = heads.places(features).unflatten(-1, (4, 6, 10))
    return (
        F.cross_entropy(answer(pupil, batch, features).float(), replies),
        2 * _dense(heads.word_logits(features, embeddings), words),
        _dense(heads.kinds(features).unflatten(-1, (4, -1)), to_slots(batch["kinds"])),
        F.cross_entropy(places.flatten(0, 3).float(), pupil.places.expand(len(places), -1, -1, -1).flatten()),
    )


def _dense(logits: Tensor, target: Tensor) -> Tensor:
    """Cross entropy over all slots; an empty slot is the last class and weighs a tenth."""
    none = logits.shape[-1] - 1
    weight = torch.ones(none + 1, device=logits.device)
    weight[none] = 0.1
    target = torch.where(target == IGNORE, none, target.long())
    return F.cross_entropy(logits.flatten(0, -2).float(), target.flatten(), weight)


def pretrain(settings: Pretraining) -> None:
    """Train for the given time and leave a checkpoint, its prompt.txt, and what was measured in metrics.jsonl."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(settings.seed)
    tokenizer, pupil = _begin(settings)
    pupil.to(device)
    with _saved_where_it_is_stopped(settings, pupil):
        _teach(settings, device, tokenizer, pupil)


def _teach(settings: Pretraining, device: str, tokenizer: tokenizers.Tokenizer, pupil: Pupil) -> None:
    optimizer = torch.optim.AdamW(
        pupil.parameters(), settings.lr, weight_decay=0.01, betas=(0.9, 0.98), fused=device == "cuda"
    )
    box = [TokenizerVocabulary(tokenizer).special(name) for name in ("<|box_start|>", "<|box_end|>")]
    tests = _tests(tokenizer, settings, device)
    lessons = iter(_lessons(settings, device))
    began = reported = played = time.monotonic()
    step = screens = 0
    done = 0.0
    while done < 1:
        done = min(1.0, (time.monotonic() - began) / settings.seconds)
        for group in optimizer.param_groups:
            falling = settings.end_lr + (settings.lr - settings.end_lr) * (0.5 + 0.5 * math.cos(math.pi * done))
            group["lr"] = min(settings.lr * done / settings.warmup, falling)
        batch = {name: part.to(device, non_blocking=True) for name, part in next(lessons).items()}
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            reply, word, kind, place = losses(pupil, batch)
        loss: Any = reply + settings.words_weight * word + settings.kinds_weight * kind
        loss = loss + settings.places_weight * place
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(pupil.parameters(), 1.0)
        optimizer.step()
        step += 1
        screens += len(batch["screens"])
        now = time.monotonic()
        if now - reported > settings.report_s or done == 1:
            metrics: dict[str, float] = {"seconds": round(now - began), "steps": step, "screens": screens}
            metrics |= {"reply": reply.item(), "word": word.item(), "place": place.item()}
            metrics |= _measure(pupil, tests, box)
            if now - played > settings.success_s or done == 1:
                metrics["success"] = _success(pupil, tokenizer, settings)
                _save(pupil, settings.out)
                played = time.monotonic()
            _report(settings.out, metrics)
            reported = time.monotonic()


@contextlib.contextmanager
def _saved_where_it_is_stopped(settings: Pretraining, pupil: Pupil) -> Iterator[None]:
    """On Ctrl-C or SIGTERM save a checkpoint and print how to continue. A second one does not interrupt that."""
    began, stopping = time.monotonic(), False

    def stop(*_: object) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            raise KeyboardInterrupt

    here = threading.current_thread() is threading.main_thread()  # others hear no signals
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM) if here}
    try:
        yield
    except KeyboardInterrupt:
        print("stopping", file=sys.stderr, flush=True)
        _save(pupil, settings.out)
        left = max(1, round(settings.seconds - (time.monotonic() - began)))
        out, more = (shlex.quote(str(settings.out) + end) for end in ("", "-more"))
        print(f"stopped; to go on: arpo pretrain {more} --start {out} --seconds {left}", file=sys.stderr)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _save(pupil: Pupil, out: Path) -> None:
    """A checkpoint, whole or not at all: written to a folder of its own, then moved, config.json last."""
    part = out / "part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    with on_disk(part):
        save_model(pupil.model, part)
        save_file(pupil.heads.state_dict(), part / HEADS)
    (out / "config.json").unlink(missing_ok=True)
    for file in sorted(part.iterdir(), key=lambda file: file.name == "config.json"):
        file.replace(out / file.name)
    part.rmdir()


def _begin(settings: Pretraining) -> tuple[tokenizers.Tokenizer, Pupil]:
    """The tokenizer and the pupil, new or from a checkpoint; the tokenizer and the prompt go to the out folder."""
    if settings.start and not (settings.start / "tokenizer.json").exists():
        raise ConfigError(f"start={settings.start}: there is no checkpoint with a tokenizer.json")
    if settings.screens < LONGEST:
        raise ConfigError(f"screens={settings.screens}: a batch needs at least {LONGEST}, for the longest episode")
    if settings.out.is_dir() and (held := sorted({path.name for path in settings.out.iterdir()} - FIRST)):
        raise ConfigError(
            f"out={settings.out}: holds {held[0]} already; choose another folder (and --start {settings.out} to go on "
            "from a checkpoint in it)"
        )
    settings.out.mkdir(parents=True, exist_ok=True)
    (settings.out / "prompt.txt").write_text(PROMPT)
    if settings.start:
        tokenizer = tokenizers.Tokenizer.from_file(str(settings.start / "tokenizer.json"))
        model = load_model(settings.start, "cpu", torch.float32).requires_grad_(True)
    else:
        tokenizer = make_tokenizer(corpus(400))
        model = new_model(make_config(tokenizer, settings.vision, settings.text))
    with on_disk(settings.out):
        save_tokenizer(tokenizer, settings.out)
    pupil = Pupil(model, settings.size)
    if settings.start and (settings.start / HEADS).exists():
        pupil.heads.load_state_dict(load_file(settings.start / HEADS))
    size = {"parameters": sum(p.numel() for p in model.parameters()), "vocabulary": tokenizer.get_vocab_size()}
    _report(settings.out, size)
    return tokenizer, pupil


def _lessons(settings: Pretraining, device: str) -> Any:
    """Batches without end, made by worker processes. A run that continues another one gets other lessons."""
    seed = f"{settings.seed}/{settings.start}"
    return torch.utils.data.DataLoader(
        Lessons(settings.out / "tokenizer.json", settings.out / "prompt.txt", seed, settings.size, settings.screens),
        batch_size=None,
        num_workers=settings.workers,
        prefetch_factor=4 if settings.workers else None,
        pin_memory=device == "cuda",
    )


def _report(out: Path, metrics: Mapping[str, float]) -> None:
    """A line of JSON for metrics.jsonl, and the same in short for people."""
    with (out / "metrics.jsonl").open("a") as log:
        log.write(f"{json.dumps({name: round(value, 4) for name, value in metrics.items()})}\n")
    if "steps" in metrics:
        shares = {"reads": "heldout_readings_words", "points": "heldout_readings_places"}
        shares |= {"replies": "heldout_episodes_answers", "succeeds": "success"}
        told = "   ".join(f"{word} {metrics[name]:4.0%}" for word, name in shares.items() if name in metrics)
        print(f"{metrics['seconds']:5} s   {metrics['screens'] / 1e6:5.2f}M screens   {told}", flush=True)
    else:
        print(", ".join(f"{value:,} {name}" for name, value in metrics.items()), flush=True)


def _tests(tokenizer: tokenizers.Tokenizer, settings: Pretraining, device: str) -> dict[str, LessonBatch]:
    """Episodes and readings of held-out instances, the same in every run."""
    tests = {}
    for split in ("heldout", "heldout_families"):
        teacher = Teacher(tokenizer, settings.out / "prompt.txt", "tests", settings.size)
        tasks = load_tasks("pocket", split)
        teacher.task = lambda t=teacher, tasks=tasks: t.rng.choice(tasks)  # type: ignore[method-assign, misc]
        for name, lesson, count in (("episodes", teacher.episode, 12), ("readings", teacher.reading, 32)):
            batch = collate([lesson() for _ in range(count)])
            tests[f"{split}_{name}"] = {key: part.to(device) for key, part in batch.items()}
    return tests


@torch.no_grad()
def _measure(pupil: Pupil, tests: dict[str, LessonBatch], box: list[int]) -> dict[str, float]:
    """The shares of words that visual tokens name, of places that are right in every digit, and of whole answers.

    Each token of an answer is predicted after the right ones.
    """
    shares: dict[str, float] = {}
    for name, batch in tests.items():
        device = batch["ids"].device.type
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            features = pupil.model.model.visual(batch["screens"])
            target = batch["ids"].flatten()[batch["learn"].long()]
            right = answer(pupil, batch, features).argmax(-1) == target
            words = pupil.heads.word_logits(features, pupil.model.model.language_model.embed_tokens.weight)
        # An answer is a run of learned tokens that follow each other; a place lies between two tokens of its own.
        answers = F.pad(batch["learn"].diff() != 1, (1, 0)).cumsum(0)
        begins, ends = target == box[0], target == box[1]
        inside = begins.cumsum(0) > ends.cumsum(0)
        shown = to_slots(batch["words"][:, 0])
        filled = shown != IGNORE
        shares[f"{name}_words"] = (words[..., 0, :].argmax(-1)[filled] == shown[filled]).float().mean().item()
        shares[f"{name}_places"] = _all_right(right[inside], begins.cumsum(0)[inside] - 1)
        shares[f"{name}_answers"] = _all_right(right, answers)
    return shares


def _all_right(right: Tensor, group: Tensor) -> float:
    """The share of groups, numbered from 0, in which every token is right."""
    wrong = torch.zeros(int(group[-1]) + 1, device=right.device).index_add_(0, group, (~right).float())
    return (wrong == 0).float().mean().item()


def _success(pupil: Pupil, tokenizer: tokenizers.Tokenizer, settings: Pretraining) -> float:
    """The share of episodes that succeed, over tasks from all of `train`, at the temperature of training."""
    vocabulary = TokenizerVocabulary(tokenizer)
    engine = LocalEngine(Checkpoint("pupil", pupil.model, vocabulary), slots=settings.episodes)
    tasks = load_tasks("pocket", "train")
    chosen = [tasks[i * len(tasks) // settings.episodes] for i in range(settings.episodes)]
    agent = Agent(engine, UITars(vocabulary, prompt_file=settings.out / "prompt.txt"), Sampling(temperature=1.0))
    pool = LocalPool(partial(PocketEnv, settings.size), settings.episodes)

    async def keep_nothing(observation: Observation) -> None:
        """Only the score is wanted."""

    async def play(task: Task) -> float:
        async with pool.lease() as env:
            attempt = Attempt(
                task=task,
                index=0,
                episode=task.id,
                number=0,
                env_seed=training_seed(settings.seed, "success", task.id),
                sample_seed=derive("success", settings.seed, task.id),
                provenance=Provenance(source="evaluation", run=settings.out.name, update=0),
            )
            trajectory = await run_episode(attempt, env, agent, keep_nothing)
        if trajectory.score is None:
            raise EngineError(f"{task.id} could not be played: {trajectory.outcome}")
        return trajectory.score

    async def play_all() -> list[float]:
        return await asyncio.gather(*map(play, chosen))

    return statistics.fmean(asyncio.run(play_all()))
