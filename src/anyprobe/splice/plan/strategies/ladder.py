"""The strategies, one splice at a time: what each needs, and why it does not apply."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.address import AddressRange, page_floor
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Flow, Insn
from anyprobe.isa.relocate import must_stay
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import AUTO, SHORT_BYTES, TRAP, PlannedSplice, Pun, Strategy, Want, WantKind

if TYPE_CHECKING:
    from anyprobe.binary.objects.goroutines import ParkingPlaces

_SHORT_REACH = 127


@dataclass
class Strategies:
    """Makes splices of one module; claims are looked at, not taken.

    ``reachable(pun)`` says whether some page that a punned jump can reach may be mapped. ``allowed`` are the
    strategies that the user permits.
    """

    code: CodeMap
    claims: Claims
    reachable: Callable[[Pun], bool]
    allowed: frozenset[Strategy] = AUTO
    plain_jumps_only: bool = False
    """No several-instruction jumps (Go: goroutines parked anywhere keep their pc off the stacks), but where ``parking``
    says that nobody is parked."""
    parking: "ParkingPlaces | None" = None
    faults_handled: bool = False
    """The program handles faults: what may fault is only displaced alone, so that its address and what follows it are
    executable, where a handler may have the program go on."""
    pcs_shown: bool = True
    """Its handlers are shown the program's own pcs. Where they are not, nothing that may fault is displaced at all."""
    faults_skipped: bool = True
    """They may have the program go on behind what has faulted; Go's runtime never does, for instance."""
    writable: tuple[AddressRange, ...] = ()
    """Text that the program may write to: it would hit a jump of ours, or what is displaced by one."""
    _wanted: frozenset[int] = frozenset()

    def retarget(self, insn: Insn, want: Want) -> PlannedSplice | Refusal:
        """Return a splice that changes the destination of the wanted branch."""
        direct = insn.flow in (Flow.JUMP, Flow.JCC, Flow.CALL) and insn.target is not None
        wide = (insn.length >= JUMP_BYTES and insn.raw[-5] in (0xE8, 0xE9)) or (
            insn.length >= 6 and insn.raw[-6] == 0x0F
        )
        if insn.flow is Flow.CALL and want.kind is WantKind.ENTRY:
            return Refusal(Reason.NOT_A_BRANCH, insn.address, "the entry's handlers must run before the call")
        taken_edge_only = insn.flow is Flow.JCC and not (want.conditional or want.kind is WantKind.LOOP)
        if not direct or not wide or taken_edge_only:
            return Refusal(Reason.NOT_A_BRANCH, insn.address, "not a direct branch with a 32-bit displacement")
        return self._checked(PlannedSplice(Strategy.RETARGET, insn.address, (insn,), [], 4, insn.end - 4))

    def jump(self, function: FunctionCode, run: tuple[Insn, ...], start: int, index: int) -> PlannedSplice | Refusal:
        """Jump at ``run[start]`` that displaces at least up to ``run[index]``."""
        head = run[start]
        if start == index and head.length >= JUMP_BYTES:
            return self._checked(PlannedSplice(Strategy.JUMP, head.address, (head,), [], JUMP_BYTES, head.address))
        stop = index
        while stop + 1 < len(run) and run[stop].end - head.address < JUMP_BYTES:
            stop += 1
        insns = run[start : stop + 1]
        if not self._may_move(insns, JUMP_BYTES):
            detail = "Go code allows no several-instruction jump where goroutines may be parked"
            return Refusal(Reason.CONTROL_FLOW_UNKNOWN, head.address, detail)
        if insns[-1].end - head.address < JUMP_BYTES:
            dead = self.dead_bytes(function, insns[-1])
            if insns[-1].end + dead - head.address < JUMP_BYTES:
                return self._why_short(function, insns[-1].end, head)
        return self._checked(PlannedSplice(Strategy.JUMP, head.address, insns, [], JUMP_BYTES, head.address))

    def moving(self, insns: tuple[Insn, ...]) -> tuple[Insn, ...]:
        """Return those instructions of a line, from the first on, that may make room for one jump together.

        Goroutines wait behind calls, and older versions of Go come back to calls themselves.
        """
        if not self.plain_jumps_only:
            return insns
        parking, alone = self.parking, insns[:1]
        if parking is None or alone[0].is_call:
            return alone
        behind = takewhile(lambda insn: not (insn.is_call or parking.may_park(insn.address)), insns[1:])
        return (*alone, *behind)

    def _may_move(self, insns: tuple[Insn, ...], written: int) -> bool:
        """Return whether all may move of which bytes are written; where that is not known, all that is displaced."""
        if self.plain_jumps_only and self.parking is None:
            return len(insns) == 1
        moving = self.moving(insns)
        return len(moving) == len(insns) or moving[-1].end >= insns[0].address + written

    def _why_short(self, function: FunctionCode, end: int, head: Insn) -> Refusal:
        if function.complete is not None:
            return Refusal(Reason.CONTROL_FLOW_UNKNOWN, head.address, function.complete.detail)
        entering = self.code.entries.enterable(end, head.address + JUMP_BYTES)
        if entering:
            address, why = entering[0]
            return Refusal(Reason.JUMP_TARGET_IN_JTPR, address, why)
        return Refusal(Reason.TOO_SHORT, head.address, f"only {end - head.address} bytes before other code")

    def dead_bytes(self, function: FunctionCode, last: Insn) -> int:
        """Return how many bytes behind ``last`` can never run."""
        return 0 if last.falls_through else function.dead_bytes_behind(last.end)

    def short(self, run: tuple[Insn, ...], start: int, index: int) -> PlannedSplice | Refusal:
        """Two bytes that jump to dead bytes nearby, which hold a jump on to the patch."""
        insns = self.short_line(run, start, index)
        if isinstance(insns, Refusal):
            return insns
        head = insns[0].address
        dead = self._dead_nearby(head)
        if dead is None:
            return Refusal(Reason.NO_ROOM_NEARBY, head, "no five dead bytes within reach of a short jump")
        return self._checked(PlannedSplice(Strategy.SHORT, head, insns, [], SHORT_BYTES, head, dead_springboard=dead))

    def short_line(self, run: tuple[Insn, ...], start: int, index: int) -> tuple[Insn, ...] | Refusal:
        """Return the instructions that a short jump at ``run[start]`` displaces, at least up to ``run[index]``."""
        head, stop = run[start], index
        while stop + 1 < len(run) and run[stop].end - head.address < SHORT_BYTES:
            stop += 1
        short = SHORT_BYTES - (run[stop].end - head.address)
        home = self.code.containing(head.address) if short > 0 and start == stop else None
        dead = self.dead_bytes(home, head) if home is not None else 0
        insns = run[start : stop + 1]
        if short > dead or not self._may_move(insns, SHORT_BYTES):
            return Refusal(Reason.TOO_SHORT, head.address, "one byte, and the next one may be entered")
        return insns

    def _dead_nearby(self, address: int) -> int | None:
        """Return the nearest address of five bytes that never run, are nobody's, and lie within reach."""
        low, high = address + SHORT_BYTES - _SHORT_REACH - 1, address + SHORT_BYTES + _SHORT_REACH
        best: int | None = None
        for start, end in self.dead_ranges(address, low - _SHORT_REACH, high):
            # from the far end: a jump at the last instruction above may want the bytes right behind it
            for place in range(end - JUMP_BYTES, start - 1, -1):
                # on one page with the head: pages are written one after the other
                near = low <= place < high and page_floor(place) == page_floor(place + JUMP_BYTES - 1) == page_floor(
                    address
                )
                beside = place >= address + SHORT_BYTES or place + JUMP_BYTES <= address  # not in the short jump itself
                if near and beside and self.claims.conflict(place, JUMP_BYTES, 0) is None:
                    if best is None or abs(place - address) < abs(best - address):
                        best = place
                    break
        return best

    def dead_ranges(self, address: int, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield padding behind functions, and padding that is not wanted in the function around ``address``."""
        for start in self.code.layout.starts_between(low, high):
            function = self.code.function_at(start)
            if not isinstance(function, Refusal):
                yield function.end, function.end + function.padding_after
        home = self.code.containing(address)
        if home is None:
            return
        first = bisect_left(home.special, low, key=lambda insn: insn.end)
        for insn in takewhile(lambda insn: insn.end < min(high, home.end), home.special[first:]):
            end = insn.end if insn.falls_through else insn.end + home.dead_bytes_behind(insn.end)
            if end > insn.end and not any(place in self._wanted for place in range(insn.end, end)):
                yield insn.end, end

    def punned(
        self, run: tuple[Insn, ...], start: int, index: int, limit: int | None = None
    ) -> PlannedSplice | Refusal:
        """Turn ``run[start]`` into a jump that ends in the bytes behind it, but borrow none from ``limit`` on."""
        head = run[start]
        insns = run[start : index + 1]
        length = min(head.length, JUMP_BYTES)
        refusal = Refusal(Reason.PUN_OUT_OF_REACH, head.address, "no page that the punned jump reaches can be mapped")
        for prefixes in range(length):
            pun = self._pun(head, prefixes)
            if isinstance(pun, Refusal):
                return pun
            written = prefixes + 1 + pun.free
            if limit is not None and head.address + prefixes + JUMP_BYTES > limit:
                refusal = Refusal(
                    Reason.BORROWED_BYTES, head.address, "the pun would borrow bytes of the next function"
                )
                continue
            if not self.reachable(pun):
                continue
            splice = PlannedSplice(
                Strategy.PUNNED, head.address, insns, [], written, head.address, prefixes + JUMP_BYTES - written, pun
            )
            checked = self._checked(splice)
            if not isinstance(checked, Refusal):
                return checked
            refusal = checked
        return refusal

    def _pun(self, head: Insn, prefixes: int, free: int = 4) -> Pun | Refusal:
        free = min(head.length - 1 - prefixes, free)
        fixed_at = head.address + prefixes + 1 + free
        try:
            fixed = self.code.text.memory.read(fixed_at, 4 - free)
        except LookupError:
            return Refusal(Reason.TOO_SHORT, head.address, "the module's text ends here")
        displacement = int.from_bytes(bytes(free) + fixed, "little", signed=True)
        return Pun(prefixes, free, head.address + prefixes + JUMP_BYTES + displacement)

    def trap(self, insn: Insn, follower: tuple[Insn, ...]) -> PlannedSplice | Refusal:
        """One byte that traps: nothing else changes, whoever stands or comes where.

        If the instruction has no other byte, its patch takes the next one along where it can, so that a thread with
        its pc behind the trap has met it.
        """
        if self.plain_jumps_only:
            detail = "Go's runtime runs code with all signals blocked and takes SIGTRAP for itself"
            return Refusal(Reason.TRAP_UNSAFE, insn.address, detail)
        if insn.raw[:1] == TRAP:
            return Refusal(Reason.TRAP_UNSAFE, insn.address, "this is an int3 of the program's own")
        splice = PlannedSplice(Strategy.TRAP, insn.address, (insn,), [], len(TRAP), insn.address)
        if insn.length > len(TRAP):
            return self._checked(splice)
        if insn.falls_through and any(each.flow is Flow.NEXT and each.address not in self._wanted for each in follower):
            length = follower[0].length
            both = PlannedSplice(Strategy.TRAP, insn.address, (insn, *follower), [], len(TRAP), insn.address, length)
            if not isinstance(self._checked(both), Refusal):
                return both
        splice.ambiguous = insn.falls_through or bool(self.code.entries.enterable(insn.end, insn.end + 1))
        return self._checked(splice)

    def checked_line(self, splice: PlannedSplice) -> PlannedSplice | Refusal:
        """Return a jump in a line of instructions all of which have displaced forms, if its bytes may be written."""
        start = splice.head
        if page_floor(start) != page_floor(start + JUMP_BYTES - 1):
            return Refusal(Reason.PAGE_BOUNDARY, start, "the bytes to write cross a page boundary")
        taken = self.claims.conflict(start, JUMP_BYTES, 0) or self.claims.overwritten(splice)
        return taken or self._held(splice.insns, start + JUMP_BYTES) or splice

    def _checked(self, splice: PlannedSplice) -> PlannedSplice | Refusal:
        """Return the splice if its bytes may be written and its instructions displaced."""
        start, end = splice.write_at, splice.write_at + splice.written
        if page_floor(start) != page_floor(end - 1):
            return Refusal(Reason.PAGE_BOUNDARY, start, "the bytes to write cross a page boundary")
        known = {at for each in splice.leans_on for at in range(each.write_at, each.write_at + each.written)}
        unknown = [at for at in range(end, end + splice.borrowed) if at not in known]
        taken = self.claims.conflict(start, splice.written, 0) or self.claims.overwritten(splice)
        taken = taken or next((why for at in unknown if (why := self.claims.conflict(at, 0, 1))), None)
        return self.forbidden(splice.insns, end) or taken or self._written_at(start, end + splice.borrowed) or splice

    def forbidden(self, insns: tuple[Insn, ...], end: int = 0) -> Refusal | None:
        """Return why some instructions must stay where they are; ``end``: bytes below it would be overwritten."""
        held = self._held(insns, end)
        return held or next((refusal for refusal in map(must_stay, insns) if refusal is not None), None)

    def _held(self, insns: tuple[Insn, ...], end: int) -> Refusal | None:
        """Return the same of instructions that have displaced forms."""
        low, high = insns[0].address, insns[-1].end
        for reason in self.code.text.forbidden_areas.overlapping(low, high):
            return Refusal(Reason(reason), low, "this code must never be displaced")
        return self._written_at(low, max(high, end)) or self.fault_refusal(insns, end)

    def _written_at(self, low: int, high: int) -> Refusal | None:
        """Return that the program may write to some bytes, if it may."""
        for area in self.writable:
            if area.start < high and low < area.end:
                detail = "the text is writable here: the program may change it, and would change a jump of ours"
                return Refusal(Reason.WRITABLE_TEXT, low, detail)
        return None

    def fault_refusal(self, insns: tuple[Insn, ...], end: int = 0) -> Refusal | None:
        """Return why faults that the program handles keep instructions where they are, if it handles any."""
        if not self.faults_handled:
            return None
        from anyprobe.splice.userspace.faulting import fault_refusal

        return fault_refusal(insns, end, shown=self.pcs_shown, skipped=self.faults_skipped)

    def faults_part(self, above: Insn, insn: Insn) -> bool:
        """Return whether faults that the program handles keep an instruction from moving with the one above it."""
        if not self.faults_handled:
            return False
        from anyprobe.splice.userspace.faulting import keeps_apart

        return keeps_apart(above, insn, skipped=self.faults_skipped)
