"""Tasks for GIMP, with a picture of four coloured quarters: whatever was done to it can be seen in a few pixels."""

from arpo.agent.actions import Type
from arpo.envs.desktop.families.base import DesktopFamily, Params, impossible
from arpo.envs.desktop.families.moves import Look, Moves, click, press
from arpo.envs.desktop.families.parts import HOME, every, file_check, launch, run, shell_says, task
from arpo.types import Json

APPS = ("gimp",)
WIDTH, HEIGHT = 320, 200
RED, BLUE, WHITE, BLACK = [220, 30, 30], [20, 60, 200], [250, 250, 250], [10, 10, 10]
QUARTERS = [[RED, BLUE], [WHITE, BLACK]]
PICTURE = f"{HOME}/Pictures/photo.png"
FIRST_BYTES = {"png": " 89 50\n", "jpg": " ff d8\n", "bmp": " 42 4d\n"}  # of a file, by its kind
DRAW = f"""import os, struct, zlib
def part(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
rows = [b"\\0" + b"".join(bytes(colour) * {WIDTH // 2} for colour in row) for row in {QUARTERS}]
pixels = zlib.compress(b"".join(row * {HEIGHT // 2} for row in rows))
head = struct.pack(">IIBBBBB", {WIDTH}, {HEIGHT}, 8, 2, 0, 0, 0)
os.makedirs("{HOME}/Pictures", exist_ok=True)
with open("{PICTURE}", "wb") as file:
    file.write(b"\\x89PNG\\r\\n\\x1a\\n" + part(b"IHDR", head) + part(b"IDAT", pixels) + part(b"IEND", b""))
"""


def _picture(p: Params) -> Json:
    """Change the picture by the menus and export it; its size and points of its quarters tell what was done."""
    kind = shell_says('od -An -tx1 -N2 "$1"', FIRST_BYTES[p["out"].rpartition(".")[2]], p["out"])
    done = _looks(p["out"], p.get("size", (WIDTH, HEIGHT)), p.get("quarters", QUARTERS))
    checks = every(kind, *done, *_looks(PICTURE, (WIDTH, HEIGHT), QUARTERS))
    return task(f"{p['say']} Export the result as {p['out']}; the original stays as it is.", _CONFIG, checks)


def _looks(path: str, size: tuple[int, int], quarters: list[list[list[int]]]) -> tuple[Json, Json]:
    """A picture has this size, and each quarter its colour, near the edges of the picture too."""
    width, height = size
    at = [[width * x // 16, height * y // 16, quarters[y // 8][x // 8]] for y in (1, 4, 12, 15) for x in (1, 4, 12, 15)]
    return (
        file_check("check_image_size", path, {"width": width, "height": height}),
        file_check("check_pixels", path, {"at": at, "tolerance": 20}),
    )


def _picture_script(look: Look, p: Params) -> Moves:
    look.window("GIMP")
    for thought, keys in p["menu"]:
        yield from press(thought, keys)
    if "width" in p:
        box = look.window("Scale Image")
        yield "Give the width; the height follows.", Type(f"{p['width']}\t")
        yield from click("Scale.", box, -55, -28)
        look.gone("Scale Image")
    look.window("GIMP")
    yield from press("Export.", "ctrl shift e")
    look.window("Export Image")
    yield from press("Take the suggested name away.", "ctrl a")
    yield "Give the path and confirm.", Type(f"{p['out']}\n")
    look.window("Export Image as")
    yield from press("The settings are fine.", "enter")
    look.gone("Export Image")
    look.file(p["out"])


_CONFIG = [run("python3", "-c", DRAW), launch("gimp", PICTURE)]
_TRANSFORM = (("Open the menu Image.", "alt i"), ("Transform.", "t"))
_INVERTED = [[[255 - part for part in colour] for colour in row] for row in QUARTERS]

FAMILIES = (
    DesktopFamily("gimp-transform", APPS, _picture, _picture_script, (
        {"say": "Mirror the picture, so that left and right change places.", "out": f"{HOME}/Pictures/mirror.png",
         "menu": (*_TRANSFORM, ("Flip horizontally.", "h")), "quarters": [row[::-1] for row in QUARTERS]},
        {"say": "Flip the picture upside down like a reflection in water.", "out": f"{HOME}/Pictures/water.png",
         "menu": (*_TRANSFORM, ("Flip vertically.", "v")), "quarters": QUARTERS[::-1]},
        {"say": "Turn the whole picture by 90 degrees, clockwise.", "out": f"{HOME}/Pictures/turned.png",
         "menu": (*_TRANSFORM, ("Rotate by 90 degrees.", "c")), "size": (HEIGHT, WIDTH),
         "quarters": [[WHITE, RED], [BLACK, BLUE]]},
    )),
    DesktopFamily("gimp-scale", APPS, _picture, _picture_script, (
        {"say": "Make the picture 160 pixels wide and keep its proportions.", "out": f"{HOME}/Pictures/small.png",
         "menu": (("Open the menu Image.", "alt i"), ("Scale.", "s")), "width": 160, "size": (160, 100)},
        {"say": "Scale the picture up to a width of 640 pixels, in proportion.", "out": f"{HOME}/Pictures/large.png",
         "menu": (("Open the menu Image.", "alt i"), ("Scale.", "s")), "width": 640, "size": (640, 400)},
    )),
    DesktopFamily("gimp-invert", APPS, _picture, _picture_script, (
        {"say": "Invert the colours of the picture, as on a film negative.", "out": f"{HOME}/Pictures/negative.png",
         "menu": (("Open the menu Colours.", "alt c"), ("Find 'Invert'.", "v"), ("That one.", "enter")),
         "quarters": _INVERTED},
    ), held_out=0),
    DesktopFamily("gimp-convert", APPS, _picture, _picture_script, (
        {"say": "I need this picture as a JPEG file.", "out": f"{HOME}/Pictures/photo.jpg", "menu": ()},
        {"say": "Convert the picture to a bitmap file (BMP).", "out": f"{HOME}/Pictures/photo.bmp", "menu": ()},
    )),
    impossible("gimp-impossible", APPS, lambda p: _CONFIG,
        {"say": "Let GIMP translate the text in this picture to French and save it."},
    ),
)  # fmt: skip
