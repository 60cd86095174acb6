"""A jump of five bytes in place of the instructions that it displaces."""

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Insn
from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.site import Site
from anyprobe.splice.plan.splices import Strategy


class Jump:
    """Jumps at the head of a site and displaces at least up to the wanted instruction."""

    kind = Strategy.JUMP

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the jump."""
        return jump(site.context, site.function, site.run, site.start, site.index)


class InPlace:
    """Jumps over one instruction that is long enough for it."""

    kind = Strategy.JUMP

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the jump."""
        insn = site.insn
        if insn.length < JUMP_BYTES:
            return Refusal(Reason.TOO_SHORT, insn.address, "the instruction is shorter than a jump")
        return site.context.checked(_over((insn,)))


def jump(
    context: PlanContext, function: FunctionCode, run: tuple[Insn, ...], start: int, index: int
) -> SpliceDraft | Refusal:
    """Return a jump at ``run[start]`` that displaces at least up to ``run[index]``."""
    head = run[start]
    if start == index and head.length >= JUMP_BYTES:
        return context.checked(_over((head,)))
    stop = index
    while stop + 1 < len(run) and run[stop].end - head.address < JUMP_BYTES:
        stop += 1
    insns = run[start : stop + 1]
    if not context.may_move(insns, JUMP_BYTES):
        detail = "Go code allows no several-instruction jump where goroutines may be parked"
        return Refusal(Reason.CONTROL_FLOW_UNKNOWN, head.address, detail)
    if insns[-1].end - head.address < JUMP_BYTES:
        dead = context.dead_bytes(function, insns[-1])
        if insns[-1].end + dead - head.address < JUMP_BYTES:
            return _why_short(context, function, insns[-1].end, head)
    return context.checked(_over(insns))


def _over(insns: tuple[Insn, ...]) -> SpliceDraft:
    head = insns[0].address
    return SpliceDraft(Strategy.JUMP, head, insns, [], JUMP_BYTES, head)


def _why_short(context: PlanContext, function: FunctionCode, end: int, head: Insn) -> Refusal:
    if function.complete is not None:
        return Refusal(Reason.CONTROL_FLOW_UNKNOWN, head.address, function.complete.detail)
    entering = context.code.entries.enterable(end, head.address + JUMP_BYTES)
    if entering:
        address, why = entering[0]
        return Refusal(Reason.JUMP_TARGET_IN_JTPR, address, why)
    return Refusal(Reason.TOO_SHORT, head.address, f"only {end - head.address} bytes before other code")
