"""A training on a cluster under bad luck: everything that it consists of is killed or stopped, again and again.

    python benchmarks/cluster_soak.py --minutes 20 --seed 0 > docs/results/cluster-soak.json

The agent that comes with arpo is trained on pocket: environments on the nodes of a Ray cluster, two vLLM servers (where
vLLM is not installed, the local engine), two ranks, sampling ahead of learning. All of them are real processes of this
machine, and they get real signals: SIGKILL, or SIGSTOP and later SIGCONT for one that hangs. A node that was lost is
replaced by a new one, and a run that has ended is resumed. When the time is over, the run is finished in peace, and
audited (tests/audit.py): each episode that was begun has an end, and only one, and no failure has a score.

A JSON object says what was killed and what came of it. The exit status is 1 if the audit fails, or if processes or
shared memory of ours are left over.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path += [str(TESTS), str(TESTS / "envs")]

from ray_nodes import SETTINGS, Nodes, wait_until  # noqa: E402
from soak import NEW_MOUNTS, PRIVATE  # noqa: E402

from arpo.engines.vllm.installed import find_python  # noqa: E402
from arpo.errors import ConfigError  # noqa: E402
from arpo.runs.store import Run  # noqa: E402
from arpo.tasks.load import load_tasks  # noqa: E402
from audit import audit  # noqa: E402

TASKS, GROUP, LAG, NODES, ROOM, SERVERS = 8, 2, 1, 2, 4, 2
SETTINGS_OF_RUN = f"""
    train.updates=100000 train.rollout_tasks={TASKS} train.optimizer_tasks={TASKS} algorithm.group={GROUP}
    train.lag={LAG} train.ranks=2 train.n_envs=8 train.max_tokens=48 tasks.max_steps=2 eval.trials=1 eval.n_envs=8
    eval.max_tokens=48 eval.held_out=0 env.workers=6 env.resource=place env.step_s=15 env.reset_s=60 env.score_s=15
"""
EVERY_S = (0.1, 1.0)  # between two faults
# How often a kind is drawn. A dead node, server, rank or driver costs the machine many seconds until another is there.
KILLS = {"environment": 100.0, "node": 1.5, "server": 0.5, "rank": 1.0, "driver": 1.0}
STOPS = {"environment": 4.0, "node": 0.5, "server": 0.5}
STOPPED_S = (1.0, 30.0)  # for so long; an environment is given up after 15, a server after 20
CALM = 0.95  # of the faults that come while no environment may be killed, so many are left out
# Environments are left in peace for a while where the run does not get on, however slow the machine is: a task is given
# up after 9 failures in a row, and so many of one are enough; and there are so many kills for each episode at most.
PRESSED, KILLS_AN_EPISODE, FIRST_KILLS = 5, 3, 10
ARPO = [sys.executable, "-m", "arpo.cli"]


def own_shared_memory() -> bool:
    """Give this process, and what it starts, a /dev/shm of their own. False where it may not have one."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_MOUNTS) != 0 or libc.mount(None, b"/", None, PRIVATE, None) != 0:
        return False
    return bool(libc.mount(b"soak", b"/dev/shm", b"tmpfs", 0, None) == 0)


class Family:
    """All processes that this one has started, or that they have, also those whose parents have ended."""

    def __init__(self) -> None:
        self._known = {(os.getpid(), _started(os.getpid())[1])}

    def look(self) -> dict[int, tuple[int, str]]:
        """Parent and command line of those that live."""
        every = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                every[int(folder.name)] = _started(int(folder.name))
        found = {pid for pid, (_, when) in every.items() if (pid, when) in self._known}
        while more := {pid for pid, (parent, _) in every.items() if parent in found} - found:
            found |= more
        self._known |= {(pid, every[pid][1]) for pid in found}
        family = {}
        for pid in found - {os.getpid()}:
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                if words:  # else it is a zombie
                    family[pid] = (every[pid][0], words.replace(b"\0", b" ").decode(errors="replace"))
        return family


