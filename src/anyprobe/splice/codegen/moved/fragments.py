"""The patches of many lines of one function in one piece of code, in which control stays as long as it can.

Lines follow one another as they do in the function. A forward branch from one to another goes straight there; what runs
backwards goes by the function, so that no thread stays here for ever once the splices are gone. Calls are made where
they are, with the return address that they have there.

A counter needs the thread's block. What one counter has loaded the next ones use while no other code uses the register:

    mov r11, fs:[slot]; test [gate], r11; jz slow      each line begins with that, for those who come from the function
    inc qword [r11+counter]                            here enter those who have the block in r11 already
    ...                                                r11 is needed for something else
    mov r11, fs:[slot]                                 the thread is the same: its block needs no second look
    inc qword [r11+counter]

``slow`` is the same line again, with a call of the counting routine at each counter: for a thread that has no block
yet, and for fork children, which have none where nothing is timed. It ends in the function, wherever it leads to.

A flag needs no block: where flags are set there is one way through a line, and none of that.
"""

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import Flow, Insn
from anyprobe.isa.encode import head
from anyprobe.isa.registers import NUMBERS, mask_of
from anyprobe.isa.relocate import displace, must_stay
from anyprobe.splice.codegen.moved.fragment_parts import (
    JUMP,
    LONG_JCC,
    SETS_THREAD,
    Form,
    SlowPlaces,
    Stretch,
    last_changed,
    signed_distance,
    stretches_of,
)
from anyprobe.splice.codegen.patch import Action, ActionKind, PatchWriter
from anyprobe.splice.emitted import EmittedPatch
from anyprobe.splice.plan.splices import Clobbers, PlannedSplice, Strategy, Want, WantKind

_HOLDERS = ("r11", "r10", "r9", "r8", "rcx", "rdx", "rsi", "rdi", "rax")
"""Registers that may hold the block, the seldom used first."""
_MOVED = frozenset({Flow.NEXT, Flow.JCC, Flow.JUMP, Flow.RET, Flow.INDIRECT_JUMP})
_I32 = struct.Struct("<i")
_HOLDING = mask_of(_HOLDERS)


class _Line:
    """Where a moved line is."""

    __slots__ = ("end", "holder", "patch", "slow", "stretches", "warm")

    def __init__(self, patch: int, stretches: Sequence[Stretch]) -> None:
        self.patch, self.stretches = patch, stretches
        """Where those begin who come from the function."""
        self.warm, self.holder = 0, ""
        """Where those begin who have the block in ``holder``; 0 where that is of no use."""
        self.end = 0
        self.slow: list[tuple[int, int, int]] = []
        """(link-time address of a stretch, where it begins in the slow line, where the copies begin there).

        Where flags are set there is one line, and it is that one.
        """


class _Way(NamedTuple):
    """A branch to a line that comes later, of which the displacement is still open."""

    place: int
    target: int
    holder: str
    """The register that has the block, if one has."""


def can_move(splice: PlannedSplice, action_of: Callable[[Want], Action | None]) -> bool:
    """Return whether a splice is nothing but counters in a line that can be moved."""
    if splice.strategy not in (Strategy.JUMP, Strategy.SHORT, Strategy.PUNNED):
        return False
    if not _MOVED.issuperset([insn.flow for insn in splice.insns]):
        return False
    for want in splice.wants:
        action = action_of(want)
        plain = want.kind is WantKind.OFFSET and not (want.conditional or want.block or want.after)
        if not plain or action is None:
            return False
        if action.kind is not ActionKind.FLAG and (action.kind is not ActionKind.COUNT or action.bank.slot is None):
            return False
    return True


