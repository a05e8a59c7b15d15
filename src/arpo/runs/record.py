"""The per-token training record: what an update saw of every token that it learned from.

    for one in run.record(update):                       # one for each trajectory that had a gradient
        ratio = np.exp(one.new - one.old)                # … of its tokens, in the order in which they were sampled

On disk an update is one compressed .npz. The old log-probability is kept in single precision, the sampler's and the new
one as their distance to it, in half precision: so the logarithm of every ratio is right to one part in 2,000.
"""

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST = 2**30  # bytes of an unpacked update: 60 million tokens
NAMES, LETTERS = 2**17, 2**26  # trajectories of an update, and bytes of all their names


@dataclass(frozen=True, slots=True, eq=False)
class TokenRecord:
    """The sampled tokens of one trajectory, as one update learned from them: one entry a token."""

    trajectory_id: str
    replayed_from: str | None  # the id of the stored success that the trajectory repeats
    advantages: NDArray[np.float32]
    sampler: NDArray[np.float32]  # log-probabilities: of what drew the token,
    old: NDArray[np.float32]  # of the policy before the update,
    new: NDArray[np.float32]  # and of the policy in the optimiser step that the token was in
    clipped: NDArray[np.bool_]  # whether clipping took the token's gradient away


def pack(records: Sequence[TokenRecord]) -> bytes:
    """All records of an update in one piece."""

    def joined(name: str, kind: type[np.generic]) -> NDArray[Any]:
        return np.concatenate([np.zeros(0, kind), *(getattr(one, name) for one in records)], dtype=kind)

    old = joined("old", np.float32)
    file = io.BytesIO()
    np.savez_compressed(
        file,
        trajectories=np.array([one.trajectory_id for one in records], dtype=np.str_),
        replayed_from=np.array([one.replayed_from or "" for one in records], dtype=np.str_),
        lengths=np.array([len(one.old) for one in records], dtype=np.int64),
        advantages=joined("advantages", np.float32),
        old=old,
        sampler=(joined("sampler", np.float32) - old).astype(np.float16),
        new=(joined("new", np.float32) - old).astype(np.float16),
        clipped=np.packbits(joined("clipped", np.bool_)),
    )
    return file.getvalue()


def _array(data: bytes) -> NDArray[Any]:
    """A row of numbers or texts as numpy stores it; of no more than is there, whatever its header says."""
    file = io.BytesIO(data)
    np.lib.format.read_magic(file)
    _, _, kind = np.lib.format.read_array_header_1_0(file)
    return np.frombuffer(data, kind, offset=file.tell())


def _stored(data: bytes, *wanted: str) -> dict[str, NDArray[Any]]:
    """The arrays of an update; `wanted`: only those."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        if sum(part.file_size for part in file.infolist()) > MOST:
            raise ValueError(f"unpacked it would have more than {MOST:,} bytes")
        if any(part.compress_type != zipfile.ZIP_DEFLATED for part in file.infolist()):
            raise ValueError("it is packed in a way that keeps to no size")
        parts = {part.filename.removesuffix(".npy"): part for part in file.infolist()}
        if any(parts[name].file_size > LETTERS for name in ("trajectories", "replayed_from")):
            raise ValueError("its names are too long")
        return {name: _array(file.read(part)) for name, part in parts.items() if not wanted or name in wanted}


def unpack_names(data: bytes) -> list[tuple[str, str | None]]:
    """Of each record `trajectory_id` and `replayed_from`: what a list of episodes needs, without the tokens."""
    stored = _stored(data, "trajectories", "replayed_from")
    names, origins = _names(stored)
    return [(name, origin or None) for name, origin in zip(names, origins, strict=True)]


def _names(stored: dict[str, NDArray[Any]]) -> tuple[list[str], list[str]]:
    columns = stored["trajectories"], stored["replayed_from"]
    if max(map(len, columns)) > NAMES:  # as a list each takes many times its bytes
        raise ValueError(f"it has more than {NAMES:,} trajectories")
    return columns[0].tolist(), columns[1].tolist()


def unpack(data: bytes) -> list[TokenRecord]:
    """The records that `pack` was given."""
    stored = _stored(data)
    names, origins = _names(stored)
    if len(stored["lengths"]) != len(names):  # before the tokens are cut up by them: a forged one has millions
        raise ValueError("it has not one length for each trajectory")
    old, ends = stored["old"], stored["lengths"].cumsum()
    columns = [
        stored["advantages"],
        old + stored["sampler"].astype(np.float32),
        old,
        old + stored["new"].astype(np.float32),
        np.unpackbits(stored["clipped"], count=len(old)).astype(np.bool_),
    ]
    parts = (np.split(column, ends)[:-1] for column in columns)  # the last one is what follows the end: nothing
    return [
        TokenRecord(name, origin or None, *part) for name, origin, *part in zip(names, origins, *parts, strict=True)
    ]
