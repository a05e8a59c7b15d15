"""How long new weights take to a server, stage by stage: docs/results/weights.json, the table of docs/scaling.md.

    python benchmarks/weights.py [--gigabytes 2] [--repeats 3]            where `make vllm` has been

Part of a model of UI-TARS-1.5-7B's shapes, bf16, random numbers, goes the way of an update: the learner writes it whole
under another name and renames it (`save_model`, `_publish`), checksums are taken, a server is told of it
(`Server.offer`) and takes the checksums again where it sees the folder, or is sent the files through loopback where it
does not. The server is the guard of ours in the web server of vLLM's environment, without vLLM behind it: a 7B does not
fit here. What vLLM would do then is to read the files, timed here as reading every tensor. On a disk, and in memory.

Of several rounds the best is reported, by the clock and of the processor's time, which a busy machine changes less: of
whoever took more of it, the server or this process, which work at the same time. What a whole 7B takes is worked out by
its bytes. Files lie in the page cache, as they do between an update and its servers where memory is large enough.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arpo.engines.base import Weights
from arpo.engines.vllm import guard
from arpo.engines.vllm.client import Absent, Lost, Published, Server
from arpo.engines.vllm.engine import _publish
from arpo.engines.vllm.installed import find_python
from arpo.model.checkpoint import make_model, save_model
from arpo.model.qwen import QwenVL
from arpo.model.shapes import config_of
from arpo.model.tensorfiles import read_tensors

DOCS = Path(__file__).parents[1] / "docs"
RESULT, PAGE = DOCS / "results" / "weights.json", DOCS / "scaling.md"
SHAPE, TOKEN = "qwen2.5-vl-7b", "only for this machine"
SERVE = "import arpo_guard, uvicorn; uvicorn.run(arpo_guard.Guard(None), port={}, log_level='error', lifespan='off')"
STAGES = {
    "write": "the learner writes them, and renames the folder",
    "checksums": "checksums are taken",
    "check": "a server that sees the folder takes them again",
    "send": "or: is sent the files through loopback, and takes them on the way and once more",
    "read": "every tensor is read, as a server does that loads them",
}


def outline() -> QwenVL:
    with torch.device("meta"):
        return make_model(config_of(SHAPE)).to(torch.bfloat16)


def part_of(model: QwenVL, size: float) -> Iterator[tuple[str, Tensor]]:
    """Weights of its layers, so many bytes of them. They all show the same random numbers."""
    largest = max(weight.numel() for weight in model.model.language_model.layers[0].parameters())
    numbers = torch.randint(-(2**15), 2**15, (largest,), dtype=torch.int16).view(torch.bfloat16)
    for name, weight in model.named_parameters():
        if ".layers." in name and size > 0:
            size -= weight.nbytes
            yield name, numbers[: weight.numel()].view(weight.shape)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """Address and process id of a server whose folder for files that are sent is this one."""
    code = folder / "code"
    code.mkdir()
    shutil.copy(guard.__file__, code / "arpo_guard.py")
    told = {"token": TOKEN, "model": "", "weights": "", "incoming": str(folder / "incoming"), "limits": {}}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(code), "ARPO_SERVING": json.dumps(told)}
    process = subprocess.Popen([find_python(), "-c", SERVE.format(port)], env=environment, cwd=code)
    try:
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.kill()
        process.wait()


Times = tuple[float, ...]


def now(server: int | None = None) -> Times:
    """The clock, the processor's time of this process, and that of the server."""
    theirs = 0.0
    if server is not None:
        fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
        theirs = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return time.perf_counter(), time.process_time(), theirs


def since(began: Times, server: int | None = None) -> Times:
    """By the clock, and of the processor's time."""
    clock, *used = (after - before for after, before in zip(now(server), began, strict=True))
    return clock, max(used)


