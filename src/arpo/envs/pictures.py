"""Pictures of an episode for people: every action marked on the screen that it was taken on.

`save_animation` writes one episode as a moving picture, `film_strip` draws one as a still. Marks: a ring is a click,
two rings a double click, a blue ring a right click, an arrow a drag or a turn of the wheel; what is typed stands in the
caption.
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw

from arpo.agent.actions import Action, CallUser, Click, Drag, Fail, Finish, Hotkey, Scroll, Type, Wait, points
from arpo.envs.base import Env, Expert
from arpo.fonts import font
from arpo.images import Pixels, decode
from arpo.types import Observation, Step, Task, Trajectory

FORMATS = {".gif": "GIF", ".png": "PNG"}  # both move; a PNG keeps every colour

PAPER, CARD, INK, FAINT = (244, 245, 247), (255, 255, 255), (28, 32, 40), (110, 118, 130)
GOOD, BAD = (24, 128, 72), (190, 40, 40)
RED, BLUE, HALO = (226, 38, 60), (24, 104, 230), (255, 255, 255)

LOOK_MS, ACT_MS, END_MS = 500, 1000, 2500
STRIP, ROW, CELL = 8, 4, 320  # of a film strip: most screens, of a row, and the width of one

RGB = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Shot:
    """A screen, and what was done on it."""

    pixels: Pixels
    thought: str
    action: Action | None  # None for the last screen


@dataclass(frozen=True, slots=True)
class Recording:
    """One episode, to be looked at."""

    task: Task
    shots: tuple[Shot, ...]  # the last one has no action
    score: float

    @property
    def solved(self) -> bool:
        return self.score == 1.0

    @property
    def steps(self) -> int:
        return len(self.shots) - 1

    @property
    def verdict(self) -> str:
        steps = f"{self.steps} step" + ("s" if self.steps != 1 else "")
        return f"solved in {steps}" if self.solved else f"not solved: score {self.score:g} after {steps}"


def record(env: Env, expert: Expert, task: Task, seed: int) -> Recording:
    """The expert's episode. It ends by itself or at the task's step limit."""
    screen = env.reset(task, seed)
    shots: list[Shot] = []
    while not env.ended and len(shots) < task.max_steps:
        thought, action = expert.act(env)
        shots.append(Shot(decode(screen.image), thought, action))
        screen = env.step(action)
    shots.append(Shot(decode(screen.image), "", None))
    return Recording(task, tuple(shots), env.score())


def from_trajectory(task: Task, trajectory: Trajectory, screenshot: Callable[[str], Observation]) -> Recording:
    """A stored episode. `screenshot` gives the screen of a hash."""
    assert trajectory.score is not None, "an episode that was broken off by the machine has no score"
    shots = [Shot(decode(screenshot(name).image), thought, action) for name, thought, action in _moments(trajectory)]
    return Recording(task, tuple(shots), trajectory.score)


def _moments(trajectory: Trajectory) -> list[tuple[str, str, Action | None]]:
    """Each screen by its hash, what was thought, and what was done on it: nothing on the last."""
    moments: list[tuple[str, str, Action | None]] = []
    screen = trajectory.start
    for step in trajectory.steps:
        moments.append((screen, _thought(step), step.action))
        screen = step.observation or screen
    if not moments or moments[-1][2] is not None:  # else its last reply stands on the last screen
        moments.append((screen, "", None))
    return moments


def film_strip(task: Task, trajectory: Trajectory, screenshot: Callable[[str], Observation]) -> Image.Image:
    """A stored episode as one picture of at most STRIP screens, the first and the last among them.

    Only these are read: an episode may have thousands.
    """
    assert trajectory.score is not None, "an episode that was broken off by the machine has no score"
    moments = _moments(trajectory)
    n = min(STRIP, len(moments))
    chosen = [i * (len(moments) - 1) // max(1, n - 1) for i in range(n)]
    cells = []
    for i in chosen:
        name, thought, action = moments[i]
        title = thought if action is None else f"{i + 1}. {describe(action)}"
        cells.append(_cell(Shot(decode(screenshot(name).image), thought, action), title))
    columns, height = min(ROW, n), max(cell.height for cell in cells)
    strip = Image.new("RGB", (columns * (CELL + 8) + 8, 52 + -(-n // columns) * (height + 8)), CARD)
    pen, room, solved = ImageDraw.Draw(strip), strip.width - 16, trajectory.score == 1.0
    told = "solved" if solved else f"not solved, score {trajectory.score:g}"
    told += f"; steps: {len(trajectory.steps)}; ended by: {trajectory.outcome.replace('_', ' ')}"
    pen.text((8, 6), _fitted(task.instruction, 16, room), INK, font(16))
    pen.text((8, 28), _fitted(told, 14, room), GOOD if solved else BAD, font(14))
    for place, cell in enumerate(cells):
        strip.paste(cell, (8 + place % columns * (CELL + 8), 52 + place // columns * (height + 8)))
    return strip


def _cell(shot: Shot, title: str) -> Image.Image:
    """A screen of a film strip with its mark, and a caption below. Of a tall one the upper part."""
    screen = Image.fromarray(shot.pixels[: 2 * shot.pixels.shape[1]])
    scale = CELL / screen.width
    size = (CELL, max(1, round(screen.height * scale)))
    screen = screen.resize(size, Image.Resampling.BOX if scale < 1 else Image.Resampling.NEAREST)
    if shot.action is not None:
        screen = _marked(screen, shot.action, scale)
    cell = Image.new("RGB", (CELL, size[1] + 22), CARD)
    cell.paste(screen, (0, 0))
    ImageDraw.Draw(cell).text((0, size[1] + 3), _fitted(title, 13, CELL), FAINT, font(13))
    return cell


def _thought(step: Step) -> str:
    """What the agent said before its action, or why there was no action."""
    if step.parse_error is not None:
        return f"No action: {step.parse_error}"
    return step.completion.text.partition("Action:")[0].strip().removeprefix("Thought:").strip()


def describe(action: Action) -> str:
    """An action in a few words."""
    match action:
        case Click(x, y, button, count):
            return f"{'right click' if button == 'right' else 'double click' if count == 2 else 'click'} ({x}, {y})"
        case Drag(x, y, to_x, to_y):
            return f"drag ({x}, {y}) to ({to_x}, {to_y})"
        case Scroll(x, y, direction):
            return f"scroll {direction} at ({x}, {y})"
        case Type(text):
            return f"type {text!r}"
        case Hotkey(keys, phase):
            return f"{ {'press': 'press', 'down': 'hold', 'up': 'release'}[phase] } {'+'.join(keys)}"
        case Wait():
            return "wait"
        case Finish(answer):
            return f"finish: {answer!r}" if answer else "finish"
        case Fail(reason):
            return f"fail: {reason!r}" if reason else "fail"
        case CallUser(question):
            return f"call the user: {question!r}" if question else "call the user"


def save_animation(recording: Recording, path: Path) -> None:
    """One episode as an animated GIF or PNG, by the path's ending."""
    frames: list[Image.Image] = []
    durations: list[int] = []
    for number, shot in enumerate(recording.shots, 1):
        if shot.action is None:
            frames.append(_frame(recording, shot, recording.verdict, GOOD if recording.solved else BAD))
            durations.append(END_MS)
        else:
            title = f"{number}. {describe(shot.action)}"
            if points(shot.action):
                frames.append(_frame(recording, shot, title, INK))
                durations.append(LOOK_MS)
            frames.append(_frame(recording, shot, title, INK, marked=True))
            durations.append(ACT_MS)
    frames[0].save(
        path, FORMATS[path.suffix.lower()], save_all=True, append_images=frames[1:], duration=durations, loop=0
    )


