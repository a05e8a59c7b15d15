"""The engine over endpoints of others, against a stand-in for one: what it is sent, and what it may do wrong."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import plain
from arpo.agent.dialects.base import flatten, make_dialect
from arpo.cli import app
from arpo.config import Config, load_config
from arpo.engines import openai
from arpo.engines.base import Prompt, Sampling, Weights, make_engine
from arpo.errors import ConfigError, ContextTooLong, EngineError
from arpo.images import decode
from arpo.types import Completion

SECRET = "sk-nobody-may-see-this"
REPLY = "Thought: It is done.\nAction: finished(content='')"


class Endpoint:
    """A stand-in for an endpoint: it gives these answers one after the other, the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any]] = [(200, said(REPLY))]
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []


def said(text: str, reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": reason}]}


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    found = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))) | {"path": self.path})
            found.keys.append(self.headers["Authorization"])
            status, answer = found.answers.pop(0) if len(found.answers) > 1 else found.answers[0]
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.address = f"http://127.0.0.1:{server.server_port}/v1"  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setattr(openai, "PAUSE_S", 0.01)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield found
    server.shutdown()
    thread.join()
    server.server_close()


def settings(endpoint: Endpoint, *more: str) -> Config:
    return load_config(None, ["engine.name=openai", f"engine.servers=[{endpoint.address}]", *more])  # type: ignore[attr-defined]


def asked(endpoint: Endpoint, instruction: str = "Open <|im_end|> it.") -> Completion:
    config = settings(endpoint)
    made = make_engine(config, "some-model", 1)
    dialect = make_dialect(config.agent, made.vocabulary)
    screen = plain.screen(0, (120, 90))
    conversation = dialect.start(instruction)
    flat = flatten(conversation.segments, [], conversation.observe(screen), dialect.image_pad)

    async def one() -> Completion:
        with contextlib.suppress(EngineError):
            await made.engine.load(1, Weights(Path("x")))
            raise AssertionError("it took weights")
        try:
            prompt = Prompt(flat.ids, (screen,))
            return await made.engine.generate("a", prompt, Sampling(0.5, 0.9, 64, (dialect.stop,)), seed=3)
        finally:
            await made.close()

    completion = asyncio.run(one())
    assert dialect.parse(completion.text, (120, 90)).thought == "It is done."
    return completion


def test_a_conversation_becomes_messages_and_the_reply_tokens(endpoint: Endpoint) -> None:
    completion = asked(endpoint)
    assert completion.finish == "stop" and set(completion.logprobs) == {0.0}
    (question,) = endpoint.asked
    assert question["path"] == "/v1/chat/completions" and question["model"] == "some-model"
    assert (question["temperature"], question["top_p"], question["max_tokens"]) == (0.5, 0.9, 64)
    assert endpoint.keys == [f"Bearer {SECRET}"]
    *texts, last = question["messages"]
    assert {message["role"] for message in texts} <= {"system", "user"}
    assert any("Open <|im_end|> it." in part["text"] for message in texts for part in message["content"])
    (shown,) = [part for part in last["content"] if part["type"] == "image_url"]
    pixels = decode(base64.b64decode(shown["image_url"]["url"].partition(",")[2]))
    assert pixels.shape == (84, 112, 3)  # the size whose pixels the model's points are


def test_a_reply_that_was_cut_off_has_no_end(endpoint: Endpoint) -> None:
    endpoint.answers = [(200, said(REPLY, "length"))]
    assert asked(endpoint).finish == "length"


@pytest.mark.parametrize(
    ("usage", "known"),
    [
        ({"prompt_tokens": 812, "completion_tokens": 9, "total_tokens": 821}, (812, 9)),
        ({"prompt_tokens": -1, "completion_tokens": 9}, None),
        ({"prompt_tokens": 10**30, "completion_tokens": 9}, None),
        ({"prompt_tokens": "many", "completion_tokens": 9}, None),
        ({"prompt_tokens": 812}, None),
        ([], None),
        (None, None),
    ],
)
def test_what_it_counted_is_kept_where_it_is_a_count(endpoint: Endpoint, usage: Any, known: Any) -> None:
    endpoint.answers = [(200, said(REPLY) | {"usage": usage})]
    assert asked(endpoint).usage == known


def test_a_busy_endpoint_is_asked_again(endpoint: Endpoint) -> None:
    endpoint.answers = [(429, {}), (500, {}), (200, said(REPLY))]
    asked(endpoint)
    assert len(endpoint.asked) == 3


@pytest.mark.parametrize(
    ("status", "answer", "error", "text"),
    [
        (401, {}, ConfigError, "OPENAI_API_KEY"),
        (404, {}, ConfigError, "has no model some-model"),
        (400, {"error": "context_length_exceeded"}, ContextTooLong, "context"),
        (400, {"error": "what?"}, EngineError, "what"),
        (503, {}, EngineError, "status 503"),
        (200, {"choices": []}, EngineError, "no message"),
        (200, [], EngineError, "no message"),
        (200, said("", "content_filter"), EngineError, "content_filter"),
        (400, {"error": "no such context"}, EngineError, "no such context"),
    ],
)
def test_what_it_may_say_instead(
    endpoint: Endpoint, status: int, answer: Any, error: type[Exception], text: str
) -> None:
    endpoint.answers = [(status, answer)]
    with pytest.raises(error, match=text) as raised:
        asked(endpoint)
    assert SECRET not in str(raised.value)


def test_an_evaluation_by_it_keeps_no_key(endpoint: Endpoint, tmp_path: Path) -> None:
    address = endpoint.address  # type: ignore[attr-defined]
    words = ["eval", "some-model", "engine.name=openai", f"engine.servers=[{address}]", "tasks.source=shell-open-000"]
    result = CliRunner().invoke(app, [*words, "--run-dir", str(tmp_path / "run"), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["n_trials"] == 1
    assert endpoint.asked
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes()
    assert SECRET not in result.output


def test_it_needs_one_endpoint() -> None:
    with pytest.raises(ConfigError, match="name one endpoint"):
        make_engine(load_config(None, ["engine.name=openai"]), "some-model", 1)
    with pytest.raises(ConfigError, match="must be a list of addresses"):
        load_config(None, ["engine.servers=[http://me:secret@host]"])
