"""Engines: what samples tokens. They know nothing of desktops."""
