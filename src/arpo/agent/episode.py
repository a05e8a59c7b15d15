"""One episode, the same for training and evaluation: look, let the engine answer, act, until there is an end.

    agent = Agent(engine, dialect, Sampling())
    attempt = Attempt(task, index=0, episode="u3.0-files-rename-003-0", number=0, env_seed=7, sample_seed=7, …)
    trajectory = await run_episode(attempt, env, agent, keep_image=run.keep_image)

Whatever happens to the agent or to the machines is an Outcome of the trajectory and never an exception (but for a
DeviceError, which ends the whole run):

    an ending action       FINISHED, GAVE_UP, ASKED_USER       scored by the state of the machine
    the task's max_steps   STEP_LIMIT                          scored as the state is, unless the agent fails at it
    ContextTooLong         CONTEXT_LIMIT                       scored as the state is
    no end of the reply    CUT_OFF                             scored
    no action in it        UNPARSABLE                          scored
    Ruined                 RUINED                              0: the agent has broken its computer; the last step did
    cancel()               CANCELLED                           no score
    EnvError               ENV_ERROR                           no score; the environment is lost
    EngineError            ENGINE_ERROR                        no score

An action that the environment refuses (an unknown key) counts as UNPARSABLE: nothing happened. The action of a cut-off
reply is not carried out: an action counts once the agent has stopped speaking.

With `Agent.fails_at_limit`, OSWorld's standard protocol, Fail takes the place of a last action that does not end the
episode: infeasible tasks are then solved by whoever does not end in time, all others are lost to them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from arpo.agent.actions import ENDING, Action, CallUser, Fail, Finish
from arpo.agent.dialects.base import Dialect, flatten
from arpo.engines.base import Engine, Prompt, Sampling
from arpo.envs.base import Lease
from arpo.errors import ActionError, ContextTooLong, EngineError, EnvError, ParseError, Ruined
from arpo.seeds import derive
from arpo.types import Attempt, Completion, Observation, Outcome, Step, Trajectory

AT_LIMIT = Fail("the step limit")  # not the agent's own words
ENDINGS = {Finish: Outcome.FINISHED, Fail: Outcome.GAVE_UP, CallUser: Outcome.ASKED_USER}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Agent:
    """Who acts: what samples its tokens, how they are read, and at which temperature and length they are sampled."""

    engine: Engine
    dialect: Dialect
    sampling: Sampling  # but for `stop`, which is the dialect's
    fails_at_limit: bool = False  # see the module


async def run_episode(
    attempt: Attempt, env: Lease, agent: Agent, keep_image: Callable[[Observation], Awaitable[object]]
) -> Trajectory:
    """Play a task once; `keep_image` stores each screenshot. The trajectory's reward is its score.

    A cancelled episode returns too, with the steps that it has: CancelledError is not raised again.
    """
    episode = _Episode(attempt, env, agent, keep_image)
    score = None
    try:
        outcome = await episode.play()
        if outcome is Outcome.RUINED:
            score = 0.0
        elif outcome.valid:
            score = as_number(given := await env.score())
            if score is None or not 0.0 <= score <= 1.0:
                raise EnvError(f"its checker gave the score {given!r:.60}")
    except Ruined as error:
        _log.info("%s: %s", attempt.id, error)
        outcome, score = Outcome.RUINED, 0.0
    except EnvError as error:
        _log.warning("%s: environment error: %s", attempt.id, error)
        outcome, score = Outcome.ENV_ERROR, None
    except EngineError as error:
        _log.warning("%s: engine error: %s", attempt.id, error)
        outcome = Outcome.ENGINE_ERROR
    except asyncio.CancelledError:
        outcome = Outcome.CANCELLED
    finally:
        with contextlib.suppress(EngineError):  # a dead engine has forgotten the session already
            await agent.engine.release(attempt.id)
    return Trajectory(
        id=attempt.id,
        task_id=attempt.task.id,
        attempt=attempt.number,
        env_seed=attempt.env_seed,
        start=episode.start,
        segments=tuple(episode.conversation.segments),
        steps=tuple(episode.steps),
        outcome=outcome,
        score=score,
        reward=score,
        provenance=attempt.provenance,
    )


def as_number(value: object) -> float | None:
    """As a plain float, also from numpy or torch: nothing else can be stored. None where it is no finite number."""
    try:
        number = math.nan if isinstance(value, str) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if abs(number) < 1e100 else None  # not so NaN


class _Episode:
    """An episode under way."""

    def __init__(
        self, attempt: Attempt, env: Lease, agent: Agent, keep_image: Callable[[Observation], Awaitable[object]]
    ) -> None:
        self.attempt, self.env, self.agent, self.keep_image = attempt, env, agent, keep_image
        self.conversation = agent.dialect.start(attempt.task.instruction)
        self.start = ""  # the hash of the first screenshot; empty where the environment failed before it
        self.steps: list[Step] = []
        self.seen: dict[str, Observation] = {}

    async def play(self) -> Outcome:
        """Turn after turn. Returns why there is no next one."""
        observation = await self.env.reset(self.attempt.task, self.attempt.env_seed)
        self.start = observation.hash
        await self.keep_image(observation)
        while len(self.steps) < self.attempt.task.max_steps:
            self.seen[observation.hash] = observation
            context = self.conversation.observe(observation)
            began = time.perf_counter()
            try:
                completion = await self.answer(context)
            except ContextTooLong:
                return Outcome.CONTEXT_LIMIT
            engine_s = time.perf_counter() - began
            self.conversation.reply(completion.tokens)
            said = Step(
                context=context,
                completion=completion,
                action=None,
                parse_error=None,
                ignored="",
                observation=None,
                engine_s=engine_s,
                env_s=0.0,
            )
            step, after = await self.act(said)
            self.steps.append(step)
            if isinstance(after, Outcome):
                return after
            observation = after
            await self.keep_image(observation)
        return Outcome.STEP_LIMIT

    async def answer(self, context: tuple[int, ...]) -> Completion:
        """The agent's reply to a context."""
        agent, replies = self.agent, [step.completion.tokens for step in self.steps]
        flat = flatten(self.conversation.segments, replies, context, agent.dialect.image_pad)
        prompt = Prompt(flat.ids, tuple(self.seen[name] for name in flat.images))
        sampling = replace(agent.sampling, stop=(agent.dialect.stop,))
        seed = derive(self.attempt.sample_seed, len(self.steps))
        completion = await agent.engine.generate(self.attempt.id, prompt, sampling, seed)
        if not completion.tokens:  # nothing was sampled, which is no doing of the agent's
            raise EngineError("a reply without a token")
        return completion

    async def act(self, step: Step) -> tuple[Step, Observation | Outcome]:
        """Do what the reply of a step says. Returns the whole step, and the next screenshot or why there is none."""
        completion = step.completion
        if completion.finish == "length":
            return replace(step, parse_error=f"cut off after {len(completion.tokens)} tokens"), Outcome.CUT_OFF
        began = time.perf_counter()
        try:
            parsed = self.agent.dialect.parse(completion.text, self.env.size)
            action = self.instead_of(parsed.action)
            observation = await self.env.step(action)
        except (ParseError, ActionError) as error:
            return replace(step, parse_error=str(error)), Outcome.UNPARSABLE
        except EnvError as error:
            _log.warning("%s: environment error in %r: %s", self.attempt.id, action, error)
            return replace(step, action=action, ignored=parsed.ignored), Outcome.ENV_ERROR
        except Ruined as error:
            _log.info("%s: %s", self.attempt.id, error)
            return replace(step, action=action, ignored=parsed.ignored), Outcome.RUINED
        step = replace(step, action=action, ignored=parsed.ignored, env_s=time.perf_counter() - began)
        if action is AT_LIMIT:
            return step, Outcome.STEP_LIMIT
        if outcome := ENDINGS.get(type(action)):
            return step, outcome
        return replace(step, observation=observation.hash, settle_s=observation.settle_s), observation

    def instead_of(self, action: Action) -> Action:
        """The same, or Fail where the limit is reached and the agent fails at it."""
        last = len(self.steps) + 1 == self.attempt.task.max_steps
        return AT_LIMIT if self.agent.fails_at_limit and last and not isinstance(action, ENDING) else action
