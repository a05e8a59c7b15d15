"""A driver that starts two ranks, prints their process ids and then waits. Run by test_fsdp.py, which ends it.

python driver.py CHECKPOINT
"""

import sys
import time

from guesser import settings

from arpo.algorithms.base import make_algorithm
from arpo.training.ranks import Ranks

if __name__ == "__main__":
    config = settings(model=sys.argv[1], ranks=2)
    ranks = Ranks(config, make_algorithm(config.algorithm, 0))
    print(*ranks.pids, flush=True)
    time.sleep(3600)
