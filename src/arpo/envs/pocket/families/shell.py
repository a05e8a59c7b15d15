"""Tasks of the desktop itself: starting, finding, moving and closing windows."""

from random import Random

from arpo.agent.actions import Drag, Fail
from arpo.envs.pocket.apps import APPS
from arpo.envs.pocket.apps.editor import Editor
from arpo.envs.pocket.desktop import TASKBAR, Desktop, Window
from arpo.envs.pocket.families.base import Family, Infeasible, Params, clutter, place, place_some
from arpo.envs.pocket.screen import Move, ParsedScreen
from arpo.envs.pocket.words import drawn, one_of, sentence

TITLED = ("Files", "Mail", "Browser", "Calculator", "Settings")  # applications whose window bears their name
EDGE = 4  # how near to the edge of the screen is "at the edge"


def open_apps(desk: Desktop, rng: Random, apps: list[str]) -> None:
    """These applications in any order, with something to show."""
    clutter(desk, rng)
    place_some(desk, rng, apps, least=len(apps))


def others(rng: Random, least: int, most: int, *avoid: str) -> list[str]:
    """Some titled applications, none of them in `avoid`."""
    return rng.sample([name for name in TITLED if name not in avoid], rng.randint(least, most))


class OpenApp(Family):
    """Start an application: its icon, or the menu where a window covers it."""

    name = "shell-open"
    asks = "{verb} the {app} app."
    random_params = drawn(app=one_of(list(APPS)), verb=one_of(["Open", "Start"]))

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        open_apps(desk, rng, others(rng, 0, 2, p["app"]))

    def check(self, desk: Desktop, p: Params) -> bool:
        return desk.active is not None and desk.active.app.name == p["app"]

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return s.menuitem(p["app"]) or s.escape() or s.app(p["app"])


class CloseWindow(Family):
    """Close one of several windows and leave the others open."""

    name = "shell-close"
    asks = "Close the {app} window."
    random_params = drawn(app=one_of(TITLED), others=one_of([1, 2, 3]))

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        desk.stores["keep"] = others(rng, p["others"], p["others"], p["app"])
        open_apps(desk, rng, [p["app"], *desk.stores["keep"]])

    def check(self, desk: Desktop, p: Params) -> bool:
        return {window.app.name for window in desk.windows} >= set(desk.stores["keep"]) and not desk.window_of(p["app"])

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return s.escape() or s.close(p["app"]) or s.switch(p["app"])


class Minimise(Family):
    """Put one window out of the way without closing it."""

    name = "shell-minimise"
    asks = "Minimise the {app} window."
    random_params = drawn(app=one_of(TITLED), others=one_of([0, 1, 2, 3]))

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        desk.stores["keep"] = others(rng, p["others"], p["others"], p["app"])
        open_apps(desk, rng, [p["app"], *desk.stores["keep"]])

    def check(self, desk: Desktop, p: Params) -> bool:
        shown = {window.app.name for window in desk.windows if not window.minimised}
        return desk.window_of(p["app"]) is not None and p["app"] not in shown and shown >= set(desk.stores["keep"])

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return (
            s.escape()
            or s.click("minimise", kind="minimise", window=p["app"], thought=f"Minimise {p['app']}.")
            or s.app(p["app"])
        )


class MoveWindow(Family):
    """Drag a window by its title to an edge of the screen."""

    name = "shell-move"
    asks = "Move the {app} window to the {side} edge of the screen."
    random_params = drawn(app=one_of(TITLED), side=one_of(["left", "right", "top", "bottom"]))

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        open_apps(desk, rng, others(rng, 0, 1, p["app"]))
        window = place(desk, rng, p["app"]).window
        while self._at_edge(desk, window, p["side"]):
            window.x = rng.randint(0, max(0, desk.w - window.w))
            window.y = rng.randint(0, max(0, desk.h - TASKBAR - window.h))
        elsewhere = [other for other in desk.windows if not self._at_edge(desk, other, p["side"])]
        desk.stores["keep"] = {other.app.name for other in elsewhere} - {p["app"]}

    def _at_edge(self, desk: Desktop, window: Window, side: str) -> bool:
        gaps = {
            "left": window.x,
            "right": desk.w - window.x - window.w,
            "top": window.y,
            "bottom": desk.h - TASKBAR - window.y - window.h,
        }
        return gaps[side] <= EDGE

    def check(self, desk: Desktop, p: Params) -> bool:
        """It is there, and no other window was brought along."""
        there = {one.app.name for one in desk.windows if not one.minimised and self._at_edge(desk, one, p["side"])}
        return p["app"] in there and not there & desk.stores["keep"]

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        title, menu, clock = s.find(p["app"], kind="title"), s.find("Menu", kind="launcher"), s.find(kind="clock")
        if s.escape() or not (title and menu and clock and s.is_front(p["app"])):
            return s.escape() or s.app(p["app"])
        x, y = title.centre
        bottom, right = menu.box[1] - 1, clock.box[2] - 1
        to = {"left": (0, y), "right": (right, y), "top": (x, 0), "bottom": (x, bottom)}[p["side"]]
        return f"Drag {p['app']} to the {p['side']}.", Drag(x, y, *to)


class CloseAll(Family):
    """Close every window; an editor with unsaved work asks, and the changes may go."""

    name = "shell-closeall"
    asks = "Close {what}.{unsaved: Discard unsaved changes.|}"

    def random_params(self, rng: Random) -> Params:
        what = rng.choice(["all windows", "every window"])
        return {"windows": rng.randint(2, 5), "unsaved": rng.random() < 0.6, "what": what}

    def setup(self, desk: Desktop, p: Params, rng: Random) -> None:
        open_apps(desk, rng, others(rng, p["windows"] - p["unsaved"], p["windows"] - p["unsaved"]))
        if p["unsaved"]:
            editor = place(desk, rng, "Editor")
            assert isinstance(editor, Editor)
            editor.box.insert(sentence(rng))

    def check(self, desk: Desktop, p: Params) -> bool:
        return not desk.windows

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        return (
            s.click("Discard", kind="button")
            or s.escape()
            or (s.close(s.front) if s.front else None)
            or next((s.click(c.label, kind="task", thought=f"Show {c.label}.") for c in s.all(kind="task")), None)
        )


class MissingApp(Infeasible):
    """An application that this machine does not have: the menu shows it."""

    name = "shell-missing"
    asks = OpenApp.asks
    setup = OpenApp.setup
    random_params = drawn(
        app=one_of("Camera Music Maps Chess Phone Paint Radio Weather".split()), verb=one_of(["Open", "Start"])
    )

    def expert(self, s: ParsedScreen, p: Params) -> Move | None:
        if s.menu_open and s.find("Settings", kind="menuitem", window="Menu"):
            return f"There is no {p['app']}.", Fail()
        return s.escape() or s.click("Menu", kind="launcher", thought="Look in the menu.")
