"""Runs: the folders in which training and evaluation leave all that is needed to go on or to look back."""