def _started(pid: int) -> tuple[int, str]:
    """The parent of a process, and when it was started: no other has the same number and the same time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return int(fields[1]), fields[19]


class Soak:
    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng, self.family = folder, rng, Family()
        self.killed, self.stopped, self.ends = Counter[str](), Counter[str](), Counter[str]()
        self.nodes = Nodes()
        self.asleep: list[tuple[float, list[int]]] = []  # when they go on
        self.joining: threading.Thread | None = None
        self.token = secrets.token_hex(16)
        self.addresses: list[str] = []
        self.serving: subprocess.Popen[str] | None = None
        self.driver: subprocess.Popen[bytes] | None = None
        self.told = 0  # so much of what drivers said was read
        self._looked, self._pressed = 0.0, False

    # ---- what is soaked

    def begin(self) -> None:
        listed = defaultdict(list)
        for task in load_tasks("pocket", "demo")[:TASKS]:
            listed[task.domain].append(task.id)
        (self.folder / "list.json").write_text(json.dumps(listed))
        self.nodes.start()  # the head, which offers no place, and is not killed: with it the cluster is lost
        for _ in range(NODES):
            self.nodes.start(place=ROOM)
        with contextlib.suppress(ConfigError):
            find_python()
            self.serve()
        self.drive()
        # The time counts from here: on a busy machine all this takes minutes.
        wait_until(lambda: any(words.startswith("ray::Place") for _, words in self.family.look().values()), 600)

    def serve(self) -> None:
        words = [*ARPO, "serve", "base", "--replicas", str(SERVERS), "agent.device=cpu"]
        log = (self.folder / "served").open("w")
        self.serving = subprocess.Popen(words, env=self.environment(), stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.serving.stdout is not None
        said = self.serving.stdout.readline()
        found = re.search(r"engine\.servers=\[(.*)\]", said)
        assert found is not None, (self.folder / "served").read_text()
        self.addresses = found[1].split(",")

    def drive(self, *more: str) -> None:
        """Begin the run, or resume it."""
        run = self.folder / "run"
        where = [f"env.ray={self.nodes.address}"]
        words = ["pocket", f"run_dir={run}", f"tasks.source={self.folder / 'list.json'}", *SETTINGS_OF_RUN.split()]
        if self.addresses:
            where.append(f"engine.servers=[{','.join(self.addresses)}]")
            words.append("engine.name=vllm")
        if (run / "config.yaml").exists():
            words = ["--resume", str(run)]
        with (self.folder / "told").open("ab") as told:
            self.driver = subprocess.Popen(
                [*ARPO, "train", *words, *where, *more],
                env=self.environment(),
                stdout=told,
                stderr=told,
                start_new_session=True,
            )

    def environment(self) -> dict[str, str]:
        return os.environ | SETTINGS | {"ARPO_TOKEN": self.token, "OMP_NUM_THREADS": "1", "COLUMNS": "400"}

    def keep_up(self, *more: str) -> None:
        """Resume a run that has ended, replace a node that is gone, let those go on whose time has come."""
        assert self.driver is not None
        if self.driver.poll() is not None:
            self.note_end()
            self.drive(*more)
        lost = len(self.nodes.started) - 1 - sum(node.poll() is None for node in self.nodes.started[1:])
        if NODES + lost > len(self.nodes.started) - 1 and (self.joining is None or not self.joining.is_alive()):
            self.joining = threading.Thread(target=self.join)
            self.joining.start()
        now = time.monotonic()
        for pids in [pids for until, pids in self.asleep if until <= now]:
            _signal(pids, signal.SIGCONT)
        self.asleep = [(until, pids) for until, pids in self.asleep if until > now]

    def join(self) -> None:
        with contextlib.suppress(AssertionError):  # on a busy machine Ray may give up: then another one is tried
            self.nodes.start(place=ROOM)

    def note_end(self) -> None:
        """Why the run has ended: by its last line, but for names and numbers."""
        assert self.driver is not None
        text = (self.folder / "told").read_text(errors="replace")
        new, self.told = text[self.told :], len(text)
        last = (new.strip().splitlines() or [""])[-1]
        why = "killed" if self.driver.returncode == -9 else re.sub(r"/\S+|\d+", "_", last.partition("; stopped")[0])
        self.ends[why if "Traceback" not in new else new[new.index("Traceback") :][-2000:]] += 1

    # ---- bad luck

    def strike(self, family: dict[int, tuple[int, str]]) -> None:
        """Kill or stop something, where there is one of the kind that is drawn."""
        drawn = [(kind, False) for kind in KILLS] + [(kind, True) for kind in STOPS]
        ((kind, stop),) = self.rng.choices(drawn, [*KILLS.values(), *STOPS.values()])
        plays = any(words.startswith("ray::Place") for _, words in family.values())
        if (not plays or self.pressed()) and (kind in ("environment", "node") or self.rng.random() < CALM):
            return  # else it would never get on again
        if not (victims := self.victims(kind, family, stop)):
            return
        if stop:
            self.asleep.append((time.monotonic() + self.rng.uniform(*STOPPED_S), victims))
        if _signal(victims, signal.SIGSTOP if stop else signal.SIGKILL):
            (self.stopped if stop else self.killed)[kind] += 1

    def victims(self, kind: str, family: dict[int, tuple[int, str]], stop: bool) -> list[int]:
        """The processes of one that is drawn."""
        assert self.driver is not None
        some: list[list[int]] = []
        if kind == "environment":
            some = [[pid] for pid, (_, words) in family.items() if words.startswith("ray::Place")]
            some = [min(self.rng.sample(some, 2))] if len(some) > 1 else some  # the older one, mostly
        elif kind == "node":
            heads = {node.pid for node in self.nodes.started[1:]}
            raylets = [pid for pid, (parent, words) in family.items() if "/raylet/raylet " in words and parent in heads]
            below = {one: [pid for pid, (parent, _) in family.items() if parent == one] for one in raylets}
            some = [[one, *below[one]] if stop else [one] for one in raylets]
        elif kind == "rank":
            some = [[pid] for pid, (_, words) in family.items() if "training import ranks" in words]
        elif kind == "driver":
            some = [[self.driver.pid]] if self.driver.poll() is None else []
        else:
            for address in filter(self.answers, self.addresses):
                port = f"--port {address.rpartition(':')[2]} "
                first = [pid for pid, (_, words) in family.items() if port in words and not words.startswith("sh ")]
                engine = [pid for pid, (_, words) in family.items() if words.startswith("VLLM::EngineCore")]
                engine = [pid for pid in engine if family[pid][0] in first]
                # All of it, or the process that computes, or the one that answers.
                some += [first + engine] if stop else [first + engine, engine, first]
        return self.rng.choice(some) if some else []

    def answers(self, address: str) -> bool:
        """Whether a server has started: `arpo serve` gives up after three starts that came to nothing."""
        request = urllib.request.Request(f"{address}/arpo/state", headers={"Authorization": f"Bearer {self.token}"})
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=2) as reply:
            return bool(reply.status == 200)
        return False

    def pressed(self) -> bool:
        """Whether the last episodes of some task have all failed, or few have ended well for all that was killed."""
        if time.monotonic() > self._looked + 0.5:
            failed, valid = Counter[str](), 0
            with contextlib.suppress(ConfigError), Run.read(self.folder / "run") as run:  # there is none yet
                for one in run.summaries():
                    failed[one.task_id] = 0 if one.outcome.valid else failed[one.task_id] + 1
                    valid += one.outcome.valid
            often = self.killed["environment"] > FIRST_KILLS + KILLS_AN_EPISODE * valid
            self._looked, self._pressed = time.monotonic(), often or max(failed.values(), default=0) >= PRESSED
        return self._pressed

    def soak(self, minutes: float) -> None:
        until = time.monotonic() + 60 * minutes
        said = time.monotonic()
        while time.monotonic() < until:
            self.keep_up()
            self.strike(self.family.look())
            if time.monotonic() > said + 30:
                said = time.monotonic()
                left = (until - said) / 60
                print(f"{left:.1f} min left; killed {dict(self.killed)}", file=sys.stderr, flush=True)
            time.sleep(self.rng.uniform(*EVERY_S))

    # ---- the end

    def finish(self) -> int:
        """Stop the run as a person would, then let it make a last few updates in peace; says how many there are."""
        assert self.driver is not None
        for _, pids in self.asleep:
            _signal(pids, signal.SIGCONT)
        if self.joining is not None:
            self.joining.join()
        if self.driver.poll() is None:
            self.driver.send_signal(signal.SIGINT)
            wait_until(lambda: self.driver is None or self.driver.poll() is not None, 600)
        self.note_end()
        made = 0
        with contextlib.suppress(ConfigError), Run.read(self.folder / "run") as run:
            made = sum(1 for _ in run.metrics())
        updates = made + LAG + 2  # all that was begun is of these
        wait_until(lambda: all(map(self.answers, self.addresses)), 600)
        self.drive(f"train.updates={updates}")
        while self.driver.poll() is None:
            self.family.look()
            time.sleep(1)
        if self.driver.returncode != 0:
            self.note_end()
            raise AssertionError(f"the run does not end well: {(self.folder / 'told').read_text()[-3000:]}")
        return updates

    def close(self) -> None:
        for _, pids in self.asleep:
            _signal(pids, signal.SIGCONT)
        if self.driver is not None and self.driver.poll() is None:
            self.driver.kill()
            self.driver.wait()
        if self.serving is not None:
            self.serving.terminate()
            self.serving.wait(120)
        if self.joining is not None:
            self.joining.join()
        self.nodes.close()

    def left_over(self, true: Callable[[str], bool] = lambda words: True) -> list[str]:
        """Processes of ours that still run, after a while."""
        for _ in range(300):
            if not (left := [words for _, words in self.family.look().values() if true(words)]):
                return []
            time.sleep(0.1)
        return [words[:200] for words in left]


def _signal(pids: list[int], number: int) -> int:
    """How many of them there were."""
    sent = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            sent += 1
    return sent


def soaked(minutes: float, seed: int, folder: Path) -> dict[str, Any]:
    soak = Soak(folder, random.Random(seed))
    report: dict[str, Any] = {"minutes": minutes, "seed": seed, "killed": soak.killed, "stopped": soak.stopped}
    try:
        soak.begin()
        soak.soak(minutes)
        report |= {"kills": soak.killed.total(), "runs_ended": soak.ends, "engine": "vllm" if soak.serving else "local"}
        updates = soak.finish()
        # What the run itself had must end with it, though the cluster and the servers go on.
        left = soak.left_over(lambda words: words.startswith("ray::Place") or "training import ranks" in words)
        with Run.read(folder / "run") as run:
            report |= {"updates": updates, **audit(run, updates, TASKS, GROUP)}
        assert not left, f"left over: {left}"
        assert not any("Traceback" in why for why in soak.ends), "a run ended by a bug"
        report["audit"] = "passed"
    except AssertionError as error:
        report["audit"] = f"failed: {error}"
    finally:
        soak.close()
    report["left_over"] = soak.left_over()
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    apart = own_shared_memory()
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as folder:  # short: sockets lie in it
        os.environ["TMPDIR"], tempfile.tempdir = folder, folder
        report = soaked(given.minutes, given.seed, Path(folder))
        if report["audit"] != "passed":
            print((Path(folder) / "told").read_text()[-5000:], file=sys.stderr)
    report["shared_memory_left"] = sorted(os.listdir("/dev/shm")) if apart else None
    print(json.dumps(report, indent=1))
    sys.exit(bool(report["audit"] != "passed" or report["left_over"] or report["shared_memory_left"]))


if __name__ == "__main__":
    main()
