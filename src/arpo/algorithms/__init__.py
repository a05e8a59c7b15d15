"""The method: advantages, replay, loss."""
