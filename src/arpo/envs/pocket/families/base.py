"""What a family of tasks is, and how the desktop is set up that a task starts from.

A family makes the parameters of an instance at random: what the instruction names. All the rest comes from the
environment seed: where windows are, which other files, mails and values there are, in which order. So a task looks
different each time, and no place on the screen can be learned by heart.
"""

import string
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from random import Random
from typing import Any, ClassVar, TypeAlias

from arpo.envs.pocket.apps.mail import Letter, fill, letters
from arpo.envs.pocket.apps.pages import new_store
from arpo.envs.pocket.apps.settings import DEFAULTS
from arpo.envs.pocket.canvas import COLORS
from arpo.envs.pocket.desktop import TASKBAR, App, Desktop
from arpo.envs.pocket.screen import Move, ParsedScreen
from arpo.envs.pocket.vfs import PLACES
from arpo.envs.pocket.words import nouns, sentence

Params: TypeAlias = dict[str, Any]
KINDS = ("txt", "csv", "png", "html")  # of files


class Family(ABC):
    """Tasks that differ in names and values and share one way of solving them."""

    name: ClassVar[str]  # "files-rename": the domain (an application, or "multi"), and what is done; unique
    asks: ClassVar[str]  # "Turn {on:on|off} {what}.": what the agent is told, parameters in braces
    feasible: ClassVar[bool] = True
    judges: ClassVar[tuple[str, ...]] = ()  # of `belongings`, what `check` looks at; all others must stay as they were

    @property
    def domain(self) -> str:
        return self.name.partition("-")[0]

    @abstractmethod
    def random_params(self, rng: Random) -> Params:
        """The parameters of one instance: JSON values, always of the same keys and types."""

    def instruction(self, p: Params) -> str:
        """What the agent is told."""
        return _Wording().format(self.asks, **p)

    @abstractmethod
    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        """Put in place what the task needs, on a furnished desktop."""

    @abstractmethod
    def check(self, desk: Desktop, p: Params) -> bool:
        """Whether the state of the machine is what the instruction asks for. False at the start."""

    def done(self, desk: Desktop, p: Params) -> bool:
        """Whether it is, and nothing was done that nobody asked for: no mail sent, nothing ordered, no file lost."""
        return self.check(desk, p) and self._spared(desk)

    def done_in_part(self, desk: Desktop, p: Params) -> float:
        """Where several things are asked for, the share of them that is done, if nothing else was; 0 at the start."""
        return self.progress(desk, p) if self._spared(desk) else 0.0

    def progress(self, desk: Desktop, p: Params) -> float:
        """That share, by what `check` looks at. See `way_made`."""
        return 0.0

    def _spared(self, desk: Desktop) -> bool:
        start = desk.stores["start"]
        return all(now == start[kind] for kind, now in belongings(desk).items() if kind not in self.judges)

    @abstractmethod
    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        """The next move; None: lost. `s.notes` keep what was read on earlier screens. Done is decided by `done`."""

    def start(self, desk: Desktop, p: Params, rng: Random) -> None:
        """Set up at random what no instruction names, then what this family needs."""
        desk.clock = f"{rng.randrange(8, 20)}:{rng.randrange(60):02d}"
        rng.shuffle(desk.icons)
        desk.cascade = (rng.randrange(desk.w), rng.randrange(desk.h))
        desk.settings["wallpaper"] = rng.choice(list(COLORS))
        desk.settings["accent"] = rng.choice(["Blue", "Green", "Purple", "Gray"])
        self.setup(desk, p, rng)
        desk.stores["files"] = desk.files.twin()
        desk.stores["start"] = belongings(desk)


class _Wording(string.Formatter):
    """For a parameter that is true or false the format gives both words: "{down:down|up}"."""

    def format_field(self, value: Any, spec: str) -> str:
        return spec.split("|")[not value] if isinstance(value, bool) else super().format_field(value, spec)


class Infeasible(Family):
    """Tasks that cannot be done; the right answer is Fail, once the expert has seen why."""

    feasible = False

    def check(self, desk: Desktop, p: Params) -> bool:
        return False


