"""One server of `arpo serve` as a client sees it: what it answers, and what became of it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from arpo.engines.answers import fetch, parsed
from arpo.engines.vllm.guard import Files

ANSWER_S = 20.0  # in which a server says how it is; one that is busy has a thread free for that
LOAD_S = 900.0  # in which it has read its weights
PIECE = 2**22  # bytes of a file at once


class Lost(Exception):
    """A server that gives no answer, or one that says that it cannot. Another may."""


class Absent(Lost):
    """There is nobody at the address."""


class Useless(Lost):
    """One that no waiting helps with."""


class Rejected(Exception):
    """A request that no server would take."""


@dataclass(frozen=True, slots=True)
class Published:
    """A version of the weights, and where its files are."""

    version: int
    name: str  # by the checksums of the files
    files: Files
    folder: Path
    ours: bool = False  # whether the folder was written for the servers alone, and goes when they have later ones


class Server:
    """Its address, and whether it can be asked."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self.why = "it was not asked yet"  # why it cannot; empty: it can
        self.met = self.final = False  # whether it ever answered; whether there is no use in waiting for it
        self.sessions: set[str] = set()
        self.holds: set[str] = set()  # screenshots that it was sent, and may still have
        self.changing = asyncio.Lock()
        self.turns: set[asyncio.Task[Any]] = set()
        # What passes between us and a server is never sent through a proxy.
        self._http = httpx.AsyncClient(
            base_url=address,
            # A connection for each request: httpx loses one that it kept where the call that finds it too old is
            # cancelled, and a kept one may just be closed by the server. Beside a turn a new one costs nothing.
            headers={"Authorization": f"Bearer {token}", "Connection": "close"},
            trust_env=False,
            timeout=httpx.Timeout(None, connect=ANSWER_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def state(self) -> dict[str, Any]:
        return await self.call("GET", "/arpo/state", ANSWER_S)

    async def take(self, weights: Published) -> None:
        """Give it these weights: named, sent where it does not see them, loaded."""
        await self.offer(weights)
        await self.call("POST", "/arpo/load", LOAD_S, json={"weights": weights.name})
        self.holds.clear()

    async def offer(self, weights: Published) -> None:
        """Let it look at the files, or send them; it goes on with what it has."""
        asked = {"files": weights.files, "folder": str(weights.folder)}
        missing = (await self.call("POST", "/arpo/expect", LOAD_S, json=asked)).get("missing")
        for name in weights.files:
            place = weights.folder / name
            if isinstance(missing, list) and name in missing:
                length = {"Content-Length": str(weights.files[name][0])}
                path = f"/arpo/files/{weights.name}/{name}"
                await self.call("PUT", path, LOAD_S, content=_read(place), headers=length)
        if (await self.call("POST", "/arpo/expect", LOAD_S, json=asked)).get("missing") != []:
            raise Lost("its weights did not arrive")

    async def call(self, method: str, path: str, within_s: float, **content: Any) -> dict[str, Any]:
        """Its answer. Lost where there is none in time; Rejected where it is our question that is wrong."""
        try:
            async with asyncio.timeout(within_s):
                status, body = await fetch(self._http, method, path, **content)
            said = parsed(body)
        except TimeoutError:
            raise Lost(f"gave no answer within {within_s:g} s") from None
        except httpx.ConnectError as error:
            raise Absent(f"no server there: {error}"[:300]) from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
            raise Lost(f"{type(error).__name__}: {error}"[:300]) from error
        if status == 200 and isinstance(said, dict):
            return said
        why = said.get("error", said) if isinstance(said, dict) else said
        text = str(why.get("message", why) if isinstance(why, dict) else why)[:500]
        if status in (400, 413, 422):
            raise Rejected(text)
        if status == 401:
            raise Useless("the token is wrong: ARPO_TOKEN must be the one that `arpo serve` printed")
        if status == 404 and path.startswith("/arpo/"):
            raise Useless("not a server of `arpo serve`")
        raise Lost(f"status {status}: {text}")

    async def aclose(self) -> None:
        await self._http.aclose()


async def _read(path: Path) -> Any:
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, PIECE):
            yield piece
