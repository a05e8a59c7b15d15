"""The vLLM engine against stand-ins for servers, which do what real ones cannot be made to (standin_server.py)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from stalling_proxy import Stalling
from standin_server import TOKENS, StandIn

import plain
from arpo.config import load_config
from arpo.engines import answers
from arpo.engines.base import Prompt, Sampling, Weights, make_engine
from arpo.engines.vllm import engine as module
from arpo.engines.vllm import serve
from arpo.engines.vllm.client import Lost, Published
from arpo.engines.vllm.engine import VllmEngine
from arpo.engines.vllm.guard import Guard, Refused, files_of, name_of
from arpo.errors import ConfigError, ContextTooLong, EngineError
from arpo.model.checkpoint import Checkpoint, load_checkpoint
from arpo.training.command import run_training

SETTINGS = Sampling(1.0, 1.0, 2)
Work = Callable[[VllmEngine, list[StandIn]], Awaitable[None]]


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.05)


@pytest.fixture
def weights(tiny_folder: Path) -> Published:
    files = files_of(tiny_folder)
    return Published(0, name_of(files), files, tiny_folder)


@pytest.fixture
def prompt(tiny: Checkpoint) -> Prompt:
    return plain.add_screen(tiny, Prompt(tiny.vocabulary.encode("some words"), ()), "", plain.screen(0))


def played(tiny: Checkpoint, weights: Published, work: Work, servers: int = 2, turn_s: float = 60.0) -> None:
    async def all_of_it() -> None:
        stand_ins = [await StandIn(tiny, weights.name).__aenter__() for _ in range(servers)]
        addresses = [one.address for one in stand_ins]
        engine = VllmEngine(tiny, addresses, "token", weights, max_context=600, turn_s=turn_s)
        try:
            await work(engine, stand_ins)
        finally:
            await engine.aclose()
            for one in stand_ins:
                await one.__aexit__()

    asyncio.run(asyncio.wait_for(all_of_it(), 120))


def test_a_turn_is_asked_and_answered(tiny: Checkpoint, weights: Published, prompt: Prompt) -> None:
    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        completion = await engine.generate("a", prompt, Sampling(0.7, 0.9, 2, (TOKENS[-1],)), seed=2**80 + 3)
        assert completion.tokens == TOKENS and completion.logprobs == (-0.5, -0.5)
        assert (completion.version, completion.temperature, completion.finish) == (0, 0.7, "stop")
        (question,) = servers[0].asked + servers[1].asked
        settings = question["sampling_params"]
        assert question["token_ids"] == list(prompt.ids)  # one pad an image
        assert settings["temperature"] == 0.7 and settings["top_p"] == 0.9 and settings["stop_token_ids"] == [6]
        assert set(settings["logit_bias"].values()) == {-1e30} and len(settings["logit_bias"]) == 4
        assert (await engine.generate("b", prompt, Sampling(0.0, 1.0, 2), 0)).logprobs == (0.0, 0.0)

    played(tiny, weights, work)


def test_no_connection_is_kept_for_later(tiny: Checkpoint, weights: Published, prompt: Prompt) -> None:
    """httpx loses kept ones where a call is cancelled while it closes those that are too old."""

    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        await engine.generate("a", prompt, SETTINGS, 0)
        assert len(servers[0].connections) > 1 and set(servers[0].connections) == {"close"}

    played(tiny, weights, work, servers=1)


def test_a_prompt_that_does_not_fit_is_refused_before_it_is_sent(
    tiny: Checkpoint, weights: Published, prompt: Prompt
) -> None:
    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        with pytest.raises(ContextTooLong):
            await engine.generate("a", prompt, Sampling(max_tokens=590), 0)
        with pytest.raises(ValueError, match="images"):
            await engine.generate("a", Prompt(prompt.ids, ()), SETTINGS, 0)
        assert not servers[0].asked

    played(tiny, weights, work, servers=1)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("other prompt", "saw another prompt"),
        ("other tokens", "not those of its tokens"),
        ("no number", "no numbers"),
        ("too short", "broke off after 1 tokens"),
        ("nonsense", "no tokens in it"),
        ("no prompt", "no tokens in it"),
        ("endless", "no tokens in it"),
        ("likelier than sure", "no numbers"),
        ("token -1", "no reply can have"),
        ("token 1000000", "no reply can have"),
        ("token 1099511627776", "no reply can have"),
        ("token of a screenshot", "no reply can have"),
    ],
)
def test_an_answer_to_something_else_is_an_engine_error(
    tiny: Checkpoint, weights: Published, prompt: Prompt, act: str, said: str
) -> None:
    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        servers[0].next = [act]
        with pytest.raises(EngineError, match=said):
            await engine.generate("a", prompt, SETTINGS, 0)

    played(tiny, weights, work, servers=1)


def test_a_server_that_answers_nonsense_does_not_draw_every_episode(
    tiny: Checkpoint, weights: Published, prompt: Prompt
) -> None:
    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        servers[0].next = ["nonsense"] * 100
        for number in range(10):
            assert (await engine.generate(f"episode {number}", prompt, SETTINGS, number)).tokens == TOKENS
            await engine.release(f"episode {number}")

    played(tiny, weights, work)


def test_a_server_whose_state_is_nonsense_is_looked_at_again(
    tiny: Checkpoint, weights: Published, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.05)

    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        await engine.generate("a", prompt, SETTINGS, 0)
        servers[0].max_context = None
        while not engine._servers[0].why:
            await asyncio.sleep(0.01)
        servers[0].max_context = 600
        while engine._servers[0].why:
            await asyncio.sleep(0.01)
        await engine.generate("a", prompt, SETTINGS, 0)

    played(tiny, weights, work, servers=1)


def test_an_answer_that_is_too_long_is_not_read(
    tiny: Checkpoint, weights: Published, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        with pytest.raises(Lost, match="more than 100 bytes"):
            await engine._servers[0].state()

    monkeypatch.setattr(answers, "LONGEST", 100)
    played(tiny, weights, work, servers=1)


def test_weights_that_changed_where_they_lie_are_not_taken_for_those_that_were_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner of several ranks writes each version to the same folder."""
    given = {"token": "t", "model": "m", "weights": "0" * 64, "incoming": str(tmp_path / "incoming"), "limits": {}}
    monkeypatch.setenv("ARPO_SERVING", json.dumps(given))
    file = tmp_path / "published" / "model.safetensors"
    file.parent.mkdir()
    file.write_bytes(b"version 1")
    files = files_of(file.parent)

    async def work() -> None:
        guard = Guard(lambda *_: None)
        asked = {"files": files, "folder": str(file.parent)}
        assert await guard._expect(asked) == {"missing": []}
        file.unlink()
        file.write_bytes(b"version 2")
        with pytest.raises(Refused):
            await guard._load(None, name_of(files))
        assert await guard._expect(asked) == {"missing": ["model.safetensors"]}

    asyncio.run(work())


