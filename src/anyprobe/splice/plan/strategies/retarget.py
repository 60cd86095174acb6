"""A branch whose displacement is changed: it leads to the patch itself."""

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Flow, Insn
from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.site import Site
from anyprobe.splice.plan.splices import HEADS, Strategy, Want, WantKind


class Retarget:
    """Changes the destination of the wanted branch."""

    kind = Strategy.RETARGET

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the branch with another destination."""
        assert site.want is not None
        return retarget(site.context, site.insn, site.want)


def retarget(context: PlanContext, insn: Insn, want: Want) -> SpliceDraft | Refusal:
    """Return a splice that changes the destination of the wanted branch."""
    direct = insn.flow in (Flow.JUMP, Flow.JCC, Flow.CALL) and insn.target is not None
    wide = (insn.length >= JUMP_BYTES and insn.raw[-5] in (0xE8, 0xE9)) or (insn.length >= 6 and insn.raw[-6] == 0x0F)
    if insn.flow is Flow.CALL and want.kind in HEADS:
        return Refusal(Reason.NOT_A_BRANCH, insn.address, "what runs here must run before the call")
    taken_edge_only = insn.flow is Flow.JCC and not (want.conditional or want.kind is WantKind.LOOP)
    if not direct or not wide or taken_edge_only:
        return Refusal(Reason.NOT_A_BRANCH, insn.address, "not a direct branch with a 32-bit displacement")
    return context.checked(SpliceDraft(Strategy.RETARGET, insn.address, (insn,), [], 4, insn.end - 4))
