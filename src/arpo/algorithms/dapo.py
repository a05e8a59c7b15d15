"""DAPO's dynamic sampling (Yu et al. 2025): GRPO in which a group that teaches nothing gives way to another.

    a group whose rewards are all equal is refused, and another task is drawn in its place: up to `redraw` times,
    and the last one is taken as it is

Of DAPO's other parts, the higher upper bound of the clip (`clip_high`) is the default of every method here, and its
loss by tokens is `normaliser=constant`.
"""

from arpo.algorithms.grpo import Grpo


class Dapo(Grpo):
    """GRPO with `redraw`: `accept` says which groups teach something, and rollouts.py draws others for the rest."""
