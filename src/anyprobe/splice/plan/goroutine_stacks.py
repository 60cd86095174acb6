"""Where handlers may be called in Go code: goroutines' stacks may end right below, or anyprobe knows that they do not.

Compiled functions since Go 1.17 have the goroutine in ``r14``, and its stack's lowest address is its first word. One
that takes more than a little of the stack compares the stack pointer with the goroutine's guard first, which leaves
800 bytes below whatever its frame takes (``StackGuard`` less ``StackSmall``, ``runtime/stack.go``). So after that
there is room enough; at the entry, and in functions that do not ask, the patch looks for itself, by flags that are
dead there.
"""

from typing import TYPE_CHECKING, NamedTuple

from iced_x86 import OpKind, Register

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Flow, Insn
from anyprobe.splice.plan.splices import Want, WantKind

if TYPE_CHECKING:
    from anyprobe.binary.flow.function import FunctionCode
    from anyprobe.binary.objects.text import ModuleText

_LOOKED_AT = 6
"""Instructions from the entry on that may be the comparison, or prepare it."""
_GUARDS = frozenset({0x10, 0x18})
"""Where in a goroutine the guards of its stack are: the ordinary one, and that of functions for the system's stack."""


class StackCheck(NamedTuple):
    """The comparison of the stack pointer at the beginning of a function: where it ends, and where it branches to."""

    end: int
    grows: int
    """What has the stack grow, and begins anew; after the function's own code."""


def looks_for_room(text: "ModuleText", function: "FunctionCode", want: Want) -> bool | Refusal:
    """Return whether a patch has to look for room on the stack, or why a handler cannot be called at a wanted site."""
    check = stack_check(function)
    at_entry = want.kind is WantKind.ENTRY or want.address == function.entry
    if check is None:
        if text.parking is None or not text.parking.is_ordinary(function.start) or _reads_segments(function):
            detail = "assembly, the runtime, or code of a Go before 1.17: how much stack there is left is not known"
            return Refusal(Reason.NO_STACK, want.address, detail)
        if at_entry or _is_return(function, want):
            return True
        detail = "the function does not ask how much stack is left: handlers can be at its entry and returns alone"
        return Refusal(Reason.NO_STACK, want.address, detail)
    if at_entry:
        return True
    if check.end <= want.address < check.grows:
        return False
    return Refusal(Reason.NO_STACK, want.address, "here the function asks whether there is enough stack left")


def stack_check(function: "FunctionCode") -> StackCheck | None:
    """Return the comparison that a function begins with, if it is compiled code with the goroutine in r14."""
    number = function.index_of(function.entry)
    if number is None:
        return None
    compared = False
    for insn in map(function.insn, range(number, min(number + _LOOKED_AT, len(function.addresses)))):
        if compared:
            return StackCheck(insn.end, insn.target) if insn.flow is Flow.JCC and insn.target is not None else None
        compared = _compares_guard(insn)
        if not compared and insn.flow not in (Flow.NEXT, Flow.JCC):
            return None
    return None


def _compares_guard(insn: Insn) -> bool:
    iced = insn.iced
    return (
        iced.op_count == 2
        and iced.op1_kind == OpKind.MEMORY
        and iced.memory_base == Register.R14
        and iced.memory_displacement in _GUARDS
        and insn.text.startswith("cmp ")
        and iced.op0_register in (Register.RSP, Register.R12, Register.R13)
    )


def _is_return(function: "FunctionCode", want: Want) -> bool:
    insn = function.insn_at(want.address)
    return insn is not None and insn.flow is Flow.RET


def _reads_segments(function: "FunctionCode") -> bool:
    """Return whether a function uses thread-local memory, as one does that finds out its goroutine for itself."""
    return any(function.insn(at).iced.segment_prefix == Register.FS for at in range(len(function.addresses)))
