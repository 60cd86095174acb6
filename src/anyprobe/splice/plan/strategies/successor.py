"""Instructions of one byte, spliced by means of what stands right behind them.

A lone ``ret`` has no room even for a short jump. Together with the byte behind it, it makes a short jump to one place,
which may be dead or can be evicted. And where the instruction behind can be spliced, too, its new bytes can be chosen:
its jump goes by way of a springboard, at such a place that its displacement makes a jump of the byte in front, too.

    ret                   c3              e9                  jmp rel32: e9 d0 d1 d2
    mov rax, [rip+x]      48 8b 05 ...       e9 d0 d1 d2 d3   jmp rel32: d0 d1 d2 d3
"""

from collections.abc import Iterator
from dataclasses import dataclass

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.address import page_floor
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Insn
from anyprobe.splice.plan.splices import OTHER_PREFIX, REDUNDANT_PREFIX, FunctionPlan, PlannedSplice, Pun, Strategy
from anyprobe.splice.plan.strategies.eviction import Evictions

_OPCODE = 0xE9
_FAR = 1 << 10
"""How far in front of dead bytes the function that they belong to may begin; how far apart two springboards are."""
_STEPS = (0x10, 0xF0, 0x20, 0xE0, 0x30, 0xD0, 0x40, 0x50, 0x60, 0x70, 0xC0, 0xB0, 0xA0, 0x90, 0x05, 0xFA, 0x80, 0x7F)
"""Highest displacement bytes that are tried: one is in reach wherever the module lies."""
_LOWER = (0x0000, 0x0100, 0x0305, 0x5107, 0xA30B)


