"""Environments: computers that an agent can be put in front of. `base.py` is the contract; `make` gives you one."""
