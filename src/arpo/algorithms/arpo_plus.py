"""ARPO+: ARPO with all its refinements on, an attempt of ours to improve on the paper.

    replay_tau = 8         young successes are preferred
    replay_truncate = 2    replayed tokens carry an importance weight from the sampler's stored log-probabilities
    replay_reject = 2      a success far from the present policy is left out
    replay_spares          the failures of a filled group are not pushed down

So far it does not beat `arpo` (docs/results/compare.md).
"""

from arpo.algorithms.arpo import Arpo


class ArpoPlus(Arpo):
    """The settings make it what it is: base.py, METHODS."""
