"""A program of checkers, which runs in a sandbox (confined.py) and is asked by JSON lines: a question, a reply.

    process = ClientProcess("client/bin/python", "osworld_worker", "OSWorld's client")
    reply = process.ask({"metric": …}, within_s=30, files={"a.csv": b"…"})
    number(reply["is"], "OSWorld's client")             a score; EnvError where it is none
    process.close()

What it says is not trusted: a line that is too long, late, no object, or an answer to another question is EnvError.
"""

import contextlib
import io
import json
import math
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from arpo.envs.bubblewrap import SUPERVISE, end, held, refuse_no_sandbox
from arpo.envs.confined import MEMORY_MB, PYTHON, SCRATCH_MB, confined, surroundings
from arpo.envs.memory import new_group, overruns, remove
from arpo.errors import ConfigError, EnvError

LONGEST = 2 * SCRATCH_MB << 20  # of a line: all of its files may be in it, as text
MOST_VALUES = 1 << 20  # of a line: to read an empty list takes 30 times its two letters
LONGEST_TEXT = 1000  # of an error
SAY_S = 60.0
GUEST = Path(__file__).parent / "desktop" / "guest"  # what runs in another process
CODE = "/arpo/code"  # where it has that
START = "import sys; sys.path[:0] = [p for p in {} if p not in sys.path]; from guest import {} as it; it.main()"
Files = Mapping[str, bytes | Path]
Answer = Callable[[str, list[Any]], Any]


class ClientProcess:
    """EnvError where the program has ended or does not answer in time; that or OSError where it cannot be started.

    `program`: a file of the folder `guest`, which is told the number of its connection. `packages`: folders with more
    that it imports.
    """

    def __init__(
        self, python: str, program: str, name: str, network: bool = False, packages: Sequence[Path] = ()
    ) -> None:
        self._name, self._rest = name, bytearray()
        python = os.path.expanduser(python)
        python = os.path.abspath(shutil.which(python) or python)
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._socket, connection = socket.socketpair()
            ours.enter_context(self._socket)
            theirs.enter_context(connection)
            sources = [GUEST / f"{each}.py" for each in ("__init__", "serving", "walls", program)]
            files = {f"{CODE}/guest/{each.name}": theirs.enter_context(held(each.read_text())) for each in sources}
            start = START.format([CODE, *map(str, packages)], program)
            words = [*confined(python, files, network, packages), python, *PYTHON, "-c", start]
            self._group = group = new_group(MEMORY_MB)
            ours.callback(remove, group)
            self._process = subprocess.Popen(
                ["sh", "-c", SUPERVISE, group or "", *words, str(connection.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[connection.fileno(), *files.values()],
                env=surroundings(network),
                cwd="/",
                start_new_session=True,
            )
            assert self._process.stdin is not None and self._process.stderr is not None
            ours.enter_context(self._process.stderr)
            self._ours = ours.pop_all()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def overruns(self) -> tuple[int, int]:
        """See memory.py. None where there is no control group, or none any more."""
        try:
            return (0, 0) if self._group is None else overruns(self._group)
        except OSError:
            return 0, 0

    def ask(
        self,
        request: dict[str, Any],
        within_s: float,
        answer: Answer | None = None,
        longest: int = LONGEST,
        files: Files | None = None,
    ) -> dict[str, Any]:
        """Its reply, of at most so many bytes; `answer` gives what it asks back first.

        An agent whose file has got hold of a checker could leave a reply to the next question behind, so each question
        has a number that cannot be guessed.
        """
        number, deadline = secrets.token_hex(8), time.monotonic() + within_s
        sizes = {name: _size(file) for name, file in (files or {}).items()}
        self._say({**request, "id": number, "files": sizes}, *(files or {}).values())
        while True:
            reply = self.hear(deadline - time.monotonic(), longest)
            if reply.get("id") != number:
                raise EnvError(f"{self._name} answers what it was not asked")
            if "call" not in reply:
                return reply
            if answer is None:
                raise EnvError(f"{self._name} asks back where there is nothing to ask")
            try:
                said = answer(reply["call"], reply["arguments"])
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                text = clipped(f"{type(error).__name__}: {error}")
                raise EnvError(f"{self._name} asks for what is not there: {text}") from error
            self._say({"is": said})

    def hear(self, within_s: float, longest: int = LONGEST) -> dict[str, Any]:
        deadline, seen = time.monotonic() + within_s, 0
        while (end := self._rest.find(b"\n", seen)) < 0 and len(self._rest) <= longest:
            seen = len(self._rest)
            try:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                read = self._socket.recv(1 << 20)
            except TimeoutError:
                raise EnvError(f"{self._name} did not answer within {within_s:.0f} s") from None
            except OSError:
                read = b""
            if not read:
                raise self._ended()
            self._rest += read
        if not 0 <= end <= longest:
            raise EnvError(f"{self._name} says more than {longest} bytes in one line")
        text, self._rest = bytes(self._rest[:end]), self._rest[end + 1 :]
        if sum(map(text.count, (b",", b"[", b"{"))) > MOST_VALUES:
            raise EnvError(f"{self._name} says more than {MOST_VALUES} values in one line")
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise EnvError(f"{self._name} said what is no JSON object")
        return said

    def close(self) -> None:
        """End everything in the sandbox, and see it ended. May be called twice."""
        with self._ours:
            end(self._process, self._name)

    def _say(self, what: dict[str, Any], *files: bytes | Path) -> None:
        """And the bytes of files after it: as they are, since a text of them would take several times their memory."""
        try:
            self._socket.settimeout(SAY_S)
            self._socket.sendall(json.dumps(what).encode() + b"\n")
            for file in files:
                with io.BytesIO(file) if isinstance(file, bytes) else file.open("rb") as data:
                    self._socket.sendfile(data)
        except TimeoutError:
            raise EnvError(f"{self._name} did not listen within {SAY_S:g} s") from None
        except OSError as error:
            raise self._ended() from error

    def _ended(self) -> EnvError:
        """With the last line that was said of why: by bubblewrap, or by an interpreter that does not start."""
        end(self._process, self._name)
        assert self._process.stderr is not None
        said = "" if self._process.stderr.closed else self._process.stderr.read().decode(errors="replace").strip()
        last = said.splitlines()[-1] if said else "without a word"
        refuse_no_sandbox(last)
        if last.startswith(("unshare:", "mount:")):
            raise ConfigError(
                f"{self._name} cannot be shown to nobody, as whom they run: root may mount nothing here ({last}); "
                "install the client in a folder that everybody may enter, as /opt"
            )
        return EnvError(f"{self._name} ended: {last}")


def _size(file: bytes | Path) -> int:
    return len(file) if isinstance(file, bytes) else file.stat().st_size


def number(value: Any, who: str) -> float:
    """A finite number, or EnvError."""
    try:
        as_float = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        as_float = math.inf
    if not math.isfinite(as_float):
        raise EnvError(f"{who} gives no number: {value!r:.80}")
    return as_float


def clipped(text: Any) -> str:
    return str(text)[:LONGEST_TEXT]
