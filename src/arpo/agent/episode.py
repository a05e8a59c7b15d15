"""One episode, the same for training and evaluation: look, let the engine answer, act, until there is an end.

    trajectory = await run_episode(task, env, engine, dialect, Sampling(), env_seed=7, sample_seed=7,
                                   trajectory_id="r1-files-rename-03-0", attempt=0, provenance=…, images=run.keep_image)

Whatever happens to the agent or to the machines is an Outcome of the trajectory and never an exception:

    an ending action       FINISHED, GAVE_UP, ASKED_USER       scored by the state of the machine
    the task's max_steps   STEP_LIMIT                          scored as the state is; nothing is replaced by Fail
    ContextTooLong         CONTEXT_LIMIT                       scored as the state is
    no end of the reply    CUT_OFF                             scored; the reward is lowered by 1
    no action in it        UNPARSABLE                          scored; the reward is lowered by 1
    cancel()               CANCELLED                           no score
    EnvError               ENV_ERROR                           no score; the environment is lost
    EngineError            ENGINE_ERROR                        no score

An action that the environment refuses (an unknown key) is a reply without an action: nothing happened. A cut-off
reply is one too, whatever it holds: an action counts once the agent has stopped speaking.
"""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable

from arpo.agent.actions import Action, CallUser, Fail, Finish
from arpo.agent.dialects import UITars, flatten
from arpo.engines.base import Engine, Prompt, Sampling
from arpo.envs.pool import Lease
from arpo.errors import ActionError, ContextTooLong, EngineError, EnvError, ParseError
from arpo.seeds import derive
from arpo.types import Completion, Observation, Outcome, Provenance, Step, Task, Trajectory

ENDINGS = {Finish: Outcome.FINISHED, Fail: Outcome.GAVE_UP, CallUser: Outcome.ASKED_USER}
_log = logging.getLogger(__name__)


async def run_episode(
    task: Task,
    env: Lease,
    engine: Engine,
    dialect: UITars,
    sampling: Sampling,
    *,
    env_seed: int,
    sample_seed: int,
    trajectory_id: str,
    attempt: int,
    provenance: Provenance,
    images: Callable[[Observation], Awaitable[object]],
    format_reward: float = -1.0,
) -> Trajectory:
    """Play a task once. `images` keeps each screenshot; `sampling.stop` is the dialect's, whatever was given.

    A cancelled episode returns too, with what it has: the caller sees the request in its task's `cancelling()`.
    `start` is empty where the environment failed before the first screenshot.
    """
    sampling = dataclasses.replace(sampling, stop=(dialect.stop,))
    conversation = dialect.start(task.instruction)
    seen: dict[str, Observation] = {}
    steps: list[Step] = []
    start = ""
    outcome: Outcome | None = None
    score: float | None = None
    try:
        observation = await env.reset(task, env_seed)
        start = observation.hash
        await images(observation)
        while outcome is None:
            seen[observation.hash] = observation
            context = conversation.observe(observation)
            replies = [step.completion.tokens for step in steps]
            flat = flatten(conversation.segments, replies, context, dialect.image_pad)
            prompt = Prompt(flat.ids, tuple(seen[name] for name in flat.images))
            before = time.perf_counter()
            try:
                completion = await engine.generate(trajectory_id, prompt, sampling, derive(sample_seed, len(steps)))
            except ContextTooLong:
                outcome = Outcome.CONTEXT_LIMIT
                break
            engine_s = time.perf_counter() - before
            conversation.reply(completion.tokens)
            turn = await _act(env, dialect, completion)
            steps.append(turn.step(context, completion, engine_s))
            outcome = turn.outcome
            if turn.observation is not None:
                observation = turn.observation
                await images(observation)
                if len(steps) == task.max_steps:
                    outcome = Outcome.STEP_LIMIT
        if outcome.valid:
            found = await env.score()
            if not 0.0 <= found <= 1.0:  # so, since no comparison holds for NaN
                raise EnvError(f"its checker gave the score {found}")
            score = found
    except EnvError as error:
        _log.warning("%s: environment error: %s", trajectory_id, error)
        outcome = Outcome.ENV_ERROR
    except EngineError as error:
        _log.warning("%s: engine error: %s", trajectory_id, error)
        outcome = Outcome.ENGINE_ERROR
    except asyncio.CancelledError:
        outcome = Outcome.CANCELLED
    finally:
        with contextlib.suppress(EngineError):  # a dead engine has forgotten the session already
            await engine.release(trajectory_id)
    return Trajectory(
        id=trajectory_id,
        task_id=task.id,
        attempt=attempt,
        env_seed=env_seed,
        start=start,
        segments=tuple(conversation.segments),
        steps=tuple(steps),
        outcome=outcome,
        score=score,
        reward=None if score is None else score + format_reward * (outcome in (Outcome.UNPARSABLE, Outcome.CUT_OFF)),
        provenance=provenance,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _Turn:
    """What a reply came to: the next screenshot, or the outcome of the episode."""

    action: Action | None = None
    parse_error: str | None = None
    ignored: str = ""
    observation: Observation | None = None
    outcome: Outcome | None = None
    env_s: float = 0.0

    def step(self, context: tuple[int, ...], completion: Completion, engine_s: float) -> Step:
        after = self.observation
        seen, settle_s = (None, 0.0) if after is None else (after.hash, after.settle_s)
        about = (self.action, self.parse_error, self.ignored, seen)
        return Step(context, completion, *about, engine_s, self.env_s, settle_s)


async def _act(env: Lease, dialect: UITars, completion: Completion) -> _Turn:
    if completion.finish == "length":
        return _Turn(parse_error=f"cut off after {len(completion.tokens)} tokens", outcome=Outcome.CUT_OFF)
    before = time.perf_counter()
    try:
        parsed = dialect.parse(completion.text, env.size)
        observation = await env.step(parsed.action)
    except (ParseError, ActionError) as error:
        return _Turn(parse_error=str(error), outcome=Outcome.UNPARSABLE)
    except EnvError as error:
        _log.warning("environment error in %r: %s", parsed.action, error)
        return _Turn(parsed.action, None, parsed.ignored, None, Outcome.ENV_ERROR)
    env_s = time.perf_counter() - before
    outcome = ENDINGS.get(type(parsed.action))
    return _Turn(parsed.action, None, parsed.ignored, None if outcome else observation, outcome, env_s)
