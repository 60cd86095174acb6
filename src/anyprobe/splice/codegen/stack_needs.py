"""How many bytes below the stack pointer at a site generated code takes at most, the red zone's 128 among them.

Tests read the same numbers from the code itself, along every way through it, and hit probes near the end of stacks.
"""

COUNTED = 208
"""A counter, a thread's first hit included."""
TIMED = 232
"""The beginning or the end of a timed call, with self times or not."""
REPLACED = 240
"""The same, or a counted return, where the return address is replaced."""
FORKED = 328
"""The first hit of a fork child that comes to memory of its own: where calls are timed, or handlers run."""
CLOCK_CALLED = 608
"""The beginning or the end of a timed call where the vdso is called for the time, without what that takes itself."""
PROCESSORS_ASKED = 384
"""The beginning or the end of a timed call by the thread's own clock, for which it maps a page."""
HANDLER_CALLED = 640
"""The call of a handler and what it calls, without its own (``NativeCode.stack``)."""


def need(*, timed: bool, replaced: bool, calls_clock: bool, on_processors: bool) -> int:
    """Return what a site takes that is counted or timed, but for the first hits of fork children."""
    if timed and calls_clock:
        return CLOCK_CALLED
    if timed and on_processors:
        return PROCESSORS_ASKED
    return REPLACED if replaced else TIMED if timed else COUNTED
