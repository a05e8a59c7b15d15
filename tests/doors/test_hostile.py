"""What comes through a door and does not keep its contract: it is said in one line, and nothing of it is stored.

A failure of the machinery is never a reward, and a run that a door's mistake has ended goes on when that is mended.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guesser import TASKS, dialect_of, settings
from lamp_env import TASKS as LAMP_TASKS
from lamp_env import Lamp

import arpo
from arpo.agent.episode import Agent
from arpo.agent.player import Player, Reward
from arpo.algorithms.base import Credit, make_algorithm
from arpo.algorithms.grpo import Grpo
from arpo.config import load_config, to_yaml
from arpo.engines.base import Sampling, Weights
from arpo.engines.local import LocalEngine
from arpo.envs.base import BACKENDS
from arpo.envs.pool import HERE, LocalPool
from arpo.errors import ActionError, ArpoError, ConfigError, EngineError, EnvError, ParseError
from arpo.model.checkpoint import load_checkpoint
from arpo.runs.store import Run
from arpo.training.base import LearnerError, Update
from arpo.training.checkpoint import Checkpoints
from arpo.training.learner import LocalLearner
from arpo.training.loop import train
from arpo.training.rollouts import Rollouts
from fake_env import FakeEnv

BACKENDS.pop("lamp", None)  # to import it is to register it, and other tests list what there is


class Engine:
    """A working one; a test breaks a method of it."""

    def __init__(self, model: Path) -> None:
        self.local = LocalEngine(load_checkpoint(model, "cpu"), max_context=2000)

    async def generate(self, *arguments: Any) -> Any:
        return await self.local.generate(*arguments)

    async def release(self, session: str) -> None:
        await self.local.release(session)

    async def load(self, version: int, weights: Weights) -> None:
        await self.local.load(version, weights)


def train_in(
    folder: Path,
    model: Path,
    algorithm: str = "grpo",
    reward: Reward | None = None,
    engine: type[Engine] = Engine,
    learner: type[LocalLearner] = LocalLearner,
    updates: int = 2,
) -> list[int]:
    """Which updates are made."""
    config = settings({"name": algorithm}, updates=updates)
    built, method = engine(model), make_algorithm(config.algorithm, config.seed)
    agent = Agent(built, dialect_of(built.local.checkpoint), Sampling(max_tokens=16))
    learning = learner(load_checkpoint(model, "cpu"), config, method)
    checkpoints = Checkpoints(folder / "checkpoints", model=str(model))
    with Run.write(folder, to_yaml(config)) as run:
        rollouts = Rollouts(TASKS, agent, config, run, Player(LocalPool(FakeEnv, 3), run), reward)
        asyncio.run(train(config, run, rollouts, built, learning, method, checkpoints))
        return [metrics["update"] for metrics in run.metrics()]


# ---- a reward


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, None, "1", 10**400, []], ids="nan inf none text huge list".split()
)
def test_a_reward_that_is_no_number_is_not_stored(value: Any, guesser_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^reward: gave .* it must give a finite number$"):
        train_in(tmp_path, guesser_folder, reward=lambda task, trajectory: value)
    assert train_in(tmp_path, guesser_folder) == [0, 1]  # with one that works


def test_a_reward_may_be_numpys(guesser_folder: Path, tmp_path: Path) -> None:
    half: Any = np.float32(0.5)
    assert train_in(tmp_path, guesser_folder, reward=lambda task, trajectory: half) == [0, 1]
    with arpo.read_run(tmp_path) as run:
        assert {episode.reward for episode in run.summaries()} == {0.5}


def test_a_reward_must_be_callable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^reward: must be a function of a task and a trajectory, not 3$"):
        arpo.train("pocket", run_dir=tmp_path / "run", reward=3)  # type: ignore[arg-type]


# ---- an algorithm


def n_tokens(trajectory: arpo.Trajectory) -> int:
    return sum(len(step.completion.tokens) for step in trajectory.steps)


def method(**methods: Any) -> str:
    arpo.register_algorithm("strange", type("Strange", (Grpo,), methods), replace=True)
    return "strange"


@pytest.mark.parametrize(
    ("credit", "why"),
    [
        (lambda n, i: Credit([1.0] * (n + 1)), r"gave \d+ advantages to \d+ tokens"),
        (lambda n, i: Credit([1.0] * (n - 1)), r"gave \d+ advantages to \d+ tokens"),
        (lambda n, i: Credit([1.0] * n, [1.0] * (n + 1)), r"gave \d+ returns to \d+ tokens"),
        (lambda n, i: Credit([math.nan] * n), "gave advantages that are not finite"),
        (lambda n, i: Credit([1.0] * n, [1.0] * n * i), "gave returns to some of the learned episodes"),
    ],
)
def test_credit_that_does_not_fit_is_not_learned(
    credit: Callable[[int, int], Credit], why: str, guesser_folder: Path, tmp_path: Path
) -> None:
    def advantages(self: Any, group: arpo.Group) -> list[Credit]:
        return [credit(n_tokens(one), i) for i, one in enumerate(group.trajectories)]

    with pytest.raises(LearnerError, match=why):
        train_in(tmp_path, guesser_folder, method(advantages=advantages))
    with pytest.raises(LearnerError, match="gave 1 credits to 2 episodes"):
        train_in(tmp_path, guesser_folder, method(advantages=lambda self, group: [Credit()]))


def test_advantages_may_be_numpys(guesser_folder: Path, tmp_path: Path) -> None:
    def advantages(self: Any, group: arpo.Group) -> list[Credit]:
        return [Credit(np.ones(n_tokens(one))) for one in group.trajectories]  # type: ignore[arg-type]

    assert train_in(tmp_path, guesser_folder, method(advantages=advantages)) == [0, 1]


def test_a_state_that_could_not_be_restored_is_not_saved(guesser_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LearnerError, match=r"^the state of an algorithm is a dict, not \[1\]$"):
        train_in(tmp_path, guesser_folder, method(state=lambda self: [1]))
    assert train_in(tmp_path, guesser_folder, method()) == [0, 1]


# ---- an engine


class Ahead(Engine):
    async def generate(self, *arguments: Any) -> Any:
        return dataclasses.replace(await super().generate(*arguments), version=99)


class Mute(Engine):
    async def generate(self, *arguments: Any) -> Any:
        return dataclasses.replace(await super().generate(*arguments), tokens=(), logprobs=(), text="")


def test_tokens_of_weights_to_come_are_not_learned(guesser_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(LearnerError, match="sampled with version 99, and the learner has made 0 updates"):
        train_in(tmp_path, guesser_folder, engine=Ahead)


def test_a_reply_without_a_token_is_the_engines_failure(guesser_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="machines failed in every episode"):
        train_in(tmp_path, guesser_folder, engine=Mute)
    with arpo.read_run(tmp_path) as run:
        assert {(episode.outcome, episode.reward) for episode in run.summaries()} == {("engine_error", None)}


# ---- a learner


class Elsewhere(LocalLearner):
    def save(self, folder: Path) -> Callable[[], dict[str, Any]]:
        return super().save(folder.parent.parent / "elsewhere")


class Colliding(LocalLearner):
    def save(self, folder: Path) -> Callable[[], dict[str, Any]]:
        return lambda: super(Colliding, self).save(folder)() | {"replay": "mine"}


class Standing(LocalLearner):
    def update(self, *arguments: Any) -> Update:
        try:
            return super().update(*arguments)
        finally:
            self.version = 0


class Forgetful(LocalLearner):
    def restore(self, folder: Path, state: dict[str, Any]) -> None: ...


class Boastful(LocalLearner):
    def update(self, *arguments: Any) -> Update:
        learned = super().update(*arguments)
        return Update(learned.metrics | {"update": 77, "success": 9.0}, learned.record)


@pytest.mark.parametrize(
    ("learner", "why"),
    [
        (Elsewhere, "the learner did not write its weights into"),
        (Colliding, "the state of a learner has no 'replay'"),
        (Standing, "after update 1 the learner has version 0"),
    ],
)
def test_a_learner_that_breaks_its_contract_is_stopped(
    learner: type[LocalLearner], why: str, guesser_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(LearnerError, match=why):
        train_in(tmp_path, guesser_folder, learner=learner)
    assert train_in(tmp_path, guesser_folder) == [0, 1]


def test_a_learner_that_does_not_come_back_is_stopped(guesser_folder: Path, tmp_path: Path) -> None:
    train_in(tmp_path, guesser_folder, updates=1)
    with pytest.raises(LearnerError, match="update-00001: the learner came back from it with version 0"):
        train_in(tmp_path, guesser_folder, learner=Forgetful)


def test_a_learners_metrics_do_not_hide_those_of_the_loop(guesser_folder: Path, tmp_path: Path) -> None:
    assert train_in(tmp_path, guesser_folder, learner=Boastful) == [0, 1]


# ---- an environment


def lamp(options: dict[str, Any] | None = None, factory: Any = None, **methods: Any) -> None:
    tasks = [dataclasses.replace(task, env="broken") for task in LAMP_TASKS]
    factory = factory or type("Broken", (Lamp,), methods)
    options = {"colour": 9} | (options or {})
    arpo.register_environment("broken", factory, tasks, settings=(), options=options, replace=True)


def judged(folder: Path, *settings: str) -> arpo.Evaluation:
    return arpo.evaluate("random", "env.name=broken", *settings, run_dir=folder)


def raising(error: Exception) -> Callable[..., Any]:
    def method(*_: Any) -> Any:
        raise error

    return method


def garbage(self: Lamp) -> arpo.Observation:
    return arpo.Observation(b"no image", 56, 56, "0")


def wide(self: Lamp) -> arpo.Observation:
    from arpo.images import observe

    return observe(np.zeros((28, 84, 3), np.uint8))


@pytest.mark.parametrize(
    "methods",
    [
        {"score": lambda self: None},
        {"score": lambda self: "1"},
        {"score": raising(ActionError("no"))},
        {"score": raising(EngineError("no"))},
        {"step": raising(ParseError("no"))},
        {"step": lambda self, action: None},
        {"reset": lambda self, task, seed: None},
        {"reset": raising(ActionError("no"))},
        {"_look": garbage},
        {"_look": wide},
    ],
)
def test_a_broken_environment_is_never_scored(methods: dict[str, Any], tmp_path: Path) -> None:
    lamp(**methods)
    evaluation = judged(tmp_path)
    assert evaluation.outcomes == {"env_error": 2} and evaluation.errors == 2


def test_a_screen_that_the_agent_has_resized_is_the_agents_world(tmp_path: Path) -> None:
    lamp(step=lambda self, action: wide(self), score=lambda self: 0.0)
    assert judged(tmp_path).errors == 0


def test_a_score_may_be_numpys(tmp_path: Path) -> None:
    lamp(score=lambda self: np.float32(1))
    assert judged(tmp_path).success()[0] == judged(tmp_path).success()[0] == 1.0


class Odd(EnvError):
    """Pickle cannot put it together again."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one + other)


