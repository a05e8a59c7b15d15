"""Small pictures: one for each application, and those in front of list rows. Drawn in a few strokes each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arpo.envs.pocket.draw import Color, Tile

WHITE = (255, 255, 255)
YELLOW = (232, 184, 62)
BROWN = (190, 140, 30)
BLUE = (52, 112, 200)
GREEN = (40, 140, 80)
RED = (196, 60, 50)
GRAY = (110, 118, 128)


def draw_icon(t: Tile, name: str, x: int, y: int, ink: Color) -> None:
    """Draw the named icon at a corner: 22x18 for applications, 13x13 for rows. An unknown name draws nothing."""
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
