"""Metrics and pictures to TensorBoard, Trackio and Weights & Biases, beside metrics.jsonl.

    with tracking(config.train.track, run, config) as track:      # train.track=[tensorboard, wandb-offline]
        track({"update": 3, "success": 0.4})
        track.show(3, {"trained agent/success": picture})

TensorBoard and wandb write into the run's folder: `tensorboard --logdir runs` shows all runs; `wandb sync
RUN/wandb/offline-*` sends what was kept back. Trackio has one folder for all runs, TRACKIO_DIR or the hub's:
`trackio show --project arpo`. None is imported unless it is asked for. metrics.jsonl stays the one truth: of a run that
was killed they may lack the last update, and Trackio has those twice that were made again.
"""

import contextlib
import re
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from arpo.config import Config
from arpo.errors import ConfigError
from arpo.runs.store import Run, folder_name

NEEDED = {
    "tensorboard": "tensorboard>=2.18",
    "trackio": "trackio>=0.43",  # with Pillow 12 at most, which it brings
    "wandb": "wandb>=0.19",
    "wandb-offline": "wandb>=0.19",
}

Log = Callable[[int, dict[str, float], dict[str, Image.Image]], None]
"""Takes the number of an update, and metrics or pictures by name."""


@dataclass(frozen=True, slots=True)
class Track:
    """All that was asked for, as one."""

    logs: list[Log]

    def __call__(self, metrics: dict[str, Any]) -> None:
        """The metrics of an update."""
        values = {key: float(value) for key, value in metrics.items() if key != "update"}
        for log in self.logs:
            log(metrics["update"], values, {})

    def show(self, update: int, pictures: dict[str, Image.Image]) -> None:
        """Pictures beside the metrics of an update, which may follow or have been logged, of no earlier one."""
        for log in self.logs:
            log(update, {}, pictures)


@contextlib.contextmanager
def tracking(names: Sequence[str], run: Run, config: Config) -> Iterator[Track]:
    """What takes an update's metrics. ConfigError where something asked for does not work here."""
    with contextlib.ExitStack() as stack:
        logs: list[Log] = []
        for name in names:
            make = {"tensorboard": _tensorboard, "trackio": _trackio}.get(name, _wandb)
            try:
                logs.append(make(name, run, config, stack))
            except ModuleNotFoundError:
                raise ConfigError(f"train.track={name}: is not installed: pip install '{NEEDED[name]}'") from None
        yield Track(logs)


def _tensorboard(name: str, run: Run, config: Config, stack: contextlib.ExitStack) -> Log:
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = None

    def log(update: int, metrics: dict[str, float], pictures: dict[str, Image.Image]) -> None:
        nonlocal writer
        if writer is None:  # what another session wrote of this update and later ones counts no more
            make: Any = SummaryWriter
            writer = make(str(run.folder / "tensorboard"), purge_step=update)
            stack.callback(writer.close)
        for key, value in metrics.items():
            writer.add_scalar(key, value, update)
        for key, picture in pictures.items():
            writer.add_image(key, np.asarray(picture), update, dataformats="HWC")
        writer.flush()

    return log


def _wandb(name: str, run: Run, config: Config, stack: contextlib.ExitStack) -> Log:
    import wandb

    def log(update: int, metrics: dict[str, float], pictures: dict[str, Image.Image]) -> None:
        session.log(metrics | {key: wandb.Image(picture) for key, picture in pictures.items()}, step=update)

    try:
        session = wandb.init(
            project="arpo",
            name=run.folder.name,
            id=_own_id("wandb", run),
            resume="allow",
            mode="offline" if name == "wandb-offline" else None,  # None: as WANDB_MODE says, or online
            dir=run.folder,
            config=config.model_dump(mode="json"),
            settings=wandb.Settings(silent=True, console="off"),
        )
    except wandb.Error as error:
        raise ConfigError(f"train.track={name}: {str(error).splitlines()[0]} Or use wandb-offline.") from error
    stack.callback(session.finish)
    return log


def _trackio(name: str, run: Run, config: Config, stack: contextlib.ExitStack) -> Log:
    import trackio  # type: ignore[import-not-found,unused-ignore]

    with contextlib.redirect_stdout(sys.stderr):  # it greets; what we print at the end is read by others
        session = trackio.init(
            project="arpo",
            name=f"{folder_name(run.folder.name)}-{_own_id(name, run)}",
            config=config.model_dump(mode="json"),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def end() -> None:
        with contextlib.redirect_stdout(sys.stderr):
            trackio.finish()  # not the session: it would be ended once more when Python ends

    def log(update: int, metrics: dict[str, float], pictures: dict[str, Image.Image]) -> None:
        session.log(metrics | {key: trackio.Image(picture) for key, picture in pictures.items()}, step=update)

    stack.callback(end)
    return log


def _own_id(name: str, run: Run) -> str:
    """What all sessions of a run have in common there."""
    if not re.fullmatch("[0-9a-f]{8}", run.fact(name) or ""):
        run.note(name, uuid.uuid4().hex[:8])
    return run.fact(name) or ""
