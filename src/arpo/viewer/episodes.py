"""One episode as JSON, a window of steps at a time, with what was learned from each token; and its group.

An action is given as it is stored, in the screenshot's pixels: the page draws it on top. Screenshots are named by an
address: of the server, of a file beside the page, or with all their bytes in it (static.py).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arpo.envs.pictures import describe
from arpo.errors import ConfigError
from arpo.runs.record import TokenRecord
from arpo.runs.store import Run
from arpo.types import Json, Step, Trajectory
from arpo.viewer.decoding import Table, pieces, tables_of
from arpo.viewer.look import COLUMNS, Look, Repeat, integer, summary

WINDOW = 50  # steps that are sent at once
LONGEST = 20_000  # letters of a thought or of a reply that are shown, and tokens of one that are shown apart
MEMBERS, FRAMES = 32, 12  # of a group that is shown side by side: episodes, and screens of each
KINDS = {b"\x89PNG": "png", b"RIFF": "webp", b"\xff\xd8\xff": "jpg", b"GIF8": "gif", b"BM": "bmp"}
TYPES = {"png": "image/png", "webp": "image/webp", "jpg": "image/jpeg", "gif": "image/gif", "bmp": "image/bmp"}
HASH = re.compile(r"[0-9a-f]{2,64}")
_BEFORE_ACTION = re.compile(r"\bAction[ \t]*[:\uff1a]|<tool_call>")

Address = Callable[[str, str], str | None]
"""From a screenshot's hash and its kind to the address that the page loads; None: it is left out."""


class Missing(LookupError):
    """There is no such episode or screenshot."""


