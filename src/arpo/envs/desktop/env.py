"""A real desktop as an environment: `make("desktop", size=(1280, 720))`.

Tasks are OSWorld's (setup.py prepares them, checks/ scores them). After an action the screen is not waited for by the
clock: it is looked at when nothing has been drawn for a moment and the programs rest, at most SETTLE_S.

A reset throws the sandbox away. The next one is there when it is needed: while an episode is played a spare comes up
and, where the same task came twice in a row, is set up for it too, since the episodes of a group share their task.
A spare that does not fit into memory is given up.
"""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

from arpo.agent.actions import ENDING, Action, Click, Drag, Fail, Finish, Hotkey, Scroll, Type, Wait
from arpo.envs.base import refuse_bad_action
from arpo.envs.desktop.checks import score
from arpo.envs.desktop.files import FileSource
from arpo.envs.desktop.gvisor import GVISOR_MB, Wall
from arpo.envs.desktop.gvisor import refuse as refuse_wall
from arpo.envs.desktop.home import template
from arpo.envs.desktop.keys import keysyms, typed
from arpo.envs.desktop.needs import refuse, refuse_size
from arpo.envs.desktop.sandbox import CALL_S, Sandbox, missing
from arpo.envs.desktop.setup import prepare
from arpo.envs.evaluators import evaluators
from arpo.envs.memory import DESKTOP_MB, free_mb, reserved
from arpo.errors import ActionError, ConfigError, EnvError, Ruined
from arpo.images import Pixels, observe
from arpo.types import Observation, Task

SETTLE_S = 2.0  # at most, after an action; OSWorld's clients wait as long after every one
START_SETTLE_S = 10.0  # at most, after a task is set up: large programs draw for a while
STEP_S = 40.0  # for an action; env.step_s must leave time to find out who kept it
QUIET_S, BUSY = 0.06, 0.1  # nothing drawn for so long, and less than this share of a core used or wanted
WAIT_S = 1.0  # what the action Wait waits, before the screen settles
LONGEST_TEXT = 20_000  # characters typed in one action; a program takes a millisecond for each
BUTTONS = {"left": 1, "right": 3}
WHEEL = {"up": 4, "down": 5, "left": 6, "right": 7}
NOTCHES = 5  # of the wheel, for one gesture


class Ready:
    """A desktop that comes up by itself: bare, or set up for a task and settled."""

    def __init__(self, sandbox: Sandbox, task: Task | None, files: FileSource) -> None:
        self.sandbox, self.task = sandbox, task
        self._files = files
        self._up: Future[None] = Future()
        threading.Thread(target=self._bring_up, daemon=True).start()

    def wait(self) -> None:
        """Until it is. EnvError where it failed."""
        self._up.result()

    def set_up(self, task: Task) -> None:
        self.sandbox.wait()
        width, height = self.sandbox.size
        self.sandbox.ask("move", x=width - 1, y=height - 1)  # where it hovers over nothing
        prepare(self.sandbox, task, self._files)
        self.sandbox.ask("settle", limit_s=START_SETTLE_S, quiet_s=QUIET_S, busy=BUSY)
        self.task = task

    def _bring_up(self) -> None:
        try:
            self.sandbox.wait()
            if self.task is not None:
                self.set_up(self.task)
        except BaseException as error:  # it belongs to whoever waits
            self._up.set_exception(error)
        else:
            self._up.set_result(None)


