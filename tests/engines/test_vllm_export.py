"""An exported checkpoint in vLLM for real, on the CPU, by its own `vllm serve` and nothing of ours in between.

`make vllm` installs it. What it says to a chat with a screenshot is what our own engine says, token by token.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import plain
from arpo.agent.dialects.base import flatten
from arpo.agent.dialects.uitars import UITars
from arpo.config import Config, to_yaml
from arpo.engines.base import Prompt, Sampling
from arpo.engines.local import LocalEngine
from arpo.engines.vllm.installed import find_python
from arpo.errors import ConfigError
from arpo.export.command import export_checkpoint
from arpo.model.checkpoint import load_checkpoint
from arpo.model.qwen import banned_ids
from tiny_model import make_decided

LIMIT_S = 400  # generous: the machine may be busy
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}  # of 32 numbers: the least that vLLM knows on a CPU


def is_there() -> bool:
    try:
        find_python()
    except ConfigError:
        return False
    return True


pytestmark = [
    pytest.mark.vllm,
    pytest.mark.heavy,
    pytest.mark.skipif(not is_there(), reason="vLLM is not installed: make vllm"),
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with one checkpoint, whose weights are random."""
    run = tmp_path_factory.mktemp("run")
    place = make_decided(run / "checkpoints" / "update-00001", 0, text=HEADS)
    (place / "state.json").write_text(json.dumps({"version": 1, "replay": {}, "line": {}, "recent": [0.5]}))
    (place / "prompt.txt").write_text("Do this: {instruction}")
    (run / "config.yaml").write_text(to_yaml(Config().with_values({"run_dir": run})))
    out = tmp_path_factory.mktemp("out") / "agent"
    export_checkpoint(run, out)
    return out


@pytest.fixture(scope="module")
def address(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [find_python(), "-m", "vllm.entrypoints.cli.main", "serve", str(exported), "--host", "127.0.0.1"]
    words += ["--port", str(port), "--dtype", "float32", "--max-model-len", "2048", "--enforce-eager"]
    words += ["--served-model-name", "agent", "--limit-mm-per-prompt", '{"image": 2, "video": 0}']
    words += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    variables.pop("PYTHONPATH", None)
    log = tmp_path_factory.mktemp("log") / "vllm.log"
    with (
        log.open("wb") as file,
        subprocess.Popen(words, stdout=file, stderr=file, env=variables, start_new_session=True) as process,
    ):
        try:
            until = time.monotonic() + LIMIT_S
            while not answers(f"http://127.0.0.1:{port}/health"):
                assert process.poll() is None and time.monotonic() < until, log.read_text(errors="replace")[-4000:]
                time.sleep(1)
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_vllm_says_what_our_engine_says(exported: Path, address: str) -> None:
    checkpoint = load_checkpoint(exported, "cpu")
    dialect = UITars(checkpoint.vocabulary, prompt_file=exported / "prompt.txt")
    screen = plain.screen(3, (112, 84))
    conversation = dialect.start("press it")
    seen = conversation.observe(screen)
    prompt = Prompt(flatten(conversation.segments, [], seen, dialect.image_pad).ids, (screen,))
    sampling = Sampling(temperature=0.0, top_p=1.0, max_tokens=12, stop=(dialect.stop,))
    engine = LocalEngine(checkpoint, max_context=2000)
    said = asyncio.run(engine.generate("one", prompt, sampling, seed=0))
    image = f"data:image/png;base64,{base64.b64encode(screen.image).decode()}"
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": dialect.prompt("press it")},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]},
    ]
    question = {"model": "agent", "messages": messages, "temperature": 0, "max_tokens": 12, "logprobs": True}
    question |= {"skip_special_tokens": False, "return_token_ids": True}
    question["logit_bias"] = {str(one): -100 for one in banned_ids(checkpoint.config)}  # as our engine does
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(question).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        told = json.load(answer)
    assert tuple(told["choices"][0]["token_ids"]) == said.tokens
