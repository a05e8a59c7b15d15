"""What a step costs through Ray, beside worker processes, in turn in one run: the table in docs/scaling.md.

    python benchmarks/nodes.py [--envs 4] [--seconds 10] [--json FILE]

Two kinds of environments, both ways: pocket at its default size, and one that does nothing but hand out a picture of
1 MB, as large as a screenshot of a full-HD desktop: what remains is the way of the bytes. Timed is a step as its user
waits for it; the driver's cost is all processor time of this process, over all of its threads, for each step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from arpo.agent.actions import Action, Click
from arpo.config import EnvConfig
from arpo.envs.base import build
from arpo.envs.pool import LocalPool, SlotPool
from arpo.envs.ray_pool import RayPool
from arpo.tasks.load import load_tasks
from arpo.types import Observation, Task

MB = 2**20


class Still:
    """A picture of 1 MB, again and again."""

    size = (448, 280)
    ended = False

    def __init__(self) -> None:
        self._picture = os.urandom(MB)

    def reset(self, task: Task, seed: int) -> Observation:
        return Observation(self._picture, *self.size, "0")

    def step(self, action: Action) -> Observation:
        return Observation(self._picture, *self.size, "0")

    def score(self) -> float:
        return 0.0

    def close(self) -> None: ...


FACTORIES = {"pocket": "arpo.envs.pocket:PocketEnv", "1 MB a step": "nodes:Still"}


async def measure(pool: SlotPool, n_envs: int, seconds: float) -> dict[str, float]:
    task = load_tasks("pocket", "train")[0]
    steps, waited, sent = 0, 0.0, 0
    ready = 0
    began = cpu = 0.0

    async def user() -> None:
        nonlocal steps, waited, sent, ready, began, cpu
        async with pool.lease() as env:
            await env.reset(task, 0)
            await env.step(Click(5, 5))
            ready += 1
            while ready < n_envs:  # all have started
                await asyncio.sleep(0.01)
            if not began:
                began, cpu = time.monotonic(), time.process_time()
            while time.monotonic() - began < seconds:
                before = time.monotonic()
                observation = await env.step(Click(5, 5))
                waited += time.monotonic() - before
                steps, sent = steps + 1, sent + len(observation.image)

    await asyncio.gather(*(user() for _ in range(n_envs)))
    took, used = time.monotonic() - began, time.process_time() - cpu
    return {
        "steps_per_s": steps / took,
        "ms_a_step": 1e3 * waited / steps,
        "driver_ms_a_step": 1e3 * used / steps,
        "driver_cores": used / took,
        "mb_per_s": sent / took / MB,
    }


async def once(kind: str, ray: bool, n_envs: int, seconds: float) -> dict[str, Any]:
    settings = EnvConfig(workers=n_envs, ray="local" if ray else None)
    make_env = partial(build, FACTORIES[kind])
    pool: SlotPool = (RayPool if ray else LocalPool)(make_env, n_envs, settings)
    async with pool:
        numbers = await measure(pool, n_envs, seconds)
    return {"environment": kind, "pool": "Ray" if ray else "worker processes"} | numbers


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--envs", type=int, default=4)
    options.add_argument("--seconds", type=float, default=10)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    rows = []
    for _ in range(given.rounds):
        for kind in FACTORIES:
            for ray in (False, True):
                rows.append(asyncio.run(once(kind, ray, given.envs, given.seconds)))
                print("{environment:12} {pool:17}".format(**rows[-1]), end=" ")
                print(", ".join(f"{name} {value:.3g}" for name, value in rows[-1].items() if isinstance(value, float)))
    if given.json:
        given.json.write_text(json.dumps({"envs": given.envs, "load": os.getloadavg()[0], "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
