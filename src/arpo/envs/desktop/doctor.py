"""What a real desktop lacks on this machine: its part of `arpo doctor`."""

from arpo.config import EnvConfig
from arpo.envs.desktop.sandbox import APPLICATIONS, PROGRAMS, missing


def lacking(settings: EnvConfig) -> list[tuple[str, str]]:
    """What is missing, and the command that installs it."""
    command = missing({**PROGRAMS, **APPLICATIONS})
    return [("programs are missing", command)] if command else []
