"""Train computer-use agents by reinforcement learning with success replay, from a laptop to a cluster.

The Python API is in api.py and is offered here; `import arpo` alone loads none of it.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"  # the one place: pyproject.toml reads it here

if TYPE_CHECKING:
    from arpo.api import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        from importlib import import_module, util

        if name == "__all__" or not (name.startswith("__") or util.find_spec(f"arpo.{name}")):  # no module of ours
            api = import_module("arpo.api")
            if name in ("__all__", *api.__all__):
                return getattr(api, name)
        raise AttributeError(f"module 'arpo' has no attribute {name!r}")
