"""Screenshots as the model sees them: through the vision tower once, and remembered for a while.

Large ones are decoded and resized in threads, before the tower runs: `prepare`.

What is remembered saves the tower's work where a click changed nothing, where the members of a group look at the same
first screen, and where a context is computed anew because its beginning changed or its cache was thrown out.

On a CPU screens go through the tower one by one, which costs no time there. On some processors the last digits of a
screen's tokens depend on how many are computed at once; the learner takes these tokens, and a run that was killed and
goes on has other screens beside each other.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from arpo.beside import large
from arpo.errors import EnvError
from arpo.images import Pixels, decode
from arpo.model.images import resized
from arpo.model.vision import Tower
from arpo.resize import Sight
from arpo.types import Observation

REMEMBERED = 512 * 2**20  # bytes
# Image tokens at once: one screen on a CPU (see above), on a GPU what fits beside a 7B with room to spare; on a Mac's,
# which shares its memory with all else, less.
BATCH = {"cpu": 1, "cuda": 40_000, "mps": 4_000}


class Screens:
    """The tower's tokens for screenshots, by the hash of their pixels. Any thread may ask."""

    def __init__(self, tower: Tower) -> None:
        self._tower = tower
        self._known: OrderedDict[str, Tensor] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()  # of what is remembered; never held for long
        self._threads = ThreadPoolExecutor(thread_name_prefix="screens")
        self._decoding: WeakValueDictionary[str, Future[Pixels | None]] = WeakValueDictionary()

    def prepare(self, screenshots: Iterable[Observation]) -> list[Future[Pixels | None]]:
        """Begin to decode and resize, in threads, the large ones that are not known.

        `features` finds the pixels for as long as somebody keeps the result, and waits for what is not done.
        """
        wanted = {one.hash: one for one in screenshots if large(one) and one.hash not in self._known}
        begun = {
            name: self._decoding.get(name) or self._threads.submit(_pixels, one, self._tower.sight)
            for name, one in wanted.items()
        }
        self._decoding.update(begun)
        return list(begun.values())

    def pixels(self, screenshots: Iterable[Observation]) -> dict[str, Pixels]:
        """Of each hash, at the size that the model sees; what cannot be decoded, or is of another size, is left out."""
        wanted = {one.hash: one for one in screenshots}
        begun = self.prepare(wanted.values())  # kept until all are there
        made = {
            name: found.result() if (found := self._decoding.get(name)) else _pixels(one, self._tower.sight)
            for name, one in wanted.items()
        }
        del begun
        return {name: pixels for name, pixels in made.items() if pixels is not None}

    def features(self, screenshots: Iterable[Observation]) -> dict[str, Tensor]:
        """The tower's tokens for each hash. One that cannot be decoded, or is not of its stated size, is left out."""
        wanted = {one.hash: one for one in screenshots}
        with self._lock:
            features = {name: self._known[name] for name in wanted if name in self._known}
        device = next(self._tower.parameters()).device
        by_size: dict[tuple[int, int], list[tuple[str, Pixels]]] = {}
        for name, pixels in self.pixels(one for name, one in wanted.items() if name not in features).items():
            by_size.setdefault((wanted[name].width, wanted[name].height), []).append((name, pixels))
        for size, group in by_size.items():
            at_once = max(1, BATCH[device.type] // self._tower.sight.tokens(*size))
            for start in range(0, len(group), at_once):
                part = group[start : start + at_once]
                images = torch.stack([torch.from_numpy(pixels) for _, pixels in part]).to(device)
                # Not in inference mode: these tokens are kept, and a learner may need them later.
                with torch.inference_mode(False), torch.no_grad():
                    tokens = self._tower(images)
                features |= zip((name for name, _ in part), tokens.unbind(), strict=True)
        with self._lock:
            self._remember(features)
        return features

    def forget(self) -> None:
        """After a change of the weights."""
        with self._lock:
            self._known.clear()
            self._bytes = 0

    def _remember(self, features: dict[str, Tensor]) -> None:
        for name, tokens in features.items():
            if name in self._known:
                self._known.move_to_end(name)
            else:
                self._known[name] = tokens.clone()  # not a view that keeps its whole batch alive
                self._bytes += tokens.nbytes
        while self._bytes > REMEMBERED:
            _, tokens = self._known.popitem(last=False)
            self._bytes -= tokens.nbytes


def _pixels(one: Observation, sight: Sight) -> Pixels | None:
    """At the size that the model sees; None for what `pixels` leaves out."""
    try:
        pixels = decode(one.image)
        return resized(pixels.copy(), sight) if pixels.shape[:2] == (one.height, one.width) else None
    except EnvError:
        return None
