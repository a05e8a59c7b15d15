"""The page without a server: a folder for any web server, or one HTML file to be sent.

    write_bundle([Path("runs/first")], Path("site"))            every episode, as files of the addresses in site.py
    write_report([Path("runs/first")], Path("first.html"))      curves, tables, the best and the worst episodes

Both are there whole or not at all. In a report the screenshots are inside; large ones are made smaller, and what would
make the file too large is left out, which the page says in their place.
"""

import base64
import contextlib
import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console

from arpo.errors import ArpoError, ConfigError, EnvError, printable
from arpo.images import opened
from arpo.runs.progress import counted
from arpo.runs.store import LARGEST_WEBP, write_whole
from arpo.types import Json
from arpo.viewer.episodes import TYPES, WINDOW, Address, Missing, kind_of
from arpo.viewer.look import COLUMNS, Filter, Look, summary
from arpo.viewer.serve import FILES, POLICY, SCRIPTS, page_file
from arpo.viewer.site import Site

INDEX = "index.html"
MARK = "arpo-bundle.json"  # by which a folder is known as ours
MOST_LISTED = 100_000  # episodes in a bundle
IMAGES = 8 * 2**20  # bytes of screenshots in a report
SMALL, WIDTH = 40_000, 960  # bytes of a screenshot that stays as it is; of a larger one the pixels across
EXAMPLES, ALL, WINDOWS = 3, 12, 2  # best and worst episodes each of a run; of all runs; how many windows of their steps