class OddEnv(FakeEnv):
    def score(self) -> float:
        raise Odd("a", "b")


def test_an_answer_of_a_worker_that_cannot_be_read_is_its_failure() -> None:
    async def asked() -> None:
        async with LocalPool(OddEnv, 1, HERE.model_copy(update={"workers": 1})) as pool, pool.lease() as env:
            await env.reset(TASKS[0], 0)
            with pytest.raises(EnvError, match="score: its answer cannot be read"):
                await env.score()
            assert not env.alive

    asyncio.run(asked())


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        ("no_module:Lamp", "no_module:Lamp: cannot be imported: ModuleNotFoundError: No module named 'no_module'"),
        ("lamp_env:Lump", "lamp_env:Lump: cannot be imported: AttributeError: .*"),
        (lambda size: None, "env.name=broken: cannot be made: TypeError: .*"),
    ],
)
def test_what_cannot_be_made_is_one_line(factory: Any, why: str, tmp_path: Path) -> None:
    lamp(factory=factory)
    with pytest.raises(ConfigError, match=f"^{why}$"):
        judged(tmp_path)
    takes_nothing: Any = lambda: None  # noqa: E731
    arpo.register_dialect("odd", takes_nothing, replace=True)
    with pytest.raises(ConfigError, match=r"^agent.dialect=odd: cannot be made: TypeError"):
        arpo.evaluate("random", "agent.dialect=odd", run_dir=tmp_path)


