"""Engines without a model, so that scripts go through the same path as agents: the expert, a random one, always Fail.

    engine_for = scripted("expert", dialect, vocabulary)
    engine = engine_for(task, lease)    # of one episode: the expert looks at the environment itself, not at pixels

They answer in tokens like any other: the reply is encoded by the dialect, parsed again by the episode and can be
trained on. Nothing is sampled, so the log-probabilities are 0 and no reply is cut off.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from arpo.agent.actions import Action, Fail
from arpo.agent.dialects.base import Dialect
from arpo.agent.random_actions import random_action
from arpo.engines.base import Engine, Prompt, Sampling, Weights
from arpo.envs.base import Env, Lease, make_expert
from arpo.errors import ArpoError, EngineError
from arpo.types import Completion, Task
from arpo.vocabulary import TokenizerVocabulary, Vocabulary

Policy: TypeAlias = Callable[[Any, int], tuple[str, Action]]
"""From an environment (of `LOOK_BEHIND`) or its lease, and the turn's seed, to a thought and an action."""

SPECIALS = (
    "<|im_start|> <|im_end|> <|box_start|> <|box_end|> <|vision_start|> <|vision_end|> <|image_pad|> "
    "<tool_call> </tool_call>"
).split()


class ScriptedEngine:
    """The engine of one episode, whose replies a policy makes."""

    def __init__(self, policy: Policy, env: Env | Lease, dialect: Dialect, vocabulary: Vocabulary) -> None:
        self._policy = policy
        self._env = env
        self._dialect = dialect
        self._vocabulary = vocabulary

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        await asyncio.sleep(0)  # a turn of the others, as every engine gives: else nobody could cancel
        try:
            thought, action = self._policy(self._env, seed)
        except ArpoError as error:  # a script that knows no move is a broken engine, not a bad agent
            raise EngineError(str(error)) from error
        tokens = self._dialect.format(thought, action, self._env.size)
        return Completion(
            tokens=tokens,
            logprobs=(0.0,) * len(tokens),
            text=self._vocabulary.decode(tokens),
            version=0,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            finish="stop",
        )

    async def release(self, session: str) -> None:
        pass

    async def load(self, version: int, weights: Weights) -> None:
        raise EngineError("a script has no weights to load")


def _expert(task: Task) -> Policy:
    expert = make_expert(task.env, task)
    return lambda env, seed: expert.act(env)


def _random(task: Task) -> Policy:
    return lambda env, seed: ("Anything.", random_action(random.Random(seed), env.size))


def _fail(task: Task) -> Policy:
    return lambda env, seed: ("I give up.", Fail())


POLICIES: dict[str, Callable[[Task], Policy]] = {"expert": _expert, "random": _random, "fail": _fail}
LOOK_BEHIND = ("expert",)  # scripts that need the environment itself, so in this process; the others only its size


def scripted(name: str, dialect: Dialect, vocabulary: Vocabulary) -> Callable[[Task, Lease], Engine]:
    """The engines of a script of `POLICIES`, one an episode."""

    def engine_for(task: Task, lease: Lease) -> Engine:
        env = lease.env if name in LOOK_BEHIND else lease
        return ScriptedEngine(POLICIES[name](task), env, dialect, vocabulary)

    return engine_for


def byte_vocabulary() -> TokenizerVocabulary:
    """A vocabulary for those who have no model: a token a byte, and the special ones that the dialect needs."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in SPECIALS])
    return TokenizerVocabulary(tokenizer)
