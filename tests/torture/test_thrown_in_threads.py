"""Eight threads that throw, each interrupted thousands of times a second, under random sessions for minutes.

What is counted, of their functions and of the C++ runtime that unwinds, is what the program has counted itself, or the
same in each round; results are right, and after each session the memory is what it was.
"""

import time

import pytest

from support.thrown_in_threads import check_session

SEED = time.time_ns() & 0xFFFFFF
MINUTES = 3
BUILDS = {
    "shared": (),
    "small": ("-Os",),
    "frames": ("-O0",),
    "protected": ("-O3", "-fcf-protection=full", "-fno-plt"),
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("busy", [False, True], ids=["free", "held-up"])
@pytest.mark.parametrize("built", BUILDS)
def test_random_sessions(built, busy):
    known, end, seed = {}, time.monotonic() + 60 * MINUTES, SEED
    compared = 0
    while time.monotonic() < end:
        print(f"seed {seed}", flush=True)
        compared += check_session(seed, known, BUILDS[built], busy=busy)
        seed += 1
    print(f"{seed - SEED} sessions, {compared} counts compared")
    assert compared > (200 if busy else 1000)
