"""The time of day beside the monotonic clock."""

import time

_READINGS = 9


def both_clocks() -> tuple[int, int]:
    """Return the monotonic clock and the time of day at one moment, in nanoseconds, as far as that can be read.

    Of several readings the one in which least time went by: between two looks the processor may be given to others.
    """
    found = []
    for _ in range(_READINGS):
        before, now, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        found.append((after - before, (before + after) // 2, now))
    _, monotonic, now = min(found)
    return monotonic, now
