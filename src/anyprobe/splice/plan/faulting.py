"""What must not be displaced where the program handles faults: its handlers are shown pcs, and choose the way on."""

from collections.abc import Sequence

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Insn
from anyprobe.isa.faults import may_fault


def fault_refusal(insns: Sequence[Insn], end: int = 0, *, shown: bool = True, skipped: bool = True) -> Refusal | None:
    """Return why faults that the program handles keep instructions from running as copies in a patch.

    After others, an instruction's own address is not executable any more, and a handler may have it run again. What
    follows it a handler may go on with, so that is neither overwritten, up to ``end``, nor displaced with it, unless no
    fault is ``skipped``. Where
    handlers are not ``shown`` the program's pcs, they would see another than the instruction's.
    """
    first = insns[0]
    for insn in insns[1:]:
        if may_fault(insn.iced):
            return _refused(insn, "it can only be displaced first")
    if not shown and may_fault(first.iced):
        return _refused(first, "its handlers would see another pc")
    if skipped and (len(insns) > 1 or first.end < end) and first.may_go_on and may_fault(first.iced):
        return _refused(first, "it can only be displaced alone")
    return None


def keeps_apart(above: Insn, insn: Insn, *, skipped: bool = True) -> bool:
    """Return whether the same keeps an instruction from moving together with the one above it."""
    return may_fault(insn.iced) or (skipped and may_fault(above.iced))


def _refused(insn: Insn, why: str) -> Refusal:
    detail = f"{insn.text} may fault, and the program handles faults: {why}"
    return Refusal(Reason.MAY_FAULT, insn.address, detail)
