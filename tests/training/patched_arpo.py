"""`arpo` with the fake environment and with the agent that can act, for processes that a command under test starts.

KILL="grpo-1 step2" lets the run in a folder of that name die at that moment (trainer.py names them).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from guesser import Guesser
from trainer import kill_at

from arpo import cli
from arpo.agent.dialects.base import DIALECTS, DialectEntry
from arpo.envs.base import BACKENDS
from fake_env import BACKEND

if __name__ == "__main__":
    BACKENDS["fake"] = BACKEND
    DIALECTS["uitars"] = DialectEntry("uitars", Guesser)
    name, _, moment = os.environ.get("KILL", "").partition(" ")
    if name in {Path(argument).name for argument in sys.argv}:
        kill_at(moment)
    cli.main()