def test_options_come_back_as_they_were(tmp_path: Path) -> None:
    lamp({"at": (1, 2)}, lambda colour, at: Lamp(colour))
    for given in ((), ("env.options.at={1: 2}",)):
        assert judged(tmp_path / str(len(given)), *given).trials == judged(tmp_path / str(len(given)), *given).trials
    for value in (".nan", "2024-01-01"):
        with pytest.raises(ConfigError, match=f"^env.options.at={value}: an option is text, a finite number"):
            load_config(None, ["env.name=broken", f"env.options.at={value}"])
    lamp({"at": Path("here")})
    with pytest.raises(ConfigError, match="an option is text, a finite number"):
        judged(tmp_path)


def test_what_is_registered_is_checked() -> None:
    for name in ("", "a/b", "a\nb", "arpo:mine", "x=y", None):
        with pytest.raises(ConfigError, match=r"^algorithm .*: a name has letters, digits and any of _ \. \+ - only$"):
            arpo.register_algorithm(name, Grpo)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"must be a Backend$"):
        BACKENDS.register(arpo.register_algorithm("mine", Grpo, replace=True))  # type: ignore[arg-type]
    with pytest.raises(ArpoError, match="is no Task, or one without a step"):
        arpo.register_environment("none", Lamp, [dataclasses.replace(LAMP_TASKS[0], env="none", max_steps=0)])
    arpo.register_environment("sised", Lamp, [], settings=("sise",))
    with pytest.raises(
        ConfigError, match=r"env.name=sised: it is made with 'sise', which is no key of the section env"
    ):
        arpo.evaluate("random", "env.name=sised")


def test_clumsy_calls_are_one_line() -> None:
    with pytest.raises(ConfigError, match=r"mine.yaml: neither a preset nor a file"):
        arpo.train(Path("mine.yaml"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^expert: a script, which has no weights"):
        arpo.load_agent("expert")
