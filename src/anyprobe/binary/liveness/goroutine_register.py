"""Functions of Go that are entered without their goroutine in ``r14``: the compiler's wrappers for assembly (``ABI0``).

Whatever calls other compiled functions has it there by then: such a wrapper fetches it from its thread before its
first call. No other compiled function writes ``r14`` before its first call.
"""

from iced_x86 import Register

from anyprobe.binary.analysis.views import FunctionView
from anyprobe.isa.decode import FLOWS, Flow
from anyprobe.isa.effects import effects_of
from anyprobe.isa.registers import NUMBERS

_GOROUTINE = 1 << NUMBERS["r14"]
_CALLS = frozenset({Flow.CALL, Flow.INDIRECT_CALL})


def fetches_goroutine(function: FunctionView) -> bool:
    """Return whether a function sets ``r14`` before its first call, in the order of addresses."""
    for number, iced in enumerate(function.iced):
        if FLOWS[iced.code] in _CALLS:
            return False
        named = iced.op_count > 0 and iced.op0_register in (Register.R14, Register.R14D)
        if named and effects_of(iced, function.raw_at(number)).writes & _GOROUTINE:
            return True
    return False
