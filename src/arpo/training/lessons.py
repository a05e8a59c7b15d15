"""What the base agent is taught from: endless lessons drawn from pocket, as batches of tensors.

Two kinds of lesson, each one sequence in the dialect's own conversation form:

    an episode     the expert works on a task, now and then disturbed by a wrong move that it then mends;
                   the expert's replies are to be learned, the wrong moves are only seen
    a reading      one screenshot, then words and their places in random order, asked in both directions

Beside both, each visual token has a target of its own: the word and the kind of control centred in each of its four
patches. That is what makes a small tower read (see docs/log.md).

Only families of the `train` split are used, and of them other instances than those that `heldout` has.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor

from arpo.agent.actions import Action, Wait
from arpo.agent.coordinates import FACTOR, Scaling
from arpo.agent.dialects import Conversation, UITars, flatten
from arpo.agent.random_actions import random_action
from arpo.agent.vocabulary import TokenizerVocabulary
from arpo.engines.images import PATCH
from arpo.engines.qwen import spread
from arpo.envs.images import Pixels
from arpo.envs.pocket import PocketEnv
from arpo.envs.pocket.catalog import get_task, task_list
from arpo.envs.pocket.expert import Expert, ExpertLost
from arpo.errors import TaskError
from arpo.seeds import EVALUATION
from arpo.types import Image, Observation, Reply, Task, Tokens

Grids: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Words, kinds and places of one screen, by patch."""

IGNORE = -100
READINGS = 0.45  # the share of lessons that are readings
NOISE = 0.12  # the chance that a move of an episode is a wrong one
QUESTIONS = 24  # words asked in one reading
WRONG_THOUGHT = "Try this."
KINDS = (
    "area button cell checkbox close display dropdown field head icon key launcher line link menu menuitem minimise "
    "radio row scrollbar slider tab task text title tool"
).split()


@dataclass(slots=True)
class Lesson:
    """One sequence. `learn` marks the tokens whose prediction is trained; grids have a row for each screenshot."""

    ids: Tensor  # length
    positions: Tensor  # 3 x length
    learn: Tensor  # length
    screens: list[Pixels]
    words: list[NDArray[np.int64]]  # the first token of the word in each patch; IGNORE where there is none
    kinds: list[NDArray[np.int64]]  # the kind of control, likewise
    places: list[NDArray[np.int64]]  # six digits of the coordinates of what is centred there, likewise


