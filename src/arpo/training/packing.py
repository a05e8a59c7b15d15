"""Which samples are learned together, and by which rank: by their length in tokens."""

from collections.abc import Iterable, Mapping, Sequence

from arpo.resize import Sight
from arpo.training.base import Batch
from arpo.types import Observation, Sample


def lengths_of(samples: Sequence[Sample], screens: Mapping[str, Observation], sight: Sight) -> list[int]:
    """In tokens, those of screenshots included."""
    tokens = {name: sight.tokens(one.width, one.height) for name, one in screens.items()}
    return [len(one.ids) - len(one.images) + sum(tokens[name] for name in one.images) for one in samples]


def packed(lengths: Sequence[int], rows: Iterable[int], most: int) -> list[list[int]]:
    """These rows, the shortest first, in parts of up to so many tokens or of one row."""
    parts: list[list[int]] = []
    for row in sorted(rows, key=lambda row: lengths[row]):
        if parts and sum(lengths[other] for other in parts[-1]) + lengths[row] <= most:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts


def shared_out(
    batches: Sequence[Batch], screens: Mapping[str, Observation], sight: Sight, ranks: int
) -> dict[int, int]:
    """Which rank learns which sample, by its `id`: of a batch the longest first, each to the one with fewest tokens."""
    owners: dict[int, int] = {}
    for batch in batches:
        lengths = lengths_of(batch.samples, screens, sight)
        loads = [0] * ranks
        for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
            rank = loads.index(min(loads))
            owners[id(batch.samples[row])] = rank
            loads[rank] += lengths[row]
    return owners
