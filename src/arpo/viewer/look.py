"""From a run's folder to plain JSON: curves, tasks with their history, lists of episodes. Nothing here knows of HTTP.

    look = Look(Path("runs/first"))
    look.overview()     look.tasks()     look.episodes(Filter(task="mail", score="failed"))

Each question opens the run anew: it may be written meanwhile, and SQLite wants a connection for each thread. Lists come
from columns alone; no stored episode is unpacked for them. What a folder holds may be anybody's: values of columns are
taken for what they are only where they are of the kind that is shown.
"""

import contextlib
import json
import math
import threading
from collections import defaultdict
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from arpo.errors import ArpoError, ConfigError
from arpo.evaluation.statistics import success
from arpo.files import read_bytes
from arpo.runs.settings import stored_settings
from arpo.runs.store import TASKS, Run
from arpo.types import Json

PAGE = 50  # episodes of a list
POINTS = 400  # of a curve, at most: no screen shows more
MOST_TASKS = 2000  # that are listed
CELLS = 40  # of a task's history, at most
MOST_LEARNED = 2**21  # names in the records of all updates
NUMBER = 2**53  # what JavaScript still counts exactly
# The last two: the first episode of its group, that of the same task, update and source; and when it was stored.
COLUMNS = """number, id, task_id, "update", source, outcome, score, reward, n_steps,
    (SELECT MIN(other.number) FROM trajectories AS other WHERE other.task_id = trajectories.task_id
     AND other."update" = trajectories."update" AND other.source = trajectories.source),
    (SELECT added FROM times WHERE times.number = trajectories.number)"""
CURVES = {  # name: (title, metric of metrics.jsonl, what it is)
    "success": ("Success", "success", "share of the episodes of an update that solved their task"),
    "reward": ("Reward", "reward", "mean of what is trained on"),
    "failed": ("All failed", "failed_groups", "share of groups in which every attempt failed"),
    "replayed": ("Replayed", "replayed_groups", "share of groups that a stored success joined"),
    "lag": ("Lag", "lag", "how many updates old the policy was that sampled"),
    "mismatch": ("Mismatch", "sampler_gap", "mean distance of the sampler's log-probabilities to the learner's"),
    "throughput": ("Throughput", "", "sampled tokens a second, of sampling and learning together"),
}
SHARES = ("success", "failed", "replayed")
SETTINGS = "train.model algorithm.name algorithm.group tasks.source env.name env.size seed".split()


@dataclass(frozen=True, slots=True)
class Filter:
    """Which episodes are asked for. Empty: all."""

    task: str = ""  # a part of the task's id
    outcome: str = ""
    source: str = ""
    score: str = ""  # solved, failed or none
    replayed: str = ""  # source: was replayed later; replaced: a replayed success took its place
    least_update: int | None = None
    most_update: int | None = None
    least_steps: int | None = None
    most_steps: int | None = None
    least_time: int | None = None  # when it was stored, in seconds since 1970
    most_time: int | None = None
    order: str = "newest"
    page: int = 0


SCORES = {"": "TRUE", "solved": "score >= 1", "failed": "score < 1", "none": "score IS NULL"}
REPLAYED = ("", "source", "replaced")
ORDERS = {
    "newest": "number DESC",
    "oldest": "number",
    "longest": "n_steps DESC, number DESC",
    "shortest": "n_steps, number DESC",
}


def filter_from(query: dict[str, str]) -> Filter:
    """From the words of a query. ConfigError where one is unknown, too long or no number."""
    values: dict[str, Any] = {}
    kinds = {field.name: field.type for field in fields(Filter)}
    for name, text in query.items():
        if name not in kinds or len(text) > 200:
            raise ConfigError(f"{name:.40}: is no filter, or too long")
        if kinds[name] is str:
            values[name] = text
        elif text:
            if not (text.isascii() and text.isdigit() and len(text) < 12):
                raise ConfigError(f"{name}={text:.40}: must be a number")
            values[name] = int(text)
    wanted = Filter(**values)
    for name, known in (("score", SCORES), ("replayed", REPLAYED), ("order", ORDERS)):
        if getattr(wanted, name) not in known:
            raise ConfigError(f"{name}={getattr(wanted, name):.40}: must be one of {', '.join(known)}")
    return wanted


