"""What the agent `base` is taught from: lessons made from pocket without end, as batches of tensors.

Two kinds of lesson, each one sequence in the dialect's own conversation form:

    an episode     the expert works on a task; now and then a wrong move is made, and the expert corrects it;
                   the expert's replies are to be learned, the wrong moves are only seen
    a reading      one screenshot, then words and their places in random order, asked in both directions, and last
                   some words of the instruction to be repeated

In both, each visual token also has a target of its own: the word and the kind of control in the middle of each of its
four patches. This is what makes a small tower read (see docs/log.md).

A place is the middle of a patch, if that is in the same control. Then a visual token that knows its own place knows
every digit of it. The exact pixel, which no click needs, is not to be learned.

Only families of the split `train` are used, without the instances that `heldout` has.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor

from arpo.agent.actions import Action, Click, Drag, Scroll, Wait
from arpo.agent.coordinates import Scaling
from arpo.agent.dialects.base import flatten
from arpo.agent.dialects.uitars import UITars
from arpo.agent.random_actions import random_action
from arpo.envs.pocket import PocketEnv
from arpo.envs.pocket.catalog import get_task, task_list
from arpo.envs.pocket.expert import ExpertLost, PocketExpert
from arpo.envs.pocket.words import sentence
from arpo.errors import TaskError
from arpo.images import Pixels
from arpo.model.layout import lay_out
from arpo.resize import QWEN2_5
from arpo.seeds import EVALUATION
from arpo.types import Observation, Task
from arpo.vocabulary import TokenizerVocabulary

Grids: TypeAlias = tuple[NDArray[np.int16], NDArray[np.int16]]
"""Of one screen, by patch: the first two tokens of the word (2 x rows x columns), the kind of control."""

LessonBatch: TypeAlias = dict[str, Tensor]
"""See `collate`; small types, for a batch travels from the process that makes it to the one that learns from it."""

IGNORE = -100
PATCH, FACTOR = QWEN2_5.patch, QWEN2_5.factor
READINGS = 0.45  # the share of lessons that are readings
NOISE = 0.12  # the chance that a move of an episode is a wrong one
QUESTIONS = 24  # words asked in one reading …
POINTING = 0.65  # … this share of them for their place, the others the other way round
WRONG_THOUGHT = "Try this."
KINDS = (
    "area button cell checkbox close display dropdown field head icon key launcher line link menu menuitem minimise "
    "radio row scrollbar slider tab task text title tool"
).split()


@dataclass(slots=True)
class Lesson:
    """One sequence. `learn` marks the tokens whose prediction is trained; grids have a row for each screenshot."""

    ids: NDArray[np.int64]  # length
    positions: NDArray[np.int64]  # 3 x length
    learn: NDArray[np.bool_]  # length
    screens: list[Pixels]
    grids: list[Grids]  # IGNORE where a patch has no word, no second token, no control


class Teacher:
    """Makes lessons for one tokenizer and one screen size."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, prompt_file: Path, seed: str, size: tuple[int, int]) -> None:
        self.rng = random.Random(seed)
        self.vocabulary = TokenizerVocabulary(tokenizer)
        self.dialect = UITars(self.vocabulary, prompt_file=prompt_file)
        self.env = PocketEnv(size)
        self.scaling = Scaling.of(*size)
        self.families = sorted({task[:-4] for tasks in task_list("train").values() for task in tasks})
        self.heldout = {task for tasks in task_list("heldout").values() for task in tasks}
        self.word_tokens: dict[str, tuple[int, int]] = {}

    def lessons(self) -> Iterator[Lesson]:
        while True:
            yield self.reading() if self.rng.random() < READINGS else self.episode()

    def task(self) -> Task:
        """An instance of a training family that is not held out."""
        while True:
            family = self.rng.choice(self.families)
            try:
                task = get_task(f"{family}-{self.rng.randrange(400):03d}")
            except TaskError:  # a family with fewer instances
                task = get_task(f"{family}-{self.rng.randrange(4):03d}")
            if task.id not in self.heldout:
                return task

    # Episodes.

    def episode(self) -> Lesson:
        task = self.task()
        env, rng = self.env, self.rng
        env.load(task, rng.randrange(EVALUATION))
        expert, conversation = PocketExpert(task), self.dialect.start(task.instruction)
        replies: list[tuple[int, ...]] = []
        taught: list[bool] = []
        screens: list[Pixels] = []
        grids: list[Grids] = []
        noisy = rng.random() < 0.5
        for _ in range(task.max_steps):
            wrong = noisy and rng.random() < NOISE
            try:
                # The expert is asked only for moves that are made: it notes down what it has done.
                thought, action = (WRONG_THOUGHT, self.wrong_move()) if wrong else self.aim(*expert.act(env))
            except ExpertLost:
                break
            screens.append(env.pixels())
            grids.append(self.grids())
            conversation.observe(_observation(screens[-1]))
            reply = self.dialect.format(thought, action, env.size)
            conversation.reply(reply)
            replies.append(reply)
            taught.append(not wrong)
            env.perform(action)
            if env.ended:
                break
        if not replies:  # the expert was lost at once
            return self.episode()
        segments = conversation.segments
        flat = flatten(segments, replies, range(len(segments)), self.dialect.image_pad)
        right = chain.from_iterable([yes] * len(reply) for yes, reply in zip(taught, replies, strict=True))
        learn = [sampled and next(right) for sampled in flat.sampled]
        return self.lesson(list(flat.ids), learn, screens, grids)

    def wrong_move(self) -> Action:
        action = random_action(self.rng, self.env.size)
        return Wait() if action.kind == "type" else action

    def aim(self, thought: str, action: Action) -> tuple[str, Action]:
        """The same move, but at the middle of a patch where that makes no difference."""
        match action:
            case Click(x, y) | Scroll(x, y):
                x, y = self.middle(x, y)
                return thought, replace(action, x=x, y=y)
            case Drag(x, y, to_x, to_y):
                (x, y), (to_x, to_y) = self.middle(x, y), self.middle(to_x, to_y)
                return thought, replace(action, x=x, y=y, to_x=to_x, to_y=to_y)
        return thought, action

    def middle(self, x: int, y: int) -> tuple[int, int]:
        """The middle of the patch of a control's centre, or the nearest middle that the control has; else the same."""
        for control in reversed(self.env.parse()):
            if control.centre == (x, y):
                x0, y0, x1, y1 = control.box
                moved = _nearest(x, x0, x1), _nearest(y, y0, y1)
                return moved if self.env.reached(*moved) is self.env.reached(x, y) else (x, y)
        return x, y  # not a control's centre: the very point may matter

    # Readings.

    def reading(self) -> Lesson:
        env, rng = self.env, self.rng
        task = self.task()
        env.load(task, rng.randrange(EVALUATION))
        expert = PocketExpert(task)
        for _ in range(rng.randrange(6)):
            try:
                env.perform(random_action(rng, env.size) if rng.random() < 0.4 else expert.act(env)[1])
            except ExpertLost:
                break
            if env.ended:
                env.load(task, rng.randrange(EVALUATION))
        pixels = env.pixels()
        said = sentence(rng)
        conversation = self.dialect.start(f"Read, then say '{said}'.")
        context = conversation.observe(_observation(pixels))
        ids = list(flatten(conversation.segments, [], context, self.dialect.image_pad).ids)
        learn = [False] * len(ids)
        newline = list(self.vocabulary.encode("\n"))
        for question, answer in [*self.questions(), ([], list(self.vocabulary.encode(f" {said}")))]:
            ids += [*question, *answer, *newline]
            learn += [False] * len(question) + [True] * len(answer) + [False] * len(newline)
        return self.lesson(ids, learn, [pixels], [self.grids()])

    def questions(self) -> Iterator[tuple[list[int], list[int]]]:
        """Names and places of controls and of other words on the screen, one the question and one the answer."""
        rng, width, height = self.rng, *self.env.size
        controls = [c for c in self.env.parse() if c.kind not in ("wallpaper", "scrollbar") and c.label]
        asked = [(control.label, self.middle(*control.centre)) for control in controls]
        labels = {label for label, _ in asked}
        for word, (x0, y0, x1, y1) in self.env.words():
            if word not in labels:  # else it is what the control is called by
                x, y = min((x0 + x1) // 2, width - 1), min((y0 + y1) // 2, height - 1)
                asked.append((word, (_middle(x), _middle(y))))
        shown = Counter(label for label, _ in asked)
        rng.shuffle(asked)
        start, end = self.vocabulary.special("<|box_start|>"), self.vocabulary.special("<|box_end|>")
        for label, at in asked[:QUESTIONS]:
            name = list(self.vocabulary.encode(f" {label[:40]}"))
            place = [start, *self.vocabulary.encode("({},{})".format(*self.scaling.to_model(*at))), end]
            point = shown[label] == 1 and rng.random() < POINTING  # where a label is seen twice, its place is a guess
            yield (name, place) if point else (place, name)

    # Arrays.

    def lesson(self, ids: list[int], learn: list[bool], screens: list[Pixels], grids: list[Grids]) -> Lesson:
        """The arrays of a lesson, each image token repeated for every visual token of the screenshot."""
        rows, columns = screens[0].shape[0] // FACTOR, screens[0].shape[1] // FACTOR
        layout = lay_out(ids, [(rows, columns)] * len(screens), self.dialect.image_pad)
        mask = np.repeat(np.array(learn), np.diff(layout.starts))
        return Lesson(layout.ids.numpy(), layout.positions.numpy(), mask, screens, grids)

    def grids(self) -> Grids:
        """What each patch of the present screen shows: the word and the kind of control whose middle is there."""
        width, height = self.env.size
        shape = (height // PATCH, width // PATCH)
        words, kinds = np.full((2, *shape), IGNORE, np.int16), np.full(shape, IGNORE, np.int16)
        for word, (x0, y0, x1, y1) in self.env.words():
            row, column = min((y0 + y1) // 2, height - 1) // PATCH, min((x0 + x1) // 2, width - 1) // PATCH
            words[:, row, column] = self.tokens(word)
        for control in self.env.parse():
            if control.kind in KINDS:
                x, y = control.centre
                kinds[y // PATCH, x // PATCH] = KINDS.index(control.kind)
        return words, kinds

    def tokens(self, word: str) -> tuple[int, int]:
        """How the word begins as text that follows other text; digits have no such form."""
        if word not in self.word_tokens:
            ids = self.vocabulary.encode(word if word[0].isdigit() else f" {word}")
            self.word_tokens[word] = (ids[0], ids[1] if len(ids) > 1 else IGNORE)
        return self.word_tokens[word]


def _middle(at: int) -> int:
    """The middle of the patch that a pixel is in, along one axis."""
    return at // PATCH * PATCH + PATCH // 2


def _nearest(at: int, low: int, high: int) -> int:
    """The middle of a patch nearest to `at` and well inside low <= middle < high; else `at`."""
    inside = [m for m in (_middle(at - PATCH), _middle(at), _middle(at + PATCH)) if low + 2 <= m < high - 2]
    return min(inside, key=lambda m: abs(m - at)) if inside else at


def _observation(pixels: Pixels) -> Observation:
    return Observation(b"", pixels.shape[1], pixels.shape[0], "")


class Lessons(torch.utils.data.IterableDataset[LessonBatch]):
    """Batches without end, each of at most so many screenshots, lessons of like length together.

    Each worker of a DataLoader has its own stream.
    """

    def __init__(self, tokenizer: Path, prompt_file: Path, seed: str, size: tuple[int, int], screens: int) -> None:
        self.tokenizer, self.prompt_file, self.seed = tokenizer, prompt_file, seed
        self.size, self.screens = size, screens

    def __iter__(self) -> Iterator[LessonBatch]:
        worker = torch.utils.data.get_worker_info()
        torch.set_num_threads(1)
        tokenizer = tokenizers.Tokenizer.from_file(str(self.tokenizer))
        teacher = Teacher(tokenizer, self.prompt_file, f"{self.seed}/{worker.id if worker else 0}", self.size)
        source = teacher.lessons()
        while True:
            groups: list[list[Lesson]] = [[]]
            room = self.screens
            for lesson in sorted((next(source) for _ in range(192)), key=lambda lesson: len(lesson.ids)):
                if groups[-1] and len(lesson.screens) > room:
                    groups.append([])
                    room = self.screens
                groups[-1].append(lesson)
                room -= len(lesson.screens)
            teacher.rng.shuffle(groups)
            for group in groups:
                yield collate(group)


def collate(lessons: list[Lesson]) -> LessonBatch:
    """One batch. Sequences are padded at the right: with causal attention no token sees the padding, so no mask is
    needed. `learn` says which of all tokens are to be predicted."""
    length = max(len(lesson.ids) for lesson in lessons)
    ids = np.zeros((len(lessons), length), np.int16)
    learn = np.zeros((len(lessons), length), np.bool_)
    positions = np.zeros((3, len(lessons), length), np.int16)
    for row, lesson in enumerate(lessons):
        n = len(lesson.ids)
        ids[row, :n] = lesson.ids
        learn[row, :n] = lesson.learn
        positions[:, row, :n] = lesson.positions
    grids = [grids for lesson in lessons for grids in lesson.grids]
    batch = {
        "ids": ids,
        "positions": positions,
        "learn": np.flatnonzero(learn).astype(np.int32),
        "screens": np.stack([screen for lesson in lessons for screen in lesson.screens]),
        "words": np.stack([words for words, _ in grids]),
        "kinds": np.stack([kinds for _, kinds in grids]),
    }
    return {name: torch.from_numpy(array) for name, array in batch.items()}
