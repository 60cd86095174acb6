"""Why functions of Go cannot be timed, as far as that does not depend on the function."""

from anyprobe.core.refusal import Reason, Refusal


def go_refusal(address: int, *, clock: int, on_processors: bool) -> Refusal | None:
    """Return why a Go function's calls cannot be timed by a session.

    Args:
        address: The function's address, for the refusal.
        clock: Address of the function that is called for the time, 0 if none is.
        on_processors: Whether the times of threads on processors are wanted.

    """
    if on_processors:
        detail = "goroutines change their threads, whose times on processors are theirs alone; time without --clock cpu"
        return Refusal(Reason.NO_CPU_CLOCK, address, detail)
    if not clock:
        return None
    detail = "the clock is a function of the vdso here, and Go functions have no stack for its call; count instead"
    return Refusal(Reason.GO_TIMING, address, detail)
