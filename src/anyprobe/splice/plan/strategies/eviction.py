"""Room for springboards in the bytes of instructions that run as copies in a patch.

A jump takes five bytes. The instructions that it displaces are longer as a rule, and behind those five nobody comes by
any more: not even by a signal handler's return or an old patch's jump back, which is checked. Five of these bytes hold
a springboard for a short jump from nearby. Where nothing nearby is displaced yet, a straight line of ten bytes is
*evicted*: displaced for its bytes alone.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.address import PAGE, page_floor
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Flow, Insn
from anyprobe.splice.plan.splices import SHORT_BYTES, FunctionPlan, PlannedSplice, Strategy
from anyprobe.splice.plan.strategies.ladder import Strategies

_BACK, _FORTH = 128, 127
"""How far a short jump leads, from its end."""
_IN_PLACE = (Strategy.RETARGET, Strategy.TRAP)


@dataclass
class Evictions(Strategies):
    """Short jumps into what other splices of the same function displace."""

    def nested(self, run: tuple[Insn, ...], start: int, index: int, plan: FunctionPlan) -> PlannedSplice | Refusal:
        """Two bytes that jump to bytes which another splice of the plan has displaced."""
        insns = self.short_line(run, start, index)
        if isinstance(insns, Refusal):
            return insns
        head = insns[0].address
        page = page_floor(head)
        low, high = head + SHORT_BYTES - _BACK, min(head + SHORT_BYTES + _FORTH, page + PAGE)
        # the others have no room for it
        near = [host for host in plan.headed_in(page, high) if _has_room_above(host, low)]
        rooms = [(self.room_in(host, head, plan), host) for host in near]
        found = [(abs(place - head), place, host) for place, host in rooms if place is not None]
        if not found:
            return Refusal(Reason.NO_ROOM_NEARBY, head, "nothing within reach of a short jump is displaced by others")
        _, place, host = min(found, key=lambda each: each[:2])
        return self._into(insns, place, host)

    def evicting(
        self, function: FunctionCode, run: tuple[Insn, ...], start: int, index: int, plan: FunctionPlan
    ) -> PlannedSplice | Refusal:
        """Two bytes that jump to bytes of a straight line nearby which is displaced for that."""
        insns = self.short_line(run, start, index)
        if isinstance(insns, Refusal):
            return insns
        head = insns[0].address
        lines = [line for each in dict.fromkeys((function, *plan.scope)) for line in self.lines_near(each, head)]
        for _, host in sorted(lines, key=lambda line: _cost(line[0], line[1], head)):
            apart = host.end <= head or max(insns[-1].end, head + SHORT_BYTES) <= host.head
            place = self.room_in(host, head, plan, fresh=True) if apart else None
            if place is not None and not isinstance(self._checked(host), Refusal):
                return self._into(insns, place, host)
        return Refusal(Reason.NO_ROOM_NEARBY, head, "no straight line within reach of a short jump can be evicted")

    def _into(self, insns: tuple[Insn, ...], place: int, host: PlannedSplice) -> PlannedSplice | Refusal:
        head = insns[0].address
        splice = PlannedSplice(
            Strategy.SHORT, head, insns, [], SHORT_BYTES, head, dead_springboard=place, leans_on=(host,)
        )
        return self._checked(splice)

    def room_in(
        self, host: PlannedSplice, head: int, plan: FunctionPlan, *, fresh: bool = False, place: int | None = None
    ) -> int | None:
        """Return five bytes that ``host`` displaces, nobody uses, and a short jump at ``head`` reaches.

        ``place``: just these. All that depends on one another lies on one page, since pages are written one after the
        other. ``fresh``: the host is not in the plan yet.
        """
        page = page_floor(head)
        if host.strategy in _IN_PLACE or page_floor(host.head) != page:
            return None
        low, high = head + SHORT_BYTES - _BACK, head + SHORT_BYTES + _FORTH + 1
        first = max(host.write_at + host.written + host.borrowed, low)
        if first >= high or host.end - JUMP_BYTES < first:
            return None  # as most are, out of reach or too short
        claims, end = self.claims, next((i.address for i in host.insns if i.address in plan.shared), host.end)
        end = min(end, self.moving(host.insns)[-1].end)  # behind that goroutines may be parked, though the copies run
        if self.fault_refusal(host.insns[:1], end) is not None:
            end = host.insns[0].end
        places = range(first, min(end - JUMP_BYTES + 1, high, page + PAGE - JUMP_BYTES + 1))
        for at in places if place is None else {place}.intersection(places):
            room = range(at, at + JUMP_BYTES)
            if claims.landings.has_any(host.head + 1, at + JUMP_BYTES):
                return None
            if claims.written.has_any(at, at + JUMP_BYTES) or any(claims.borrowed[address] > 0 for address in room):
                continue
            if fresh or all(address in claims.displaced for address in room):
                return at
        return None

    def lines_near(self, function: FunctionCode, head: int, until: int = 0) -> Iterator[tuple[int, PlannedSplice]]:
        """Yield splices that would displace straight lines with room for a springboard, near enough to ``head``.

        In front of each stands how many instructions of its line it leaves in place. They go on at least to ``until``,
        if their line does.
        """
        page = page_floor(head)
        low = max(page, head + SHORT_BYTES - _BACK - JUMP_BYTES, function.start)
        high = min(page + PAGE, head + SHORT_BYTES + _FORTH, function.end)
        addresses, number = function.addresses, bisect_left(function.addresses, low)
        while number < len(addresses) and addresses[number] < high:
            run = function.run_of(addresses[number], low)
            for first, insn in enumerate(run):
                at = insn.address
                taken = at >= high or not self.claims.are_free(at, JUMP_BYTES)  # as most are by and by
                insns = () if taken else self._line_from(run, first, until)
                if insns and self.fault_refusal(insns) is None:
                    yield first, PlannedSplice(Strategy.JUMP, at, insns, [], JUMP_BYTES, at)
            number = max(bisect_left(addresses, run[-1].end) if run else 0, number + 1)

    def _line_from(self, run: tuple[Insn, ...], first: int, until: int) -> tuple[Insn, ...]:
        """Return the instructions from one on that a jump and a springboard take; empty if there are too few."""
        last, head = first, run[first].address
        most = first + len(self.moving(run[first:])) - 1
        while last < most and run[last].end < max(head + 2 * JUMP_BYTES, until):
            last += 1
        insns = run[first : last + 1]
        unwelcome = insns[0].is_endbr or any(insn.flow is Flow.SYSCALL for insn in insns)
        return () if unwelcome or insns[-1].end < head + 2 * JUMP_BYTES else insns


def _has_room_above(host: PlannedSplice, low: int) -> bool:
    """Return whether a splice displaces enough bytes from ``low`` on that it does not write; most do not."""
    return host.end - JUMP_BYTES >= max(host.write_at + host.written + host.borrowed, low)


def _cost(first: int, host: PlannedSplice, head: int) -> tuple[int, bool, int, int]:
    """Return how unwelcome an eviction is.

    Displaced calls confuse the processor's return prediction; what stays in front in the same line loses its room.
    """
    return sum(insn.is_call for insn in host.insns), first > 0, len(host.insns), abs(host.head - head)