def _frame(recording: Recording, shot: Shot, title: str, colour: RGB, marked: bool = False) -> Image.Image:
    """A screen between the instruction and a caption; small screens doubled, pixel for pixel."""
    height, width, _ = shot.pixels.shape
    scale = 2 if width <= 640 else 1
    canvas = Image.new("RGB", (width * scale, height * scale + 44 + 60), CARD)
    pen = ImageDraw.Draw(canvas)
    room = canvas.width - 24
    pen.text((12, 11), _fitted(recording.task.instruction, 18, room), INK, font(18))
    screen = Image.fromarray(shot.pixels).resize((width * scale, height * scale), Image.Resampling.NEAREST)
    if marked and shot.action is not None:
        screen = _marked(screen, shot.action, scale)
    canvas.paste(screen, (0, 44))
    bottom = 44 + screen.height
    pen.text((12, bottom + 7), _fitted(title, 18, room), colour, font(18))
    pen.text((12, bottom + 33), _fitted(shot.thought, 15, room), FAINT, font(15))
    return canvas


def _marked(screen: Image.Image, action: Action, scale: float) -> Image.Image:
    """The screen with a mark for where an action touches it."""
    smooth = 2 if scale > 1 else 4  # marks are drawn so many times larger and shrunk, which smooths their edges
    overlay = Image.new("RGBA", (screen.width * smooth, screen.height * smooth), (*HALO, 0))
    pen = _Pen(ImageDraw.Draw(overlay), smooth * scale, smooth * max(1.0, scale))
    match action:
        case Click(x, y, button, count):
            pen.ring(x, y, 13, BLUE if button == "right" else RED)
            if count == 2:
                pen.ring(x, y, 18, RED)
        case Drag(x, y, to_x, to_y):
            pen.ring(x, y, 6, RED)
            pen.arrow(x, y, to_x, to_y, RED)
        case Scroll(x, y, direction):
            across, down = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}[direction]
            pen.arrow(x - 16 * across, y - 16 * down, x + 16 * across, y + 16 * down, RED)
        case _:
            return screen
    overlay = overlay.resize(screen.size, Image.Resampling.BOX)
    return Image.alpha_composite(screen.convert("RGBA"), overlay).convert("RGB")