class Look:
    """One run, to be looked at by any thread."""

    def __init__(self, folder: Path, name: str | None = None) -> None:
        self.folder, self.name = folder.absolute(), name or folder.resolve().name
        self._lock = threading.Lock()
        self._learned: dict[int, tuple[int, list[tuple[str, str | None]]]] = {}  # by update; first: bytes of its record
        self.damaged: frozenset[int] = frozenset()  # updates whose record cannot be read

    def opened(self) -> Run:
        return Run.read(self.folder)

    def state(self) -> Json:
        """What changes when something is added: cheap to ask for, again and again."""
        try:
            with self.opened() as run:
                ((episodes,),) = run.rows("SELECT COUNT(*) FROM trajectories")
                ((records,),) = run.rows("SELECT COUNT(*) FROM records")
            metrics = self.folder / "metrics.jsonl"
            return {"episodes": episodes, "records": records, "metrics": size_of(metrics)}
        except (ArpoError, OSError) as error:
            return {"error": self.said(error)}

    def overview(self) -> Json:
        """Curves, how it was judged, and what it was made with. What cannot be read is said under `problems`."""
        shown: Json = {"name": self.name, "problems": []}
        problems: list[str] = shown["problems"]
        shown["settings"] = self._settings(problems)
        shown["curves"], shown["updates"] = {}, 0
        try:
            with self.opened() as run:
                shown["curves"], shown["updates"] = self._curves(run, problems)
                shown |= _counts(run)
                shown["judged"] = self._judged(run, problems)
        except (ArpoError, OSError) as error:
            problems.append(self.said(error))
        return shown

    def tasks(self) -> Json:
        """Each task with its history: (update, episodes that have a score, their mean score, all episodes).

        Of what was played to learn it is the share that solved the task: others may have earned a part.
        """
        problems: list[str] = []
        query = """SELECT task_id, "update", source = 'evaluation', COUNT(score),
                   AVG(CASE WHEN source = 'evaluation' THEN score ELSE score >= 1 END), COUNT(*)
                   FROM trajectories GROUP BY 1, 2, 3 ORDER BY 1, 2"""
        with self.opened() as run:  # first: it refuses a pipe in the place of a file, which would be read for ever
            told = self._told(problems)
            found: dict[str, Json] = {one["id"]: one | {"played": [], "judged": []} for one in told}
            for task, update, judged, scored, mean, total in run.rows(query):
                name = text(task)
                one = found.setdefault(name, {"id": name, "instruction": "", "split": "", "played": [], "judged": []})
                history = [integer(update), scored, number(mean), total]
                one["judged" if judged else "played"].append(history)
        for one in found.values():
            one |= {kind: _merged(one[kind]) for kind in ("played", "judged")}
        listed = sorted(found.values(), key=lambda one: (not one["played"], not one["judged"], one["id"]))
        if len(listed) > MOST_TASKS:
            problems.append(f"{len(listed):,} tasks; the first {MOST_TASKS:,} are listed")
        return {"tasks": listed[:MOST_TASKS], "problems": problems}

    def instruction(self, task_id: str) -> str:
        return next((one["instruction"] for one in self._told([]) if one["id"] == task_id), "")

    def episodes(self, wanted: Filter, most: int = PAGE) -> Json:
        """A page of those that match, and how many there are."""
        with self.opened() as run:
            learned, repeats = self.learned(run)
            where, values = _where(wanted, repeats)
            ((total,),) = run.rows(f"SELECT COUNT(*) FROM trajectories WHERE {where}", values)
            order = f"ORDER BY {ORDERS[wanted.order]} LIMIT ? OFFSET ?"
            query = f"SELECT {COLUMNS} FROM trajectories WHERE {where} {order}"
            rows = run.rows(query, (*values, most, wanted.page * most))
            outcomes = [text(value) for (value,) in run.rows("SELECT DISTINCT outcome FROM trajectories LIMIT 20")]
            sources = [text(value) for (value,) in run.rows("SELECT DISTINCT source FROM trajectories LIMIT 20")]
        return {
            "total": total,
            "page_size": most,
            "outcomes": sorted(outcomes),
            "sources": sorted(sources),
            "episodes": [summary(row, learned, repeats) for row in rows],
        }

    def learned(self, run: Run) -> tuple[dict[str, int], list["Repeat"]]:
        """In which update each trajectory was learned, and every repetition of a stored success."""
        rows = run.rows('SELECT "update", length(record) FROM records ORDER BY 1')
        with self._lock:
            there = {update: size for update, size in rows if isinstance(update, int)}
            self._learned = {update: kept for update, kept in self._learned.items() if there.get(update) == kept[0]}
            room = MOST_LEARNED - sum(len(names) for _, names in self._learned.values())
            for update in sorted(there.keys() - self._learned.keys()):
                with contextlib.suppress(ConfigError, KeyError):  # a damaged one: said with its episodes
                    if room > 0 and len(names := run.learned(update)) <= room:
                        self._learned[update] = (there[update], names)
                        room -= len(names)
            self.damaged = frozenset(there.keys() - self._learned.keys())
            every = [(update, *one) for update, (_, names) in sorted(self._learned.items()) for one in names]
        every = [(update, text(name), origin and text(origin)) for update, name, origin in every]
        repeats = [Repeat(update, name, origin) for update, name, origin in every if origin is not None]
        return {name: update for update, name, _ in every}, repeats

    def said(self, error: BaseException) -> str:
        """What is wrong, on a line. Where the folder lies is no business of whom a report is sent to."""
        words = str(error) if isinstance(error, ArpoError) else getattr(error, "strerror", None) or type(error).__name__
        return " ".join(str(words).replace(str(self.folder), self.name).split())[:400]

    def _curves(self, run: Run, problems: list[str]) -> tuple[Json, int]:
        """The points of each, and how many updates there are: all lines up to one that cannot be read."""
        lines: list[dict[str, Any]] = []
        try:
            lines.extend(run.metrics())
        except ConfigError as error:
            problems.append(self.said(error))
        curves: dict[str, list[list[float]]] = {name: [] for name in CURVES}
        for place, line in enumerate(lines):
            update = number(line.get("update"))
            for name, (_, metric, _) in CURVES.items():
                value = number(line.get(metric)) if metric else _throughput(line)
                if value is not None:
                    curves[name].append([place if update is None else update, value])
        return {name: _thinned(points) for name, points in curves.items()}, len(lines)

    def _settings(self, problems: list[str]) -> Json:
        if not (self.folder / "config.yaml").exists():
            problems.append("config.yaml is missing: the settings are not known")
            return {}
        try:
            config = stored_settings(self.folder)
            return dict(word.split("=", 1) for word in config.words(SETTINGS))
        except (ArpoError, OSError) as error:
            problems.append(self.said(error))
            return {}

    def _told(self, problems: list[str]) -> list[Json]:
        """What tasks.json says of its tasks; the first split that has one."""
        found: dict[str, Json] = {}
        try:
            splits = json.loads(read_bytes(self.folder / TASKS, 2**25))
            for split, tasks in splits.items():
                for task in tasks:
                    one = {"id": text(task["id"]), "instruction": text(task["instruction"]), "split": text(split)}
                    found.setdefault(one["id"], one)
        except FileNotFoundError:
            problems.append(f"{TASKS} is missing: instructions are not known")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            problems.append(f"{TASKS} cannot be read: {self.said(error)}")
        return list(found.values())

    def _judged(self, run: Run, problems: list[str]) -> list[Json]:
        """Success of the evaluations in it, by update and split, with its 95 % interval."""
        splits = {one["id"]: one["split"] for one in self._told(problems)}
        scores: dict[tuple[int, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        unscored: dict[tuple[int, str], int] = defaultdict(int)
        query = "SELECT id, task_id, \"update\", score FROM trajectories WHERE source = 'evaluation'"
        for name, task, update, score in run.rows(query):
            task = text(task)
            fixed = " (fixed starts)" if text(name).startswith("fixed") else ""
            key = integer(update), splits.get(task, "") + fixed
            value = number(score)
            if value is None or not 0.0 <= value <= 1.0:
                unscored[key] += 1
            else:
                scores[key][task].append(value)
        judged = []
        for key in sorted({*scores, *unscored}, key=lambda key: (key[1], key[0])):
            rate, interval = success(list(scores[key].values())) if scores[key] else (None, None)
            episodes = sum(map(len, scores[key].values()))
            judged.append(
                {"update": key[0], "split": key[1], "tasks": len(scores[key]), "episodes": episodes}
                | {"unscored": unscored[key], "success": rate, "interval": interval}
            )
        return judged


@dataclass(frozen=True, slots=True)
class Repeat:
    """A stored success took part in an update once more."""

    update: int
    name: str  # of the copy
    origin: str  # the id of the stored success

    @property
    def replaced(self) -> str:
        """The id of the member of the group whose place it took (algorithms/replay.py)."""
        return self.name.removesuffix("-replay")


def summary(row: tuple[Any, ...], learned: dict[str, int], repeats: list[Repeat]) -> Json:
    """A row of COLUMNS, as it is listed."""
    place, name, task, update, source, outcome, score, reward, steps, group, added = row
    name = text(name)
    return {
        "number": integer(place),
        "id": name,
        "task": text(task),
        "update": integer(update),
        "source": text(source),
        "outcome": text(outcome),
        "score": number(score),
        "reward": number(reward),
        "steps": integer(steps),
        "group": integer(group),
        "time": number(added),
        "learned": learned.get(name),
        "replayed": [one.update for one in repeats if one.origin == name][:100],
        "replaced": any(one.replaced == name for one in repeats),
    }


def _where(wanted: Filter, repeats: list[Repeat]) -> tuple[str, list[object]]:
    parts, values = [SCORES[wanted.score]], list[object]()
    if wanted.task:
        parts.append("instr(task_id, ?) > 0")
        values.append(wanted.task)
    for column in ("outcome", "source"):
        if value := getattr(wanted, column):
            parts.append(f"{column} = ?")
            values.append(value)
    added = "(SELECT added FROM times WHERE times.number = trajectories.number)"
    for column, name in (('"update"', "update"), ("n_steps", "steps"), (added, "time")):
        for sign, bound in ((">=", getattr(wanted, f"least_{name}")), ("<=", getattr(wanted, f"most_{name}"))):
            if bound is not None:
                parts.append(f"{column} {sign} ?")
                values.append(bound)
    if wanted.replayed:
        names = {one.origin if wanted.replayed == "source" else one.replaced for one in repeats}
        parts.append("id IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(sorted(names)))
    return " AND ".join(parts), values


def _throughput(line: dict[str, Any]) -> float | None:
    tokens, *seconds = (number(line.get(key)) for key in ("sampled_tokens", "sample_s", "learn_s"))
    took = sum(one or 0.0 for one in seconds)
    return None if tokens is None or took <= 0 else number(tokens / took)


def _thinned(points: list[list[float]]) -> list[list[float]]:
    """No more than POINTS: of more, means of neighbours, so that no peak between them is mistaken for all."""
    width = math.ceil(len(points) / POINTS)
    if width <= 1:
        return points
    parts = (points[i : i + width] for i in range(0, len(points), width))
    return [[part[-1][0], math.fsum(y for _, y in part) / len(part)] for part in parts]


def _merged(history: list[list[Any]]) -> list[list[Any]]:
    """No more than CELLS: of more, neighbours together, by the number of their episodes."""
    width = math.ceil(len(history) / CELLS)
    if width <= 1:
        return history
    merged = []
    for part in (history[i : i + width] for i in range(0, len(history), width)):
        scored = sum(n for _, n, _, _ in part)
        mean = math.fsum(n * (rate or 0.0) for _, n, rate, _ in part) / scored if scored else None
        merged.append([part[-1][0], scored, mean, sum(total for *_, total in part)])
    return merged


def _counts(run: Run) -> Json:
    query = "SELECT COUNT(*), COUNT(score), SUM(n_steps), COUNT(DISTINCT task_id) FROM trajectories"
    ((episodes, scored, steps, tasks),) = run.rows(query)
    return {"episodes": episodes, "unscored": episodes - scored, "steps": integer(steps or 0), "tasks": tasks}


def number(value: object) -> float | None:
    """As JSON can say it; None where it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e100:
        return None
    return value


def integer(value: object) -> int:
    return value if isinstance(value, int) and abs(value) < NUMBER else -1


def text(value: object) -> str:
    """Without halves of letters, which no database takes."""
    return value[:4000].encode(errors="replace").decode() if isinstance(value, str) else "?"


def size_of(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0
