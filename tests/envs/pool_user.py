"""Holds worker processes, says which, and ends in some way. Run by test_pool.py.

python pool_user.py idle|hang return|raise|wait [ADDRESS]     the address of a Ray cluster
"""

import asyncio
import sys

from bad_env import BadEnv, bad_task

from arpo.agent.actions import Wait
from arpo.config import EnvConfig
from arpo.envs.pool import LocalPool, SlotPool


def make(address: str | None) -> SlotPool:
    if address is None:
        return LocalPool(BadEnv, 1, EnvConfig(workers=2))
    from arpo.envs.ray_pool import RayPool

    return RayPool(BadEnv, 1, EnvConfig(workers=2, ray=address))


async def use(doing: str, ending: str, address: str | None = None) -> None:
    async with make(address) as pool, pool.lease() as one, pool.lease() as other:
        await one.reset(bad_task(step="hang"), 0)
        await other.reset(bad_task(), 0)
        hanging = asyncio.create_task(one.step(Wait())) if doing == "hang" else None
        await other.step(Wait())
        print("ready", flush=True)
        match ending:
            case "raise":
                raise RuntimeError("this ends here")
            case "wait":
                await (hanging or asyncio.Event().wait())


asyncio.run(use(*sys.argv[1:]))