@dataclass(frozen=True, slots=True)
class _Pen:
    """Draws marks on the enlarged overlay: places in screen pixels, thicknesses the same on every screen."""

    overlay: ImageDraw.ImageDraw
    scale: float  # of the overlay against the screen
    unit: float  # a mark's pixel, on the overlay

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return (x + 0.5) * self.scale, (y + 0.5) * self.scale

    def ring(self, x: int, y: int, radius: int, colour: RGB) -> None:
        middle, unit = self._at(x, y), self.unit
        for thickness, ink in ((4, HALO), (2, colour)):  # thin and wide, so that what is clicked can still be read
            self.overlay.circle(
                middle, (radius + thickness / 2) * unit, outline=(*ink, 255), width=round(thickness * unit)
            )
        self.overlay.circle(middle, 1.5 * unit, fill=(*colour, 255))

    def arrow(self, x: float, y: float, to_x: float, to_y: float, colour: RGB) -> None:
        start, tip, unit = self._at(x, y), self._at(to_x, to_y), self.unit
        angle = math.atan2(tip[1] - start[1], tip[0] - start[0])
        for grown, ink in ((1, HALO), (0, colour)):
            reach, width = (12 + 2 * grown) * unit, (3 + 2 * grown) * unit
            # The line stops inside the head, so that its square end does not stick out of the tip.
            neck = (tip[0] - 6 * unit * math.cos(angle), tip[1] - 6 * unit * math.sin(angle))
            end = (tip[0] + grown * unit * math.cos(angle), tip[1] + grown * unit * math.sin(angle))
            sides = [
                (end[0] - reach * math.cos(angle + turn), end[1] - reach * math.sin(angle + turn))
                for turn in (-0.45, 0.45)
            ]
            self.overlay.line((start, neck), fill=(*ink, 255), width=round(width))
            self.overlay.polygon([end, *sides], fill=(*ink, 255))


def _fitted(text: str, size: int, room: float) -> str:
    """The text on one line, cut to fit."""
    text = " ".join(text[:500].split())
    if font(size).getlength(text) <= room:
        return text
    kept = bisect.bisect_right(range(len(text)), room, key=lambda length: font(size).getlength(text[:length] + "…"))
    return text[: max(0, kept - 1)].rstrip() + "…"
