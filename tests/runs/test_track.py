"""Metrics beside metrics.jsonl: what TensorBoard and Weights & Biases would show is what was logged."""

from __future__ import annotations

import json
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]
from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

from arpo.config import Config
from arpo.errors import ConfigError
from arpo.images import decode
from arpo.runs.store import Run
from arpo.runs.track import tracking


def track_in(folder: Path, names: list[str], updates: range, success: float) -> None:
    """One session of a run that makes these updates."""
    with Run.write(folder, "") as run, tracking(names, run, Config()) as track:
        for update in updates:
            track({"update": update, "success": success, "env_steps": 7 + update})


def shown_by_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {name: {event.step: event.value for event in events.Scalars(name)} for name in events.Tags()["scalars"]}


def records(file: Path) -> Iterator[bytes]:
    """Of a .wandb file: 7 bytes for the file, then blocks of 32 kB with records that may go on in the next one."""
    data, place, record = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # no room for a header: the block ends
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def shown_by_wandb(folder: Path) -> list[dict[str, float]]:
    found = []
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for data in records(file):
            record = Record()
            record.ParseFromString(data)
            if record.HasField("history"):
                items = {item.key or ".".join(item.nested_key): item.value_json for item in record.history.item}
                found.append({name: json.loads(value) for name, value in items.items()})
    return found


def test_tensorboard_shows_every_update_once_also_those_that_were_made_again(tmp_path: Path) -> None:
    track_in(tmp_path, ["tensorboard"], range(4), success=0.25)
    track_in(tmp_path, ["tensorboard"], range(2, 6), success=0.5)
    assert shown_by_tensorboard(tmp_path) == {
        "success": {0: 0.25, 1: 0.25, 2: 0.5, 3: 0.5, 4: 0.5, 5: 0.5},
        "env_steps": {update: 7.0 + update for update in range(6)},
    }


def test_wandb_keeps_all_in_the_run_where_there_is_no_network(tmp_path: Path) -> None:
    track_in(tmp_path, ["wandb-offline"], range(2), success=0.25)
    track_in(tmp_path, ["wandb-offline"], range(2, 3), success=0.5)
    deadline = time.monotonic() + 30
    while len(shown_by_wandb(tmp_path)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)  # wandb's own process may write the end a moment after it said that it has finished
    shown = [(line["_step"], line["success"], line["env_steps"]) for line in shown_by_wandb(tmp_path)]
    assert shown == [(0, 0.25, 7), (1, 0.25, 8), (2, 0.5, 9)]
    with Run.read(tmp_path) as run:
        name = run.fact("wandb")
    assert {path.name for path in tmp_path.glob("wandb/offline-run-*/run-*.wandb")} == {f"run-{name}.wandb"}


def picture(shade: int) -> Image.Image:
    return Image.new("RGB", (30, 20), (shade, 0, 0))


def show_in(folder: Path, names: list[str]) -> None:
    """A session with pictures before the first update and after the last, as a training has them."""
    with Run.write(folder, "") as run, tracking(names, run, Config()) as track:
        track.show(0, {"base agent/failure": picture(10)})
        for update in range(2):
            track({"update": update, "success": 0.5})
        track.show(1, {"trained agent/success": picture(20), "trained agent/failure": picture(30)})


def test_tensorboard_shows_pictures_beside_the_metrics_also_after_the_run_was_made_longer(tmp_path: Path) -> None:
    show_in(tmp_path, ["tensorboard"])
    track_in(tmp_path, ["tensorboard"], range(2, 4), success=0.5)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = {name: events.Images(name) for name in events.Tags()["images"]}
    assert {name: [one.step for one in images] for name, images in shown.items()} == {
        "base agent/failure": [0],
        "trained agent/success": [1],
        "trained agent/failure": [1],
    }
    pixels = decode(shown["trained agent/success"][0].encoded_image_string)
    assert pixels.shape == (20, 30, 3) and pixels[0, 0].tolist() == [20, 0, 0]
    assert shown_by_tensorboard(tmp_path)["success"] == dict.fromkeys(range(4), 0.5)


def test_wandb_keeps_pictures_beside_the_metrics_of_their_update(tmp_path: Path) -> None:
    show_in(tmp_path, ["wandb-offline"])
    deadline = time.monotonic() + 30
    while len(shown_by_wandb(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    first, last = shown_by_wandb(tmp_path)
    assert (first["_step"], first["success"], last["_step"], last["success"]) == (0, 0.5, 1, 0.5)
    (files,) = tmp_path.glob("wandb/offline-run-*/files")
    for line, name, shade in (
        (first, "base agent/failure", 10),
        (last, "trained agent/success", 20),
        (last, "trained agent/failure", 30),
    ):
        assert decode((files / str(line[f"{name}.path"])).read_bytes())[0, 0].tolist() == [shade, 0, 0]


@pytest.mark.parametrize(
    ("name", "package", "needed"),
    [
        ("tensorboard", "tensorboard", "tensorboard>=2.18"),
        ("trackio", "trackio", "trackio>=0.43"),
        ("wandb", "wandb", "wandb>=0.19"),
    ],
)
def test_what_is_not_installed_is_said_in_one_line(
    name: str, package: str, needed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [one for one in sys.modules if one.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as refused:
        track_in(tmp_path, [name], range(1), 0.5)
    assert str(refused.value) == f"train.track={name}: is not installed: pip install '{needed}'"


def test_wandb_without_an_account_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError) as refused:
        track_in(tmp_path / "run", ["wandb"], range(1), 0.5)
    assert str(refused.value).startswith("train.track=wandb: No API key configured.")
    assert str(refused.value).endswith("Or use wandb-offline.") and "\n" not in str(refused.value)