def write_bundle(folders: Sequence[Path], out: Path) -> None:
    """ConfigError where the folder has other files than an older bundle's."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / MARK).is_file())):
        raise ConfigError(f"{out}: is there already and no bundle of arpo; name a new folder")
    if any(folder.resolve().is_relative_to(out.resolve()) for folder in folders):
        raise ConfigError(f"{out}: holds a run that would be replaced with it; name a new folder")
    site = _Bundle(folders)
    there = out.resolve()
    there.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{there.name}-", dir=there.parent))
    try:
        site.write(part)
        part.chmod(0o755)  # a web server may be another user
        if there.exists():
            shutil.rmtree(there)
        part.rename(there)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    print(printable(f"Everything is in {out}; any web server can serve it: python3 -m http.server -d {out}"))


class _Bundle(Site):
    """A site that notes which screenshots it names."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._named: set[str] = set()
        super().__init__(folders, live=False)

    def address(self, run: int) -> Address:
        plain = super().address(run)

        def noted(name: str, kind: str) -> str | None:
            path = plain(name, kind)
            if path is not None:
                self._named.add(path)
            return path

        return noted

    def write(self, part: Path) -> None:
        for name in set(FILES.values()) - {INDEX}:
            (part / name).write_bytes(page_file(name))
        # A web server of others says no policy. Who may frame the page cannot be said in it.
        policy = POLICY.partition("; frame-ancestors")[0]
        (part / INDEX).write_text(_swapped(page_file(INDEX).decode(), _policy(policy)), encoding="utf-8")
        _write(part, "api/overview.json", self.overview())
        numbers = [self._lists(part, run, look) for run, look in enumerate(self.looks)]
        with counted(Console(stderr=True, highlight=False), "writing", sum(map(len, numbers))) as advance:
            for run, of_run in enumerate(numbers):
                for one in of_run:
                    self._episode(part, run, one)
                    advance("episodes")
        for path in sorted(self._named):
            (part / path).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(ArpoError, Missing):  # a damaged one: the page says so in its place
                (part / path).write_bytes(self.image(path)[0])
        _write(part, MARK, {"format": 1})  # last: without it the folder is not whole

    def _lists(self, part: Path, run: int, look: Look) -> list[Json]:
        """The tasks and the list of a run; nothing where it cannot be read, which the overview says."""
        try:
            listed = look.episodes(Filter(), MOST_LISTED)
            _write(part, f"api/{run}/tasks.json", look.tasks())
        except (ArpoError, OSError) as error:
            for name in ("tasks", "episodes"):
                _write(part, f"api/{run}/{name}.json", _unreadable(look.said(error)))
            return []
        left_out = listed["total"] - len(listed["episodes"])
        _write(part, f"api/{run}/episodes.json", listed | {"whole": True, "left_out": left_out, "page_size": WINDOW})
        episodes: list[Json] = listed["episodes"]
        return episodes

    def _episode(self, part: Path, run: int, one: Json) -> None:
        episode, group = f"api/{run}/episode/{one['number']}", f"api/{run}/group/{one['group']}.json"
        first = self._written(part, run, f"{episode}/0.json")
        for window in range(1, -(-first.get("steps", 0) // WINDOW)):  # as it has them, whatever its column says
            self._written(part, run, f"{episode}/{window}.json")
        if not (part / group).exists():
            self._written(part, run, group)

    def _written(self, part: Path, run: int, path: str) -> Json:
        try:
            answer = self.answer(path)
        except (ArpoError, Missing) as error:  # a damaged one: the others are still shown
            answer = _unreadable(self.looks[run].said(error))
        _write(part, path, answer)
        return answer


def write_report(folders: Sequence[Path], out: Path) -> None:
    """One file, without a server. ConfigError where it cannot lie there."""
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigError(f"{out}: {'is a folder' if out.is_dir() else 'its folder is missing'}; name a file to write")
    site = _Report(folders)
    data = site.data()
    write_whole(out, in_one_file(data))
    size = out.stat().st_size / 2**20
    print(printable(f"The report is in {out} ({size:.1f} MB); open it in a browser, send it to a colleague"))


class _Report(Site):
    """A site whose screenshots are in their addresses."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._room = IMAGES
        self._inside: dict[tuple[int, str], str | None] = {}  # by run, too: one must not show its own as another's
        super().__init__(folders, live=False)

    def address(self, run: int) -> Address:
        def inside(name: str, kind: str) -> str | None:
            if (run, name) not in self._inside:
                self._inside[run, name] = self._embedded(run, name)
            return self._inside[run, name]

        return inside

    def data(self) -> Json:
        """What the page may ask for, by what it asks."""
        data: Json = {"overview": self.overview()}
        most = min(EXAMPLES, max(1, ALL // (2 * len(self.looks))))
        for run, look in enumerate(self.looks):
            try:
                data[f"{run}/tasks"] = look.tasks()
                examples, total = _examples(look, most)
            except (ArpoError, OSError) as error:
                data[f"{run}/tasks"] = {"tasks": [], "problems": [look.said(error)]}
                examples, total = [], 0
            data[f"{run}/episodes"] = {
                "whole": True,
                "total": len(examples),
                "left_out": total - len(examples),
                "page_size": WINDOW,
                "episodes": examples,
                "outcomes": sorted({one["outcome"] for one in examples}),
                "sources": sorted({one["source"] for one in examples}),
            }
            for one in examples:
                for window in range(min(WINDOWS, max(1, -(-one["steps"] // WINDOW)))):
                    path = f"{run}/episode/{one['number']}/{window}"
                    try:
                        data[path] = self.answer(f"api/{path}.json")
                    except (ArpoError, Missing) as error:
                        data[f"{run}/tasks"]["problems"].append(f"episode {one['number']}: {look.said(error)}")
        return data

    def _embedded(self, run: int, name: str) -> str | None:
        if not self._room:
            return None
        image, kind = self.episodes[run].image(name)
        if len(image) > SMALL:
            image = _smaller(image)
            kind = kind_of(image) or kind
        if len(image) > self._room:
            self._room = 0  # the first ones go first: no later one, which may be smaller, takes the room
            return None
        self._room -= len(image)
        return f"data:{TYPES[kind]};base64,{base64.b64encode(image).decode()}"


def _examples(look: Look, most: int) -> tuple[list[Json], int]:
    """The best and the worst, of different tasks, late and long ones first; and how many episodes there are."""
    chosen: dict[int, Json] = {}
    with look.opened() as run:
        ((total,),) = run.rows("SELECT COUNT(*) FROM trajectories")
        learned = look.learned(run)
        for order in ("DESC", "ASC"):
            late = f'ORDER BY score {order}, reward {order}, "update" DESC, n_steps DESC LIMIT 500'
            rows = run.rows(f"SELECT {COLUMNS} FROM trajectories WHERE score IS NOT NULL {late}")
            tasks: set[str] = set()
            for one in (summary(row, *learned) for row in rows):
                if len(tasks) < most and one["task"] not in tasks and one["number"] not in chosen:
                    tasks.add(one["task"])
                    chosen[one["number"]] = one
    return list(chosen.values()), total


def in_one_file(data: Json) -> str:
    """The page with its style, its scripts and its data inside. Only these scripts may run, by their hash."""
    page = page_file(INDEX).decode()
    style = page_file("style.css").decode()
    script = "\n".join(page_file(name).decode() for name in SCRIPTS)
    icon = base64.b64encode(page_file("icon.svg")).decode()
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
    policy += "base-uri 'none'; form-action 'none'"
    # In a script element only "<" could end it.
    told = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    swaps = {
        **_policy(policy),
        '<link rel="icon" href="icon.svg">': f'<link rel="icon" href="data:image/svg+xml;base64,{icon}">',
        '<link rel="stylesheet" href="style.css">': f"<style>{style}</style>",
        **{f'<script defer src="{name}"></script>\n': "" for name in SCRIPTS},
        "</body>": f'<script type="application/json" id="data">{told}</script>\n<script>{script}</script>\n</body>',
    }
    return _swapped(page, swaps)


def _policy(policy: str) -> dict[str, str]:
    charset = '<meta charset="utf-8">'
    return {charset: f'{charset}\n<meta http-equiv="Content-Security-Policy" content="{policy}">'}


def _swapped(page: str, swaps: dict[str, str]) -> str:
    for old, new in swaps.items():
        before, found, after = page.partition(old)
        assert found, f"{old} is not in {INDEX}"
        page = before + new + after
    return page


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _smaller(image: bytes) -> bytes:
    try:
        picture = opened(image)
    except EnvError:
        return image
    if picture.width > WIDTH:
        height = max(1, round(picture.height * WIDTH / picture.width))
        picture = picture.resize((WIDTH, height), Image.Resampling.LANCZOS)
    if picture.height > LARGEST_WEBP:
        return image
    written = io.BytesIO()
    picture.save(written, "WEBP", quality=80)
    return min(written.getvalue(), image, key=len)


def _unreadable(why: str) -> Json:
    """In the place of an answer: the page says it."""
    return {"error": why}


def _write(part: Path, path: str, data: Any) -> None:
    file = part / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(data, allow_nan=False, separators=(",", ":")), encoding="utf-8")
