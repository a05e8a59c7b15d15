"""Train computer-use agents by reinforcement learning with success replay, from a laptop to a cluster."""

__version__ = "0.2.0"  # the one place: pyproject.toml reads it here
