"""Pictures of items, and of a whole frame.

Each item's picture depends only on its `spec`, the theme and the scale, so it is painted once and pasted from then
on: a frame is some hundred pastes. Each kind of item has a case in `_paint`; a new kind is one more.
"""

from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image, ImageDraw

from arpo.envs.pocket.text_layout import SIZE, text_mask, width
from arpo.envs.pocket.ui import Layer, Spec
from arpo.images import Pixels

Color: TypeAlias = tuple[int, int, int]
Words: TypeAlias = list[tuple[int, int, int, str]]
"""x, y, font size and text of all that is written on a tile."""
ACCENTED = frozenset(  # what shows the accent colour; all other pictures serve under every accent
    "button cell checkbox field icon key launcher minimise radio slider tab title window".split()
)
SMALL = 6000  # logical pixels; what is larger than a row of a list is a background
SMALL_TILES, LARGE_TILES = 2500, 128  # pictures kept, of 5 kB each and of 200 kB (four times that at scale 2)


class Theme(NamedTuple):
    """The colours that settings change."""

    dark: bool = False
    accent: str = "Blue"

    def __getattr__(self, name: str) -> Color:
        """`theme.page`, `theme.ink` …: the palette's colours."""
        return PALETTE[name][self.dark]

    @property
    def bright(self) -> Color:
        return COLORS[self.accent]


COLORS: dict[str, Color] = {
    "Blue": (46, 98, 178),
    "Green": (42, 128, 84),
    "Red": (176, 56, 56),
    "Purple": (116, 72, 160),
    "Orange": (196, 108, 28),
    "Gray": (96, 104, 116),
}
PALETTE: dict[str, tuple[Color, Color]] = {  # as it is, and in dark mode
    "panel": ((236, 238, 241), (52, 56, 62)),
    "page": ((255, 255, 255), (34, 36, 40)),
    "ink": ((24, 26, 30), (236, 238, 240)),
    "faint": ((106, 112, 120), (156, 162, 170)),
    "edge": ((150, 156, 164), (110, 116, 124)),
    "raised": ((250, 251, 252), (70, 75, 82)),
    "wrong": ((190, 30, 30), (255, 130, 120)),
    "quiet": ((176, 184, 194), (84, 90, 98)),
    "off": ((156, 162, 170), (128, 134, 142)),
    "select": ((198, 218, 246), (56, 86, 130)),
    "link": ((20, 70, 190), (140, 180, 255)),
}
WHITE: Color = (255, 255, 255)
YELLOW, BROWN, BLUE = (232, 184, 62), (190, 140, 30), (52, 112, 200)  # of icons
GREEN, RED, GRAY = (40, 140, 80), (196, 60, 50), (110, 118, 128)


