"""Offline training: learn from the stored episodes of other runs (`arpo train --from RUN`). Nothing is played to learn.

    sources = Sources([Path("runs/first")], config)       # in one line, why they cannot be learned from
    sources.refuse_foreign(loaded)                        # … or why not by this model
    sources.copy(run, loaded)                             # into the new run's own store, once
    async for rollout in Stored(tasks, agent, config, run).batches(first, algorithm): …

Of a training the episodes that it learned from are taken, of an evaluation all: those with a score and with steps. What
a training was judged by is left out, for it may be of held-out tasks. Each is copied with its screenshots, so that the
new run needs its own folder alone. In the copy

    id           begins with `from` and the number of the run
    provenance   is source="offline", with the run that it was copied from and that one's update
    reward       is what the new run's settings make of the score
    version      is 0: another run's count says nothing here. Nothing takes it for fresh (types.py, `Sample.stored`)

Everything follows from (seed, update): whose turn it is, and which episodes of a task make its group.
"""

import contextlib
import dataclasses
import json
import os
import random
import re
import shlex
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from arpo.agent.episode import Agent
from arpo.agent.player import Reward, rewarded, well_formed
from arpo.algorithms.advantages import EQUAL
from arpo.algorithms.base import METHODS, Algorithm, Needs
from arpo.config import Config
from arpo.envs.base import refuse_unfit, settings_of
from arpo.errors import ConfigError, printable
from arpo.evaluation.agents import Loaded
from arpo.runs.lock import unwritten
from arpo.runs.progress import counted
from arpo.runs.settings import outside, stored_settings
from arpo.runs.store import Run, damaged
from arpo.seeds import EVALUATION, derive, evaluation_seed
from arpo.tasks.kept import Tasks, first_difference, kept_tasks, own_tasks
from arpo.tasks.load import STORED, judged_tasks, with_others
from arpo.training.rollouts import InTurn, Rollout
from arpo.types import Group, Image, Observation, Provenance, Summary, Task, Trajectory

