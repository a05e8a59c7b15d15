"""Environments: computers that an agent works on. `base.py` has the contract and `make`, the way to get one."""
