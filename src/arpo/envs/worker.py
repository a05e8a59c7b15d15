"""A process of checkers that answers each question in a child with limits (desktop/guest/serving.py).

    worker = Worker(lambda: ClientProcess(…))
    worker.call("its checker", {"metric": …}, within_s=600, longest=65536, limits=LIMITS)

A file that takes a checker over the sandbox's limits is the agent's doing: Unreadable, which scores 0. What else goes
wrong, a process that is lost or does not answer among it, is EnvError: a host that is busy or full is not the agent's.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from arpo.envs.client_process import Answer, ClientProcess, Files, clipped
from arpo.errors import EnvError

MARGIN = 1 << 10  # what the process adds to a reply


class Unreadable(Exception):
    """A file that an agent made is not what it should be, or more than a checker can take: that scores 0."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one question."""

    cpu_s: int  # of processor time: what takes longer was made to
    limit_s: float  # by the clock, which runs for a busy machine, too
    memory: int  # bytes of one process
    longest: int  # bytes of a reply


class Worker:
    """It is started when it is needed, and again where it was lost. One call at a time."""

    def __init__(self, start: Callable[[], ClientProcess]) -> None:
        self._start, self.process = start, start()

    def close(self) -> None:
        self.process.close()

    def call(
        self,
        what: str,
        request: dict[str, Any],
        within_s: float,
        limits: Limits,
        answer: Answer | None = None,
        files: Files | None = None,
    ) -> dict[str, Any]:
        """EnvError where it raised, hangs or took the process with it; the next call has a new one."""
        if not self.process.alive:
            self._renew()
        try:
            before = self.process.overruns()
            asked = {**request, **asdict(limits)}
            reply = self.process.ask(asked, within_s, answer, limits.longest + MARGIN, files)
            full = all(now > then for now, then in zip(self.process.overruns(), before, strict=True))
            if reply.get("last"):
                self.close()
        except BaseException:
            self.close()
            raise
        if "over" in reply:
            raise Unreadable(f"{what} cannot take it: {clipped(reply['over'])}")
        if "is" not in reply and full:
            raise Unreadable(f"{what} cannot take it: it wants more memory than its sandbox has")
        if "is" not in reply:
            raise EnvError(f"{what} failed: {clipped(reply.get('error'))}")
        return reply

    def _renew(self) -> None:
        self.close()
        self.process = self._start()
