"""What is known by name behind a door: environments, dialects, algorithms. Code outside the package can add its own.

By a call, in the process that uses it:

    BACKENDS.register(Backend(name="mine", …))        # or arpo.register_environment("mine", …)

Or by an entry point of an installed package, whose module is imported when the name is asked for first:

    [project.entry-points."arpo.environments"]
    mine = "my_package.arpo:BACKEND"
"""

import importlib
import re
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeVar

from arpo.errors import ArpoError, ConfigError


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class Registry(dict[str, T]):
    """Entries by name: those of arpo, those that were registered, those of installed packages."""

    def __init__(self, kind: str, group: str, entries: Iterable[T]) -> None:
        super().__init__((entry.name, entry) for entry in entries)
        self.kind, self.group = kind, group
        self._type = type(next(iter(self.values())))
        self._installed = False  # whether the entry points were looked at, which takes a while

    def register(self, entry: T, replace: bool = False) -> None:
        """Add one. ConfigError where another has its name; `replace`: it takes its place, as in a cell run again."""
        if not isinstance(entry, self._type):
            raise ConfigError(f"{entry!r:.60}: must be a {self._type.__name__}")
        if not isinstance(entry.name, str) or not re.fullmatch(r"[\w.+-]+", entry.name):  # : and = mean something else
            raise ConfigError(f"{self.kind} {entry.name!r}: a name has letters, digits and any of _ . + - only")
        if replace:
            self[entry.name] = entry
        if self.setdefault(entry.name, entry) != entry:
            raise ConfigError(f"there is another {self.kind} of the name {entry.name!r}: choose another name")

    def find(self, name: str) -> T:
        """The one of that name, or a ConfigError that lists them."""
        if name not in self and name not in self.names():
            raise ConfigError(f"unknown {self.kind} {name!r}: choose from {', '.join(self)}")
        return self[name]

    def names(self) -> list[str]:
        """All names, also those of installed packages."""
        if not self._installed:
            for point in entry_points(group=self.group):
                try:
                    self.register(point.load())
                except Exception as error:  # whatever a stranger's module does wrong
                    raise ConfigError(f"{point.value}, an entry point of {self.group}: {_said(error)}") from error
            self._installed = True
        return list(self)


def imported(place: Any) -> Any:
    """What "module:name" or "module" stands for; what is not a string stands for itself. ConfigError: there is none."""
    if not isinstance(place, str):
        return place
    module, _, attribute = place.partition(":")
    try:
        there = importlib.import_module(module)
        return getattr(there, attribute) if attribute else there
    except (ImportError, AttributeError, ValueError) as error:  # ValueError: no module's name at all
        raise ConfigError(f"{place}: cannot be imported: {_said(error)}") from error


def made(setting: str, factory: Any, /, *arguments: Any, **named: Any) -> Any:
    """What a factory makes. ConfigError where it cannot: its arguments are settings; `setting` is what named it."""
    try:
        return imported(factory)(*arguments, **named)
    except ArpoError:
        raise
    except Exception as error:  # whatever a stranger's code does with settings that it did not expect
        raise ConfigError(f"{setting}: cannot be made: {_said(error)}") from error


def _said(error: Exception) -> str:
    """On one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
