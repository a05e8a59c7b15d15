"""Train computer-use agents by reinforcement learning with success replay, from a laptop to a cluster."""

__version__ = "0.1.0"  # the one place: pyproject.toml reads it here
