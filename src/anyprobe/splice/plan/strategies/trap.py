"""A trap: one byte changes, whatever stands or comes where."""

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Flow
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.site import Site
from anyprobe.splice.plan.splices import TRAP, Strategy


class Trap:
    """One byte that traps.

    If the instruction has no other byte, its patch takes the next one along where it can, so that a thread with its pc
    after the trap has met it.
    """

    kind = Strategy.TRAP

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the trap."""
        context, insn, follower = site.context, site.insn, site.run[site.index + 1 : site.index + 2]
        if context.plain_jumps_only:
            detail = "Go's runtime runs code with all signals blocked and takes SIGTRAP for itself"
            return Refusal(Reason.TRAP_UNSAFE, insn.address, detail)
        if insn.raw[:1] == TRAP:
            return Refusal(Reason.TRAP_UNSAFE, insn.address, "this is an int3 of the program's own")
        splice = SpliceDraft(Strategy.TRAP, insn.address, (insn,), [], len(TRAP), insn.address)
        if insn.length > len(TRAP):
            return context.checked(splice)
        if insn.falls_through and any(
            each.flow is Flow.NEXT and each.address not in context.wanted for each in follower
        ):
            length = follower[0].length
            both = SpliceDraft(Strategy.TRAP, insn.address, (insn, *follower), [], len(TRAP), insn.address, length)
            if not isinstance(context.checked(both), Refusal):
                return both
        splice.ambiguous = insn.falls_through or bool(context.code.entries.enterable(insn.end, insn.end + 1))
        return context.checked(splice)
