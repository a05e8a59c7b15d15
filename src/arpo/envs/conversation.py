"""JSON lines with a program of another interpreter: one line asked, one line heard.

talk = Conversation([python, "worker.py"], "OSWorld's client")
talk.say({"metric": …})
talk.hear(within_s=30)
talk.close()
"""

import contextlib
import json
import os
import select
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from arpo.errors import EnvError


class Conversation:
    """EnvError where the program has ended or does not answer in time. OSError where it cannot be started."""

    def __init__(self, command: Sequence[str], name: str) -> None:
        self._name, self._rest = name, b""
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd="/"
        )

    def say(self, what: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise EnvError(f"{self._name} ended") from error

    def hear(self, within_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        fd, deadline = self._process.stdout.fileno(), time.monotonic() + within_s
        while b"\n" not in self._rest:
            if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise EnvError(f"{self._name} did not answer within {within_s:g} s")
            read = os.read(fd, 1 << 16)
            if not read:
                raise EnvError(f"{self._name} ended without a word")
            self._rest += read
        line, self._rest = self._rest.split(b"\n", 1)
        said: dict[str, Any] = json.loads(line)
        return said

    def close(self) -> None:
        """May be called twice."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
