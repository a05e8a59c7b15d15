"""Desktops under bad luck: random actions on many at once while X servers, applications and workers are killed.

    python benchmarks/soak.py --minutes 30 --desktops 16 --seed 0

Every episode has a secret of its own. In half of them the agent first writes it where the task wants it, in a terminal
that nobody kills, then acts at random; so the right score of each is known, 1 or 0, whatever happens in between. In the
end a JSON object says what was played and killed, and the exit status is 1 if a score was wrong, an episode was lost or
played to an end twice, or a process, mount, open file or control group of ours is left over. What others start or mount
on the machine meanwhile does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from arpo.agent.actions import Action, Finish, Type
from arpo.agent.dialects.uitars import UITars
from arpo.agent.episode import Agent
from arpo.agent.player import Player
from arpo.agent.random_actions import random_action
from arpo.config import EnvConfig
from arpo.engines.base import Sampling
from arpo.engines.scripted import Policy, ScriptedEngine, byte_vocabulary
from arpo.envs.base import Lease, make
from arpo.envs.pool import LocalPool
from arpo.runs.store import Run
from arpo.types import Attempt, Provenance, Summary, Task

SIZE = (1280, 720)
LIGHT = (["mousepad"], ["galculator"], ["pcmanfm"])
HEAVY = (["libreoffice", "--calc", "--norestore"], ["chromium"])  # they take the keyboard when they like
NAMES = {"Xvfb": ("Xvfb",), "application": ("mousepad", "galculator", "pcmanfm", "soffice.bin", "chrome", "chromium")}
KILL_EVERY_S = (1.0, 4.0)
MOST_STEPS = 12
SET_CHILD_SUBREAPER, NEW_MOUNTS, PRIVATE = 36, 0x20000, 0x40000 | 0x4000  # Linux's numbers; the last: with all below


def make_attempt(number: int, rng: random.Random) -> Attempt:
    """Solved where the file `secret` holds the secret. A program of some kind is open, and a terminal on top."""
    secret = f"{rng.randrange(10**9):09d}"
    programs = [rng.choice(LIGHT if _solved(number) else LIGHT + HEAVY), ["xterm"]]
    setup = {"config": [{"type": "launch", "parameters": {"command": command}} for command in programs]}
    evaluator = {
        "func": "exact_match",
        "result": {"type": "vm_command_line", "command": "cat secret || true", "shell": True},
        "expected": {"type": "rule", "rules": {"expected": f"{secret}\n"}},
    }
    task = Task(f"soak-{number}", programs[0][0], secret, "desktop", setup, evaluator, "soak")
    return Attempt(task, number, task.id, 0, 0, rng.randrange(2**31), Provenance("evaluation", "soak", 0))


def policy_for(attempt: Attempt) -> Policy:
    """Write the secret where it is due, act at random, say that it is done."""
    turns = itertools.count(not _solved(attempt.index))
    last = random.Random(attempt.sample_seed).randrange(MOST_STEPS)

    def act(env: Lease, seed: int) -> tuple[str, Action]:
        turn = next(turns)
        if turn == 0:
            return "Write.", Type(f"echo {attempt.task.instruction} > secret\n")
        return ("Done.", Finish()) if turn > last else ("Anything.", random_action(random.Random(seed), env.size))

    return act


def _solved(number: int) -> bool:
    return number % 2 == 0


async def kill_at_random(rng: random.Random, killed: Counter[str]) -> None:
    """One of this process's own descendants, now and then."""
    while True:
        await asyncio.sleep(rng.uniform(*KILL_EVERY_S))
        kind = rng.choices(("Xvfb", "application", "worker"), (2, 4, 1))[0]
        below = descendants()
        # Orphans are this process's children too (keep_apart), but no workers.
        mine = [pid for pid, (parent, name) in below.items() if parent == os.getpid() and name.startswith("python")]
        victims = mine if kind == "worker" else [pid for pid, (_, name) in below.items() if name in NAMES[kind]]
        if victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(victims), signal.SIGKILL)
                killed[kind] += 1


def descendants() -> dict[int, tuple[int, str]]:
    """Parent and name of every process that this one has started, or that they have."""
    every: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(") ")
            if not rest.startswith("Z"):
                every[int(folder.name)] = (int(rest.split()[1]), name)
    family = {os.getpid()}
    while more := {pid for pid, (parent, _) in every.items() if parent in family} - family:
        family |= more
    return {pid: every[pid] for pid in family - {os.getpid()}}