async def offer(address: str, pid: int, published: Published) -> Times:
    server = Server(address, TOKEN)
    for _ in range(600):
        try:
            await server.call("GET", "/arpo/nothing", 10)
        except Absent:
            await asyncio.sleep(0.1)
        except Lost:  # it answers that there is no such thing
            break
    began = now(pid)
    await server.offer(published)
    took = since(began, pid)
    await server.aclose()
    return took


def round_of(model: QwenVL, size: float, place: Path) -> tuple[dict[str, Times], int]:
    """Seconds of each stage, and how many bytes there were. `place`: a folder on a disk, or in memory."""
    took: dict[str, Times] = {}
    weights = list(part_of(model, size))

    def save(folder: Path) -> None:
        began = now()
        save_model(model, folder, weights)
        took["write"] = since(began)

    with tempfile.TemporaryDirectory(dir=place) as name, contextlib.chdir(name):
        began = now()
        published = _publish(1, Weights(Path("published"), save=save))
        both = since(began)
        took["checksums"] = both[0] - took["write"][0], both[1] - took["write"][1]
        for stage in ("check", "send"):
            # A server looks for a folder of a relative name in its own folder, and finds nothing.
            folder = published.folder if stage == "check" else published.folder.relative_to(Path.cwd())
            (home := Path(name) / stage).mkdir()
            with served(home) as (address, pid):
                offered = Published(1, published.name, published.files, folder)
                took[stage] = asyncio.run(offer(address, pid, offered))
            arrived = sum(file.stat().st_size for file in home.rglob("*.safetensors"))
            assert (arrived > 0) == (stage == "send")
            shutil.rmtree(home)
        began, files = now(), list(published.folder.glob("*.safetensors"))
        for file in files:
            for _, tensor in read_tensors(file):
                tensor[...].clone()
        took["read"] = since(began)
        return took, sum(file.stat().st_size for file in files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    model = outline()
    whole = sum(weight.nbytes for weight in model.parameters())
    report: dict[str, Any] = {
        "command": f"python benchmarks/weights.py --gigabytes {given.gigabytes:g} --repeats {given.repeats}",
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "shape": SHAPE,
        "whole_gb": whole / 1e9,
        "stages": STAGES,
    }
    for kind, place in {"disk": Path(tempfile.gettempdir()), "memory": Path("/dev/shm")}.items():
        rounds = [round_of(model, given.gigabytes * 1e9, place) for _ in range(given.repeats)]
        size = rounds[0][1]
        clock, processor = ({stage: min(took[stage][i] for took, _ in rounds) for stage in STAGES} for i in (0, 1))
        report[kind] = {
            "gb": size / 1e9,
            "gb_per_s": {stage: size / 1e9 / took for stage, took in clock.items()},
            "gb_per_processor_s": {stage: size / 1e9 / took for stage, took in processor.items()},
            "whole_processor_s": {stage: took * whole / size for stage, took in processor.items()},
        }
    RESULT.write_text(json.dumps(report, indent=1) + "\n")
    write_table(report)


def write_table(report: dict[str, Any]) -> None:
    whole = f"{report['whole_gb']:.1f} GB"
    lines = [f"`{report['command']}`, {report['date']}, {report['cores']} cores at a load of {report['load']:.0f}:", ""]
    lines.append(f"| | disk: GB/s | memory: GB/s | memory: GB a second of the processor's | {whole} by that |")
    lines.append("|---|---|---|---|---|")
    for stage, text in STAGES.items():
        rates = [report[kind]["gb_per_s"][stage] for kind in ("disk", "memory")]
        rates.append(report["memory"]["gb_per_processor_s"][stage])
        shown = " | ".join(f"{rate:.2f}" for rate in rates)
        lines.append(f"| {text} | {shown} | {report['memory']['whole_processor_s'][stage]:.0f} s |")
    before, begin, rest = PAGE.read_text().partition("<!-- weights -->\n")
    _, end, after = rest.partition("<!-- end of weights -->")
    PAGE.write_text(before + begin + "\n".join(lines) + "\n" + end + after)


if __name__ == "__main__":
    main()
