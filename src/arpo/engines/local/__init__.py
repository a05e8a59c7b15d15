"""The local engine: one model in this process, many episodes at once."""

from arpo.engines.local.engine import LocalEngine

__all__ = ["LocalEngine"]