def keep_apart() -> bool:
    """See what is ours and nothing else: to be called once, before anything is started.

    Processes whose parent was killed come to this one, and it gets a mount table of its own, without what others mount.
    False: it may not have one. Then it may not mount either, so that nothing in the common table is ours.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if libc.unshare(NEW_MOUNTS) != 0:
        return False
    if libc.mount(None, b"/", None, PRIVATE, None) != 0:
        raise OSError(ctypes.get_errno(), "the new mount table cannot be kept apart")
    return True


def things(apart: bool) -> dict[str, set[str]]:
    """What there is of ours, by name: nothing may come to it. `apart`: what `keep_apart` returned.

    Something may go: a mount of another process that was in the table when it was copied vanishes here, too, when the
    folder below it is removed.
    """
    below = descendants()
    mounts = Path("/proc/self/mountinfo").read_text().splitlines() if apart else []
    return {
        "mounts": {line.split()[0] for line in mounts},
        "files": set(os.listdir("/proc/self/fd")),
        "processes": {str(pid) for pid in below},
        "groups": {str(group) for group in Path("/sys/fs/cgroup").rglob("arpo-*-*") if _is_ours(group, below)},
    }


def left_over(before: dict[str, set[str]], after: dict[str, set[str]]) -> dict[str, list[str]]:
    return {name: sorted(more) for name in before if (more := after[name] - before[name])}


def _is_ours(group: Path, below: Collection[int]) -> bool:
    """A control group is named after the process that made it: one of ours, or one that was killed."""
    maker = int(group.name.split("-")[1])
    return maker == os.getpid() or maker in below or not Path(f"/proc/{maker}").exists()


async def soak(minutes: float, desktops: int, seed: int, run: Run) -> dict[str, Any]:
    rng, killed = random.Random(seed), Counter[str]()
    begun, done = dict[str, Attempt](), list[tuple[Attempt, Summary]]()
    settings = EnvConfig(name="desktop", size=SIZE, workers=desktops)
    deadline = time.monotonic() + 60 * minutes
    vocabulary = byte_vocabulary()
    dialect = UITars(vocabulary)

    def agent_for(task: Task, env: Lease) -> Agent:
        return Agent(ScriptedEngine(policy_for(begun[task.id]), env, dialect, vocabulary), dialect, Sampling())

    def count(attempt: Attempt, summary: Summary | None) -> None:
        if summary is not None:
            done.append((attempt, summary))

    async with LocalPool(partial(make, "desktop", size=SIZE), desktops, settings) as pool:
        killing = asyncio.create_task(kill_at_random(rng, killed))
        player = Player(pool, run)
        while time.monotonic() < deadline:
            attempts = [make_attempt(len(begun) + i, rng) for i in range(2 * desktops)]
            begun |= {attempt.task.id: attempt for attempt in attempts}
            await player.play(attempts, agent_for, desktops, count)
        killing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await killing
    ended = Counter(attempt.task.id for attempt, _ in done)
    valid = [(summary.score, float(_solved(attempt.index))) for attempt, summary in done if summary.outcome.valid]
    return {
        "episodes": len(begun),
        "lost": sorted(begun.keys() - ended.keys()),
        "twice": sorted(name for name, times in ended.items() if times > 1),
        "valid": len(valid),
        "given up": len(done) - len(valid),
        "attempts": dict(Counter(summary.outcome for summary in run.summaries())),
        "killed": dict(killed),
        "right": sum(score == right for score, right in valid),
        "wrong": sum(score != right for score, right in valid),
        "solved": sum(right == 1 for _, right in valid),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--desktops", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    apart = keep_apart()
    before = things(apart)
    with tempfile.TemporaryDirectory() as folder, Run.write(Path(folder), "") as run:
        report = asyncio.run(soak(given.minutes, given.desktops, given.seed, run))
    for _ in range(100):  # the kernel takes a moment
        if not (left := left_over(before, things(apart))):
            break
        time.sleep(0.1)
    report["left over"] = left
    print(json.dumps(report, indent=2))
    sys.exit(bool(report["wrong"] or report["lost"] or report["twice"] or report["left over"]))


if __name__ == "__main__":
    main()
