"""vLLM servers on this machine that end with whoever started them, however that ends.

    with Fleet("base", replicas=2, token=token) as fleet:
        fleet.wait()                 until they are ready
        fleet.addresses              http://127.0.0.1:43101, …

Each is `vllm serve` in a session of its own with a shell in front. The shell holds the end of a pipe: when that closes,
since this process has ended by whatever signal, it kills the session. A server that ends or hangs is started again, at
the same address. vLLM lives in another environment (`make vllm`), so all that is handed to it are files and variables.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arpo.engines.vllm import guard
from arpo.engines.vllm.client import Published
from arpo.engines.vllm.guard import files_of, name_of
from arpo.engines.vllm.installed import find_python
from arpo.errors import ConfigError
from arpo.model.checkpoint import empty_model, find_checkpoint
from arpo.model.processor import processor_files
from arpo.model.qwen import QwenVL

IMAGES = 64  # most screenshots of one prompt
LOOK_S, HUNG_S = 2.0, 120.0  # between two looks; without an answer for so long it is started again
ANSWER_S = 10.0
STARTS = 3  # that may fail in a row
END_S = 10.0  # to end by itself
# What is started is this shell. It kills its session, itself included, when its input closes or when vLLM has ended:
# of vLLM's processes the first may be gone and others not. Weights that were sent, which are large, go with it.
# It outlives a request to end, which vLLM may take its time for, or hang in. Python's resource tracker is killed after
# all others: it ends with them, and until then it removes the shared memory that they had.
SUPERVISE = """
exec 3<&0
trap : TERM
"$@" </dev/null 3<&- &
server=$!
( trap '' TERM; read line <&3; kill -s KILL $server; sleep 8; rm -rf "$0"; kill -s KILL -- -$$ ) >/dev/null 2>&1 &
exec 3<&-
while kill -s 0 $server 2>/dev/null; do wait $server; done
rm -rf "$0"
for one in /proc/[0-9]*; do
    read -r line <$one/stat || continue
    set -- ${line##*) }
    [ "$4" = $$ ] && ! grep -qE 'resource_tracker|exec 3<&0|^sleep' $one/cmdline && kill -s KILL ${one#/proc/}
done 2>/dev/null
sleep 3
kill -s KILL -- -$$
"""


@dataclass
class _Replica:
    port: int
    gpus: str | None
    process: subprocess.Popen[bytes] | None = None
    answered: float | None = None  # when it did last; None: not since it was started
    failed: int = 0  # starts in a row that came to nothing


class Fleet:
    """See the module. `arguments`: more words for `vllm serve`; `shared`: the GPU that is taken last, a learner's."""

    def __init__(
        self,
        model: str,
        replicas: int,
        token: str | None = None,
        dtype: str = "auto",
        max_context: int | None = None,
        python: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        arguments: Sequence[str] = (),
        shared: int = 0,
    ) -> None:
        self._python, self.token = find_python(python), token or secrets.token_urlsafe(24)
        outline, place = empty_model(model), find_checkpoint(model)
        longest = outline.config.text_config.max_position_embeddings
        self.max_context = min(longest, max_context or longest)
        files = files_of(place)
        self.weights = Published(0, name_of(files), files, place.absolute())
        self._outline, self._host, self._dtype, self._arguments = outline, host, dtype, arguments
        order = sorted(enumerate(_gpus()), key=lambda one: (one[0] == shared, -one[0]))  # ranks begin at the first
        gpus = [name for _, name in order]
        ports = [port + i for i in range(replicas)] if port else _free_ports(host, replicas)
        self._replicas = [_Replica(one, gpus[i % len(gpus)] if gpus else None) for i, one in enumerate(ports)]
        self.addresses = [f"http://{host}:{one.port}" for one in self._replicas]
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start them; they are not ready before some time. A second call does nothing."""
        if self._thread is not None:
            return
        self._home = tempfile.TemporaryDirectory(prefix="arpo-vllm-")
        self._folder = Path(self._home.name)
        _furnish(self._folder, self.weights.folder, self._outline)
        for one in self._replicas:
            self._start(one)
        self._thread = threading.Thread(target=self._look_after, name="vllm", daemon=True)
        self._thread.start()

    def __enter__(self) -> Fleet:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        """Of the shells; each is the number of its server's session."""
        return [one.process.pid for one in self._replicas if one.process is not None]

    def problem(self) -> str | None:
        """Why a server will never be there; None: all are, or may be."""
        for one in self._replicas:
            if one.failed >= STARTS:
                return f"vLLM does not start: {_last_words(self._log(one))}"
        return None

    def ready(self) -> bool:
        return all(one.answered is not None for one in self._replicas)

    def wait(self) -> None:
        """Until every server answers. ConfigError where one does not start."""
        while not self.ready():
            if (why := self.problem()) is not None:
                raise ConfigError(why)
            time.sleep(0.2)

    def close(self) -> None:
        """End them, and see them ended. May be called twice."""
        self._closing.set()
        if self._thread is None:
            return
        self._thread.join()
        for one in self._replicas:
            _signal(one, 15)
        for one in self._replicas:
            if one.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.process.wait(END_S)
                self._end(one)
        self._home.cleanup()

    def _log(self, one: _Replica) -> Path:
        return self._folder / f"{one.port}.log"

    def _start(self, one: _Replica) -> None:
        own = {"VLLM_CPU_KVCACHE_SPACE": "1"}  # gigabytes
        incoming = str(self._folder / f"incoming-{one.port}")
        told = {
            "token": self.token,
            "model": guard.shape_of(self._outline.config),
            "weights": self.weights.name,
            "incoming": incoming,
            "limits": {"max_context": self.max_context},
        }
        surely = {
            "PYTHONPATH": str(self._folder / "code"),
            "ARPO_SERVING": json.dumps(told),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_RPC_BASE_PATH": str(self._folder),  # its sockets: a server that is killed leaves them
            "DO_NOT_TRACK": "1",
            **({} if one.gpus is None else {"CUDA_VISIBLE_DEVICES": one.gpus}),
        }
        words = _words(self._folder / "model", self._host, one.port, self._dtype, self.max_context, self._arguments)
        one.answered = None
        with self._log(one).open("ab") as log:
            one.process = subprocess.Popen(
                ["sh", "-c", SUPERVISE, incoming, self._python, "-m", "vllm.entrypoints.cli.main", *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=own | {name: value for name, value in os.environ.items() if name != "ARPO_TOKEN"} | surely,
                start_new_session=True,
            )

    def _look_after(self) -> None:
        while not self._closing.wait(LOOK_S):
            for one in self._replicas:
                assert one.process is not None
                now = time.monotonic()
                if one.process.poll() is None and self._answers(one):
                    one.answered, one.failed = now, 0
                    continue
                hung = one.answered is not None and now - one.answered > HUNG_S
                if one.process.poll() is None and not hung:
                    continue
                one.failed += one.answered is None
                self._end(one)
                if one.failed < STARTS and not self._closing.is_set():
                    try:
                        self._start(one)
                    except OSError:  # a disk that is full, a temporary folder that was swept: said by problem()
                        one.failed += 1

    def _answers(self, one: _Replica) -> bool:
        request = urllib.request.Request(
            f"http://{self._host}:{one.port}/arpo/state", headers={"Authorization": f"Bearer {self.token}"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=ANSWER_S) as reply:
                return bool(reply.status == 200)
        except (OSError, http.client.HTTPException, ValueError):  # also of another program at that port
            return False

    @staticmethod
    def _end(one: _Replica) -> None:
        assert one.process is not None and one.process.stdin is not None
        one.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(END_S)
        _signal(one, 9)
        one.process.wait()


def _signal(one: _Replica, number: int) -> None:
    """To all of a server's processes."""
    if one.process is not None and one.process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(one.process.pid, number)


def _furnish(folder: Path, place: Path, outline: QwenVL) -> None:
    """What vLLM reads: the checkpoint's files, how images are prepared, and our guard."""
    (folder / "code").mkdir()
    shutil.copy(guard.__file__, folder / "code" / "arpo_guard.py")
    (model := folder / "model").mkdir()
    for file in place.iterdir():
        if file.suffix in (".json", ".safetensors", ".txt"):
            (model / file.name).symlink_to(file.resolve())
    for name, text in processor_files(outline).items():
        (model / name).unlink(missing_ok=True)
        (model / name).write_text(text)


def _on_cpu(max_context: int) -> list[str]:
    """A prompt is taken in whole. Between its parts vLLM 0.32 turns the random numbers of a turn back, which cannot be
    done on a CPU: the engine dies of it."""
    return ["--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(max_context, 8192))]


def _words(model: Path, host: str, port: int, dtype: str, max_context: int, more: Sequence[str]) -> list[str]:
    return [
        *("serve", str(model), "--host", host, "--port", str(port), "--dtype", dtype),
        *("--max-model-len", str(max_context), "--limit-mm-per-prompt", json.dumps({"image": IMAGES, "video": 0})),
        *(
            "--middleware",
            "arpo_guard.Guard",
            "--worker-extension-cls",
            "arpo_guard.Worker",
            "--enable-scale-out",
            "--enable-prefix-caching",
        ),
        *("--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details", "--generation-config", "vllm"),
        *("--disable-uvicorn-access-log", *([] if _gpus() else _on_cpu(max_context)), *more),
    ]


def _gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [one for one in given.split(",") if one.strip() not in ("", "-1")]
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


def _free_ports(host: str, count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["it ended without a word"])[-1][-300:]
