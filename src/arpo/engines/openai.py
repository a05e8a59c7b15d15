"""Any endpoint that speaks OpenAI's chat completions, for evaluation alone: it gives text, no tokens.

    OPENAI_API_KEY=… arpo eval MODEL engine.name=openai engine.servers=[https://example.org/v1]

The dialect speaks in tokens of a vocabulary of bytes, as to a script. What it says is taken apart by its special tokens
into messages with text and screenshots, and the reply becomes tokens again. Nothing can be trained on it: there are no
log-probabilities of tokens that a model of ours has, and no way to give it weights.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import re
from typing import Any

import httpx
from PIL import Image

from arpo.config import Config
from arpo.engines.answers import fetch, parsed
from arpo.engines.base import Made, Prompt, Sampling, Weights
from arpo.engines.scripted import byte_vocabulary
from arpo.errors import ConfigError, ContextTooLong, EngineError
from arpo.images import opened
from arpo.resize import QWEN2_5
from arpo.types import Completion, Observation
from arpo.vocabulary import Vocabulary

KEY = "OPENAI_API_KEY"
TRIES, PAUSE_S = 5, 2.0  # where an endpoint is busy or fails; each pause is twice as long as the one before


def make_openai(config: Config, model: str, slots: int) -> Made:
    if len(config.engine.servers) != 1:
        raise ConfigError("engine.servers: name one endpoint, as in [https://example.org/v1]")
    vocabulary = byte_vocabulary()
    engine = OpenAIEngine(config.engine.servers[0], model, os.environ.get(KEY), vocabulary, config.engine.turn_s)
    return Made(engine, vocabulary, f"{model} at {engine.address}", "auto", close=engine.aclose)


class OpenAIEngine:
    """See the module. `key`: sent with every request, and nowhere else."""

    def __init__(self, address: str, model: str, key: str | None, vocabulary: Vocabulary, turn_s: float) -> None:
        self.address, self._model, self._vocabulary, self._turn_s = address, model, vocabulary, turn_s
        names = ("im_start", "im_end", "vision_start", "vision_end", "image_pad")
        self._start, self._end, *self._around, self._image = (vocabulary.special(f"<|{name}|>") for name in names)
        self._http = httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=None)

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        question = {
            "model": self._model,
            "messages": await asyncio.to_thread(self._messages, prompt),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": seed % 2**31,
        }
        answer = await self._ask(question)
        try:
            (choice,) = answer["choices"]
            text, cut = str(choice["message"]["content"] or ""), choice["finish_reason"] == "length"
            if not cut and choice["finish_reason"] != "stop":  # a filter, an error: it is not the agent that said so
                raise ValueError(f"it ended by {choice['finish_reason']!r:.40}")
        except (LookupError, TypeError, ValueError) as error:
            why = f"{type(error).__name__}: {error}"
            raise EngineError(f"{self.address}: its answer has no message in it: {why}") from error
        tokens = (*self._vocabulary.encode(text), *(() if cut else sampling.stop[:1]))
        return Completion(
            tokens=tokens,
            logprobs=(0.0,) * len(tokens),
            text=self._vocabulary.decode(tokens),
            version=0,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            finish="length" if cut else "stop",
            usage=_usage(answer),
        )

    async def release(self, session: str) -> None:
        pass

    async def load(self, version: int, weights: Weights) -> None:
        raise EngineError("an endpoint of others takes no weights")

    async def aclose(self) -> None:
        await self._http.aclose()

    def _messages(self, prompt: Prompt) -> list[dict[str, Any]]:
        """By special tokens alone: a text that looks like one opens no message."""
        images, messages, ids = iter(prompt.images), list[dict[str, Any]](), list[int]()

        def close_text() -> None:
            if ids and messages:
                messages[-1]["content"].append({"type": "text", "text": self._vocabulary.decode(tuple(ids))})
            ids.clear()

        for one in prompt.ids:
            if one not in (self._start, self._end, self._image, *self._around):
                ids.append(one)
                continue
            close_text()
            if one == self._start:
                messages.append({"role": "", "content": []})
            elif one == self._image:
                messages[-1]["content"].append({"type": "image_url", "image_url": {"url": _url(next(images))}})
        close_text()
        for message in messages:
            first = message["content"][0]
            message["role"], _, first["text"] = first["text"].partition("\n")
            message["content"] = [part for part in message["content"] if part.get("text", part) not in ("", "\n")]
        return [message for message in messages if message["content"]]  # the last one is the reply's, and empty

    async def _ask(self, question: dict[str, Any]) -> Any:
        for attempt in range(TRIES):
            try:
                async with asyncio.timeout(self._turn_s):
                    status, body = await fetch(self._http, "POST", f"{self.address}/chat/completions", json=question)
                said = body[:300].decode("utf-8", "replace")
                if status == 200:
                    return parsed(body)
            except TimeoutError:
                why = f"gave no answer within {self._turn_s:g} s"
            except (httpx.HTTPError, ValueError) as error:
                why = f"{type(error).__name__}: {error}"[:300]
            else:
                why = f"status {status}: {said}"
                if status in (401, 403):
                    raise ConfigError(f"engine.servers={self.address}: refuses the key that {KEY} holds, or its lack")
                if status == 404:
                    raise ConfigError(f"engine.servers={self.address}: has no model {self._model}, or is no endpoint")
                if status == 400 and re.search(r"context[ _]length|maximum context", said):
                    raise ContextTooLong(said)
                if status < 500 and status not in (408, 409, 429):
                    break
            if attempt + 1 < TRIES:
                await asyncio.sleep(PAUSE_S * 2**attempt)
        raise EngineError(f"{self.address}: {why}")


def _usage(answer: dict[str, Any]) -> tuple[int, int] | None:
    """What it says that the prompt and the reply took; None where it does not, or says nonsense."""
    match answer.get("usage"):
        case {"prompt_tokens": int(prompt), "completion_tokens": int(reply)} if max(prompt, reply) < 2**40:
            return (prompt, reply) if min(prompt, reply) >= 0 else None
    return None


def _url(screenshot: Observation) -> str:
    """At the size whose pixels the dialect's points are."""
    image = opened(screenshot.image)
    height, width = QWEN2_5.size(image.height, image.width)
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    image.save(file := io.BytesIO(), "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
