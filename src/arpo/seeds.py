"""Where random numbers come from: every choice has a seed that follows from the run's seed and from what is chosen.

    derive(seed, "sampling", task.id, trial)      the same numbers in whatever order the episodes are run
    training_seed(…) / evaluation_seed(…)         the two kinds of environment seeds
    start_seed(task.id, 0)                        a fixed start: a seed of training that follows from the task alone

An environment's seed decides what its screens look like. The two kinds cannot meet: below `EVALUATION` are those of
training, demonstrations and play, from there on those of evaluation. So with `env.starts=fresh` no agent is judged on
a screen that it was trained on.

With `env.starts=fixed` it is, on purpose: a task always begins with the same screen, as OSWorld's do, and is judged
where it was trained. What was learned by heart looks there like what was understood. The split `fresh`, the same tasks
on seeds of evaluation, tells one from the other; a training with fixed starts is always judged on both.
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


def start_seed(task_id: str, start: int) -> int:
    """The environment seed of a task's fixed start: the same in every run, update and trial."""
    return training_seed("start", task_id, start)


def evaluation_seed(*parts: int | str) -> int:
    """An environment seed that no training ever uses."""
    return EVALUATION + derive("environment", *parts)