class Teacher:
    """Draws lessons for one tokenizer and one screen size."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, prompt_file: Path, seed: int, size: tuple[int, int]) -> None:
        self.rng = random.Random(seed)
        self.vocabulary = TokenizerVocabulary(tokenizer)
        self.dialect = UITars(self.vocabulary, prompt_file=prompt_file)
        self.env = PocketEnv(size)
        self.scaling = Scaling.of(*size)
        self.families = sorted({task[:-4] for tasks in task_list("train").values() for task in tasks})
        self.heldout = {task for tasks in task_list("heldout").values() for task in tasks}
        self.first_tokens: dict[str, int] = {}

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
        expert, conversation = Expert(task), self.dialect.start(task.instruction)
        replies: list[tuple[int, ...]] = []
        taught: list[bool] = []
        screens: list[Pixels] = []
        grids: list[Grids] = []
        noisy = rng.random() < 0.5
        for _ in range(task.max_steps):
            pixels = env.pixels()
            screens.append(pixels)
            grids.append(self.grids())
            conversation.observe(_observation(pixels))
            wrong = noisy and rng.random() < NOISE
            try:
                # The expert is asked only for moves that are made: it notes down what it has done.
                thought, action = (WRONG_THOUGHT, self.wrong_move()) if wrong else expert.act(env)
            except ExpertLost:
                break
            reply = self.dialect.encode_reply(thought, action, env.size)
            conversation.reply(reply)
            replies.append(reply)
            taught.append(not wrong)
            env.perform(action)
            if env.ended:
                break
        if len(replies) < len(screens):  # the expert was lost: its last screen has no answer
            screens, grids = screens[: len(replies)], grids[: len(replies)]
            if not replies:
                return self.episode()
        context = _upto_reply(conversation, len(replies))
        flat = flatten(conversation.segments, replies, context, self.dialect.image_pad)
        learn: list[bool] = []
        for index in context:
            match conversation.segments[index]:
                case Reply(step):
                    learn += [taught[step]] * len(replies[step])
                case Tokens(ids):
                    learn += [False] * len(ids)
                case Image():
                    learn.append(False)
        return self.lesson(list(flat.ids), learn, screens, grids)

    def wrong_move(self) -> Action:
        action = random_action(self.rng, self.env.size)
        return Wait() if action.kind == "type" else action

    # Readings.

    def reading(self) -> Lesson:
        env, rng = self.env, self.rng
        task = self.task()
        env.load(task, rng.randrange(EVALUATION))
        expert = Expert(task)
        for _ in range(rng.randrange(6)):
            try:
                env.perform(random_action(rng, env.size) if rng.random() < 0.4 else expert.act(env)[1])
            except ExpertLost:
                break
            if env.ended:
                env.load(task, rng.randrange(EVALUATION))
        pixels = env.pixels()
        conversation = self.dialect.start("Read.")
        ids = list(
            flatten(conversation.segments, [], conversation.observe(_observation(pixels)), self.dialect.image_pad).ids
        )
        learn = [False] * len(ids)
        asked = [(c.label, c.centre) for c in env.parse() if c.kind not in ("wallpaper", "scrollbar") and c.label]
        asked += [(word, ((x0 + x1) // 2, (y0 + y1) // 2)) for word, (x0, y0, x1, y1) in env.words()]
        rng.shuffle(asked)
        start, end = self.vocabulary.special("<|box_start|>"), self.vocabulary.special("<|box_end|>")
        for label, (x, y) in asked[:QUESTIONS]:
            x, y = self.scaling.to_model(min(x, env.size[0] - 1), min(y, env.size[1] - 1))
            name = list(self.vocabulary.encode(f" {label[:40]}"))
            place = [start, *self.vocabulary.encode(f"({x},{y})"), end]
            question, answer = (name, place) if rng.random() < 0.6 else (place, name)
            ids += [*question, *answer, *self.vocabulary.encode("\n")]
            learn += (
                [False] * len(question)
                + [True] * len(answer)
                + [False] * (len(ids) - len(learn) - len(question) - len(answer))
            )
        return self.lesson(ids, learn, [pixels], [self.grids()])

    # Tensors.

    def lesson(self, ids: list[int], learn: list[bool], screens: list[Pixels], grids: list[Grids]) -> Lesson:
        """The tensors of a lesson, each image token spread out to as many as the screenshot has."""
        rows, columns = screens[0].shape[0] // FACTOR, screens[0].shape[1] // FACTOR
        layout = spread(ids, [(rows, columns)] * len(screens), self.dialect.image_pad)
        mask = torch.tensor(learn).repeat_interleave(torch.from_numpy(np.diff(layout.starts)))
        words, kinds, places = (list(part) for part in zip(*grids, strict=True))
        return Lesson(layout.ids, layout.positions, mask, screens, words, kinds, places)

    def grids(self) -> Grids:
        """What each patch of the present screen shows: the word, the kind of control, and where its middle is."""
        width, height = self.env.size
        shape = (height // PATCH, width // PATCH)
        words, kinds = np.full(shape, IGNORE, np.int64), np.full(shape, IGNORE, np.int64)
        places = np.full((6, *shape), IGNORE, np.int64)

        def put(x: int, y: int) -> tuple[int, int]:
            row, column = y // PATCH, x // PATCH
            model_x, model_y = self.scaling.to_model(x, y)
            places[:, row, column] = [int(digit) for digit in f"{model_x:03d}{model_y:03d}"]
            return row, column

        for word, (x0, y0, x1, y1) in self.env.words():
            words[put(min((x0 + x1) // 2, width - 1), min((y0 + y1) // 2, height - 1))] = self.first_token(word)
        for control in self.env.parse():
            if control.kind in KINDS:
                kinds[put(*control.centre)] = KINDS.index(control.kind)
        return words, kinds, places

    def first_token(self, word: str) -> int:
        """How the word begins as text that follows other text; digits have no such form."""
        if word not in self.first_tokens:
            ids = self.vocabulary.encode(word if word[0].isdigit() else f" {word}")
            self.first_tokens[word] = ids[0]
        return self.first_tokens[word]


def _observation(pixels: Pixels) -> Observation:
    return Observation(b"", pixels.shape[1], pixels.shape[0], "")


def _upto_reply(conversation: Conversation, replies: int) -> tuple[int, ...]:
    """All segments up to and with the last reply: with full history nothing is hidden."""
    last = max(
        i for i, segment in enumerate(conversation.segments) if segment.kind == "reply" and segment.step < replies
    )
    return tuple(range(last + 1))


Batch: TypeAlias = dict[str, Tensor]


class Lessons(torch.utils.data.IterableDataset[Batch]):
    """Batches of about `tokens` tokens each, lessons of like length together. Each worker has its own stream."""

    def __init__(self, tokenizer: str, prompt_file: Path, seed: int, size: tuple[int, int], tokens: int) -> None:
        self.tokenizer, self.prompt_file = tokenizer, prompt_file
        self.seed, self.size, self.tokens = seed, size, tokens

    def __iter__(self) -> Iterator[Batch]:
        worker = torch.utils.data.get_worker_info()
        torch.set_num_threads(1)
        teacher = Teacher(
            tokenizers.Tokenizer.from_file(self.tokenizer),
            self.prompt_file,
            self.seed * 1000 + (worker.id if worker else 0),
            self.size,
        )
        source, rng = teacher.lessons(), random.Random(self.seed)
        while True:
            waiting = sorted((next(source) for _ in range(192)), key=lambda lesson: len(lesson.ids))
            batches: list[list[Lesson]] = [[]]
            for lesson in waiting:
                if batches[-1] and len(lesson.ids) * (len(batches[-1]) + 1) > self.tokens:
                    batches.append([])
                batches[-1].append(lesson)
            rng.shuffle(batches)
            for batch in batches:
                yield collate(batch)


def collate(lessons: list[Lesson]) -> Batch:
    """Padded at the right: with causal attention no token sees the padding, so no mask is needed."""
    length = max(len(lesson.ids) for lesson in lessons)
    ids = torch.zeros(len(lessons), length, dtype=torch.int64)
    learn = torch.zeros(len(lessons), length, dtype=torch.bool)
    positions = torch.zeros(3, len(lessons), length, dtype=torch.int64)
    for row, lesson in enumerate(lessons):
        n = len(lesson.ids)
        ids[row, :n] = lesson.ids
        learn[row, :n] = lesson.learn
        positions[:, row, :n] = lesson.positions
    return {
        "ids": ids,
        "learn": learn,
        "positions": positions,
        "screens": torch.from_numpy(np.stack([screen for lesson in lessons for screen in lesson.screens])),
        "words": torch.from_numpy(np.stack([grid for lesson in lessons for grid in lesson.words])),
        "kinds": torch.from_numpy(np.stack([grid for lesson in lessons for grid in lesson.kinds])),
        "places": torch.from_numpy(np.stack([grid for lesson in lessons for grid in lesson.places])),
    }
