"""What OSWorld lacks on this machine: its part of `arpo doctor`. The client is started, but no virtual machine."""

import contextlib
from pathlib import Path

from arpo.config import EnvConfig
from arpo.envs.evaluators import Evaluators
from arpo.envs.osworld.machine import Docker
from arpo.errors import ArpoError


def lacking(settings: EnvConfig) -> list[tuple[str, str]]:
    """What is missing, and what to do about it."""
    disk = None if settings.osworld_disk is None else Path(settings.osworld_disk)
    parts = [(f"{what} is missing", enable) for what, enable in Docker(settings.osworld_image, disk).missing()]
    if settings.osworld_python is None:
        return [*parts, ("env.osworld_python is missing", "make osworld-client; then set it to that interpreter")]
    if not parts:
        try:
            with contextlib.closing(Evaluators(settings.osworld_python)) as client:
                client.has_metric("infeasible")  # any question starts it
        except ArpoError as error:
            return [(str(error), "")]
    return parts
