"""A metric of its own: how many bytes of stack are in use where a function is entered, on average of its calls."""

from anyprobe import Sum
from anyprobe.data.snapshots.metrics import Metric

NAME = "stack"


def arm(session, specs):
    """Add up what the first thread has in use."""
    (top,) = (each.end for each in session.mappings() if each.path == "[stack]")
    used = Sum(NAME, by=("function",))

    @session.entry(*specs)
    def entered(ctx):
        used[ctx.func].add(top - ctx.regs.rsp)


METRIC = Metric(NAME, "bytes", lambda timing, _: timing.measured / timing.count if timing.count else 0.0, arm=arm)
