"""A network that stalls: passes bytes to and from a server until it is told not to. Connections stay open meanwhile.

async with Stalling("http://127.0.0.1:8000") as network:
    network.address           where to connect to
    network.stall()           from now on nothing passes; also connections that are new are taken, and stay silent
    network.go_on()
"""

from __future__ import annotations

import asyncio
import contextlib


class Stalling:
    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.removeprefix("http://").rpartition(":")
        self._passes = asyncio.Event()
        self._passes.set()
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Stalling:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.go_on()
        for writer in self._open:
            writer.close()

    def stall(self) -> None:
        self._passes.clear()

    def go_on(self) -> None:
        self._passes.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._passes.wait()
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection(self._host, int(self._port))
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while data := await reader.read(2**16):
                await self._passes.wait()
                writer.write(data)
                await writer.drain()
        except OSError:  # one side has gone
            pass
        finally:
            self._open.discard(writer)
            writer.close()
