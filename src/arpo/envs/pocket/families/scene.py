"""How the tasks of one application begin, and how their experts find back to it."""

from __future__ import annotations

import random

from arpo.envs.pocket.desktop import App, Desktop
from arpo.envs.pocket.families.base import place
from arpo.envs.pocket.screen import Move, Screen


def open_perhaps(desk: Desktop, rng: random.Random, name: str) -> App | None:
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


def arrive(s: Screen, name: str, *expected: str) -> Move | None:
    """Bring a window to the front and close what does not belong there; None once that is done.

    `expected` are entries of menus and titles of dialogs of that window that may stay open.
    """
    if s.is_front(name) or (s.dialog and s.dialog in expected):
        return s.escape(*expected)
    return s.escape(name, *expected) or s.app(name)
