"""Runs that end early: stopped by a person or the system, by numbers that are not finite, by a full disk."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from guesser import settings, train_in
from test_loop import GENTLY, LEARNS, checkpoints, equal, metrics, rollouts, weights

from arpo.algorithms.base import Weighed, make_algorithm
from arpo.algorithms.ppo import Ppo
from arpo.engines.local import engine as local
from arpo.errors import ConfigError, EnvError
from arpo.model.checkpoint import load_checkpoint
from arpo.runs.store import Run
from arpo.training import loop
from arpo.training import samples as samples_module
from arpo.training.base import Batch, LearnerError, NotFinite
from arpo.training.checkpoint import Checkpoints
from arpo.training.learner import LocalLearner
from arpo.training.rollouts import Rollouts
from arpo.training.samples import to_samples
from arpo.types import Sample, from_json

RARELY = GENTLY | {"save_every": 100}  # on its own it would save at the end alone


@pytest.fixture(scope="module")
def undisturbed(guesser_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    train_in(folder, guesser_folder, settings(LEARNS, **RARELY))
    return folder


# Cancelled


def cancel_at(owner: Any, name: str, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel the run inside the nth call of a function, in whatever thread it is called."""
    function: Callable[..., Any] = getattr(owner, name)
    calls = itertools.count(1)
    real_run = asyncio.run

    def run(work: Any) -> Any:
        async def watched() -> Any:
            here, this = asyncio.get_running_loop(), asyncio.current_task()
            assert this is not None

            def cancelling(*arguments: Any, **named: Any) -> Any:
                if next(calls) == call:
                    here.call_soon_threadsafe(this.cancel)
                    if threading.current_thread() is not threading.main_thread():
                        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), here).result()  # it has been heard
                return function(*arguments, **named)

            monkeypatch.setattr(owner, name, cancelling)
            return await work

        return real_run(watched())

    monkeypatch.setattr(asyncio, "run", run)