@pytest.mark.parametrize("act", ["break", "cut off", "hang"])
def test_where_a_server_fails_another_is_asked_and_the_first_is_used_again(
    tiny: Checkpoint, weights: Published, prompt: Prompt, act: str
) -> None:
    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        for one in servers:
            one.next = [act]
        assert (await engine.generate("a", prompt, SETTINGS, 0)).tokens == TOKENS
        for session in "bcdefgh":
            assert (await engine.generate(session, prompt, SETTINGS, 0)).tokens == TOKENS
        assert all(len(one.asked) > 1 for one in servers)

    played(tiny, weights, work, turn_s=1.0 if act == "hang" else 60.0)


@pytest.mark.parametrize("moment", ["in a turn", "while weights load"])
def test_where_the_network_to_a_server_stalls_another_is_asked_and_the_first_is_used_again(
    tiny: Checkpoint,
    weights: Published,
    prompt: Prompt,
    other_folder: Path,
    moment: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No connection is closed and none refused: there is just no answer. The limit of a turn is far away."""
    monkeypatch.setattr("arpo.engines.vllm.client.ANSWER_S", 4.0)
    numbers = itertools.count()

    async def turns(engine: VllmEngine) -> list[int]:
        names = [f"{next(numbers)}" for _ in range(4)]  # of new sessions, which go to either server
        return [one.version for one in await asyncio.gather(*(engine.generate(i, prompt, SETTINGS, 0) for i in names))]

    async def work(_: VllmEngine, servers: list[StandIn]) -> None:
        async with Stalling(servers[0].address) as network:
            addresses = [network.address, servers[1].address]
            engine = VllmEngine(tiny, addresses, "token", weights, max_context=600, turn_s=3600.0)
            try:
                while not all(one.asked for one in servers):
                    await turns(engine)
                network.stall()
                if moment == "while weights load":
                    await engine.load(1, Weights(other_folder))
                assert set(await turns(engine)) == {engine.version}
                while not engine._servers[0].why:
                    await asyncio.sleep(0.05)
                before = len(servers[0].asked)
                network.go_on()
                while engine._servers[0].why:
                    await asyncio.sleep(0.05)
                await engine._lose(engine._servers[1], "so that the first is asked")
                while len(servers[0].asked) == before:
                    assert set(await turns(engine)) == {engine.version}
                assert servers[0].weights == servers[1].weights
            finally:
                await engine.aclose()

    played(tiny, weights, work)


def test_where_no_server_finishes_a_turn_it_is_an_engine_error(
    tiny: Checkpoint, weights: Published, prompt: Prompt
) -> None:
    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        servers[0].next = ["break"] * 9
        with pytest.raises(EngineError, match="status 500: it broke"):
            await engine.generate("a", prompt, SETTINGS, 0)

    played(tiny, weights, work, servers=1)


def test_an_episode_stays_with_its_server_and_episodes_are_shared_out(
    tiny: Checkpoint, weights: Published, prompt: Prompt
) -> None:
    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        await engine.generate("first", prompt, SETTINGS, 0)
        while any(server.why for server in engine._servers):
            await asyncio.sleep(0.01)
        for _ in range(3):
            await asyncio.gather(*(engine.generate(f"{i}", prompt, SETTINGS, 0) for i in range(7)))
        assert {len(one.asked) for one in servers} in ({10, 12}, {11}, {13, 9})
        assert all(len(server.sessions) == 4 for server in engine._servers)
        for i in range(7):
            await engine.release(f"{i}")
        assert sum(len(server.sessions) for server in engine._servers) == 1

    played(tiny, weights, work)


def test_a_screenshot_is_sent_once_and_again_where_it_was_forgotten(
    tiny: Checkpoint, weights: Published, prompt: Prompt
) -> None:
    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        await engine.generate("a", prompt, SETTINGS, 0)
        await engine.generate("a", prompt, SETTINGS, 1)
        servers[0].next = ["forget"]
        await engine.generate("a", prompt, SETTINGS, 2)
        sent = [question["content_parts"][0]["url"] is not None for question in servers[0].asked]
        assert sent == [True, False, False, True]

    played(tiny, weights, work, servers=1)


def test_running_turns_end_before_weights_change_and_no_turn_begins_meanwhile(
    tiny: Checkpoint, weights: Published, prompt: Prompt, other_folder: Path
) -> None:
    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        old = [asyncio.create_task(engine.generate(f"{i}", prompt, SETTINGS, i)) for i in range(6)]
        await asyncio.sleep(0.2)
        for version in (1, 2):
            loading = asyncio.create_task(engine.load(version, Weights(other_folder)))
            await asyncio.sleep(0.01)
            new = [asyncio.create_task(engine.generate(f"{version}{i}", prompt, SETTINGS, i)) for i in range(6)]
            await loading
            assert {(await one).version for one in new} <= {version - 1, version}
        assert {(await one).version for one in old} == {0}
        assert (await engine.generate("last", prompt, SETTINGS, 0)).version == 2
        assert all(one.weights == name_of(files_of(other_folder)) for one in servers)
        assert max(one.at_once for one in servers) > 1

    played(tiny, weights, work)


def test_a_server_that_was_started_anew_gets_the_weights_of_the_day_before_it_is_used(
    tiny: Checkpoint, weights: Published, prompt: Prompt, other_folder: Path
) -> None:
    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        await engine.load(1, Weights(other_folder))
        await engine.generate("a", prompt, SETTINGS, 0)
        servers[0].weights = weights.name  # as it begins
        for i in range(4):
            assert (await engine.generate(f"{i}", prompt, SETTINGS, 0)).version == 1
        assert servers[0].loaded == [name_of(files_of(other_folder))] * 2

    played(tiny, weights, work, servers=1)


def test_a_version_that_no_server_loads_or_that_is_none_is_said_in_one_line(
    tiny: Checkpoint, weights: Published, prompt: Prompt, other_folder: Path, tmp_path: Path
) -> None:
    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        await engine.generate("a", prompt, SETTINGS, 0)
        with pytest.raises(ConfigError, match=r"config\.json"):
            await engine.load(1, Weights(tmp_path))
        with pytest.raises(ConfigError, match="other shapes"):
            await engine.load(1, Weights(load_base()))
        assert (await engine.generate("a", prompt, SETTINGS, 0)).version == 0  # the old ones stay
        servers[0].next = ["refuse weights"]
        with pytest.raises(EngineError, match=r"version 1 could not be loaded: .*they do not load"):
            await engine.load(1, Weights(other_folder))

    played(tiny, weights, work, servers=1)


def load_base() -> Path:
    from arpo.model.checkpoint import find_checkpoint

    return find_checkpoint("base")


def test_weights_of_a_learner_are_written_whole_to_a_folder_a_version(
    tiny: Checkpoint, weights: Published, other_folder: Path, tmp_path: Path
) -> None:
    from arpo.model.checkpoint import save_model

    def save(folder: Path) -> None:
        save_model(load_checkpoint(other_folder, "cpu").model, folder)

    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        for version in (1, 2):
            await engine.load(version, Weights(tmp_path / "published", save=save))
            assert [place.name for place in (tmp_path / "published").iterdir()] == [f"version-{version:05d}"]
        await engine.load(3, Weights(other_folder))
        await engine.load(4, Weights(weights.folder))
        await engine.load(5, Weights(tmp_path / "published", save=save))
        await engine.aclose()
        assert [*(tmp_path / "published").iterdir()] == []
        assert other_folder.is_dir() and weights.folder.is_dir()  # these are somebody else's

    played(tiny, weights, work, servers=1)


def test_what_a_user_can_get_wrong_with_servers_is_said_in_one_line(
    tiny: Checkpoint, weights: Published, prompt: Prompt, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)

    async def work(engine: VllmEngine, servers: list[StandIn]) -> None:
        (server,) = servers
        for token, model, address, said in (
            ("wrong", server.model, server.address, "the token is wrong: ARPO_TOKEN"),
            ("token", "another", server.address, "serves another model"),
            ("token", server.model, "http://127.0.0.1:9", "no server there"),
            ("token", server.model, server.address, "serves contexts of 600 tokens"),
        ):
            server.token, server.model = token, model
            one = VllmEngine(tiny, [address], "token", weights, max_context=600 + ("contexts" in said))
            with pytest.raises(ConfigError, match=f"engine.servers={address}: .*{said}"):
                await one.generate("a", prompt, SETTINGS, 0)
            await one.aclose()
            server.model = engine_shape(tiny)

    played(tiny, weights, work, servers=1)


def engine_shape(tiny: Checkpoint) -> str:
    return module.shape_of(tiny.config)


def test_without_vllm_or_a_token_one_line_says_what_to_do(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ARPO_TOKEN", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = load_config(None, ["engine.name=vllm", "agent.device=cpu"])
    with pytest.raises(ConfigError, match="to install it: make vllm"):
        make_engine(config, str(tiny_folder), 1)
    named = config.with_values({"engine.servers": ["http://127.0.0.1:9"]})
    with pytest.raises(ConfigError, match="ARPO_TOKEN"):
        make_engine(named, str(tiny_folder), 1)
    with pytest.raises(ConfigError, match="there is no such program"):
        make_engine(config.with_values({"engine.python": "/nowhere/python"}), str(tiny_folder), 1)
    with pytest.raises(ConfigError, match="for `arpo eval` only"):
        run_training(load_config("pocket", ["engine.name=openai", f"run_dir={tmp_path / 'run'}"]))


DEAF = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_server_that_does_not_end_when_it_is_asked_to_is_killed(tmp_path: Path, asked_first: bool) -> None:
    command = ["sh", "-c", serve.SUPERVISE, str(tmp_path / "incoming"), sys.executable, "-c", DEAF]
    shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert shell.stdout is not None and shell.stdin is not None and shell.stdout.readline() == b"up\n"
    try:
        if asked_first:
            serve._signal(serve._Replica(0, None, shell), signal.SIGTERM)
        shell.stdin.close()  # as where who started it was killed
        shell.stdin = None
        assert shell.communicate(timeout=60)[0] == b""  # none has it open any more: the deaf one has ended too
        assert shell.returncode == -signal.SIGKILL
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)


SHARING = """
import multiprocessing, os, time
from multiprocessing.shared_memory import SharedMemory
def share(pipe):
    kept = SharedMemory(create=True, size=9)
    pipe.send(kept.name)
    time.sleep(600)
if __name__ == "__main__":
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    kept = SharedMemory(create=True, size=9)  # its tracker is there before the child, as with vLLM
    child = multiprocessing.get_context("fork").Process(target=share, args=(theirs,))
    child.start()
    print(kept.name, ours.recv(), os.getpid(), child.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="shared memory cannot be seen here")
@pytest.mark.parametrize("who", ["the first process", "another", "all", "its user", "its user while it hangs"])
def test_a_server_that_is_killed_leaves_no_shared_memory(tmp_path: Path, who: str) -> None:
    command = ["sh", "-c", serve.SUPERVISE, str(tmp_path / "incoming"), sys.executable, "-c", SHARING]
    shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert shell.stdout is not None and shell.stdin is not None
    try:
        *names, first, child = shell.stdout.readline().decode().split()
        assert all((Path("/dev/shm") / name).exists() for name in names)
        if who.endswith("hangs"):
            for pid in (first, child):
                os.kill(int(pid), signal.SIGSTOP)
        for pid in {"the first process": [first], "all": [first, child], "another": [child, first]}.get(who, []):
            os.kill(int(pid), signal.SIGKILL)
        if who.startswith("its user"):
            shell.stdin.close()
            shell.stdin = None
        assert shell.communicate(timeout=60)[0] == b""
        assert not any((Path("/dev/shm") / name).exists() for name in names)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)


def test_another_program_at_its_port_is_no_server_and_no_exception() -> None:
    fleet = object.__new__(serve.Fleet)  # without servers of its own
    fleet._host, fleet.token = "127.0.0.1", "token"
    with socket.create_server(("127.0.0.1", 0)) as port:

        def speak() -> None:
            with port.accept()[0] as connection:
                connection.recv(9999)
                connection.sendall(b"SSH-2.0-Other\r\n")

        threading.Thread(target=speak, daemon=True).start()
        assert not fleet._answers(serve._Replica(port.getsockname()[1], None))


@pytest.mark.parametrize(("learner", "taken"), [(0, ["2", "1", "0"]), (1, ["2", "0", "1"])])
def test_servers_take_a_learners_gpu_last(
    learner: int, taken: list[str], tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    fleet = serve.Fleet(str(tiny_folder), 3, python=sys.executable, shared=learner)
    assert [one.gpus for one in fleet._replicas] == taken
