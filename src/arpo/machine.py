"""What this process has of its machine, on Linux, macOS and Windows."""

import math
import os
import sys


def cores() -> int:
    """How many it may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def free_memory() -> float:
    """Bytes that can be had, swap among them; infinite where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            kilobytes = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in file)}
    except OSError:
        return math.inf
    return 1024.0 * (kilobytes["MemAvailable"] + kilobytes["SwapFree"])


def peak_rss_mb() -> float:
    """The most memory that it had so far; 0 on Windows, where Python does not know."""
    try:
        import resource
    except ImportError:
        return 0.0
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, kilobytes here
