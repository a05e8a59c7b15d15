"""The per-token training record: small, exact where it says so, one for an update, readable meanwhile."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from arpo.runs.record import TokenRecord, pack
from arpo.runs.store import Run


def tokens(name: str, n: int, seed: int, replayed_from: str | None = None) -> TokenRecord:
    """Numbers as a learner sees them: the new policy near the old one, the sampler nearer or far off."""
    rng = np.random.default_rng(seed)
    old = -rng.exponential(2.0, n)
    new, sampler = old + rng.normal(0, 0.1, n), old + rng.normal(0, 10.0 ** -(seed % 7), n)
    a, sampler, old, new = np.stack([np.full(n, rng.normal()), sampler, old, new]).astype(np.float32)
    return TokenRecord(name, replayed_from, a, sampler, old, new, clipped=rng.random(n) < 0.2)


def assert_alike(found: Sequence[TokenRecord], given: Sequence[TokenRecord]) -> None:
    """Exact but for distances to the old log-probability: those are right to one part in 2,000."""
    for one, other in zip(found, given, strict=True):
        assert (one.trajectory_id, one.replayed_from) == (other.trajectory_id, other.replayed_from)
        for name in ("advantages", "old", "clipped"):
            a, b = getattr(one, name), getattr(other, name)
            assert a.dtype == b.dtype and np.array_equal(a, b)
        for name in ("new", "sampler"):
            a, b = getattr(one, name), getattr(other, name)
            rounding = 2e-7 * np.maximum(1, np.abs(b))  # of single precision, in which the two are added
            assert a.dtype == b.dtype and (np.abs(a - b) <= np.abs(b - other.old) / 2000 + rounding).all()


def test_what_an_update_learned_comes_back_also_while_the_run_is_written(tmp_path: Path) -> None:
    given = [tokens("a", 5, 0), tokens("a-replay", 1, 1, "u0-a"), tokens("b", 300, 2)]
    with Run.write(tmp_path, "") as run, Run.read(tmp_path) as reader:
        asyncio.run(run.keep_record(0, given))
        asyncio.run(run.keep_record(7, []))
        assert_alike(reader.record(0), given)
        assert reader.record(7) == []
        with pytest.raises(KeyError):
            reader.record(1)


def test_an_update_that_is_made_again_has_one_record(tmp_path: Path) -> None:
    with Run.write(tmp_path, "") as run:
        asyncio.run(run.keep_record(3, [tokens("a", 5, 0), tokens("b", 5, 1)]))
        asyncio.run(run.keep_record(3, [tokens("a", 9, 2)]))
        assert_alike(run.record(3), [tokens("a", 9, 2)])


def test_a_token_takes_at_most_9_bytes_of_a_large_update() -> None:
    records = [tokens(f"u12.0-files-rename-{i:03}-0-0", 200, seed=i) for i in range(64)]
    assert len(pack(records)) < 9 * 64 * 200
