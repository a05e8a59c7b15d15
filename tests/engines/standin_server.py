"""A stand-in for a server of `arpo serve`: it answers by a script, so that it can do what a real one cannot be made to.

async with StandIn(checkpoint, weights) as server:
    server.next = ["cut off", "fine"]       # what it does with the next turns; then it is fine
    server.address
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from arpo.engines.vllm.guard import shape_of
from arpo.model.checkpoint import Checkpoint

TOKENS = (5, 6)


class StandIn:
    def __init__(self, checkpoint: Checkpoint, weights: str, token: str = "token") -> None:
        self.model, self.weights, self.token = shape_of(checkpoint.config), weights, token
        self.pad, self.sizes = checkpoint.config.image_token_id, [12]  # visual tokens of its images
        self.next: list[str] = []
        self.asked: list[dict[str, Any]] = []  # turns
        self.loaded: list[str] = []
        self.connections: list[str] = []  # what each request says of its own
        self.running = self.at_once = 0
        self.max_context: Any = 600

    async def __aenter__(self) -> StandIn:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            _, path, _ = head.split("\r\n")[0].split()
            headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in head.splitlines()[1:]}
            self.connections.append(headers.get("connection", ""))
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            if headers.get("authorization") != f"Bearer {self.token}":
                status, answer = 401, {"error": "token"}
            elif path == "/inference/v1/generate":
                status, answer = await self._turn(json.loads(body), headers["x-arpo-weights"])
            else:
                status, answer = self._own(path, json.loads(body or b"{}"))
            data = json.dumps(answer).encode()
            length = len(data) + 100 * (answer.get("then") == "cut off")
            writer.write(f"HTTP/1.1 {status} OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n".encode())
            writer.write(data)
            await writer.drain()
        finally:
            writer.close()

    def _own(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        if path == "/arpo/state":
            return 200, {"model": self.model, "weights": self.weights, "max_context": self.max_context}
        if path == "/arpo/expect":
            return 200, {"missing": []}
        if "refuse weights" in self.next:
            return 500, {"error": "they do not load"}
        assert not self.running  # weights never change under a turn
        self.weights = body["weights"]
        self.loaded.append(self.weights)
        return 200, {}

    async def _turn(self, question: dict[str, Any], weights: str) -> tuple[int, dict[str, Any]]:
        self.asked.append(question)
        act = self.next.pop(0) if self.next else "fine"
        self.running += 1
        self.at_once = max(self.at_once, self.running)
        try:
            if act == "hang":
                await asyncio.sleep(3600)
            await asyncio.sleep(0.05)
        finally:
            self.running -= 1
        if weights != self.weights:
            return 409, {"error": "other weights"}
        if act == "break":
            return 500, {"error": {"message": "it broke"}}
        if act == "forget" or any(part["url"] == "" for part in question["content_parts"] or ()):
            return 400, {"error": {"message": "cache miss"}}
        sizes = iter(self.sizes)
        ids = [one for id in question["token_ids"] for one in ([id] * next(sizes) if id == self.pad else [id])]
        tokens = list(TOKENS)
        content: list[dict[str, Any]] = [{"token_id": token, "logprob": -0.5} for token in tokens]
        choice: dict[str, Any] = {"token_ids": tokens, "logprobs": {"content": content}, "finish_reason": "stop"}
        answer: dict[str, Any] = {
            "choices": [choice],
            "prompt_token_ids": ids,
            "usage": {"prompt_tokens_details": None},
        }
        if act == "other prompt":
            answer["prompt_token_ids"] = [*ids, self.pad]
        if act == "other tokens":
            content[0]["token_id"] = 9
        if act == "no number":
            content[0]["logprob"] = float("nan")
        if act == "too short":
            choice["token_ids"], choice["logprobs"] = tokens[:1], {"content": content[:1]}
        if act == "nonsense":
            answer = {"choices": "none"}
        if act == "no prompt":
            answer["prompt_token_ids"] = None
        if act == "endless":
            answer["usage"] = {"prompt_tokens_details": {"cached_tokens": float("inf")}}
        if act == "likelier than sure":
            content[0]["logprob"] = 50.0
        if act.startswith("token "):
            other = self.pad if act == "token of a screenshot" else int(act.removeprefix("token "))
            choice["token_ids"][0] = content[0]["token_id"] = other
        return 200, answer | {"then": act}
