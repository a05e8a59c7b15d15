"""What it costs to keep a screenshot: candidates for the store, on full-HD screens of three kinds. Prints JSON.

    python benchmarks/screens.py > docs/results/screens.json

    pocket    episodes of the expert: flat areas and text
    photo     the same in front of a photograph, drawn from noise: what many real desktops look like
    desktop   a picture of real applications (docs/pictures, 1448x818)

Every candidate is lossless and starts from pixels. `encode_ms` and `decode_ms` are a core's time, the least of a few
tries; `kb` is what is stored. The rule: a stored screenshot costs a core's time to write it and to read it once, at
4 cents an hour, and its bytes for a month, at 10 cents a GB (`micro_cents`). Of the pictures that any program can open
those within a tenth of the cheapest count, and of these the fastest is taken.

`difference`: only the box in which a screenshot differs from the one before it is kept, as WebP. To read it back, that
other one has to be decoded too (here once: in an episode it may be the last of a chain), and the two are put together.
"""

import io
import itertools
import json
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from arpo.envs.base import make, make_expert
from arpo.images import Pixels, decode, encode_png
from arpo.tasks.load import interleaved, load_tasks

SIZE = (1920, 1080)
TASKS, STEPS, TRIES = 3, 1, 2
CORE_MS, KB_MONTH = 4e6 / 3.6e6, 10.0  # millionths of a cent
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "desktop-applications.png"

Pair = tuple[Pixels, Pixels]
"""A screenshot, and the one before it."""


def main() -> None:
    kinds = {"pocket": list(pocket()), "photo": [(photo(a), photo(b)) for a, b in pocket()], "desktop": [real()]}
    found = {}
    for name, (write, read) in candidates().items():
        found[name] = {kind: row(write, read, pairs) for kind, pairs in kinds.items()}
        print(name, found[name], file=sys.stderr)
    for kind in kinds:
        best = min(rows[kind]["micro_cents"] for rows in found.values())
        for rows in found.values():
            rows[kind]["of_cheapest"] = round(rows[kind]["micro_cents"] / best, 2)
    print(json.dumps(found, indent=1))


def pocket() -> Iterator[Pair]:
    for task in interleaved(load_tasks("pocket", "train"))[:TASKS]:
        env, expert = make("pocket", size=SIZE), make_expert("pocket", task)
        screens = [decode(env.reset(task, 1).image)]
        while not env.ended and len(screens) <= STEPS:
            screens.append(decode(env.step(expert.act(env)[1]).image))
        yield from ((b, a) for a, b in itertools.pairwise(screens))


def photo(screen: Pixels) -> Pixels:
    """With what looks like a photograph in the places of the desktop's own colour."""
    rng = np.random.default_rng(0)
    height, width, _ = screen.shape
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / rng.uniform(40, 400) + y / rng.uniform(40, 400) + phase) for phase in range(9)]
    smooth = np.stack([sum(waves[i::3]) for i in range(3)], axis=-1)
    picture = np.clip(128 + 30 * smooth + rng.normal(0, 3, screen.shape), 0, 255).astype(np.uint8)
    empty = np.all(screen == screen[height // 2, 4], axis=-1, keepdims=True)
    return np.where(empty, picture, screen)


def real() -> Pair:
    with Image.open(PICTURE) as opened:
        screen = np.array(opened.convert("RGB"))
    before = screen.copy()
    before[300:500, 400:800] = 255  # as if a dialog had gone
    return screen, before


Write = Callable[[Pixels, Pixels], bytes]
Read = Callable[[bytes, Pixels], Pixels]


def candidates() -> dict[str, tuple[Write, Read]]:
    def plain(write: Callable[[Pixels], bytes]) -> tuple[Write, Read]:
        return (lambda screen, before: write(screen)), (lambda data, before: decode(data))

    found: dict[str, tuple[Write, Read]] = {}
    for level in (0, 1, 2, 3, 4, 6):
        found[f"PNG, no filter, zlib {level}"] = plain(lambda screen, level=level: png(screen, level))
    for level in (1, 6):
        found[f"PNG of Pillow, {level}"] = plain(lambda screen, level=level: saved(screen, "PNG", compress_level=level))
    found["rows less the row above, zlib 1"] = (lambda screen, before: above(screen)), from_above
    for method in (0, 1, 2, 4):
        for quality in (0, 20, 30):
            settings = {"lossless": True, "method": method, "quality": quality}
            found[f"WebP, method {method}, quality {quality}"] = plain(
                lambda screen, settings=settings: saved(screen, "WEBP", **settings)
            )
    found["difference"] = difference, together
    return found


def png(screen: Pixels, level: int) -> bytes:
    from arpo import images

    images.ZLIB_LEVEL = level
    return encode_png(screen)


def saved(screen: Pixels, format: str, **settings: object) -> bytes:
    written = io.BytesIO()
    Image.fromarray(screen).save(written, format, **settings)
    return written.getvalue()


def above(screen: Pixels) -> bytes:
    rows = screen.copy()
    rows[1:] -= screen[:-1]
    return b"%d %d " % screen.shape[:2] + zlib.compress(rows.data, 1)


def from_above(data: bytes, before: Pixels) -> Pixels:
    height, width, packed = data.split(b" ", 2)
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(int(height), int(width), 3)
    return np.add.accumulate(rows, axis=0, dtype=np.uint8)


def difference(screen: Pixels, before: Pixels) -> bytes:
    changed = np.any(screen != before, axis=-1)
    rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    if not len(rows):
        return b"0 0 "
    top, left = rows[0], columns[0]
    box = screen[top : rows[-1] + 1, left : columns[-1] + 1]
    return b"%d %d " % (top, left) + saved(np.ascontiguousarray(box), "WEBP", lossless=True, method=2, quality=20)


def together(data: bytes, before: Pixels) -> Pixels:
    whole = decode(saved_before(before))  # the other one is decoded too
    top, left, packed = data.split(b" ", 2)
    if not packed:
        return whole
    box, screen = decode(packed), whole.copy()
    screen[int(top) : int(top) + len(box), int(left) : int(left) + box.shape[1]] = box
    return screen


_SAVED: dict[int, bytes] = {}


def saved_before(before: Pixels) -> bytes:
    if id(before) not in _SAVED:
        _SAVED[id(before)] = saved(before, "WEBP", lossless=True, method=2, quality=20)
    return _SAVED[id(before)]


def row(write: Write, read: Read, pairs: list[Pair]) -> dict[str, float]:
    encode, unpack, size = [], [], []
    for screen, before in pairs:
        data = write(screen, before)
        assert np.array_equal(read(data, before), screen)
        encode.append(least_ms(lambda screen=screen, before=before: write(screen, before)))
        unpack.append(least_ms(lambda data=data, before=before: read(data, before)))
        size.append(len(data) / 1e3)
    e, d, kb = (statistics.fmean(values) for values in (encode, unpack, size))
    cost = CORE_MS * (e + d) + KB_MONTH * kb
    return {"encode_ms": round(e, 1), "decode_ms": round(d, 1), "kb": round(kb, 1), "micro_cents": round(cost)}


def least_ms(do: Callable[[], object]) -> float:
    times = []
    for _ in range(TRIES):
        began = time.thread_time()
        do()
        times.append(1e3 * (time.thread_time() - began))
    return min(times)


if __name__ == "__main__":
    main()
