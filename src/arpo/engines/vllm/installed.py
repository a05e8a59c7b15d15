"""Where vLLM is: in an environment of its own, or in this one."""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from arpo.errors import ConfigError

COMMAND = "make vllm"


def find_python(python: str | None = None) -> str:
    """The Python that has vLLM: the one that is named, that of `make vllm`, or this one. ConfigError: there is none."""
    if python is not None:
        if (found := shutil.which(os.path.expanduser(python))) is None:
            raise ConfigError(f"engine.python={python}: there is no such program")
        return os.path.abspath(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    own = cache / "arpo" / "vllm"
    if (own / "installed").is_file():
        return str(own / "bin" / "python")
    if find_spec("vllm") is not None:
        return sys.executable
    raise ConfigError(f"vLLM is not installed; to install it: {COMMAND}, or engine.python names a Python that has it")
