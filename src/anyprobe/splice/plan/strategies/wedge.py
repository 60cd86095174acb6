"""Instructions of one byte, which make a short jump of themselves and the byte right after them.

A lone ``ret`` has no room even for a short jump. Together with the byte after it, it makes one to a single place,
which may be dead or can be evicted.
"""

from anyprobe.core.address import page_floor
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.site import Site
from anyprobe.splice.plan.splices import JUMP_OPCODE, SHORT_OPCODE, Strategy
from anyprobe.splice.plan.strategies.rooms import lines_near, room_in

_FAR = 1 << 10
"""How far before dead bytes the function that they belong to may begin."""


class Wedge:
    """One byte that makes a short jump of itself and the byte after it, which stays."""

    kind = Strategy.SHORT

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the jump to the one place that the byte after leads to."""
        insn = site.insn
        if site.start != site.index or insn.length != 1:
            return Refusal(Reason.TOO_SHORT, site.head.address, "not an instruction of one byte")
        after = _byte_after(site)
        if after is None:
            return Refusal(Reason.TOO_SHORT, insn.address, "the module's text ends here")
        value, leans_on = after
        place = insn.address + 2 + (value ^ 0x80) - 0x80
        room = _room_at(site, place)
        if isinstance(room, Refusal):
            return room
        splice = SpliceDraft(
            Strategy.SHORT, insn.address, (insn,), [], 1, insn.address, 1,
            dead_springboard=place, leans_on=(*leans_on, *room),
        )  # fmt: skip
        return site.context.checked(splice)


def _byte_after(site: Site) -> tuple[int, tuple[SpliceDraft, ...]] | None:
    """Return what the byte after an instruction is once the plan is carried out, and which splice says so."""
    end = site.insn.end
    over = next(iter(site.plan.headed_in(end, end + 1)), None)
    if over is not None and over.strategy is Strategy.SHORT:
        return SHORT_OPCODE, (over,)
    if over is not None and over.strategy in (Strategy.JUMP, Strategy.PUNNED):
        return (over.pun.prefix if over.pun is not None and over.pun.prefixes else JUMP_OPCODE), (over,)
    try:
        return site.context.code.text.memory.read(end, 1)[0], ()
    except LookupError:
        return None


def _room_at(site: Site, place: int) -> tuple[SpliceDraft, ...] | Refusal:
    """Return the splice whose displaced bytes there are, none if they are dead; or why there is no room."""
    context, insn = site.context, site.insn
    if page_floor(place) == page_floor(place + JUMP_BYTES - 1) == page_floor(insn.address):
        for low, high in context.dead_ranges(insn.address, place - _FAR, place + JUMP_BYTES + 1):
            if low <= place <= high - JUMP_BYTES and context.claims.conflict(place, JUMP_BYTES, 0) is None:
                return ()
        for host in site.plan.headed_in(page_floor(place), place):
            if room_in(context, host, insn.address, place=place) is not None:
                return (host,)
        for each in dict.fromkeys((site.function, *site.plan.scope)):
            for _, host in lines_near(context, each, insn.address, until=place + JUMP_BYTES):
                apart = host.end <= insn.address or insn.end < host.head
                fits = apart and not isinstance(context.checked(host), Refusal)
                if fits and room_in(context, host, insn.address, fresh=True, place=place) is not None:
                    return (host,)
    detail = f"the bytes at {place:#x}, to which a short jump would lead, are neither dead nor to be evicted"
    return Refusal(Reason.NO_ROOM_NEARBY, place, detail)
