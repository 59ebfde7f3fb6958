"""How many cores this process may use."""

import os


def usable_cores() -> int:
    """As the system grants them to this process, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
