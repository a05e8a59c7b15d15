"""Where random numbers come from: every choice has a seed that follows from the run's seed and from what is chosen.

    derive(seed, "sampling", task.id, trial)      the same numbers in whatever order the episodes are run
    training_seed(…) / evaluation_seed(…)         the two kinds of environment seeds

An environment's seed decides what its screens look like, so an agent must not be judged on seeds that it was trained
on. The two kinds cannot meet: below `EVALUATION` are those of training, demonstrations and play, from there on those
of evaluation.
"""

import hashlib

EVALUATION = 2**31


def derive(*parts: int | str) -> int:
    """A number from 0 to 2**31 - 1 that depends on every part and on nothing else."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:4], "big") % EVALUATION


def training_seed(*parts: int | str) -> int:
    """An environment seed for anything but evaluation."""
    return derive("environment", *parts)


def evaluation_seed(*parts: int | str) -> int:
    """An environment seed that no training ever uses."""
    return EVALUATION + derive("environment", *parts)