class Episodes:
    """The episodes of a run that are looked at one by one."""

    def __init__(self, look: Look, address: Address) -> None:
        self.look, self._address = look, address
        self._long: dict[str, Trajectory] = {}  # the last: it is asked for in many windows

    def episode(self, place: int, window: int = 0, again: int | None = None) -> Json:
        """The episode of that number: what is known of it as a whole, and WINDOW of its steps.

        `again`: its tokens as they were learned when that update replayed it.
        """
        with self.look.opened() as run:
            shown, row = self._summary(run, place)
            trajectory = self._unpacked(run, row[1])
            record, problems = self._record(run, shown, again)
            first = window * WINDOW
            if not 0 <= first <= max(0, len(trajectory.steps) - 1):
                raise Missing(f"window {window}")
            tables = tables_of(run.folder)
            starts = np.cumsum([0, *(len(step.completion.tokens) for step in trajectory.steps)])
            if record is not None and not _fits(record, starts[-1]):
                record, problems = None, [*problems, "the training record is of other tokens: it is not shown"]
            screens = _screens(trajectory)
            shown |= _whole(trajectory) | {"first": first, "window": WINDOW, "problems": problems}
            shown["steps"] = len(trajectory.steps)
            shown["moves"] = [
                _move(i, trajectory.steps[i], tables, record, slice(starts[i], starts[i + 1]))
                | {"screen": self._screen(run, screens[i])}
                for i in range(first, min(first + WINDOW, len(trajectory.steps)))
            ]
            ended = trajectory.steps and trajectory.steps[-1].observation is None
            shown["end"] = None if ended else self._screen(run, screens[-1])
            shown["trained"] = (
                None if record is None else {"update": shown["learned"] if again is None else again, **_means(record)}
            )
            shown["again"] = again
            shown["repeats"] = self._repeats(run, shown)
            shown["neighbours"] = _neighbours(run, place)
        return shown | {"instruction": self.look.instruction(shown["task"])}

    def group(self, place: int) -> Json:
        """The episodes of the same task and update side by side, and the stored successes that joined them."""
        with self.look.opened() as run:
            shown, row = self._summary(run, place)
            query = f'SELECT {COLUMNS} FROM trajectories WHERE task_id = ? AND "update" = ? AND source = ? ORDER BY id'
            rows = run.rows(f"{query} LIMIT ?", (row[2], row[3], row[4], MEMBERS))
            learned, repeats = self.look.learned(run)
            members = [summary(one, learned, repeats) for one in rows]
            names = {one["id"] for one in members}
            joined = [one for one in repeats if one.replaced in names][:MEMBERS]
            wanted = names | {one.name for one in joined}
            taught: dict[str, Json] = {}  # numbers alone: a record's arrays are parts of those of its whole update
            for update in {one["learned"] for one in members} - {None} | {one.update for one in joined}:
                try:
                    found = (one for one in run.record(update) if one.trajectory_id in wanted)
                    taught |= {one.trajectory_id: _learned_of(one) for one in found}
                except (ConfigError, KeyError):  # said with the episode
                    continue
            for member in members:
                member |= self._film(run, member) | taught.get(member["id"], {"advantage": None})
            guests = [
                guest | self._film(run, guest) | taught.get(one.name, {"advantage": None}) | {"joined": one.replaced}
                for one in joined
                if (guest := self._named(run, one.origin)) is not None
            ]
        group = {"task": shown["task"], "update": shown["update"], "source": shown["source"]}
        return group | {"members": members, "guests": guests, "instruction": self.look.instruction(shown["task"])}

    def image(self, name: str) -> tuple[bytes, str]:
        """The bytes of a screenshot and their kind. Missing where there is none, or where it is no picture."""
        with self.look.opened() as run:
            for image, *_ in run.rows("SELECT image FROM images WHERE hash = ?", (name,)):
                if isinstance(image, bytes) and (kind := kind_of(image)):
                    return image, kind
        raise Missing(name)

    def _unpacked(self, run: Run, name: str) -> Trajectory:
        trajectory = self._long.get(name) or run.trajectory(name)
        if len(trajectory.steps) > WINDOW:
            self._long = {name: trajectory}
        return trajectory

    def _summary(self, run: Run, place: int) -> tuple[Json, tuple[Any, ...]]:
        for row in run.rows(f"SELECT {COLUMNS} FROM trajectories WHERE number = ?", (place,)):
            return summary(row, *self.look.learned(run)), row
        raise Missing(f"episode {place}")

    def _named(self, run: Run, name: str) -> Json | None:
        for row in run.rows(f"SELECT {COLUMNS} FROM trajectories WHERE id = ?", (name,)):
            return summary(row, *self.look.learned(run))
        return None

    def _record(self, run: Run, shown: Json, again: int | None) -> tuple[TokenRecord | None, list[str]]:
        name, update = shown["id"], shown["learned"]
        if again is not None:
            of_it = [one for one in self._repeats_of(run, shown) if one.update == again]
            if not of_it:
                raise Missing(f"update {again}: replayed it not")
            name, update = of_it[0].name, again
        if update is None:
            damaged = shown["update"] in self.look.damaged
            return None, [f"what update {shown['update']} learned cannot be read"] if damaged else []
        try:
            return next((one for one in run.record(update) if one.trajectory_id == name), None), []
        except (ConfigError, KeyError) as error:
            return None, [self.look.said(error)]

    def _repeats(self, run: Run, shown: Json) -> list[Json]:
        """Where it took part again: the update, and the group of the failed episode whose place it took."""
        return [
            {"update": one.update, "group": (self._named(run, one.replaced) or {"group": None})["group"]}
            for one in self._repeats_of(run, shown)
        ]

    def _repeats_of(self, run: Run, shown: Json) -> list[Repeat]:
        return [one for one in self.look.learned(run)[1] if one.origin == shown["id"]][:100]

    def _film(self, run: Run, shown: Json) -> Json:
        """Its first screens with their actions, small enough to stand beside others."""
        try:
            trajectory = self._unpacked(run, shown["id"])
        except ConfigError as error:
            return {"film": [], "problem": self.look.said(error)}
        steps = zip(trajectory.steps[:FRAMES], _screens(trajectory), strict=False)
        return {"film": [{"screen": self._screen(run, name)} | _action(step) for step, name in steps]}

    def _screen(self, run: Run, name: str) -> Json | None:
        """None where the screenshot is not there: the rest is still shown."""
        if not HASH.fullmatch(name):
            return None
        query = "SELECT width, height, substr(image, 1, 12) FROM images WHERE hash = ?"
        try:
            rows = run.rows(query, (name,))
        except ConfigError:  # its part of the file is damaged
            return None
        for width, height, head in rows:
            kind = kind_of(head) if isinstance(head, bytes) else None
            if kind and 0 < integer(width) <= 10**5 and 0 < integer(height) <= 10**5:
                return {"url": self._address(name, kind), "width": width, "height": height}
        return None


