"""vLLM for real, on the CPU: two servers of `arpo serve` with a tiny checkpoint. `make vllm` installs it.

Log-probabilities are compared with the learner's, who computes them from the whole sequence and knows nothing of how
they were sampled.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import plain
from arpo.algorithms.base import make_algorithm
from arpo.config import Config, load_config
from arpo.engines.base import Prompt, Sampling, Weights
from arpo.engines.vllm import engine as module
from arpo.engines.vllm.client import Published
from arpo.engines.vllm.engine import VllmEngine
from arpo.engines.vllm.guard import files_of, name_of
from arpo.engines.vllm.installed import find_python
from arpo.engines.vllm.make import make_vllm
from arpo.errors import ConfigError
from arpo.model.checkpoint import Checkpoint, load_checkpoint
from arpo.model.qwen import banned_ids
from arpo.runs.store import Run
from arpo.training.command import run_training
from arpo.training.learner import LocalLearner
from arpo.types import Completion, Observation, Sample
from tiny_model import make_decided

TOKEN = "a token of this test"
CLOSE = 1e-3
TEMPERATURE = 0.8
LIMIT_S = 400  # generous: the machine may be busy


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


HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}  # of 32 numbers: the least that vLLM knows on a CPU


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decided(tmp_path_factory.mktemp("served"), 0, text=HEADS)


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_decided(tmp_path_factory.mktemp("other"), 1, text=HEADS)


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path) -> Checkpoint:
    return load_checkpoint(tiny_folder, "cpu")


@dataclass
class Serving:
    process: subprocess.Popen[str]
    addresses: list[str]

    def pids(self, address: str, shells: bool = True) -> list[int]:
        """Every process of the server at an address; `shells`: also the one in front of it, which ends it."""
        port, every = address.rpartition(":")[2], _processes()
        sessions = {one.session for one in every if "vllm" in one.args and f"--port {port} " in one.args}
        return [one.pid for one in every if one.session in sessions and (shells or not one.args.startswith("sh "))]


@dataclass
class Line:
    pid: int
    session: int
    args: str


def _processes() -> list[Line]:
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            session = int((place / "stat").read_text().rpartition(")")[2].split()[3])
            args = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found.append(Line(int(place.name), session, args))
    return found


@pytest.fixture(scope="module")
def serving(tiny_folder: Path) -> Iterator[Serving]:
    """Two servers. At the end their command is killed, and they must be gone."""
    words = [sys.executable, "-m", "arpo.cli", "serve", str(tiny_folder), "--replicas", "2", "agent.device=cpu"]
    variables = {**os.environ, "ARPO_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.search(r"engine\.servers=\[(.*)\]", line)
            assert found is not None, line
            serving = Serving(process, found[1].split(","))
            sessions = [pid for address in serving.addresses for pid in serving.pids(address)]
            assert len(sessions) >= 4
            yield serving
        finally:
            left = [pid for address in serving.addresses for pid in serving.pids(address)]
            process.kill()
    until = time.monotonic() + 60
    while alive := [line for line in _processes() if line.pid in left]:
        assert time.monotonic() < until, alive
        time.sleep(0.1)


@pytest.fixture
def settings(tiny_folder: Path) -> Config:
    return load_config(None, [f"train.model={tiny_folder}", f"train.temperature={TEMPERATURE}", "agent.device=cpu"])


@pytest.fixture
def engine(serving: Serving, settings: Config, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> VllmEngine:
    monkeypatch.setenv("ARPO_TOKEN", TOKEN)
    monkeypatch.setattr(module, "LOOK_S", 0.2)
    config = settings.with_values({"engine.name": "vllm", "engine.servers": serving.addresses})
    made = make_vllm(config, str(tiny_folder), slots=4).engine
    assert isinstance(made, VllmEngine)
    return made


def run(engine: VllmEngine, work: Callable[[], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        try:
            await asyncio.wait_for(work(), LIMIT_S)
        finally:
            await engine.aclose()

    asyncio.run(all_of_it())


Turn = tuple[Prompt, Completion]


async def both_answer(engine: VllmEngine) -> None:
    engine._watch()
    while any(server.why for server in engine._servers):
        await asyncio.sleep(0.1)


async def episode(engine: VllmEngine, checkpoint: Checkpoint, name: str, turns: int = 3, seed: int = 0) -> list[Turn]:
    """Turns that extend each other, with a new screenshot each; one of them is not of a size that the model sees.

    They are large, since vLLM keeps beginnings in blocks of 128 tokens on a CPU.
    """
    prompt, played = Prompt(checkpoint.vocabulary.encode("some words"), ()), []
    stop = (checkpoint.vocabulary.special("<|im_end|>"),)
    for turn in range(turns):
        size = (400, 300) if turn == 1 else (448, 280)
        prompt = plain.add_screen(checkpoint, prompt, "\n", plain.screen(10 * seed + turn, size))
        reply = await engine.generate(name, prompt, Sampling(TEMPERATURE, 1.0, 10, stop), seed=seed + turn)
        played.append((prompt, reply))
        prompt = Prompt((*prompt.ids, *reply.tokens), prompt.images)
    return played


def furthest(folder: Path, settings: Config, played: list[Turn]) -> float:
    """The largest difference to the learner's log-probabilities under the weights in a folder."""
    learner = LocalLearner(load_checkpoint(folder, "cpu"), settings, make_algorithm(settings.algorithm, 0))
    samples, screens = [], dict[str, Observation]()
    for i, (prompt, reply) in enumerate(played):
        n = len(reply.tokens)
        samples.append(
            Sample(
                trajectory_id=str(i),
                ids=(*prompt.ids, *reply.tokens),
                images=tuple(image.hash for image in prompt.images),
                sampled=(*[False] * len(prompt.ids), *[True] * n),
                logprobs=reply.logprobs,
                advantages=(0.0,) * n,
                version=reply.version,
            )
        )
        screens |= {image.hash: image for image in prompt.images}
    pairs = zip(learner.logprobs(samples, screens), samples, strict=True)
    return max(abs(a - b) for ours, sample in pairs for a, b in zip(ours.tolist(), sample.logprobs, strict=True))