def add_files(
    desk: Desktop, rng: Random, folder: str, count: int, kinds: Sequence[str] = ("txt",), avoid: Sequence[str] = ()
) -> list[str]:
    """Some files with other names than those in `avoid` (with or without extension); returns their names."""
    taken = tuple(word.partition(".")[0] for word in (*avoid, *desk.files.names(folder)))
    names = [f"{word}.{rng.choice(kinds)}" for word in nouns(rng, count, taken)]
    for name in names:
        add_file(desk, rng, f"{folder}/{name}")
    return names


def add_file(desk: Desktop, rng: Random, path: str) -> None:
    desk.files.write(path, sentence(rng), kb=rng.randrange(1, 90))


def clutter(desk: Desktop, rng: Random) -> None:
    """Some files and mails, so that windows that have nothing to do with a task show something, too."""
    for name in PLACES:
        add_files(desk, rng, f"/{name}", rng.randrange(6), KINDS)
    fill(desk, rng)


def place(desk: Desktop, rng: Random, app: str) -> App:
    """Open an application somewhere on the screen."""
    w, h = desk.window_size(desk.apps[app])
    opened = desk.launch(app, (rng.randint(0, desk.w - w), rng.randint(0, desk.h - TASKBAR - h)))
    assert opened is not None, "a setup opens too many windows"
    return opened


def place_some(desk: Desktop, rng: Random, apps: Sequence[str], least: int = 0) -> None:
    """Open some of these applications, or all, in any order."""
    for app in rng.sample(apps, rng.randint(least, len(apps))):
        place(desk, rng, app)


def open_perhaps(desk: Desktop, rng: Random, name: str) -> App | None:
    """The application, started or not, and perhaps another in front of it or behind. None: it must be launched."""
    other = None
    if rng.random() < 0.5:
        other = place(desk, rng, rng.choice([app for app in desk.apps if app != name]))
    app = place(desk, rng, name) if rng.random() < 0.6 else None
    if app and other and rng.random() < 0.5:
        desk.raise_window(other.window)
    return app


def hide(desk: Desktop, name: str) -> None:
    """Minimise an application that is in front, so that one has to go there to see what it shows."""
    if (window := desk.active) and window.app.name == name:
        desk.minimise(window)


def belongings(desk: Desktop) -> dict[str, Any]:
    """What a user has on the machine, by kinds. An application that was never started has what it will start with."""
    web = desk.stores.get("browser") or _first_web()
    return {
        "files": desk.files.outside_trash(),
        "mails": ledger(letters(desk)),
        "settings": DEFAULTS | desk.settings,
        "bookmarks": sorted(web["bookmarks"]),
        "sent": list(web["sent"]),
    }


@cache
def _first_web() -> dict[str, Any]:
    return new_store(Random(0))


def way_made(start: Iterable[Hashable], wanted: Iterable[Hashable], now: Iterable[Hashable]) -> float:
    """The share of the way from the start to what is wanted, entry by entry; changes beside it count against."""
    before, goal, present = Counter(start), Counter(wanted), Counter(now)
    whole, left = ((goal - one).total() + (one - goal).total() for one in (before, present))
    return max(0.0, 1 - left / whole) if whole else 0.0  # a user's own task may ask for what is there


def ledger(mails: list[Letter], with_trash: bool = True) -> Counter[tuple[str, str, str, str, str, bool]]:
    """What a check compares: all of the mails but their order and whether they were read."""
    kept = [mail for mail in mails if with_trash or mail.folder != "Trash"]
    return Counter((m.sender, m.to, m.subject, m.body, m.folder, m.starred) for m in kept)


def others_kept(desk: Desktop, *paths: str) -> bool:
    """Whether no other files than these, and no folders, have changed outside the trash since the start."""
    (before, folders), (now, folders_now) = desk.stores["files"].outside_trash(), desk.files.outside_trash()
    for path in paths:
        before.pop(path, None)
        now.pop(path, None)
    return bool(before == now and folders == folders_now)