class Moving:
    """Writes the lines of one function."""

    def __init__(
        self, address: int, bias: int, action_of: Callable[[Want], Action | None], clobbers: Callable[[Want], Clobbers]
    ) -> None:
        """Begin at an address of our code memory."""
        self._writer = PatchWriter(address)
        self._bias, self._action_of, self._clobbers = bias, action_of, clobbers
        self._lines: dict[int, _Line] = {}
        self._ways: list[_Way] = []
        self._holders: Sequence[str] = _HOLDERS
        """What is most often free comes first, so that those who come from one line have what the next one wants."""
        self._best: dict[int, str] = {}
        """The first of these that is one of some registers."""
        self._free: dict[Want, tuple[int, bool]] = {}
        """The registers that a counter may overwrite, and whether it may overwrite the flags."""
        self._are_flags = False
        self._slow: list[tuple[int, int]] = []
        """(place of a displacement, link-time address of the instruction whose slow copy it leads to)."""

    def write(self, splices: Sequence[PlannedSplice]) -> tuple[bytes, dict[PlannedSplice, EmittedPatch]] | None:
        """Return the code and the patch of each splice; ``None`` where some instruction has no copy there."""
        ordered = sorted(splices, key=lambda splice: splice.insns[0].address)
        first = self._action_of(ordered[0].wants[0])
        self._are_flags = first is not None and first.kind is ActionKind.FLAG
        if not self._are_flags:
            self._order_holders(ordered)
        heads = {splice.insns[0].address for splice in ordered}
        for number, splice in enumerate(ordered):
            following = ordered[number + 1].insns[0].address if number + 1 < len(ordered) else -1
            if not self._fast_line(splice, heads, following):
                return None
        slow: dict[int, int] = {}
        for splice in () if self._are_flags else ordered:
            if not self._slow_line(splice, slow):
                return None
        self._close(slow)
        code = self._writer.finish()
        base, bias = self._writer.address, self._bias
        patches = {}
        for splice in ordered:
            line, insns = self._lines[splice.insns[0].address], splice.insns
            starts = SlowPlaces(insns, bias, line.slow, copies=False)
            copies = SlowPlaces(insns, bias, line.slow, copies=True)
            own = code[line.patch - base : line.end - base]
            patches[splice] = EmittedPatch(line.patch, own, starts, copies, line.patch, _UNDESCRIBED)
        return code, patches

    def _order_holders(self, splices: Sequence[PlannedSplice]) -> None:
        sets: Counter[tuple[str, ...]] = Counter()
        clobbers, known = self._clobbers, self._free
        for splice in splices:
            for want in splice.wants:
                free = clobbers(want)
                sets[free.registers] += 1
                known[want] = _mask_of(free.registers), free.flags
        free_times = dict.fromkeys(_HOLDERS, 0)
        for names, times in sets.items():
            for name in names:
                if name in free_times:
                    free_times[name] += times
        self._holders = sorted(_HOLDERS, key=lambda name: -free_times[name])

    # -- the fast line

    def _fast_line(self, splice: PlannedSplice, heads: set[int], following: int) -> bool:
        stretches, out = stretches_of(splice, self._bias), self._writer.out
        line = self._lines[stretches[0].first] = _Line(self._writer.here, stretches)
        holder, known = "", False
        for number, stretch in enumerate(stretches):
            if self._are_flags:
                self._set_flags(line, stretch)
            for want in () if self._are_flags else stretch.wants:
                if not self._has(holder, want):
                    holder = self._choose(want, stretches[number:])
                    if holder:
                        self._load(want, holder, known=known)
                        if not known and not number:
                            line.warm, line.holder = self._writer.here, holder
                        known = True
                holder = self._count(want, holder, known=known)
            out += stretch.raw
            if holder and stretch.changed >> NUMBERS[holder] & 1:
                holder = ""
            if stretch.turn is not None and not self._copy(stretch.turn, stretch.form, holder, heads):
                return False
            if holder and stretch.changed_by_all >> NUMBERS[holder] & 1:
                holder = ""
            known = known and not stretch.changed_by_all & SETS_THREAD
        last = splice.insns[-1]
        if last.falls_through and last.end != following:
            self._writer.relative("jmp back", last.end + self._bias)
        line.end = self._writer.here
        return True

    def _set_flags(self, line: _Line, stretch: Stretch) -> None:
        """Append the flags of a stretch, and note where it begins: threads may be led to any place of the line."""
        start = self._writer.here
        for want in stretch.wants:
            action = self._action_of(want)
            assert action is not None
            self._writer.flag(action)
        line.slow.append((stretch.first, start, self._writer.here))

    def _has(self, holder: str, want: Want) -> bool:
        """Return whether a counter has no use for another register: it has the block, or would not use it."""
        registers, flags = self._free[want]
        return not flags or (holder != "" and registers >> NUMBERS[holder] & 1 == 1)

    def _choose(self, want: Want, stretches: Sequence[Stretch]) -> str:
        """Return the register that has the block for most of the counters that follow, if one is free here."""
        rest = self._free[want][0] & _HOLDING
        for stretch in stretches if rest & rest - 1 else ():
            for other in stretch.wants:
                registers, flags = self._free[other]
                kept = rest & (registers if flags else ~registers)  # else it may be used to save
                if not kept:
                    return self._first(rest)
                rest = kept
            kept = rest & ~stretch.changed_by_all
            if kept & kept - 1 == 0:
                return self._first(kept or last_changed(rest, stretch))
            rest = kept
        return self._first(rest)

    def _first(self, registers: int) -> str:
        """Return the best of some registers."""
        found = self._best.get(registers)
        if found is None:
            found = next((name for name in self._holders if registers >> NUMBERS[name] & 1), "")
            self._best[registers] = found
        return found

    def _load(self, want: Want, holder: str, *, known: bool) -> None:
        """Append the loading of the block; ``known``: this thread is known to have one, and not to be a fork child."""
        action, out = self._action_of(want), self._writer.out
        assert action is not None
        assert action.bank.slot is not None
        self._writer.value(f"mov {holder}, fs:[slot]", action.bank.slot)
        if not known:
            after = self._writer.address + len(out) + 7
            out += head(f"test [rel gate], {holder}") + _I32.pack(action.bank.gate - after)
            out += head("jz slow") + bytes(4)
            self._slow.append((len(out) - 4, want.address))

    def _count(self, want: Want, holder: str, *, known: bool) -> str:
        """Count, and return the register that has the block afterwards."""
        action, writer = self._action_of(want), self._writer
        assert action is not None
        if not self._free[want][1]:
            free = self._clobbers(want)
            writer.action(action, free)
            return "" if holder in free.registers else holder  # it may have been used
        if not holder and not known:
            writer.action(action, self._clobbers(want))
        elif not holder:
            assert action.bank.slot is not None
            writer.value("lea rsp, [rsp-128]; push rax; mov rax, fs:[slot]", action.bank.slot)
            writer.value("inc qword [rax+counter]", action.offset)
            writer.code("pop rax; lea rsp, [rsp+128]")
        else:
            writer.value(f"inc qword [{holder}+counter]", action.offset)
        return holder

    def _copy(self, insn: Insn, form: Form, holder: str, heads: set[int]) -> bool:
        """Append the copy of an instruction; branches forward to anyprobe's other lines lead straight there."""
        target = insn.target
        if target is None or target <= insn.address or target not in heads:
            return self._plain_copy(insn, form)
        flow, writer = insn.flow, self._writer
        if must_stay(insn) is None and (flow is Flow.JUMP or insn.condition is not None):
            writer.out += (JUMP if flow is Flow.JUMP else LONG_JCC[insn.condition or 0]) + bytes(4)
            self._ways.append(_Way(len(writer.out) - 4, target, holder))
            return True
        return self._plain_copy(insn, form)

    def _plain_copy(self, insn: Insn, form: Form) -> bool:
        writer = self._writer
        if form:
            front, back, target = form
            moved = signed_distance(target - writer.here - len(front) - 4 - len(back))
            if -(1 << 31) <= moved < 1 << 31:
                writer.out += front + _I32.pack(moved) + back
                return True
        copy = displace(insn.at(insn.address + self._bias), writer.here)
        if isinstance(copy, Refusal):
            return False
        writer.raw(copy)
        return True

    # -- the slow line

    def _slow_line(self, splice: PlannedSplice, slow: dict[int, int]) -> bool:
        """Write a line again with routines that count: it needs no block, and leads back into the function."""
        line, out, base = self._lines[splice.insns[0].address], self._writer.out, self._writer.address
        for stretch in line.stretches:
            start = base + len(out)
            for want in stretch.wants:
                slow[want.address] = start
                action = self._action_of(want)
                assert action is not None
                if self._free[want][1]:
                    self._writer.count_by_routine(action)
                else:
                    self._writer.action(action, self._clobbers(want))
            line.slow.append((stretch.first, start, base + len(out)))
            out += stretch.raw
            if stretch.turn is not None and not self._plain_copy(stretch.turn, stretch.form):
                return False
        line.stretches = ()
        if splice.insns[-1].falls_through:
            self._writer.relative("jmp back", splice.end + self._bias)
        return True

    def _close(self, slow: dict[int, int]) -> None:
        """Fill in the displacements that were open."""
        out, base = self._writer.out, self._writer.address
        for place, address in self._slow:
            _I32.pack_into(out, place, slow[address] - base - place - 4)
        for way in self._ways:
            line = self._lines[way.target]
            target = line.warm if way.holder and way.holder == line.holder else line.patch
            _I32.pack_into(out, way.place, target - base - way.place - 4)


_UNDESCRIBED = object()
"""The front of patches for which there are no recipes: a thread that is there is shown as it is."""


def is_described(patch: EmittedPatch) -> bool:
    """Return whether recipes are to be made for a patch."""
    return patch.front is not _UNDESCRIBED


_mask_of = cache(mask_of)
