"""An engine over a socket: a server in front of any engine, and the client that is one."""

import asyncio
import contextlib
import pickle
from collections.abc import AsyncIterator
from typing import Any

from arpo.engines.base import Engine, Prompt, Sampling, Weights
from arpo.types import Completion


async def read(reader: asyncio.StreamReader) -> Any:
    return pickle.loads(await reader.readexactly(int.from_bytes(await reader.readexactly(8), "big")))


def write(writer: asyncio.StreamWriter, value: object) -> None:
    data = pickle.dumps(value)
    writer.write(len(data).to_bytes(8, "big") + data)


@contextlib.asynccontextmanager
async def served(engine: Engine) -> AsyncIterator["SocketEngine"]:
    """The engine behind a port of this machine, for the time of the block."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, arguments = await read(reader)
        try:
            write(writer, (True, await getattr(engine, method)(*arguments)))
        except Exception as error:
            write(writer, (False, error))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield SocketEngine(server.sockets[0].getsockname()[1])


class SocketEngine:
    def __init__(self, port: int) -> None:
        self.port = port

    async def generate(self, session: str, prompt: Prompt, sampling: Sampling, seed: int) -> Completion:
        return await self._ask("generate", session, prompt, sampling, seed)

    async def release(self, session: str) -> None:
        await self._ask("release", session)

    async def load(self, version: int, weights: Weights) -> None:
        await self._ask("load", version, Weights(weights.path()))

    async def _ask(self, method: str, *arguments: Any) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        write(writer, (method, arguments))
        good, value = await read(reader)
        writer.close()
        if good:
            return value
        raise value
