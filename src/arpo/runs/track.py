"""Metrics to TensorBoard and Weights & Biases, beside metrics.jsonl: `train.track=[tensorboard, wandb-offline]`.

    with tracking(config.train.track, run, config) as track:
        track({"update": 3, "success": 0.4})

Both write into the run's folder. `tensorboard --logdir runs` shows all runs; `wandb sync RUN/wandb/offline-*` sends
what was kept back. Neither is imported unless it is asked for. metrics.jsonl stays the one truth: of a run that was
killed they may lack the last update.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from arpo.config import Config
from arpo.errors import ConfigError
from arpo.runs.store import Run

NEEDED = {"tensorboard": "tensorboard>=2.18", "wandb": "wandb>=0.19", "wandb-offline": "wandb>=0.19"}


@contextlib.contextmanager
def tracking(names: Sequence[str], run: Run, config: Config) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that takes an update's metrics. ConfigError where something asked for does not work here."""
    with contextlib.ExitStack() as stack:
        trackers: list[_TensorBoard | _Wandb] = []
        for name in names:
            try:
                trackers.append(_TensorBoard(run) if name == "tensorboard" else _Wandb(name, run, config))
            except ModuleNotFoundError:
                raise ConfigError(f"train.track={name}: is not installed: pip install '{NEEDED[name]}'") from None
            stack.callback(trackers[-1].close)

        def track(metrics: dict[str, Any]) -> None:
            values = {key: float(value) for key, value in metrics.items() if key != "update"}
            for tracker in trackers:
                tracker.log(metrics["update"], values)

        yield track


class _TensorBoard:
    def __init__(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._make: Callable[..., Any] = SummaryWriter
        self._folder = str(run.folder / "tensorboard")
        self._writer: Any = None

    def log(self, update: int, metrics: dict[str, float]) -> None:
        if self._writer is None:  # what another session wrote of this update and later ones counts no more
            self._writer = self._make(self._folder, purge_step=update)
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, update)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _Wandb:
    def __init__(self, name: str, run: Run, config: Config) -> None:
        import wandb

        if run.fact("wandb") is None:  # all sessions of a run are one run there
            run.note("wandb", uuid.uuid4().hex[:8])
        try:
            self._run = wandb.init(
                project="arpo",
                name=run.folder.name,
                id=run.fact("wandb"),
                resume="allow",
                mode="offline" if name == "wandb-offline" else None,  # None: as WANDB_MODE says, or online
                dir=run.folder,
                config=config.model_dump(mode="json"),
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.Error as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(f"train.track={name}: {reason} Or use wandb-offline.") from error

    def log(self, update: int, metrics: dict[str, float]) -> None:
        self._run.log(metrics, step=update)

    def close(self) -> None:
        self._run.finish()
