"""What this process has of its machine, on Linux, macOS and Windows."""

import os
import sys


def cores() -> int:
    """How many it may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def peak_rss_mb() -> float:
    """The most memory that it had so far; 0 on Windows, where Python does not know."""
    try:
        import resource
    except ImportError:
        return 0.0
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, kilobytes here