def kind_of(image: bytes) -> str | None:
    """The kind of a picture by its first bytes."""
    kind = next((kind for head, kind in KINDS.items() if image.startswith(head)), None)
    return None if kind == "webp" and image[8:12] != b"WEBP" else kind  # RIFF holds sounds and films, too


def _screens(trajectory: Trajectory) -> list[str]:
    """The screen that each step was taken on, and after them the last one."""
    screens = [trajectory.start]
    for step in trajectory.steps:
        screens.append(step.observation or screens[-1])
    return screens


def _whole(trajectory: Trajectory) -> Json:
    steps = trajectory.steps
    return {
        "env_seed": str(trajectory.env_seed),  # larger than what JavaScript counts exactly
        "attempt": trajectory.attempt,
        "run": trajectory.provenance.run,
        "tokens": sum(len(step.completion.tokens) for step in steps),
        "engine_s": sum(step.engine_s for step in steps),
        "env_s": sum(step.env_s for step in steps),
        "versions": sorted({step.completion.version for step in steps})[:20],
    }


def _neighbours(run: Run, place: int) -> list[int | None]:
    before = "SELECT MAX(number) FROM trajectories WHERE number < ?"
    after = "SELECT MIN(number) FROM trajectories WHERE number > ?"
    return [run.rows(query, (place,))[0][0] for query in (before, after)]


def _action(step: Step) -> Json:
    action = None if step.action is None else asdict(step.action)
    return {"action": action, "did": describe(step.action)[:500] if step.action else "", "error": step.parse_error}


def _move(i: int, step: Step, tables: Sequence[Table], record: TokenRecord | None, tokens: slice) -> Json:
    said = step.completion
    thought = _BEFORE_ACTION.split(said.text, maxsplit=1)[0].strip().removeprefix("Thought:").strip()
    # Of the tokens, too: some stand for no letter, and each becomes an element of the page.
    cut = pieces(said.tokens, said.text, tables) if max(len(said.text), len(said.tokens)) <= LONGEST else None
    shown: Json = {
        "index": i,
        "thought": thought[:LONGEST],
        "text": said.text[:LONGEST],
        "ignored": step.ignored[:LONGEST],
        "engine_s": step.engine_s,
        "env_s": step.env_s,
        "settle_s": step.settle_s,
        "version": said.version,
        "temperature": said.temperature,
        "top_p": said.top_p,
        "finish": said.finish,
        "n_tokens": len(said.tokens),
        "tokens": cut,
        "logprobs": [_short(value) for value in said.logprobs] if cut else [],
    }
    if record is not None and cut:
        shown["ratios"] = _list(np.exp(np.clip(record.new[tokens] - record.old[tokens], -20, 20)))
        shown["advantages"] = _list(record.advantages[tokens])
        shown["clipped"] = [int(value) for value in record.clipped[tokens]]
    return shown | _action(step)


def _means(record: TokenRecord) -> Json:
    if not len(record.old):
        return {"advantage": None, "ratio": None, "clipped": None}
    ratio = np.exp(np.clip(record.new - record.old, -20, 20))
    return {
        "advantage": _short(float(record.advantages.mean())),
        "ratio": _short(float(ratio.mean())),
        "clipped": float(record.clipped.mean()),
    }


def _learned_of(record: TokenRecord) -> Json:
    return {"advantage": _means(record)["advantage"] if _fits(record, len(record.old)) else None}


def _fits(record: TokenRecord, tokens: int) -> bool:
    """Whether it has numbers, one for each token: a folder from others may hold anything."""
    columns = (record.advantages, record.old, record.new, record.clipped)
    return all(len(column) == tokens and column.dtype.kind in "fb" for column in columns)


def _list(values: NDArray[np.float32]) -> list[float | None]:
    return [_short(float(value)) for value in values]


def _short(value: float) -> float | None:
    """Four digits are more than a colour shows; None for what is no number."""
    return float(f"{value:.4g}") if abs(value) < 1e30 else None