def test_log_probabilities_are_the_learners_before_and_after_new_weights(
    engine: VllmEngine, tiny: Checkpoint, tiny_folder: Path, other_folder: Path, settings: Config
) -> None:
    async def work() -> None:
        await both_answer(engine)
        before = await asyncio.gather(*(episode(engine, tiny, f"a{i}", seed=i) for i in range(4)))
        assert all(server.sessions for server in engine._servers)  # both have episodes
        assert engine.cached_tokens > 0.3 * engine.prompt_tokens  # a turn begins with the one before
        await engine.load(1, Weights(other_folder))
        for server in engine._servers:
            server.holds |= {plain.screen(turn, (448, 280)).hash for turn in range(100)}  # they have none of these
        after = await asyncio.gather(*(episode(engine, tiny, f"b{i}", seed=i) for i in range(4)))
        again = await asyncio.gather(*(episode(engine, tiny, f"c{i}", seed=i) for i in range(4)))
        assert after == again  # what is sampled follows from the seed, also from what a cache holds
        for turns, folder, version in ((before, tiny_folder, 0), (after, other_folder, 1)):
            played = [turn for one in turns for turn in one]
            assert {reply.version for _, reply in played} == {version}
            assert furthest(folder, settings, played) < CLOSE
            assert not {token for _, reply in played for token in reply.tokens} & {*banned_ids(tiny.config)}
        assert furthest(tiny_folder, settings, after[0]) > 0.1  # that the comparison can fail

    run(engine, work)


