"""States of the families whose end is a picture or the browser's tabs (states.py)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence

from PIL import Image
from states import HOME, Do, Params, States, misplaced, nothing, put, sh, then

from arpo.envs.desktop.families.chromium import SITE
from arpo.envs.desktop.families.gimp import BLACK, HEIGHT, PICTURE, QUARTERS, RED, WIDTH
from arpo.envs.desktop.sandbox import Sandbox

# Pictures.


def picture(quarters: Sequence[Sequence[Sequence[int]]], size: tuple[int, int]) -> Image.Image:
    width, height = size
    image = Image.new("RGB", size)
    for i, row in enumerate(quarters):
        for j, (red, green, blue) in enumerate(row):
            image.paste(
                (red, green, blue), (j * width // 2, i * height // 2, (j + 1) * width // 2, (i + 1) * height // 2)
            )
    return image


def encoded(image: Image.Image, kind: str) -> bytes:
    memory = io.BytesIO()
    image.save(memory, {"jpg": "JPEG"}.get(kind, kind.upper()))
    return memory.getvalue()


def gimp_picture(p: Params) -> States:
    size, quarters, out = p.get("size", (WIDTH, HEIGHT)), p.get("quarters", QUARTERS), p["out"]
    kind = out.rpartition(".")[2]
    right, old = picture(quarters, size), picture(QUARTERS, (WIDTH, HEIGHT))
    half = right.copy()
    half.paste((120, 120, 120), (0, 0, size[0] // 2, size[1]))
    images = {
        "turned by 180 degrees": right.transpose(Image.Transpose.ROTATE_180),
        "mirrored": right.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        "upside down": right.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        "the colours turned round": Image.eval(right, lambda part: 255 - part),
        "gray": right.convert("L").convert("RGB"),
        "one colour": Image.new("RGB", size, tuple(RED)),
        "black": Image.new("RGB", size, tuple(BLACK)),
        "half of it": half,
        "a pixel larger": right.resize((size[0] + 1, size[1] + 1)),
        "a part of it": right.crop((0, 0, size[0] // 2, size[1] // 2)).resize(size),
        "too large": right.resize((2 * size[0], 2 * size[1])),
        "in a frame": _framed(right),
        "out of proportion": right.resize((size[0], size[1] // 2)),
    }
    if size != (WIDTH, HEIGHT) or quarters != QUARTERS:
        images["the original"] = old
    data = encoded(right, kind)
    wrong: dict[str, Do] = {name: put(out, encoded(image, kind)) for name, image in images.items()}
    for other in {"png", "jpg", "bmp"} - {kind}:
        wrong[f"as {other} under this name"] = put(out, encoded(right, other))
    wrong |= {
        "the original lost": then(put(out, data), sh('rm "$1"', PICTURE)),
        "the original emptied": then(put(out, data), put(PICTURE, b"")),
        "over the original": put(PICTURE, encoded(right, "png")),
        "the original changed": then(put(out, data), put(PICTURE, encoded(half, "png"))),
    }
    return put(out, data), wrong | misplaced(out, data)


def _framed(image: Image.Image) -> Image.Image:
    """Scaled down inside a white frame: the middles of the quarters are right."""
    width, height = image.size
    framed = Image.new("RGB", image.size, (255, 255, 255))
    framed.paste(image.resize((width * 3 // 5, height * 3 // 5)), (width // 5, height // 5))
    return framed


def vlc_snapshot(p: Params) -> States:
    path = f"{HOME}/vlcsnap-2026-01-02-03h04m05s678.png"
    frame = Image.new("RGB", (160, 120), (88, 22, 0))
    frame.paste((255, 208, 158), (20, 40, 60, 80))
    data = encoded(frame, "png")
    datas = {
        "some letters": b"a snapshot",
        "nothing but the kind": data[:40],
        "another picture": encoded(Image.new("RGB", (160, 120), (0, 0, 0)), "png"),
        "the whole screen": encoded(Image.new("RGB", (1280, 720), (88, 22, 0)), "png"),
        "the picture of a window": encoded(frame.resize((400, 340)), "png"),
        "the film itself": b"YUV4MPEG2 W160 H120 F1:1 Ip A1:1 C420jpeg\n",
        "an empty file": b"",
    }
    return put(path, data), {name: put(path, one) for name, one in datas.items()} | {
        "under another name": put(f"{HOME}/snapshot.png", data),
        "outside the home folder": put("/tmp/vlcsnap-1.png", data),
        "a folder of the name": sh('mkdir "$1"', path),
    }


# The browser's tabs. It is open: its debugging port opens and closes them.


def chromium_open(p: Params) -> States:
    def tabs(*pages: str, close: bool = True) -> Do:
        return lambda sandbox: _show(sandbox, pages, close)

    wanted = p["tabs"]
    new = [page for page in wanted if page != p["way"][0]] if p["new"] else wanted
    wrong = {
        "nothing": nothing,
        "another page": tabs(*("index.html" if page == new[0] else page for page in wanted), "soup.html"),
        "all pages": tabs(*p["pages"]),
        "twice": tabs(*wanted, *new),
        "a page that is not there": tabs(new[0].replace(".", "s.")),
        "a question more": tabs(*wanted[:-1], f"{wanted[-1]}?page=1"),
    }
    if p["new"]:
        wrong |= {"without the first page": tabs(*new), "the first page twice": tabs("index.html", "index.html")}
    else:
        wrong |= {"beside the first page": tabs(*wanted, close=False), "the way there too": tabs(*p["way"])}
    return tabs(*wanted), wrong


TABS = """import json, sys, time, urllib.request
def ask(what, method="GET"):
    return urllib.request.urlopen(urllib.request.Request("http://localhost:1337/json/" + what, method=method)).read()
def shown():
    return [page for page in json.loads(ask("list")) if page["type"] == "page"]
before = [page["id"] for page in shown()]
for url in sys.argv[2:]:
    ask("new?" + url, "PUT")
for page in before if sys.argv[1] == "close" else []:
    ask("close/" + page)
wanted = len(sys.argv[2:]) + (0 if sys.argv[1] == "close" else len(before))
while len(shown()) != wanted or any(page["url"] in ("", "about:blank") for page in shown()):
    time.sleep(0.05)
"""


def _show(sandbox: Sandbox, pages: Sequence[str], close: bool) -> None:
    urls = [f"{SITE}/{page}" for page in pages]
    ran = sandbox.run(["python3", "-c", TABS, "close" if close else "keep", *urls], limit_s=30)
    assert ran.status == 0 and not ran.late, (json.dumps(urls), ran.err)


STATES: dict[str, Callable[[Params], States]] = {
    "gimp-transform": gimp_picture, "gimp-scale": gimp_picture, "gimp-invert": gimp_picture,
    "gimp-convert": gimp_picture, "vlc-snapshot": vlc_snapshot, "chromium-open": chromium_open,
}  # fmt: skip
