"""Evaluation: how often an agent gets its tasks done, and how sure that is."""
