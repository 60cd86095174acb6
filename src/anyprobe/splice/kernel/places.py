"""Where probes of kernel functions go: after what the kernel itself needs at a function's beginning."""

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.kernel.settled import Settled
from anyprobe.core.refusal import Reason, Refusal

_LANDING_PADS = (b"\xf3\x0f\x1e\xfa", b"\x66\x0f\x1f\x00")
"""``endbr64``, and what the kernel puts in its place in functions that no pointer leads to."""
_CALL_BYTES = 5


def entry_of(code: CodeMap, function: FunctionCode, settled: Settled) -> int | Refusal:
    """Return the first instruction that is the function's own, or why arrivals from outside are not told there.

    A landing pad has to stay for indirect calls, and the call that ftrace sets belongs to ftrace. What returns from
    such a call, a tracer or a live patch, goes on at the instruction after it.
    """
    at = function.start
    if function.whole[:4] in _LANDING_PADS:
        at += len(_LANDING_PADS[0])
    if at in settled.traced:
        at += _CALL_BYTES
    if function.complete is not None:
        return function.complete
    looped = at in function.jump_targets or at in function.table_targets
    if looped or (at != function.start and code.entries.enterable(at, at + 1)):
        detail = "branches lead to the first instruction of the function: not each arrival there is a call"
        return Refusal(Reason.ENTRY_IS_LOOP_HEAD, at, detail)
    return at
