"""What the page may ask for: an address in, plain JSON out. The server and the files of a bundle answer the same ones.

api/overview.json                   every run: curves, how it was judged
api/state.json                      what changes when a run grows
api/0/tasks.json                    of the first run
api/0/episodes.json?task=…&page=2   a list; a bundle has it whole, and the page filters
api/0/episode/17/0.json             the episode of that number, the first window of its steps; with ?again=4 its tokens
                                    as update 4 learned them when it replayed the episode
api/0/group/17.json                 with the others of its task and update
image/0/280f….webp                  a screenshot
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from arpo.errors import ConfigError
from arpo.types import Json
from arpo.viewer.episodes import Address, Episodes, Missing
from arpo.viewer.look import CURVES, SHARES, Look, filter_from

MOST_RUNS = 20
_NUMBER = "([0-9]{1,9})"
_OVERVIEW, _STATE = "api/overview.json", "api/state.json"
_TASKS = re.compile(f"api/{_NUMBER}/tasks.json")
_LIST = re.compile(f"api/{_NUMBER}/episodes.json")
_EPISODE = re.compile(f"api/{_NUMBER}/episode/{_NUMBER}/{_NUMBER}.json")
_GROUP = re.compile(f"api/{_NUMBER}/group/{_NUMBER}.json")
_IMAGE = re.compile(rf"image/{_NUMBER}/([0-9a-f]{{2,64}})\.[a-z]{{3,4}}")


class Site:
    """Some runs as one site. ConfigError where a folder holds none."""

    def __init__(self, folders: Sequence[Path], live: bool = True) -> None:
        if len(folders) > MOST_RUNS:
            raise ConfigError(f"{len(folders)} runs: a page shows at most {MOST_RUNS}")
        for folder in folders:
            if not (folder / "run.sqlite").exists():
                raise ConfigError(f"{folder}: holds no run")
        names = [folder.resolve().name for folder in folders]
        again = {name for name, count in Counter(names).items() if count > 1}
        names = [f"{name} ({i + 1})" if name in again else name for i, name in enumerate(names)]
        self.live = live
        self.looks = [Look(folder, name) for folder, name in zip(folders, names, strict=True)]
        self.episodes = [Episodes(look, self.address(i)) for i, look in enumerate(self.looks)]

    def address(self, run: int) -> Address:
        """Of its screenshots."""
        return lambda name, kind: f"image/{run}/{name}.{kind}"

    def answer(self, path: str, query: dict[str, str] | None = None) -> Json:
        """Missing where there is nothing of that name; ConfigError where a query or a run is wrong."""
        try:
            found: Json = finite(self._found(path, query or {}))
            return found
        except KeyError as error:  # it was there a moment ago
            raise Missing(path) from error

    def _found(self, path: str, query: dict[str, str]) -> Json:
        if path == _OVERVIEW:
            return self.overview()
        if path == _STATE:
            return {"live": self.live, "runs": [look.state() for look in self.looks]}
        if found := _TASKS.fullmatch(path):
            return self._run(found[1]).tasks()
        if found := _LIST.fullmatch(path):
            return self._run(found[1]).episodes(filter_from(query))
        if found := _EPISODE.fullmatch(path):
            self._run(found[1])
            again = query.get("again", "")
            if again and not re.fullmatch(_NUMBER, again):
                raise ConfigError(f"again={again:.40}: must be the number of an update")
            return self.episodes[int(found[1])].episode(int(found[2]), int(found[3]), int(again) if again else None)
        if found := _GROUP.fullmatch(path):
            self._run(found[1])
            return self.episodes[int(found[1])].group(int(found[2]))
        raise Missing(path)

    def overview(self) -> Json:
        curves = [
            {"name": name, "title": title, "about": about, "share": name in SHARES}
            for name, (title, _, about) in CURVES.items()
        ]
        shown: Json = finite({"live": self.live, "curves": curves, "runs": [look.overview() for look in self.looks]})
        return shown

    def image(self, path: str) -> tuple[bytes, str]:
        """The bytes of a screenshot and their kind."""
        found = _IMAGE.fullmatch(path)
        if not found:
            raise Missing(path)
        self._run(found[1])
        return self.episodes[int(found[1])].image(found[2])

    def _run(self, number: str) -> Look:
        if int(number) >= len(self.looks):
            raise Missing(f"run {number}")
        return self.looks[int(number)]


def finite(value: Any) -> Any:
    """The same without numbers that JSON does not have: a model's timings and temperatures can be any."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
