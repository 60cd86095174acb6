"""Short jumps into what other splices displace.

Five bytes that are displaced hold a springboard for a short jump from nearby. Where nothing nearby is displaced yet, a
straight line of ten bytes is *evicted*: displaced for its bytes alone.
"""

from anyprobe.core.address import PAGE, page_floor
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.site import Site
from anyprobe.splice.plan.splices import SHORT_BYTES, Strategy
from anyprobe.splice.plan.strategies.rooms import BACK, FORTH, lines_near, room_in
from anyprobe.splice.plan.strategies.short import short_jump, short_line


class Nesting:
    """Two bytes that jump to bytes which another splice of the plan has displaced."""

    kind = Strategy.SHORT

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the jump into the nearest splice with room."""
        insns = short_line(site)
        if isinstance(insns, Refusal):
            return insns
        head = insns[0].address
        page = page_floor(head)
        low, high = head + SHORT_BYTES - BACK, min(head + SHORT_BYTES + FORTH, page + PAGE)
        # the others have no room for it
        near = [host for host in site.plan.headed_in(page, high) if _has_room_above(host, low)]
        rooms = [(room_in(site.context, host, head), host) for host in near]
        found = [(abs(place - head), place, host) for place, host in rooms if place is not None]
        if not found:
            return Refusal(Reason.NO_ROOM_NEARBY, head, "nothing within reach of a short jump is displaced by others")
        _, place, host = min(found, key=lambda each: each[:2])
        return short_jump(site, insns, place, (host,))


class Eviction:
    """Two bytes that jump to bytes of a straight line nearby which is displaced for that."""

    kind = Strategy.SHORT

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the jump into the line whose eviction is the least unwelcome."""
        insns, context = short_line(site), site.context
        if isinstance(insns, Refusal):
            return insns
        head = insns[0].address
        homes = dict.fromkeys((site.function, *site.plan.scope))
        lines = [line for each in homes for line in lines_near(context, each, head)]
        for _, host in sorted(lines, key=lambda line: _cost(line[0], line[1], head)):
            apart = host.end <= head or max(insns[-1].end, head + SHORT_BYTES) <= host.head
            place = room_in(context, host, head, fresh=True) if apart else None
            if place is not None and not isinstance(context.checked(host), Refusal):
                return short_jump(site, insns, place, (host,))
        return Refusal(Reason.NO_ROOM_NEARBY, head, "no straight line within reach of a short jump can be evicted")


def _has_room_above(host: SpliceDraft, low: int) -> bool:
    """Return whether a splice displaces enough bytes from ``low`` on that it does not write; most do not."""
    return host.end - JUMP_BYTES >= max(host.write_at + host.written + host.borrowed, low)


def _cost(first: int, host: SpliceDraft, head: int) -> tuple[int, bool, int, int]:
    """Return how unwelcome an eviction is.

    Displaced calls confuse the processor's return prediction; what stays in front in the same line loses its room.
    """
    return sum(insn.is_call for insn in host.insns), first > 0, len(host.insns), abs(host.head - head)
