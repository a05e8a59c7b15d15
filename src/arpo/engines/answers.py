"""An answer over HTTP that has a bound: whoever gives it may be broken, or hostile."""

import json
from typing import Any

import httpx

LONGEST = 2**26  # bytes


async def fetch(http: httpx.AsyncClient, method: str, url: str, **content: Any) -> tuple[int, bytes]:
    """Its status, and what it says. ValueError where that has no end."""
    body = bytearray()
    async with http.stream(method, url, **content) as reply:
        async for piece in reply.aiter_bytes():
            body += piece
            if len(body) > LONGEST:
                raise ValueError(f"the answer has more than {LONGEST:,} bytes")
    return reply.status_code, bytes(body)


def parsed(body: bytes) -> Any:
    """ValueError where it is no JSON."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("the answer is too deep") from None
