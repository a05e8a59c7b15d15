"""Train computer-use agents by reinforcement learning with success replay, from a laptop to a cluster."""