def test_a_turn_never_spans_two_versions(
    engine: VllmEngine, tiny: Checkpoint, tiny_folder: Path, other_folder: Path, settings: Config
) -> None:
    """Also where others change the weights of a server behind our back."""
    folders = [tiny_folder, other_folder]

    async def work() -> None:
        played: list[Turn] = []

        async def sample(i: int) -> None:
            for j in itertools.count():
                played.extend(await episode(engine, tiny, f"{i}-{j}", turns=2, seed=100 * i + j))
                if played[-1][1].version == 4:
                    break

        async def change() -> None:
            for version in range(1, 5):
                while not any(reply.version == version - 1 for _, reply in played):
                    await asyncio.sleep(0.05)
                await engine.load(version, Weights(folders[version % 2]))

        async def meddle() -> None:
            await asyncio.sleep(0.5)
            files = files_of(other_folder)
            with contextlib.suppress(Exception):
                await engine._servers[0].take(Published(0, name_of(files), files, other_folder))

        await both_answer(engine)
        await asyncio.gather(*(sample(i) for i in range(4)), change(), meddle())
        assert {reply.version for _, reply in played} == set(range(5))
        for version in range(5):
            of_version = [turn for turn in played if turn[1].version == version]
            assert furthest(folders[version % 2], settings, of_version) < CLOSE

    run(engine, work)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_turns_go_on_elsewhere_where_a_server_is_killed_or_hangs_and_it_comes_back_with_the_weights(
    engine: VllmEngine,
    serving: Serving,
    tiny: Checkpoint,
    other_folder: Path,
    settings: Config,
    number: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("arpo.engines.vllm.client.ANSWER_S", 5.0)

    async def work() -> None:
        await both_answer(engine)
        await episode(engine, tiny, "a", turns=1)
        await engine.load(1, Weights(other_folder))
        home = next(server for server in engine._servers if "a" in server.sessions)
        pids = serving.pids(home.address, shells=number is signal.SIGKILL)
        playing = [asyncio.create_task(episode(engine, tiny, f"{i}", seed=i)) for i in range(4)]
        await asyncio.sleep(0.1)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        played = [turn for one in await asyncio.gather(*playing) for turn in one]
        assert home.why
        assert furthest(other_folder, settings, played) < CLOSE
        if number is signal.SIGSTOP:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # it was started again meanwhile
                    os.kill(pid, signal.SIGCONT)
        while home.why:
            await asyncio.sleep(0.2)
        other = next(server for server in engine._servers if server is not home)
        other.sessions |= {str(i) for i in range(100)}  # so that the next ones go home
        played = await episode(engine, tiny, "back", seed=7)
        assert "back" in home.sessions
        assert furthest(other_folder, settings, played) < CLOSE

    run(engine, work)


@pytest.mark.attack("local user")
def test_nothing_is_answered_without_the_token(serving: Serving) -> None:
    paths = ["/health", "/metrics", "/v1/models", "/arpo/state", "/docs", "/collective_rpc", "/inference/v1/generate"]
    for path in paths:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            for data in (None, b"{}"):
                request = urllib.request.Request(serving.addresses[0] + path, data, headers)
                with pytest.raises(urllib.error.HTTPError) as refused:
                    urllib.request.urlopen(request, timeout=60)
                assert refused.value.code == 401
                refused.value.close()


@pytest.mark.attack("local user")
def test_with_the_token_there_is_no_way_to_other_calls_or_files(serving: Serving) -> None:
    def asked(path: str, body: Any) -> int:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(serving.addresses[0] + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    assert asked("/collective_rpc", {"method": "reload_weights"}) == 404  # vLLM's calls for developers are off
    assert asked("/arpo/expect", {"files": {"../x.safetensors": [1, "0" * 64]}}) == 400
    assert asked("/arpo/expect", {"files": []}) == 400
    assert asked("/arpo/load", {"weights": "0" * 64}) == 409


def test_a_server_with_another_model_or_another_token_is_refused_in_one_line(
    serving: Serving, settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    for token, model, said in ((TOKEN, "base", "another model than base"), ("wrong", "base", "the token is wrong")):
        monkeypatch.setenv("ARPO_TOKEN", token)
        config = settings.with_values({"engine.name": "vllm", "engine.servers": serving.addresses})
        made = make_vllm(config, model, slots=1).engine
        assert isinstance(made, VllmEngine)
        with pytest.raises(ConfigError, match=said):
            run(made, lambda made=made: _one(made))  # type: ignore[misc]


async def _one(engine: VllmEngine) -> None:
    await engine.generate("a", Prompt((1, 2), ()), Sampling(), 0)


def test_weights_that_a_server_cannot_see_are_sent(
    engine: VllmEngine, tiny: Checkpoint, other_folder: Path, settings: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As between hosts: the folder that is named is not there."""
    original = module.Server.call

    async def elsewhere(self: Any, method: str, path: str, within_s: float, **content: Any) -> Any:
        if path == "/arpo/expect":
            content["json"] = content["json"] | {"folder": "/nowhere"}
        return await original(self, method, path, within_s, **content)

    async def work() -> None:
        monkeypatch.setattr(module.Server, "call", elsewhere)
        await episode(engine, tiny, "a", turns=1)
        await engine.load(1, Weights(other_folder))
        assert furthest(other_folder, settings, await episode(engine, tiny, "b")) < CLOSE

    run(engine, work)


def test_a_training_samples_by_servers_and_gives_them_its_weights(
    serving: Serving, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner itself compares log-probabilities in its first update; the second samples with new weights."""
    monkeypatch.setenv("ARPO_TOKEN", TOKEN)
    settings = [f"train.model={tiny_folder}", "engine.name=vllm", f"engine.servers=[{','.join(serving.addresses)}]"]
    settings += ["train.updates=2", "train.rollout_tasks=1", "train.optimizer_tasks=1", "algorithm.group=2"]
    settings += ["tasks.source=shell-open-000", "tasks.max_steps=2", "train.max_tokens=12", "eval.max_tokens=12"]
    settings += ["eval.held_out=0", "agent.device=cpu", f"run_dir={tmp_path / 'run'}", "algorithm.format_reward=-1.0"]
    run_training(load_config("pocket", settings))
    with Run.read(tmp_path / "run") as run_:
        versions = {
            step.completion.version
            for one in run_.summaries(source="rollout")
            for step in run_.trajectory(one.id).steps
        }
        assert len(list(run_.metrics())) == 2
    assert versions == {0, 1}
    assert not any((tmp_path / "run" / "published").iterdir())  # what was written for servers alone