LEAST, MOST = -1e6, 1e-3  # that a log-probability can be, rounded
DRAWS = 20  # of a task's group, until one teaches something
SAME = ("env.name", "env.size", "agent.dialect", "agent.screenshots")  # settings that must be those of the episodes
IDLE = {  # what has no meaning here, and its default
    **{"train.lag": 0, "train.env_steps": None, "train.curriculum": False},
    **{"algorithm.group_least": None, "algorithm.group_most": None, "algorithm.partial": 0.0},
}
LACKING: dict[Needs, str] = {
    "differing": "a task whose episodes have different rewards",
    "successes": "a success",
    "pairs": "a task with a success and a failure",
    "both": "successes and failures",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A run to learn from, open for reading."""

    number: int
    run: Run
    kinds: tuple[str, ...]  # of its episodes
    tasks: dict[str, Task]  # that they are of, by id; empty: an older arpo has kept none


class Sources:
    """The runs to learn from. ConfigError where they cannot be; that they fit the model is another question."""

    def __init__(
        self, folders: Sequence[Path], config: Config, own: Tasks | None = None, reward: Reward | None = None
    ) -> None:
        """`own`: the tasks of the new run, where it is begun already; `reward`: as in `Rollouts`."""
        self.config, self.folders = config, [_whole(folder) for folder in folders]
        self._reward = reward or well_formed(config.algorithm.format_reward)
        refuse_idle(config)
        for number, folder in enumerate(self.folders):
            if folder.resolve() in (other.resolve() for other in self.folders[:number]):
                raise ConfigError(f"--from {folder}: is named twice")
        with self._opened() as sources:
            self.tasks = own or self._find_tasks(sources)
            self._known = {task.id: task for task in self.tasks["train"]}
            episodes: dict[str, list[tuple[float, float]]] = {}  # of each task the scores and rewards
            taken = set()
            for source, one in self._of_all(sources):
                episodes.setdefault(one.task_id, []).append((one.score or 0.0, one.reward or 0.0))
                taken.add(source.number)
            for source in sources:
                if source.number not in taken:
                    others = " that those before it have not" if source.number else ""
                    raise ConfigError(
                        f"{source.run.folder}: has no episode of these tasks with a score and with steps{others}"
                    )
        self.count = sum(map(len, episodes.values()))
        self._refuse_scores(episodes)

    def refuse_foreign(self, loaded: Loaded) -> None:
        """ConfigError where an episode is not one that this model could have had."""
        with self._opened() as sources:
            for source, one in self._of_all(sources):
                self._refuse_other_model(one, source, loaded)

    def pin(self, run: Run) -> None:
        """Say that the run is an offline one, and of what."""
        run.pin("from", names(self.folders))

    def copy(self, run: Run, loaded: Loaded) -> None:
        """Copy what is not in the run yet. An episode comes after its screenshots, so a killed copy can go on."""
        console = Console(stderr=True, highlight=False)
        with self._opened() as sources, counted(console, "copying stored episodes", self.count) as advance:
            try:
                for source, one in self._of_all(sources):
                    if next(run.summaries(id=one.id), None) is None:
                        self._copy(one, source, run, loaded)
                    advance(f"from {source.run.folder.name}")
            except (KeyboardInterrupt, OSError):  # the latter: a full disk
                again = [word for folder in self.folders for word in ("--from", str(folder))]
                words = ["arpo", "train", "--resume", str(run.folder), *again, *outside(self.config)]
                console.print(f"stopped; to resume: {shlex.join(words)}", markup=False, soft_wrap=True)
                raise
        run.note("copied", str(sum(1 for _ in run.summaries(source="offline"))))

    def _copy(self, one: Trajectory, source: Source, run: Run, loaded: Loaded) -> None:
        self._refuse_other_model(one, source, loaded)
        for name in _screens(one):
            run.copy_image(name, source.run)
        run.add(one)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[list[Source]]:
        with contextlib.ExitStack() as opened:
            runs = [opened.enter_context(Run.read(folder)) for folder in self.folders]
            for folder in self.folders:
                opened.enter_context(unwritten(folder))
            yield [self._source(number, run) for number, run in enumerate(runs)]

    def _source(self, number: int, run: Run) -> Source:
        played = stored_settings(run.folder)
        for key in SAME:
            if played.value(key) != self.config.value(key):
                (there,), (here,) = played.words([key]), self.config.words([key])
                raise ConfigError(f"{here}: {run.folder} was played with {there}; to learn from it, say so")
        training = played.run_dir is not None
        if not training and played.eval.protocol == "standard":
            why = "it may score what the agent never said; learn from an evaluation with another one"
            raise ConfigError(f"{run.folder}: was judged with eval.protocol=standard: {why}")
        if training and played.algorithm.partial:
            why = "its scores are of parts of tasks, and do not say what was solved"
            raise ConfigError(f"{run.folder}: was trained with algorithm.partial={played.algorithm.partial}: {why}")
        kinds = ("rollout", "offline", "expert") if training else ("evaluation",)
        kept = kept_tasks(run.folder, self.config) or {}
        return Source(number, run, kinds, {task.id: task for task in kept.get("train" if training else "tasks", [])})

    def _find_tasks(self, sources: Sequence[Source]) -> Tasks:
        """Those of the settings; or those that there are episodes of, and the held-out ones that judge any training."""
        config = self.config
        if config.tasks.source != STORED:
            tasks = judged_tasks(config)
            named = {task.id: task for task in tasks["train"]}
            for source in sources:
                self._merged(named, source)
            return tasks
        found: dict[str, Task] = {}
        for source in sources:
            if not source.tasks:
                raise ConfigError(f"{source.run.folder}: has kept no tasks; name those of its episodes: tasks.source=…")
            found = self._merged(found, source)
        played = {one.task_id for source in sources for one in source.run.summaries() if _usable(one, source.kinds)}
        train = [task for task in found.values() if task.id in played]
        if (most := config.tasks.max_steps) is not None:
            train = [dataclasses.replace(task, max_steps=most) for task in train]
        refuse_unfit(config.env.name, train, settings_of(config.env))
        return with_others(train, config)

    def _merged(self, known: Mapping[str, Task], source: Source) -> dict[str, Task]:
        """With the tasks of one more run. Where both have a task, they may differ in how long it may take alone."""
        merged = dict(known)
        for task in source.tasks.values():
            other = known.get(task.id, task)
            most = max(task.max_steps, other.max_steps)
            task, other = (dataclasses.replace(one, max_steps=most) for one in (task, other))
            if what := first_difference({"": [other]}, {"": [task]}):
                raise ConfigError(
                    f"{source.run.folder}: {what} there than elsewhere; episodes of both cannot be joined"
                )
            merged[task.id] = task
        return merged

    def _of_all(self, sources: Sequence[Source]) -> Iterator[tuple[Source, Trajectory]]:
        """One that several of them have, since one was copied from the other, is taken once."""
        known = set()
        for source in sources:
            for one in self._episodes(source):
                played = re.sub("^(from[0-9]+-)+", "", one.id)
                tokens = hash(tuple(step.completion.tokens for step in one.steps))
                if (same := (played, one.task_id, one.env_seed, tokens)) not in known:
                    known.add(same)
                    yield source, one

    def _episodes(self, source: Source) -> Iterator[Trajectory]:
        """Its episodes of the known tasks, as they are in the copy."""
        for summary in source.run.summaries():
            if not _usable(summary, source.kinds) or (task := self._known.get(summary.task_id)) is None:
                continue
            one = source.run.trajectory(summary.id)
            self._refuse_judged(summary, source)
            steps = tuple(
                dataclasses.replace(step, completion=dataclasses.replace(step.completion, version=0))
                for step in one.steps
            )
            yield dataclasses.replace(
                rewarded(self._reward, task, one),
                id=f"from{source.number}-{one.id}",
                attempt=summary.attempt,  # these numbers as they stand in the table, into whose like they go
                env_seed=summary.env_seed,
                steps=steps,
                provenance=Provenance("offline", printable(source.run.folder.name), summary.update),
            )

    def _refuse_judged(self, one: Summary, source: Source) -> None:
        """An evaluation with the same seed had the screens that the new run is judged on."""
        seed, trials = self.config.seed, range(self.config.eval.trials)
        if one.env_seed >= EVALUATION and one.env_seed in (
            evaluation_seed(seed, one.task_id, trial) for trial in trials
        ):
            raise ConfigError(
                f"seed={seed}: {source.run.folder} has episodes on the screens that this training is judged on; "
                f"with another seed these are others: seed={seed + 1}"
            )

    def _refuse_scores(self, episodes: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        """ConfigError where the method can learn from too few of the tasks."""
        algorithm, names = self.config.algorithm, ", ".join(map(str, self.folders))
        needs = needs_of(self.config)
        tasks = teaching(needs, episodes, algorithm.solved)
        if not tasks:
            raise ConfigError(f"algorithm.name={algorithm.name}: needs {LACKING[needs]}, which {names} has not")
        if (wanted := self.config.train.rollout_tasks) > len(tasks):
            raise ConfigError(
                f"train.rollout_tasks={wanted}: must be at most {len(tasks)}: of so many tasks {names} has episodes "
                f"that {algorithm.name} learns from"
            )

    def _refuse_other_model(self, one: Trajectory, source: Source, loaded: Loaded) -> None:
        if not _own(one, self._known[one.task_id].instruction, loaded):
            raise ConfigError(
                f"{source.run.folder}: its episodes are not of this model: another tokenizer, prompt or choice of "
                f"screenshots than train.model={self.config.train.model} has with the settings of `agent`"
            )


class Stored:
    """Groups of stored episodes, in place of `Rollouts`: the loop is the same."""

    def __init__(self, tasks: Sequence[Task], agent: Agent, config: Config, run: Run) -> None:
        self.agent, self.config, self.run = agent, config, run
        self._episodes: dict[str, list[Summary]] = {}  # by task
        for one in run.summaries(source="offline"):
            self._episodes.setdefault(one.task_id, []).append(one)
        scores = {task: [(one.score or 0.0, one.reward or 0.0) for one in of] for task, of in self._episodes.items()}
        names = teaching(needs_of(config), scores, config.algorithm.solved)
        learned = [task for task in tasks if task.id in names]
        if len(learned) < config.train.rollout_tasks:  # it could not have begun with so few
            raise damaged(run.folder, "copied episodes are missing")
        self._in_turn = InTurn(learned, config.train.rollout_tasks, config.seed)

    async def batches(self, first: int, algorithm: Algorithm) -> AsyncGenerator[Rollout]:
        """See `Groups`."""
        updates = self.config.train.updates
        for update in range(first, updates):
            before = time.monotonic()
            drawn = [self._draw(task, update, algorithm.accept) for task in self._in_turn.tasks_of(update)]
            taken = [one for _, summaries in drawn for one in summaries]
            waited = time.monotonic() - before
            yield Rollout(update, [group for group, _ in drawn], taken, update + 1 == updates, waited)

    def _draw(self, task: Task, update: int, accept: Callable[[Group], bool]) -> tuple[Group, list[Summary]]:
        """Some of the task's episodes. To draw costs nothing, so those that teach nothing are drawn again."""
        episodes, n = self._episodes[task.id], self.config.algorithm.group
        for draw in range(DRAWS):
            rng = random.Random(derive("stored", self.config.seed, update, task.id, draw))
            chosen = rng.sample(episodes, min(n, len(episodes)))
            group = Group(task.id, tuple(self.run.trajectory(one.id) for one in chosen))
            if len(episodes) <= n or accept(group):  # where all are in it there is no other
                break
        return group, chosen


def begin(
    config: Config, folder: Path | None, runs: Sequence[Path], own: Tasks | None = None, reward: Reward | None = None
) -> tuple[Sources | None, Tasks | None]:
    """What the run in this folder, new or begun, is still to copy, and its tasks; None: those of the settings.

    No folder: a new one, to be named later. ConfigError where it was begun otherwise. What it was begun from counts
    only where it is said again: the folder may be somebody else's.
    """
    facts = facts_of(folder)
    if not runs and facts.get("from") is None:
        if config.tasks.source == STORED:
            raise ConfigError(f"tasks.source={STORED}: are the tasks of stored episodes; say --from which runs")
        return None, own
    if folder and any(run.resolve() == folder.resolve() for run in runs):
        raise ConfigError(f"--from {folder}: is the folder of this run itself")
    if runs and facts.get("model") is not None and facts.get("from") is None:
        raise ConfigError(f"{folder}: was begun without --from; choose another folder")
    if runs and facts.get("from") not in (None, names(runs)):
        raise ConfigError(f"{folder}: was begun with other runs than --from names; choose another folder")
    if folder and facts.get("copied") is not None:
        needs_of(config)
        refuse_idle(config)
        return None, own or own_tasks(config.with_values({"run_dir": folder}))
    if not runs:
        raise ConfigError(f"{folder}: not all of its episodes are copied yet; say again --from which runs")
    sources = Sources(runs, config, own, reward)
    return sources, sources.tasks


def facts_of(folder: Path | None) -> dict[str, str | None]:
    """What the run in this folder has noted of its beginning; nothing where there is none, or it cannot be read."""
    if folder is None or not (folder / "run.sqlite").exists():
        return {}
    with contextlib.suppress(ConfigError), Run.read(folder) as run:  # what is wrong is said when it is opened to write
        return {name: run.fact(name) for name in ("from", "copied", "model")}
    return {}


def needs_of(config: Config) -> Needs:
    """What the method needs of stored episodes. ConfigError where it cannot learn from any."""
    algorithm = config.algorithm
    if (needs := METHODS.find(algorithm.method).offline) is None:
        raise ConfigError(f"algorithm.name={algorithm.name}: learns from what it plays alone, not with --from")
    return needs


def refuse_idle(config: Config) -> None:
    """ConfigError for settings that would be without effect."""
    for key, default in IDLE.items():
        if config.value(key) != default:
            (given,), (usual,) = config.words([key]), config.with_values({key: default}).words([key])
            raise ConfigError(f"{given}: has no meaning where stored episodes are learned (--from); set {usual}")


def names(folders: Sequence[Path]) -> str:
    """The runs as a run's facts name them."""
    return json.dumps([str(_whole(folder)) for folder in folders])


def teaching(needs: Needs, episodes: Mapping[str, Sequence[tuple[float, float]]], solved: float) -> set[str]:
    """The tasks that a method can learn from; `episodes`: of each task scores and rewards."""

    def kinds(task: str) -> set[bool]:
        return {score >= solved for score, _ in episodes[task]}

    def differ(task: str) -> bool:
        rewards = [reward for _, reward in episodes[task]]
        return max(rewards) - min(rewards) >= EQUAL

    match needs:
        case "differing":
            return {task for task in episodes if differ(task)}
        case "successes":
            return {task for task in episodes if True in kinds(task)}
        case "pairs":
            return {task for task in episodes if len(kinds(task)) == 2}
        case "both":
            return set(episodes) if len(set().union(*map(kinds, episodes))) == 2 else set()


def _whole(folder: Path) -> Path:
    return Path(os.path.abspath(folder))


def _usable(one: Summary, kinds: Sequence[str]) -> bool:
    return one.outcome.valid and one.n_steps > 0 and one.source in kinds


def _screens(one: Trajectory) -> list[str]:
    """The hashes of all its screenshots."""
    seen = (segment.hash for segment in one.segments if isinstance(segment, Image))
    after = (step.observation for step in one.steps if step.observation is not None)
    return list(dict.fromkeys([one.start, *seen, *after]))


def _own(one: Trajectory, instruction: str, loaded: Loaded) -> bool:
    """Whether the model's own conversation over these screens and replies is this one, token for token."""
    shown = {segment.hash: segment for segment in one.segments if isinstance(segment, Image)}
    conversation = loaded.dialect.start(instruction)
    name: str | None = one.start
    try:
        for step in one.steps:
            said, image = step.completion, shown[name or ""]
            context = conversation.observe(Observation(b"", image.width, image.height, image.hash))
            conversation.reply(said.tokens)
            if context != step.context or loaded.made.vocabulary.decode(said.tokens) != said.text:
                return False
            if not all(LEAST <= value <= MOST for value in said.logprobs):
                return False
            name = step.observation
    except (KeyError, ValueError, OverflowError):  # no such screen, a turn out of turn, no such token
        return False
    return tuple(conversation.segments) == one.segments[: len(conversation.segments)]