@dataclass
class Successors(Evictions):
    """Splices of instructions that have no room of their own, by means of the one behind."""

    def wedged(
        self, function: FunctionCode, run: tuple[Insn, ...], start: int, index: int, plan: FunctionPlan
    ) -> PlannedSplice | Refusal:
        """One byte that makes a short jump of itself and the byte behind it, which stays."""
        site = run[start]
        if start != index or site.length != 1:
            return Refusal(Reason.TOO_SHORT, site.address, "not an instruction of one byte")
        behind = self._byte_behind(site, plan)
        if behind is None:
            return Refusal(Reason.TOO_SHORT, site.address, "the module's text ends here")
        value, leans_on = behind
        place = site.address + 2 + (value ^ 0x80) - 0x80
        room = self._room_at(function, site, place, plan)
        if isinstance(room, Refusal):
            return room
        splice = PlannedSplice(
            Strategy.SHORT, site.address, (site,), [], 1, site.address, 1,
            dead_springboard=place, leans_on=(*leans_on, *room),
        )  # fmt: skip
        return self._checked(splice)

    def _byte_behind(self, site: Insn, plan: FunctionPlan) -> tuple[int, tuple[PlannedSplice, ...]] | None:
        """Return what the byte behind an instruction is once the plan is carried out, and who says so."""
        over = next(iter(plan.headed_in(site.end, site.end + 1)), None)
        if over is not None and over.strategy is Strategy.SHORT:
            return 0xEB, (over,)
        if over is not None and over.strategy in (Strategy.JUMP, Strategy.PUNNED):
            return (over.pun.prefix if over.pun is not None and over.pun.prefixes else _OPCODE), (over,)
        try:
            return self.code.text.memory.read(site.end, 1)[0], ()
        except LookupError:
            return None

    def _room_at(
        self, function: FunctionCode, site: Insn, place: int, plan: FunctionPlan
    ) -> tuple[PlannedSplice, ...] | Refusal:
        """Return whose displaced bytes there are, nobody's if they are dead; or why there is no room."""
        if page_floor(place) == page_floor(place + JUMP_BYTES - 1) == page_floor(site.address):
            for low, high in self.dead_ranges(site.address, place - _FAR, place + JUMP_BYTES + 1):
                if low <= place <= high - JUMP_BYTES and self.claims.conflict(place, JUMP_BYTES, 0) is None:
                    return ()
            for host in plan.headed_in(page_floor(place), place):
                if self.room_in(host, site.address, plan, place=place) is not None:
                    return (host,)
            for each in dict.fromkeys((function, *plan.scope)):
                for _, host in self.lines_near(each, site.address, until=place + JUMP_BYTES):
                    apart = host.end <= site.address or site.end < host.head
                    fits = apart and not isinstance(self._checked(host), Refusal)
                    if fits and self.room_in(host, site.address, plan, fresh=True, place=place) is not None:
                        return (host,)
        detail = f"the bytes at {place:#x}, to which a short jump would lead, are neither dead nor to be evicted"
        return Refusal(Reason.NO_ROOM_NEARBY, place, detail)

    def over_successor(
        self, function: FunctionCode, run: tuple[Insn, ...], start: int, index: int, plan: FunctionPlan
    ) -> PlannedSplice | Refusal:
        """A punned jump whose displacement ends in the bytes of another jump, chosen for that, right behind it."""
        insns = self.short_run(run, start, index)
        if isinstance(insns, Refusal):
            return insns
        head, end = insns[0].address, insns[-1].end
        size = end - head
        found = self._successor(function, end, plan)
        if isinstance(found, Refusal):
            return found
        for prefix in (b"", bytes([REDUNDANT_PREFIX]), bytes([OTHER_PREFIX])):
            over = found.head + len(prefix) + JUMP_BYTES
            room = found.insns[-1].end + self._dead_behind(found.insns[-1])
            if room < over or self.forbidden(found.insns, over) is not None:
                continue
            for own, behind in self._pairs(head, size, prefix):
                splice = PlannedSplice(Strategy.PUNNED, head, insns, [], size, head, JUMP_BYTES - size, own)
                written = len(prefix) + JUMP_BYTES
                taken = self.claims.conflict(head, size, 0) or self.forbidden(insns)
                beyond = prefix and self._is_taken(end + JUMP_BYTES)
                if taken is not None or beyond or page_floor(head) != page_floor(end + written - 1):
                    break
                splice.leans_on = (self._led_by(found, behind, written, plan),)
                return self._checked(splice)
        return Refusal(Reason.PUN_OUT_OF_REACH, head, "no two pages that both jumps reach can be mapped")

    def short_run(self, run: tuple[Insn, ...], start: int, index: int) -> tuple[Insn, ...] | Refusal:
        """Return the rest of a line from ``run[start]`` on, as far as it may move, if that is shorter than a jump."""
        moving = self.moving(run[start:])
        head, last = run[start].address, moving[-1]
        insns = tuple(insn for insn in moving if insn.end < head + JUMP_BYTES)
        if len(insns) <= index - start or insns[-1] is not last:
            return Refusal(Reason.TOO_SHORT, head, "only a line that is shorter than a jump leans on what is behind")
        return insns

    def _successor(self, function: FunctionCode, address: int, plan: FunctionPlan) -> PlannedSplice | Refusal:
        """Return the jump at an address right behind a site: the plan's, or a new one."""
        over = next(iter(plan.headed_in(address, address + 1)), None)
        if over is not None:
            if over.strategy is not Strategy.JUMP:
                return Refusal(Reason.OVERLAP, address, "the instruction behind is spliced in another way")
            return over
        home = function if function.start <= address < function.end else self.code.containing(address)
        if home is None or home not in (function, *plan.scope):
            return Refusal(Reason.TOO_SHORT, address, "the bytes behind are another function's")
        run = home.run_of(address, address)
        if not run or run[0].address != address or run[0].is_endbr:
            return Refusal(Reason.NOT_A_BOUNDARY, address, "no instruction begins behind")
        return self.jump(home, run, 0, 0)

    def _is_taken(self, address: int) -> bool:
        """Return whether a byte that the jump right in front has displaced, if any, is of use to others."""
        claims = self.claims
        return address in claims.written or claims.borrowed[address] > 0 or address in claims.landings

    def _dead_behind(self, last: Insn) -> int:
        home = self.code.containing(last.address)
        return self.dead_bytes(home, last) if home is not None else 0

    def _pairs(self, head: int, size: int, prefix: bytes) -> Iterator[tuple[Pun, Pun]]:
        """Yield two jumps, one right behind the ``size`` bytes of the other, both of which have a springboard.

        The first one's displacement is made of its free bytes, then the second one's prefix and opcode, then ``shared``
        bytes of the second one's displacement, as far as there is room for.
        """
        free = size - 1
        fixed = (prefix + bytes([_OPCODE]))[: 4 - free]
        shared = 4 - free - len(fixed)
        for low in _shared_bytes(shared):
            displacement = int.from_bytes(bytes(free) + fixed + low, "little", signed=True)
            own = Pun(0, free, head + JUMP_BYTES + displacement)
            if not self.reachable(own):
                continue
            for high in _highest(4 - shared):
                tail = low + high
                target = head + size + len(prefix) + JUMP_BYTES + int.from_bytes(tail, "little", signed=True)
                behind = Pun(len(prefix), 0, target, tail, *prefix)
                if self.are_apart(own, target) and self.reachable(behind):
                    yield own, behind
                    break

    @staticmethod
    def are_apart(pun: Pun, place: int) -> bool:
        """Return whether a springboard at ``place`` leaves a punned jump all its places."""
        return place + _FAR <= pun.base or pun.base + 256**pun.free + _FAR <= place

    def _led_by(self, jump: PlannedSplice, pun: Pun, written: int, plan: FunctionPlan) -> PlannedSplice:
        """Let a jump go by way of a springboard."""
        planned = jump in plan.splices
        if planned:
            self.claims.release(jump)
        jump.strategy, jump.pun, jump.written = Strategy.PUNNED, pun, written
        if planned:
            self.claims.claim(jump)
        return jump


def _shared_bytes(count: int) -> Iterator[bytes]:
    """Yield the bytes, lowest first, that two displacements share; they are the highest of the first one's."""
    if count == 0:
        yield b""
        return
    for top in _STEPS:
        for low in _LOWER if count > 1 else (0,):
            yield low.to_bytes(2, "little")[: count - 1] + bytes([top])


def _highest(count: int) -> Iterator[bytes]:
    """Yield the highest ``count`` bytes of a displacement."""
    for top in (*_STEPS, *range(256)):
        yield bytes(count - 1) + bytes([top])
