"""Algorithms: base.py has the contract, each method a file of its own."""