@pytest.mark.parametrize(
    ("owner", "name", "call", "finished"),
    [
        (Run, "add", 4, 0),
        (Run, "add", 9 + 9 + 4, 2),
        (LocalLearner, "self_test", 1, 1),  # a part of the first update, which is made first
        (LocalLearner, "update", 1, 1),
        (LocalLearner, "update", 3, 3),
        (Checkpoints, "publish", 2, 2),
        (local, "_take_over", 2, 2),
    ],
)
def test_what_was_finished_is_in_a_checkpoint_however_rare_they_are_and_the_run_goes_on_from_it(
    owner: Any,
    name: str,
    call: int,
    finished: int,
    guesser_folder: Path,
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = settings(LEARNS, **RARELY)
    with monkeypatch.context() as patch:
        cancel_at(owner, name, call, patch)
        with pytest.raises(asyncio.CancelledError):
            train_in(tmp_path, guesser_folder, config)
    place = tmp_path / "checkpoints"
    assert [path.name for path in place.glob("*")] == [f"update-{finished:05d}"] * (finished > 0)
    assert len(metrics(tmp_path)) == finished
    train_in(tmp_path, guesser_folder, config)
    assert metrics(tmp_path) == metrics(undisturbed)
    last = Path("checkpoints", "update-00004")
    assert equal(weights(tmp_path / last), weights(undisturbed / last))


# Whatever else goes wrong


@pytest.mark.parametrize(
    "error", [EnvError("it broke"), OSError(28, "full"), RuntimeError("a bug"), KeyboardInterrupt()]
)
@pytest.mark.parametrize("full", [False, True])
def test_what_was_finished_is_in_a_checkpoint_whatever_went_wrong_and_that_is_what_is_said(
    error: BaseException,
    full: bool,
    guesser_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = settings(LEARNS, **RARELY)
    groups, calls = Rollouts.groups, itertools.count()

    async def failing(*arguments: Any) -> Any:
        if next(calls) == 2:
            if full:
                patch.setattr(torch, "save", lambda *_: (_ for _ in ()).throw(OSError(28, "no room")))
            raise error
        return await groups(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Rollouts, "groups", failing)
        with pytest.raises(type(error)) as stopped:
            train_in(tmp_path, guesser_folder, config)
    assert stopped.value is error
    place = tmp_path / "checkpoints"
    assert [path.name for path in place.glob("update-?????")] == ["update-00002"] * (not full)
    told = "update 2 could not be saved, it will be made again" in caplog.text
    assert told == (full and not isinstance(error, OSError))  # where the disk stopped it, that is said once
    train_in(tmp_path, guesser_folder, config)
    assert [line["update"] for line in metrics(tmp_path)] == [0, 1, 2, 3]


def test_with_a_lag_a_failure_is_told_once(
    guesser_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the update that was to be made, and not of those that a lag had begun beside it."""

    async def die(self: Rollouts, tasks: Any, update: int, *_: Any) -> Any:
        raise EnvError(f"update {update} failed")

    monkeypatch.setattr(Rollouts, "play", die)
    with pytest.raises(EnvError, match="update 0 failed"):
        train_in(tmp_path, guesser_folder, settings(LEARNS, **GENTLY | {"lag": 2, "n_envs": 99}))
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_an_update_without_its_line_is_made_again(
    guesser_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner is one update further than what is known of it."""
    config = settings(LEARNS, **RARELY)
    calls = itertools.count()
    real = loop.episode_metrics

    def fill_the_disk(*of: Any) -> dict[str, float]:
        if next(calls) < 2:
            return real(*of)
        raise OSError(28, "")

    with monkeypatch.context() as patch:
        patch.setattr(loop, "episode_metrics", fill_the_disk)
        with pytest.raises(OSError):
            train_in(tmp_path, guesser_folder, config)
    assert not list((tmp_path / "checkpoints").glob("*"))
    train_in(tmp_path, guesser_folder, config)
    assert [line["update"] for line in metrics(tmp_path)] == [0, 1, 2, 3]


def test_a_store_that_lacks_what_is_to_be_replayed_is_one_line(guesser_folder: Path, tmp_path: Path) -> None:
    config = settings(LEARNS | {"name": "arpo"}, **GENTLY)
    train_in(tmp_path, guesser_folder, config)
    with Run.write(tmp_path, "") as run:
        name = next(episode.id for episode in run.summaries(source="rollout"))
        assert loop._stored(run, run.trajectory, name).id == name
        with pytest.raises(ConfigError, match=rf"{tmp_path}/run\.sqlite: lacks other, which a checkpoint"):
            loop._stored(run, run.trajectory, "other")


# Numbers that are not finite


@pytest.fixture(params=[0, 1])
def bad_step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """In which of the steps of the third update, of those that learn something, an advantage is no number."""
    calls = itertools.count(1)
    learning = itertools.count()

    def poisoned(*arguments: Any) -> list[Sample]:
        samples = to_samples(*arguments)
        third = next(calls) > 2 * GENTLY["rollout_tasks"]
        if third and samples and next(learning) == request.param:
            nothing = (float("nan"),) * len(samples[-1].logprobs)
            samples[-1] = dataclasses.replace(samples[-1], advantages=nothing)
        return samples

    monkeypatch.setattr(samples_module, "to_samples", poisoned)
    return int(request.param)


def test_what_is_no_number_stops_the_run_and_can_be_looked_at(
    bad_step: int, guesser_folder: Path, tmp_path: Path
) -> None:
    config = settings(LEARNS, **RARELY)
    with pytest.raises(LearnerError) as stopped:
        train_in(tmp_path, guesser_folder, config)
    bad, saved = tmp_path / "not-finite-00002", tmp_path / "checkpoints" / "update-00002"
    said = str(stopped.value)
    assert said.startswith(f"after 2 updates: the loss is nan; nothing of its batch was learned, see {bad}; ")
    assert "\n" not in said
    assert [line["update"] for line in metrics(tmp_path)] == [0, 1]
    if bad_step == 0:  # what was finished is all there is
        assert f"train.model={saved} " in said
        assert equal(weights(bad), weights(saved))
    else:  # between two steps: no update to go on from
        assert f"train.model={guesser_folder} " in said
        assert not saved.exists()
    with Run.read(tmp_path) as run:  # as the module of checkpoints says
        samples = [from_json(Sample, line) for line in (bad / "samples.jsonl").read_text().splitlines()]
        old = torch.load(bad / "old.pt")
        assert len(old) == (len(samples) if bad_step else 0)
        learner = LocalLearner(load_checkpoint(bad, "cpu"), config, make_algorithm(config.algorithm, config.seed))
        screens = {name: run.image(name) for sample in samples for name in sample.images}
        with pytest.raises(NotFinite, match="the loss is nan"):
            batch = Batch(tuple(samples), **json.loads((bad / "batch.json").read_text()))
            learner.step(batch, screens, old)


def test_the_value_head_is_kept_with_what_is_no_number(
    guesser_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count(1)
    weigh = Ppo.weigh

    def poisoned(self: Ppo, *arguments: Any) -> Weighed:
        weighed = weigh(self, *arguments)
        return Weighed([one * float("nan") for one in weighed.advantages]) if next(calls) > 2 else weighed

    monkeypatch.setattr(Ppo, "weigh", poisoned)
    config = settings({"name": "ppo"})
    with pytest.raises(LearnerError, match="the loss is nan"):
        train_in(tmp_path, guesser_folder, config)
    head = json.loads((tmp_path / "not-finite-00001" / "critic.json").read_text())
    assert head == json.loads((tmp_path / "checkpoints" / "update-00001" / "state.json").read_text())["critic"]
    assert any(head)


# The whole command, in a process of its own


def arpo(*arguments: str, setup: str = "", inside: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """`arpo train` with the fake environment in reach. `setup`: Python that runs first. `inside`: words before it."""
    script = Path(__file__).with_name("patched_arpo.py")
    run = f"sys.argv = {['arpo', 'train', *arguments]!r}\nrunpy.run_path({str(script)!r}, run_name='__main__')"
    return subprocess.Popen(
        [*inside, sys.executable, "-c", f"import runpy, sys\n{setup}\n{run}"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def begin(
    folder: Path, model: Path, *more: str, setup: str = "", inside: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    few = ("train.rollout_tasks=2", "train.optimizer_tasks=1", "train.max_tokens=16", "algorithm.group=2")
    judge = ("eval.trials=1", "eval.held_out=0")
    where = ("env.name=fake", "env.size=96x64", "tasks.source=train", f"train.model={model}", f"run_dir={folder}")
    return arpo("pocket", *few, *judge, *where, "train.updates=12", "train.lr=5e-5", *more, setup=setup, inside=inside)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate()
    return process.returncode, out, err


def wait_for(words: str, process: subprocess.Popen[str]) -> None:
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if line.startswith(words):
            return
    raise AssertionError(f"it ended without {words!r}: {said}")


def last_words(folder: Path) -> str:
    return f"stopped; to resume: arpo train --resume '{folder}'"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "how"), [(signal.SIGINT, "train.save_every=100"), (signal.SIGTERM, "train.lag=1")], ids=str
)
def test_a_signal_ends_a_run_with_all_it_has_and_says_the_way_back(
    number: signal.Signals, how: str, guesser_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "a run"
    process = begin(folder, guesser_folder, how)
    wait_for("update   2", process)
    process.send_signal(signal.SIGSTOP)
    locked = f"error: {folder}: process {process.pid} is writing to this run; wait, or choose another\n"
    assert ended(arpo("--resume", str(folder))) == (2, "", locked)
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    status, out, err = ended(process)
    assert (status, out, err.splitlines()[-1]) == (130, "", last_words(folder))
    done = len(metrics(folder))
    assert 2 <= done < 12
    saved = int(checkpoints(folder)[-1].removeprefix("update-"))
    assert saved in (done, done + 1)  # stopped between the two, the checkpoint has the line that is not logged
    status, _, err = ended(arpo("--resume", str(folder)))
    assert (status, next(line for line in err.splitlines() if " success " in line).split()[1]) == (0, str(done + 1))
    assert [line["update"] for line in metrics(folder)] == list(range(12))
    with Run.read(folder) as run:
        assert all(run.record(update) is not None for update in range(12))


@pytest.mark.slow
def test_a_second_signal_waits_for_nothing(guesser_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a run"
    endless = """
import time
from arpo.training.learner import LocalLearner
LocalLearner.update = lambda *_: (print("in the learner", file=sys.stderr, flush=True), time.sleep(9999))"""
    process = begin(folder, guesser_folder, setup=endless)
    wait_for("in the learner", process)
    process.send_signal(signal.SIGINT)
    wait_for("stopping", process)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, "", f"{last_words(folder)}\n")
    assert len(rollouts(folder)) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "place"), [("train.save_every=1", "update-00001.part"), ("train.save_every=9", "update-00009.part")]
)
def test_a_disk_that_fills_is_one_line_and_nothing_is_lost(
    how: str, place: str, guesser_folder: Path, tmp_path: Path
) -> None:
    """No file may be larger than half of the weights: what a full disk looks like to those who write."""
    folder, size = tmp_path / "a run", sum(path.stat().st_size for path in guesser_folder.glob("*.safetensors"))
    small = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size // 2},) * 2)"
    status, out, err = ended(begin(folder, guesser_folder, how, setup=small))
    assert (status, out) == (2, "")
    assert [line for line in err.splitlines() if " episodes" not in line] == [
        f"error: {folder / 'checkpoints' / place / 'model-0.part'}: File too large; {last_words(folder)}"
    ]
    before = {episode.id: episode for episode in rollouts(folder)}
    assert before
    assert ended(arpo("--resume", str(folder)))[0] == 0
    assert before.items() <= {episode.id: episode for episode in rollouts(folder)}.items()
    assert [line["update"] for line in metrics(folder)] == list(range(12))


DISK = "mount -t tmpfs -o size=32m disk $0 && echo mounted && exec sleep 3600"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[int]:
    """The process that has a small disk of its own at `tmp_path / "disk"`. Nobody else sees it, or must be root."""
    (place := tmp_path / "disk").mkdir()
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", DISK, str(place)]
    if sys.platform != "linux" or not shutil.which("unshare") or not shutil.which("nsenter"):
        pytest.skip("no file system can be mounted here")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdout is not None
        said = owner.stdout.readline()
        try:
            if said != "mounted\n":
                pytest.skip("no file system may be mounted here")
            yield owner.pid
        finally:
            owner.kill()


@pytest.mark.slow
def test_a_disk_that_others_fill_in_the_middle_is_one_line_and_with_space_the_run_goes_on(
    disk: int, guesser_folder: Path, tmp_path: Path
) -> None:
    folder, inside = tmp_path / "disk" / "a run", ("nsenter", "-t", str(disk), "-U", "-m", "--preserve-credentials")
    seen = Path(f"/proc/{disk}/root{folder}")  # from outside
    process = begin(folder, guesser_folder, "train.updates=1000", inside=inside)
    wait_for("update   2", process)
    with (seen.parent / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(bytes(4096))
    status, out, err = ended(process)
    assert (status, out) == (2, "")
    last = err.splitlines()[-1]
    full = last.partition(": ")[2].removeprefix(str(folder)).partition(": ")[2]
    assert full == f"No space left on device; {last_words(folder)}", err
    assert "Traceback" not in err
    (seen.parent / "ballast").unlink()
    early, late = (Path(shutil.copytree(seen, tmp_path / "early")), tmp_path / "late")  # to be read by this process
    before, done = {episode.id: episode for episode in rollouts(early)}, len(metrics(early))
    assert before and done >= 2
    status, _, err = ended(arpo("--resume", str(folder), f"train.updates={done + 2}", inside=inside))
    assert status == 0, err
    shutil.copytree(seen, late)
    assert before.items() <= {episode.id: episode for episode in rollouts(late)}.items()
    assert [line["update"] for line in metrics(late)] == list(range(done + 2))


# A device that fails

OUT = 'torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")'
LOST = 'RuntimeError("CUDA error: unspecified launch failure\\nCUDA kernel errors might be asynchronously reported")'


def failing(owner: str, name: str, call: int, error: str) -> str:
    """Python after which the nth call of a method fails."""
    module, _, kind = owner.rpartition(".")
    return f"""
import itertools, torch
from {module} import {kind}
real, calls = {kind}.{name}, itertools.count(1)
def fail(*arguments, **named):
    if next(calls) >= {call}:
        raise {error}
    return real(*arguments, **named)
{kind}.{name} = fail"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "call", "error", "said", "limits"),
    [
        ("arpo.training.learner.LocalLearner", "update", 4, OUT, "while learning: ", ["train.checkpointing=true"]),
        ("arpo.training.learner.LocalLearner", "update", 4, LOST, "the device failed (while learning: ", []),
        ("arpo.engines.local.LocalEngine", "_step", 200, OUT, "while sampling: ", ["train.n_envs=2", "eval.n_envs=2"]),
        ("arpo.engines.local.LocalEngine", "_step", 200, LOST, "the device failed (while sampling: ", []),
    ],
    ids=["learner out of memory", "learner lost", "engine out of memory", "engine lost"],
)
def test_a_device_that_fails_is_one_line_and_the_run_goes_on_from_what_was_finished(
    owner: str, name: str, call: int, error: str, said: str, limits: list[str], guesser_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    more = ("train.save_every=100", "train.n_envs=4", "eval.n_envs=4")
    status, out, err = ended(begin(folder, guesser_folder, *more, setup=failing(owner, name, call, error)))
    assert (status, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("error: ") and said in last and "Traceback" not in err
    assert last.endswith(" ".join([f"stopped; to resume: arpo train --resume {folder}", *limits]))
    done = len(metrics(folder))
    before = {episode.id: episode for episode in rollouts(folder)}
    assert before and 1 <= done < 12
    assert all(episode.outcome.valid for episode in before.values())  # a device's failure is no episode's
    assert checkpoints(folder)[-1] == f"update-{done:05d}"
    assert ended(arpo("--resume", str(folder), *limits))[0] == 0
    assert before.items() <= {episode.id: episode for episode in rollouts(folder)}.items()
    assert [line["update"] for line in metrics(folder)] == list(range(12))
