"""Dialects: the bridge between a model's tokens and a computer; base.py has the contract."""
