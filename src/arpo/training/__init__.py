"""Training: reinforcement learning, from groups of episodes to updates of the model."""
