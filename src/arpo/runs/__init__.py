"""Runs: the folders in which training and evaluation leave all that is needed to resume or to look back."""
