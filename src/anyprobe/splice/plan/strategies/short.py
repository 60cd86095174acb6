"""Short jumps to dead bytes nearby, which hold a jump on to the patch."""

from anyprobe.core.address import page_floor
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Insn
from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.site import Site
from anyprobe.splice.plan.splices import SHORT_BYTES, Strategy

_REACH = 127


class Short:
    """Two bytes that jump to dead bytes."""

    kind = Strategy.SHORT

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the jump to the nearest dead bytes."""
        insns = short_line(site)
        if isinstance(insns, Refusal):
            return insns
        head = insns[0].address
        dead = _dead_nearby(site.context, head)
        if dead is None:
            return Refusal(Reason.NO_ROOM_NEARBY, head, "no five dead bytes within reach of a short jump")
        return short_jump(site, insns, dead)


def short_jump(
    site: Site, insns: tuple[Insn, ...], place: int, leans_on: tuple[SpliceDraft, ...] = ()
) -> SpliceDraft | Refusal:
    """Return a short jump to a place, if its own bytes are free."""
    head = insns[0].address
    return site.context.checked(
        SpliceDraft(Strategy.SHORT, head, insns, [], SHORT_BYTES, head, dead_springboard=place, leans_on=leans_on)
    )


def short_line(site: Site) -> tuple[Insn, ...] | Refusal:
    """Return the instructions that a short jump at a site's head displaces, at least up to the wanted one."""
    context, run, head, stop = site.context, site.run, site.head, site.index
    while stop + 1 < len(run) and run[stop].end - head.address < SHORT_BYTES:
        stop += 1
    short = SHORT_BYTES - (run[stop].end - head.address)
    home = context.code.containing(head.address) if short > 0 and site.start == stop else None
    dead = context.dead_bytes(home, head) if home is not None else 0
    insns = run[site.start : stop + 1]
    if short > dead or not context.may_move(insns, SHORT_BYTES):
        return Refusal(Reason.TOO_SHORT, head.address, "one byte, and the next one may be entered")
    return insns


def _dead_nearby(context: PlanContext, address: int) -> int | None:
    """Return the nearest address of five bytes that never run, that no splice has, and that lie within reach."""
    low, high = address + SHORT_BYTES - _REACH - 1, address + SHORT_BYTES + _REACH
    best: int | None = None
    for start, end in context.dead_ranges(address, low - _REACH, high):
        # from the far end: a jump at the last instruction above may want the bytes right after it
        for place in range(end - JUMP_BYTES, start - 1, -1):
            # on one page with the head: pages are written one after the other
            near = low <= place < high and page_floor(place) == page_floor(place + JUMP_BYTES - 1) == page_floor(
                address
            )
            beside = place >= address + SHORT_BYTES or place + JUMP_BYTES <= address  # not in the short jump itself
            if near and beside and context.claims.conflict(place, JUMP_BYTES, 0) is None:
                if best is None or abs(place - address) < abs(best - address):
                    best = place
                break
    return best
