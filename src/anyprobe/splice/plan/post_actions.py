"""Where nothing can be done after an instruction, whatever displaces it."""

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Flow, Insn

_LONGEST_POP = 96
"""Bytes that a ``ret`` may pop besides, so that the return address is in the red zone meanwhile."""


def no_after(insn: Insn) -> Refusal | None:
    """Return why nothing can be done after an instruction."""
    if insn.flow is Flow.XBEGIN:
        detail = f"{insn.text}: what comes after it may be undone with the transaction"
        return Refusal(Reason.NO_DISPLACED_FORM, insn.address, detail)
    if insn.flow is Flow.RET and popped(insn) > 8 + _LONGEST_POP:
        return Refusal(Reason.NO_DISPLACED_FORM, insn.address, f"{insn.text}: pops more than the red zone")
    return None


def popped(insn: Insn) -> int:
    """Return how many bytes a ``ret`` takes from the stack."""
    return 8 + (insn.iced.immediate16 if insn.iced.op_count else 0)