class DesktopEnv:
    """See the module. `files`: where the files of tasks are (files.py); `osworld_python`: see ../evaluators.py.

    `wall`: what is around its sandboxes (gvisor.py).
    """

    def __init__(
        self,
        size: tuple[int, int] = (1280, 720),
        files: str | None = None,
        osworld_python: str | None = None,
        wall: Wall = "bubblewrap",
        allow_weaker_sandbox: bool = False,
    ) -> None:
        if why := missing():
            raise ConfigError(f"env.name=desktop: programs are missing; {why}")
        refuse_wall(wall)
        refuse_size(size)
        self.size, self.wall = size, wall
        self._mb = DESKTOP_MB + (GVISOR_MB if wall == "gvisor" else 0)
        self.ended = True
        self.settle_s = 0.0  # what the last settling took
        self._weaker = allow_weaker_sandbox
        self._settings = {"files": files, "osworld_python": osworld_python}
        self._files = FileSource(files)
        self._osworld = evaluators(osworld_python) if osworld_python else None
        self._task: Task | None = None
        self._last: Action | None = None
        self._current: Ready | None = None
        self._spare: Ready | None = None
        with contextlib.ExitStack() as held:
            held.enter_context(reserved(self._mb))
            self._spare = self._start(None)
            self._held = held.pop_all()

    @property
    def sandbox(self) -> Sandbox:
        assert self._current is not None, "reset first"
        return self._current.sandbox

    @property
    def sandboxes(self) -> list[Sandbox]:
        """The one at work and the spare, as far as they are there."""
        return [ready.sandbox for ready in (self._current, self._spare) if ready is not None]

    def reset(self, task: Task, seed: int) -> Observation:
        """Set the machine up for a task. The seed changes nothing: the tasks are what their files say."""
        self.load(task, seed)
        return self._observe()

    def step(self, action: Action) -> Observation:
        self.perform(action)
        return self._observe()

    def load(self, task: Task, seed: int) -> None:
        """`reset` without looking."""
        refuse(task, self._settings)
        again = task == self._task
        self.ended, self._task, self._last = True, None, None
        if self._current is not None:
            self._current.sandbox.close()
        self._current = self._ready_for(task)
        self._spare = self._start(task if again else None) if _room(self._mb) else None
        self._task, self.ended, self.settle_s = task, False, 0.0

    def perform(self, action: Action) -> None:
        """`step` without looking."""
        refuse_bad_action(action, self.size, self.ended)
        self.settle_s = 0.0
        if isinstance(action, ENDING):
            self.ended = True
        else:
            deadline = time.monotonic() + STEP_S
            with self._judged():
                self._do(action)
                left_s = max(2 * SETTLE_S, deadline - time.monotonic())
                settled = self.sandbox.ask("settle", left_s, limit_s=SETTLE_S, quiet_s=QUIET_S, busy=BUSY)
            self.settle_s = float(settled["settle_s"])
        self._last = action
        if not _room(self._mb):
            self.give_up_spare()

    def pixels(self) -> Pixels:
        with self._judged():
            return self.sandbox.screenshot()

    def score(self) -> float:
        assert self._task is not None, "reset first"
        with self._judged():
            return self._score(self._task)

    def _score(self, task: Task) -> float:
        self.sandbox.ask("pointer")  # a dead X server is no score
        if not task.feasible:
            return float(isinstance(self._last, Fail))
        if isinstance(self._last, Fail):
            return 0.0
        answer = self._last.answer if isinstance(self._last, Finish) else ""
        return score(self.sandbox, task, answer, self._files, self._osworld)

    @contextlib.contextmanager
    def _judged(self) -> Iterator[None]:
        """Ruined where the machine fails and the agent alone can have caused it."""
        try:
            yield
        except EnvError as failure:
            try:
                why = self.sandbox.verdict()
            except (EnvError, ValueError):  # nothing is known
                why = ""
            if why:
                self.ended = True
                raise Ruined(f"the agent has ended its computer: {why}") from failure
            raise

    def close(self) -> None:
        self.ended = True
        for sandbox in self.sandboxes:
            sandbox.close()
        self._current = self._spare = None
        self._held.close()

    def wait_for_spare(self) -> None:
        """Until it is up; a reset would not have to wait then."""
        if self._spare is not None:
            self._spare.wait()

    def give_up_spare(self) -> None:
        """Its memory is wanted: the next reset takes longer."""
        if self._spare is not None:
            self._spare.sandbox.close()
            self._spare = None

    def _start(self, task: Task | None) -> Ready:
        sandbox = Sandbox(self.size, template(self.size), self._weaker, self.wall)
        return Ready(sandbox, task, self._files)

    def _ready_for(self, task: Task) -> Ready:
        """The spare where it is of use, else a new one, set up."""
        ready, self._spare = self._spare, None
        try:
            if ready is not None and not _of_use(ready, task):
                ready.sandbox.close()
                ready = None
            ready = ready or self._start(None)
            ready.wait()
            if ready.task is None:
                ready.set_up(task)
        except BaseException:
            if ready is not None:
                ready.sandbox.close()
            raise
        return ready

    def _do(self, action: Action) -> None:
        ask = self.sandbox.ask
        match action:
            case Click(x, y, button, count):
                ask("click", x=x, y=y, button=BUTTONS[button], count=count)
            case Drag(x, y, to_x, to_y):
                ask("drag", x=x, y=y, to_x=to_x, to_y=to_y)
            case Scroll(x, y, direction):
                ask("scroll", x=x, y=y, button=WHEEL[direction], count=NOTCHES)
            case Type(text):
                if len(text) > LONGEST_TEXT:
                    raise ActionError(f"{len(text)} characters are too many to type at once: at most {LONGEST_TEXT}")
                ask("type", min(STEP_S, CALL_S + len(text) / 100), keysyms=typed(text))
            case Hotkey(keys, phase):
                ask("press", keysyms=keysyms(keys), phase=phase)
            case Wait():
                time.sleep(WAIT_S)

    def _observe(self) -> Observation:
        return replace(observe(self.pixels()), settle_s=self.settle_s)


def _of_use(spare: Ready, task: Task) -> bool:
    """Whether it is alive, and bare or for this task. One that is being set up for another is not waited for."""
    if spare.task not in (None, task):
        return False
    try:
        spare.wait()
        spare.sandbox.ask("pointer")  # it may have died since
    except EnvError:
        return False
    return True


def _room(mb: float) -> bool:
    """Whether a spare may be kept: one that costs others their place is none."""
    return free_mb() > 2 * mb
