"""Writes to a run as fast as it can until it is killed, and says what it has finished. Run by test_store.py."""

import itertools
import os
import sys
from pathlib import Path

import numpy as np

from arpo.images import observe
from arpo.runs.store import Run
from arpo.types import Outcome, Provenance, Tokens, Trajectory

run = Run.write(Path(sys.argv[1]), "seed: 0\n")
for number in itertools.count():
    name = f"{os.getpid()}-{number}"
    screen = observe(np.random.default_rng([os.getpid(), number]).integers(0, 256, (60, 80, 3), np.uint8))
    run.add_image(screen)
    segments = (Tokens(tuple(range(2000))),)
    provenance = Provenance("rollout", "r", 0)
    run.add(Trajectory(name, "press-1", 0, 1, screen.hash, segments, (), Outcome.STEP_LIMIT, 0.0, 0.0, provenance))
    run.log({"id": name})
    print(name, flush=True)
