"""Measurements that ship with the package, so that everyone can repeat them: `arpo bench …`."""
