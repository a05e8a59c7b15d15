"""Checkpoints: which are kept, and that each is an agent of its own."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
import torch
from guesser import settings

from arpo.algorithms.base import make_algorithm
from arpo.errors import ConfigError
from arpo.model.checkpoint import load_checkpoint
from arpo.runs.checkpoints import RECENT, best_in, checkpoints_in
from arpo.training.checkpoint import Checkpoints
from arpo.training.learner import LocalLearner


def learner_of(folder: Path, **train: int) -> LocalLearner:
    config = settings({"name": "arpo"}, **train)
    return LocalLearner(load_checkpoint(folder, "cpu"), config, make_algorithm(config.algorithm, config.seed))


@pytest.fixture
def learner(guesser_folder: Path) -> LocalLearner:
    return learner_of(guesser_folder)


def save(checkpoints: Checkpoints, learner: LocalLearner, success: float, due: bool = True) -> None:
    """One more update that had this success."""
    learner.version += 1
    line = {"update": learner.version - 1, "success": success}
    checkpoints.finished(line)
    if due:
        checkpoints.save(learner, learner.algorithm)
        checkpoints.wait()


def names(*versions: int) -> list[str]:
    return [f"update-{version:05d}" for version in versions]


SUCCESS = [0.9, 0.1, 0.1, 0.1, 0.5, 0.9, 0.6, 0.6, 0.2, 0.3, 0.1, 0.2]
"""The best four in a row end with the eighth; the first and the sixth were good for themselves alone."""


@pytest.mark.parametrize("restart", [False, True])
def test_the_newest_are_kept_and_the_one_with_the_best_recent_success(
    learner: LocalLearner, tmp_path: Path, restart: bool
) -> None:
    means = [fmean(SUCCESS[i : i + RECENT]) for i in range(len(SUCCESS) - RECENT + 1)]
    assert max(means) == means[8 - RECENT]
    checkpoints = Checkpoints(tmp_path, keep=2)
    kept = []
    for success in SUCCESS:
        if restart and checkpoints.newest:
            checkpoints = Checkpoints(tmp_path, keep=2)
            assert checkpoints.restore(learner, learner.algorithm) == checkpoints.newest
        save(checkpoints, learner, success)
        kept.append([path.name for path in checkpoints_in(checkpoints.folder)])
    assert kept[0] == names(1) and kept[3] == names(3, 4)  # with fewer behind them they cannot be compared
    assert kept[8:] == [names(8, 9), names(8, 9, 10), names(8, 10, 11), names(8, 11, 12)]
    assert best_in(tmp_path) == tmp_path / "update-00008"


def test_updates_between_checkpoints_count_for_the_best(learner: LocalLearner, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    for version, success in enumerate(SUCCESS, start=1):
        save(checkpoints, learner, success, due=version % 4 == 0)
    assert [path.name for path in checkpoints_in(checkpoints.folder)] == names(8, 12)


def test_equal_ones_are_as_good_as_the_newest(learner: LocalLearner, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for success in [0.5] * (RECENT + 2):
        save(checkpoints, learner, success)
    assert best_in(tmp_path) == checkpoints.newest


# Damaged, or of another machine


def damage(file: Path, content: bytes | None) -> None:
    """Cut in half, replaced, or gone."""
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content or file.read_bytes()[: file.stat().st_size // 2])


@pytest.mark.parametrize("content", [b"", b"{}\n", b"\x80\x02rubbish", None], ids=["cut", "json", "rubbish", "gone"])
@pytest.mark.parametrize("name", ["state.json", "optimizer.pt", "model.safetensors", "config.json"])
@pytest.mark.parametrize("before", [True, False])
def test_a_damaged_checkpoint_is_one_line_with_the_way_to_the_one_before(
    name: str, content: bytes | None, before: bool, learner: LocalLearner, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for _ in range(1 + before):
        save(checkpoints, learner, 0.5)
    newest = checkpoints.newest
    assert newest is not None
    damage(newest / name, content)
    with pytest.raises(ConfigError) as refused:
        Checkpoints(tmp_path, keep=2).restore(learner, learner.algorithm)
    line = str(refused.value)
    assert line.startswith(str(newest)) and "\n" not in line
    then = "from update-00001" if before else "from its beginning, with the episodes that are stored"
    assert line.endswith(f"; rename {newest.name} to {newest.name}.damaged, and the run goes on {then}")
    newest.rename(f"{newest}.damaged")
    again = Checkpoints(tmp_path, keep=2)
    assert again.restore(learner, learner.algorithm) == (tmp_path / "update-00001" if before else None)
    for _ in range(3):  # and it is never removed
        save(again, learner, 0.5)
    assert Path(f"{newest}.damaged").is_dir()


def test_a_damaged_checkpoint_that_is_not_the_newest_is_said_before_the_work(
    learner: LocalLearner, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for _ in range(3):
        save(checkpoints, learner, 0.5)
    damage(tmp_path / "update-00002" / "state.json", b"")
    with pytest.raises(ConfigError, match=r"update-00002/state\.json: cannot be read"):
        Checkpoints(tmp_path, keep=3).restore(learner, learner.algorithm)


@pytest.mark.parametrize("rank", [0, 2])
def test_what_a_gpu_wrote_is_read_where_there_is_none(
    guesser_folder: Path, tmp_path: Path, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learner_of(guesser_folder, lora_rank=rank)
    for weight in learner.parameters:
        weight.grad = torch.ones_like(weight)
    learner.optimizer.step()
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:7")  # as such files say it
        save(Checkpoints(tmp_path, keep=1), learner, 0.5)
    other = learner_of(guesser_folder, lora_rank=rank)
    assert Checkpoints(tmp_path, keep=1).restore(other, other.algorithm) == tmp_path / "update-00001"
    moments = [learner.optimizer.state_dict()["state"][0], other.optimizer.state_dict()["state"][0]]
    assert torch.equal(moments[0]["exp_avg"], moments[1]["exp_avg"]) and moments[1]["exp_avg"].device.type == "cpu"
    assert all(torch.equal(*pair) for pair in zip(learner.parameters, other.parameters, strict=True))


@pytest.mark.parametrize("own", [True, False])
def test_a_checkpoint_has_the_prompt_that_it_was_trained_with(guesser_folder: Path, tmp_path: Path, own: bool) -> None:
    (tmp_path / "mine").write_text("Mine: {instruction}")
    prompt = tmp_path / "mine" if own else None
    checkpoints = Checkpoints(tmp_path / "checkpoints", 1, str(guesser_folder), prompt)
    save(checkpoints, learner_of(guesser_folder), 0.5)
    expected = tmp_path / "mine" if own else guesser_folder / "prompt.txt"
    assert checkpoints.newest is not None
    assert (checkpoints.newest / "prompt.txt").read_text() == expected.read_text()


# From somebody else


def moments_of(learner: LocalLearner, tensor: torch.Tensor) -> dict[str, object]:
    state = {0: {"step": torch.tensor(1.0), "exp_avg": tensor, "exp_avg_sq": tensor}}
    return {"state": state, "param_groups": learner.optimizer.state_dict()["param_groups"]}


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('it ran')",)


def packed(folder: Path, learner: LocalLearner) -> None:
    """The same file with its parts deflated: a thousand times smaller than what it becomes."""
    torch.save(moments_of(learner, torch.zeros_like(learner.parameters[0])), folder / "plain.pt")
    with zipfile.ZipFile(folder / "plain.pt") as plain, zipfile.ZipFile(folder / "optimizer.pt", "w") as small:
        for part in plain.infolist():
            small.writestr(part.filename, plain.read(part), zipfile.ZIP_DEFLATED)


OPTIMIZERS: dict[str, Callable[[Path, LocalLearner], object]] = {
    "a pickle": lambda folder, learner: torch.save({"state": Evil()}, folder / "optimizer.pt"),
    "an old pickle": lambda folder, learner: (folder / "optimizer.pt").write_bytes(pickle.dumps(Evil())),
    "a view without end": lambda folder, learner: torch.save(
        moments_of(learner, torch.zeros(1).expand(10**12)), folder / "optimizer.pt"
    ),
    "another shape": lambda folder, learner: torch.save(moments_of(learner, torch.zeros(3)), folder / "optimizer.pt"),
    "of no weight": lambda folder, learner: torch.save(
        {"state": {10**6: {"a": torch.zeros(3)}}}, folder / "optimizer.pt"
    ),
    "a list": lambda folder, learner: torch.save([1], folder / "optimizer.pt"),
    "packed": packed,
}


@pytest.mark.attack("checkpoint")
@pytest.mark.parametrize("what", OPTIMIZERS)
def test_the_state_of_an_optimiser_is_tensors_of_the_models_shapes_or_refused(
    what: str, learner: LocalLearner, tmp_path: Path
) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, learner, 0.5)
    OPTIMIZERS[what](tmp_path / "update-00001", learner)
    with pytest.raises(ConfigError, match="update-00001: cannot be read") as refused:
        Checkpoints(tmp_path).restore(learner, learner.algorithm)
    assert str(refused.value).isprintable()


@pytest.mark.attack("checkpoint")
@pytest.mark.parametrize(
    "change",
    [{"version": 10**4000}, {"version": 7}, {"steps": "many"}, {"steps": None}, {"recent": ["a"]}, {"recent": []},
     {"replay": {"t": [[1, 2]]}}, {"replay": {"t": 3}}, {"line": []}],
    ids=range(9),
)  # fmt: skip
def test_a_state_of_any_other_kind_is_refused(change: dict[str, object], learner: LocalLearner, tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), learner, 0.5)
    file = tmp_path / "update-00001" / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ConfigError, match="cannot be read") as refused:
        Checkpoints(tmp_path).restore(learner, learner.algorithm)
    assert str(refused.value).isprintable() and len(str(refused.value)) < 5000