class Tile:
    """A picture being painted, in logical coordinates from its own corner."""

    def __init__(self, w: int, h: int, scale: int, fill: Color) -> None:
        self.w, self.h, self.scale = w, h, scale
        self.image = Image.new("RGB", (w * scale, h * scale), fill)
        self.pen = ImageDraw.Draw(self.image)
        self.texts: Words = []

    def fill(self, color: Color, edge: Color | None = None) -> None:
        self.rect(0, 0, self.w, self.h, color, edge)

    def rect(self, x: int, y: int, w: int, h: int, fill: Color | None, edge: Color | None = None) -> None:
        s = self.scale
        if w > 0 and h > 0:
            self.pen.rectangle((x * s, y * s, (x + w) * s - 1, (y + h) * s - 1), fill=fill, outline=edge, width=s)

    def ellipse(self, x: int, y: int, w: int, h: int, fill: Color | None, edge: Color | None = None) -> None:
        s = self.scale
        self.pen.ellipse((x * s, y * s, (x + w) * s - 1, (y + h) * s - 1), fill=fill, outline=edge, width=s)

    def line(self, points: list[tuple[int, int]], fill: Color, width: int = 1) -> None:
        s = self.scale
        self.pen.line([(x * s + s // 2, y * s + s // 2) for x, y in points], fill=fill, width=width * s)

    def polygon(self, points: list[tuple[int, int]], fill: Color) -> None:
        self.pen.polygon([(x * self.scale, y * self.scale) for x, y in points], fill=fill)

    def text(self, x: int, y: int, text: str, fill: Color, size: int = SIZE, bold: bool = False) -> None:
        """Text with its top-left corner at (x, y)."""
        s = self.scale
        self.texts.append((x, y, size, text))
        for dx in range(1 + bold):  # bold: printed twice, a pixel apart
            self.image.paste(fill, ((x + dx) * s, y * s), text_mask(text, size, s))

    def centred(self, text: str, fill: Color, dy: int = 0) -> None:
        self.text((self.w - width(text)) // 2, (self.h - 15) // 2 + dy, text, fill)


def render(layers: list[Layer], size: tuple[int, int], scale: int, theme: Theme) -> Pixels:
    """The whole screen, height x width x 3."""
    width, height = size
    screen = np.empty((height, width, 3), np.uint8)
    plain = theme._replace(accent="Blue")
    for layer in layers:
        for item in layer.items:
            tile, _ = _tile(item.spec, theme if item.spec[0] in ACCENTED else plain, scale)
            h, w, _ = tile.shape
            x, y = item.x * scale, item.y * scale
            if y + h > height or x + w > width:
                tile = tile[: height - y, : width - x]
            screen[y : y + h, x : x + w] = tile
    bottom, right = layers[0].h * scale, layers[0].w * scale  # of an odd side, one row or column is left
    screen[bottom:] = screen[bottom - 1]
    screen[:, right:] = screen[:, right - 1 : right]
    return screen


def words(layers: list[Layer], scale: int, theme: Theme) -> list[tuple[str, tuple[int, int, int, int]]]:
    """Every word on the screen that nothing covers, and its box in logical pixels. Lessons in reading use this."""
    visible = []
    plain = theme._replace(accent="Blue")
    for i, layer in enumerate(layers):
        above = layers[i + 1 :]
        for item in layer.items:
            for x, y, size, text in _tile(item.spec, theme if item.spec[0] in ACCENTED else plain, scale)[1]:
                left = item.x + x
                for word in text.split(" "):
                    w = width(word, size)
                    box = (left, item.y + y, left + w, item.y + y + size + 2)
                    if word and not any(other.meets(*box) for other in above):
                        visible.append((word, box))
                    left += w + width(" ", size)
    return visible


def _tile(spec: Spec, theme: Theme, scale: int) -> tuple[Pixels, Words]:
    """The picture of an item and what is written on it; painted only the first time."""
    return (_small_tile if spec[1] * spec[2] < SMALL else _large_tile)(spec, theme, scale)


def _painted(spec: Spec, theme: Theme, scale: int) -> tuple[Pixels, Words]:
    kind, w, h, label, state, extra = spec
    tile = Tile(w, h, scale, theme.panel)
    _paint(tile, theme, kind, label, state, extra)
    return np.asarray(tile.image), tile.texts


_small_tile = lru_cache(maxsize=SMALL_TILES)(_painted)
_large_tile = lru_cache(maxsize=LARGE_TILES)(_painted)


def _paint(t: Tile, theme: Theme, kind: str, label: str, state: tuple[str, ...], extra: Any) -> None:
    """Paint a tile from the label as drawn, the states, and what else the kind needs."""
    active, selected, disabled = ("active" in state, "selected" in state, "disabled" in state)
    ink = theme.off if disabled else theme.ink
    on_bar = WHITE if active else theme.ink
    match kind:
        case "text":
            t.fill(theme.page if extra in ("page", "page-title", "page-faint") else theme.panel)
            color = theme.wrong if extra == "wrong" else theme.faint if extra in ("faint", "page-faint") else theme.ink
            t.text(0, 0, label, color, bold=extra in ("title", "page-title"))
        case "panel":
            color = theme.edge if extra == "line" else theme.page if extra == "page" else theme.panel
            t.fill(color, theme.edge if extra == "page" else None)
        case "button":
            on = "on" in state
            t.fill(theme.bright if on else theme.raised, theme.bright if "default" in state else theme.edge)
            t.centred(label, WHITE if on and not disabled else ink)
        case "checkbox" | "radio":
            _mark(t, theme, kind == "radio", "checked" in state, disabled, on_page=extra == "page")
            t.text(18, 1, label, ink)
        case "tab":
            t.fill(theme.page if selected else theme.panel, theme.edge)
            if selected:
                t.rect(0, 0, t.w, 2, theme.bright)
            t.centred(label, theme.ink, 1)
        case "link":
            t.fill(theme.page)
            t.text(0, 0, label, theme.link)
            t.rect(0, 13, width(label), 1, theme.link)
        case "row":
            icon, cells = extra
            ink = theme.faint if "faint" in state else theme.ink
            t.fill(theme.select if selected else theme.page)
            if icon:
                _icon(t, icon, 3, 2, theme.ink)
            t.text(19 if icon else 3, 1, label, ink, bold="bold" in state)
            for at, text in cells:
                t.text(at, 1, text, ink)
        case "dropdown":
            t.fill(theme.raised, theme.edge)
            t.text(4, 1, label, theme.ink)
            t.polygon([(t.w - 12, 6), (t.w - 4, 6), (t.w - 8, 11)], theme.ink)
        case "slider":
            x = 6 + (t.w - 12) * extra // 100
            t.rect(6, 7, t.w - 12, 4, theme.quiet)
            if not disabled:
                t.rect(6, 7, x - 6, 4, theme.bright)
            t.rect(x - 4, 2, 8, 14, theme.raised, theme.edge)
        case "field":
            t.fill(theme.page, theme.bright if "focused" in state else theme.edge)
            _marked_text(t, theme, 4, 1, label, extra)
        case "line":
            t.fill(theme.page)
            _marked_text(t, theme, 1, 0, label, extra)
        case "area":
            t.fill(theme.page, theme.edge)
        case "scrollbar":
            at, size = extra
            t.rect(1, at, 6, size, theme.quiet)
        case "window":
            t.fill(theme.panel, theme.bright if active else theme.edge)
        case "title":
            t.fill(theme.bright if active else theme.quiet)
            t.text(5, 1, label, on_bar)
        case "minimise":
            t.fill(theme.bright if active else theme.quiet)
            t.rect(4, 11, 8, 2, on_bar)
        case "close":
            t.fill(COLORS["Red"] if active else theme.quiet)
            t.line([(4, 4), (11, 11)], on_bar, 2)
            t.line([(4, 11), (11, 4)], on_bar, 2)
        case "menu":
            t.centred(label, theme.ink)
        case "popup":
            t.fill(theme.raised, theme.edge)
        case "menuitem":
            t.fill(theme.select if "lit" in state else theme.raised)
            if "checked" in state:
                t.line([(4, 8), (7, 11), (11, 5)], theme.ink, 2)
            t.text(16, 1, label, ink)
            if extra:  # the shortcut
                t.text(t.w - 5 - width(extra), 1, extra, theme.faint)
        case "taskbar":
            t.fill(theme.quiet)
        case "launcher":
            t.fill(theme.bright)
            t.centred(label, WHITE)
        case "task":
            t.fill(theme.page if active else theme.panel, theme.edge)
            t.text(3, 1, label, theme.faint if "minimised" in state else theme.ink)
        case "clock":
            t.fill(theme.quiet)
            t.text(2, 0, label, theme.ink)
        case "wallpaper":
            t.fill(wallpaper(extra, theme))
        case "icon":
            name, background = extra
            t.fill(theme.bright if selected else wallpaper(background, theme))
            _icon(t, name, (t.w - 22) // 2, 3, (20, 22, 26))
            t.text((t.w - width(label)) // 2, 24, label, WHITE)
        case "cell":  # of a table, with its lines to the right and below; numbers stand at the right
            t.fill(theme.quiet)
            t.rect(0, 0, t.w - 1, t.h - 1, theme.page)
            t.text(t.w - 3 - width(label) if extra else 3, 0, label, theme.wrong if label == "#ERR" else theme.ink)
            if selected:
                t.rect(0, 0, t.w, t.h, None, theme.bright)
                t.rect(1, 1, t.w - 2, t.h - 2, None, theme.bright)
        case "head":  # the letter of a column or the number of a row
            t.fill(theme.quiet)
            t.rect(0, 0, t.w - 1, t.h - 1, theme.select if selected else theme.panel)
            t.centred(label, theme.ink)
        case "display":  # a calculator's: the number, set larger than text, at the right
            t.fill(theme.page)
            t.text(t.w - 4 - width(label, 16), 0, label, theme.wrong if "wrong" in state else theme.ink, size=16)
        case "key":
            _key(t, theme, label)
        case "tool":
            t.fill(theme.raised, theme.edge)
            _tool(t, extra, ink, "on" in state)
        case "notice":
            t.fill(theme.ink)
            t.text(8, 2, label, theme.page)
        case _:
            raise ValueError(f"nothing paints a {kind}")


def _mark(t: Tile, theme: Theme, is_round: bool, checked: bool, disabled: bool, on_page: bool) -> None:
    """The box or the circle to the left of the label of a check box or a radio button."""
    if on_page:
        t.fill(theme.page)
    fill = theme.page if not checked else theme.quiet if disabled else theme.bright
    if is_round:
        t.ellipse(2, 3, 12, 12, fill, theme.edge)
        if checked:
            t.ellipse(5, 6, 6, 6, WHITE)
    else:
        t.rect(2, 3, 12, 12, fill, theme.edge)
        if checked:
            t.line([(4, 9), (7, 12), (11, 5)], WHITE, 2)


def _marked_text(t: Tile, theme: Theme, x: int, y: int, text: str, marks: Any) -> None:
    """Text with the selection behind it and the caret in front: marks = (caret, start, end), -1 for before the text."""
    if marks:
        start, end = marks[1:]
        if end > max(0, start):
            t.rect(x + max(0, start), y, end - max(0, start), 15, theme.select)
    t.text(x, y, text, theme.ink)
    if marks and marks[0] >= 0:
        t.rect(x + marks[0], y + 1, 1, 13, theme.ink)


def wallpaper(name: str, theme: Theme) -> Color:
    """A wallpaper is a calm shade of its colour, dark enough for white letters."""
    red, green, blue = COLORS[name]
    return (red // 3, green // 3, blue // 3) if theme.dark else (red // 2 + 64, green // 2 + 64, blue // 2 + 64)


def _key(t: Tile, theme: Theme, label: str) -> None:
    """A calculator's key. The font has no signs for times, divide and backspace, so they are drawn."""
    t.fill(theme.bright if label == "=" else theme.raised if label.isdigit() else theme.panel, theme.edge)
    x, y = t.w // 2, t.h // 2
    match label:
        case "x":
            t.line([(x - 3, y - 3), (x + 3, y + 3)], theme.ink)
            t.line([(x - 3, y + 3), (x + 3, y - 3)], theme.ink)
        case "/":
            t.rect(x - 4, y, 9, 1, theme.ink)
            t.rect(x - 1, y - 4, 2, 2, theme.ink)
            t.rect(x - 1, y + 3, 2, 2, theme.ink)
        case "back":
            t.polygon([(x - 6, y), (x - 2, y - 4), (x - 2, y + 4)], theme.ink)
            t.rect(x - 2, y - 1, 8, 2, theme.ink)
        case _:
            t.centred("±" if label == "+/-" else label, WHITE if label == "=" else theme.ink)


def _tool(t: Tile, icon: str, ink: Color, on: bool) -> None:
    """The picture on a small button: back, forward, home, star."""
    x, y = t.w // 2, t.h // 2
    match icon:
        case "back":
            t.polygon([(x - 4, y), (x + 2, y - 4), (x + 2, y + 4)], ink)
        case "forward":
            t.polygon([(x + 3, y), (x - 3, y - 4), (x - 3, y + 4)], ink)
        case "home":
            t.polygon([(x - 6, y), (x, y - 6), (x + 6, y)], ink)
            t.rect(x - 4, y, 8, 5, ink)
        case "star":
            outline = ((0, -6), (2, -2), (6, -2), (3, 1), (4, 5), (0, 3), (-4, 5), (-3, 1), (-6, -2), (-2, -2))
            points = [(x + dx, y + dy) for dx, dy in outline]
            if on:
                t.polygon(points, COLORS["Orange"])
            else:
                t.line([*points, points[0]], ink)


def _icon(t: Tile, name: str, x: int, y: int, ink: Color) -> None:
    """A small picture in a few strokes: 22x18 for applications, 13x13 for rows. An unknown name draws nothing."""
    match name:
        case "Files":
            t.rect(x, y + 2, 10, 4, BROWN)
            t.rect(x, y + 4, 22, 14, YELLOW, BROWN)
        case "Editor":
            t.rect(x + 3, y, 16, 18, WHITE, ink)
            for row in range(4):
                t.rect(x + 6, y + 4 + row * 3, 10 - row % 2 * 3, 1, GRAY)
        case "Settings":
            t.ellipse(x + 3, y + 1, 16, 16, GRAY, ink)
            t.ellipse(x + 8, y + 6, 6, 6, WHITE, ink)
            for dx, dy in ((10, -1), (10, 17), (1, 8), (20, 8)):
                t.rect(x + dx, y + dy, 2, 2, ink)
        case "Calculator":
            t.rect(x + 3, y, 16, 18, GRAY, ink)
            t.rect(x + 5, y + 2, 12, 4, WHITE)
            for i in range(9):
                t.rect(x + 5 + i % 3 * 4, y + 8 + i // 3 * 3, 3, 2, WHITE)
        case "Mail":
            t.rect(x, y + 2, 22, 15, WHITE, ink)
            t.line([(x + 1, y + 3), (x + 11, y + 11), (x + 20, y + 3)], RED, 2)
        case "Browser":
            t.ellipse(x + 2, y, 18, 18, BLUE, ink)
            t.rect(x + 10, y, 2, 18, WHITE)
            t.rect(x + 2, y + 8, 18, 2, WHITE)
        case "Sheet":
            t.rect(x + 1, y + 1, 20, 16, WHITE, GREEN)
            t.rect(x + 1, y + 1, 20, 4, GREEN)
            t.rect(x + 7, y + 1, 1, 16, GREEN)
            t.rect(x + 14, y + 1, 1, 16, GREEN)
            t.rect(x + 1, y + 11, 20, 1, GREEN)
        case "folder":
            t.rect(x, y + 1, 6, 3, BROWN)
            t.rect(x, y + 3, 13, 10, YELLOW, BROWN)
        case "file" | "txt":
            t.rect(x + 2, y, 10, 13, WHITE, GRAY)
            for row in range(3):
                t.rect(x + 4, y + 3 + row * 3, 6, 1, GRAY)
        case "csv":
            t.rect(x + 1, y, 12, 13, WHITE, GREEN)
            t.rect(x + 1, y + 4, 12, 1, GREEN)
            t.rect(x + 1, y + 8, 12, 1, GREEN)
            t.rect(x + 6, y, 1, 13, GREEN)
        case "png":
            t.rect(x, y + 1, 13, 11, (150, 200, 240), GRAY)
            t.polygon([(x + 1, y + 11), (x + 5, y + 5), (x + 9, y + 11)], GREEN)
            t.ellipse(x + 8, y + 3, 3, 3, YELLOW)
        case "html":
            t.ellipse(x + 1, y + 1, 11, 11, BLUE, GRAY)
            t.rect(x + 6, y + 1, 1, 11, WHITE)
        case "star":
            points = [(6, 0), (8, 4), (13, 5), (9, 8), (10, 13), (6, 10), (2, 13), (3, 8), (0, 5), (4, 4)]
            t.polygon([(x + px, y + py) for px, py in points], YELLOW)
        case "mail":
            t.rect(x, y + 2, 13, 9, WHITE, GRAY)
            t.line([(x + 1, y + 3), (x + 6, y + 7), (x + 11, y + 3)], GRAY)
        case "unread":
            t.ellipse(x + 3, y + 3, 7, 7, BLUE)
