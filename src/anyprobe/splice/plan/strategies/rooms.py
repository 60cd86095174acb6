"""Room for springboards in the bytes of instructions that run as copies in a patch.

A jump takes five bytes. The instructions that it displaces are longer as a rule, and no thread comes by after those
five any more: not even by a signal handler's return or an old patch's jump back, which is checked.
"""

from bisect import bisect_left
from collections.abc import Iterator

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.address import PAGE, page_floor
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Flow, Insn
from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.splices import IN_PLACE, SHORT_BYTES, Strategy

BACK, FORTH = 128, 127
"""How far a short jump leads, from its end."""


def room_in(
    context: PlanContext, host: SpliceDraft, head: int, *, fresh: bool = False, place: int | None = None
) -> int | None:
    """Return five bytes that ``host`` displaces, that no splice uses, and a short jump at ``head`` reaches.

    ``place``: just these. All that depends on one another lies on one page, since pages are written one after the
    other. ``fresh``: the host is not in the plan yet.
    """
    page = page_floor(head)
    if host.strategy in IN_PLACE or page_floor(host.head) != page:
        return None
    low, high = head + SHORT_BYTES - BACK, head + SHORT_BYTES + FORTH + 1
    first = max(host.write_at + host.written + host.borrowed, low)
    if first >= high or host.end - JUMP_BYTES < first:
        return None  # as most are, out of reach or too short
    claims, end = context.claims, next((i.address for i in host.insns if i.address in context.plan.shared), host.end)
    end = min(end, context.moving(host.insns)[-1].end)  # after that goroutines may be parked, though the copies run
    if context.fault_refusal(host.insns[:1], end) is not None:
        end = host.insns[0].end
    places = range(first, min(end - JUMP_BYTES + 1, high, page + PAGE - JUMP_BYTES + 1))
    for at in places if place is None else {place}.intersection(places):
        if claims.are_landed_in(host.head + 1, at + JUMP_BYTES):
            return None
        if claims.are_used(at, at + JUMP_BYTES):
            continue
        if fresh or claims.are_displaced(at, at + JUMP_BYTES):
            return at
    return None


def lines_near(
    context: PlanContext, function: FunctionCode, head: int, until: int = 0
) -> Iterator[tuple[int, SpliceDraft]]:
    """Yield splices that would displace straight lines with room for a springboard, near enough to ``head``.

    Before each stands how many instructions of its line it leaves in place. They go on at least to ``until``,
    if their line does.
    """
    page = page_floor(head)
    low = max(page, head + SHORT_BYTES - BACK - JUMP_BYTES, function.start)
    high = min(page + PAGE, head + SHORT_BYTES + FORTH, function.end)
    addresses, number = function.addresses, bisect_left(function.addresses, low)
    while number < len(addresses) and addresses[number] < high:
        run = function.lines.around(addresses[number], low)
        for first, insn in enumerate(run):
            at = insn.address
            taken = at >= high or not context.claims.are_free(at, JUMP_BYTES)  # as most are by and by
            insns = () if taken else _line_from(context, run, first, until)
            if insns and context.fault_refusal(insns) is None:
                yield first, SpliceDraft(Strategy.JUMP, at, insns, [], JUMP_BYTES, at)
        number = max(bisect_left(addresses, run[-1].end) if run else 0, number + 1)


def _line_from(context: PlanContext, run: tuple[Insn, ...], first: int, until: int) -> tuple[Insn, ...]:
    """Return the instructions from one on that a jump and a springboard take; empty if there are too few."""
    last, head = first, run[first].address
    most = first + len(context.moving(run[first:])) - 1
    while last < most and run[last].end < max(head + 2 * JUMP_BYTES, until):
        last += 1
    insns = run[first : last + 1]
    unwelcome = insns[0].is_endbr or any(insn.flow is Flow.SYSCALL for insn in insns)
    return () if unwelcome or insns[-1].end < head + 2 * JUMP_BYTES else insns
