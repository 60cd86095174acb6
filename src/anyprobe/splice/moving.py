"""The patches of many lines of one function in one piece of code, in which control stays as long as it can.

Lines follow one another as they do in the function. A forward branch from one to another goes straight there; what runs
backwards goes by the function, so that no thread stays here for ever once the splices are gone. Calls are made where
they are, with the return address that they have there.

A counter needs the thread's block. What one counter has loaded the next ones use while the register is nobody else's:

    mov r11, fs:[slot]; test [gate], r11; jz slow      each line begins with that, for those who come from the function
    inc qword [r11+counter]                            here enter those who have the block in r11 already

``slow`` is the same line again, with a call of the counting routine at each counter: for a thread that has no block
yet, and for fork children, which never have one. It ends in the function, wherever it leads to.
"""

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from iced_x86 import Register

from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import FLOWS, Flow, Insn
from anyprobe.isa.effects import effects_of
from anyprobe.isa.registers import NUMBERS
from anyprobe.isa.relocate import displace, must_stay
from anyprobe.splice.patchcode import Action, ActionKind, Clobbers, EmittedPatch, PatchWriter
from anyprobe.splice.planned import PlannedSplice, Strategy, Want, WantKind

_HOLDERS = ("r11", "r10", "r9", "r8", "rcx", "rdx", "rsi", "rdi", "rax")
"""Registers that may hold the block, the seldom used first."""
_MOVED = frozenset({Flow.NEXT, Flow.JCC, Flow.JUMP, Flow.RET, Flow.INDIRECT_JUMP})
_I32 = struct.Struct("<i")


@dataclass(slots=True)
class _Line:
    """Where a moved line is."""

    patch: int
    """For those who come from the function."""
    warm: int = 0
    """For those who have the block in ``holder``; 0 where that is of no use."""
    holder: str = ""
    end: int = 0
    starts: list[tuple[int, int]] = field(default_factory=list)
    """In the slow line: a thread that is led there has no block in any register."""
    copies: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Way:
    """A branch to a line that comes later, of which the displacement is still open."""

    place: int
    target: int
    holder: str
    """The register that has the block, if one has."""


def can_move(splice: PlannedSplice, action_of: Callable[[Want], Action | None]) -> bool:
    """Return whether a splice is nothing but counters in a line that can be moved."""
    if splice.strategy not in (Strategy.JUMP, Strategy.SHORT, Strategy.PUNNED):
        return False
    if any(insn.flow is not Flow.NEXT and insn.flow not in _MOVED for insn in splice.insns):
        return False
    for want in splice.wants:
        action = action_of(want)
        plain = want.kind is WantKind.OFFSET and not (want.conditional or want.block or want.after)
        if not plain or action is None or action.kind is not ActionKind.COUNT or action.bank.slot is None:
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
        self._slow: list[tuple[int, int]] = []
        """(place of a displacement, link-time address of the instruction whose slow copy it leads to)."""

    def write(self, splices: Sequence[PlannedSplice]) -> tuple[bytes, dict[PlannedSplice, EmittedPatch]] | None:
        """Return the code and the patch of each splice; ``None`` where some instruction has no copy there."""
        ordered = sorted(splices, key=lambda splice: splice.insns[0].address)
        free = Counter(name for splice in ordered for want in splice.wants for name in self._clobbers(want).registers)
        self._holders = sorted(_HOLDERS, key=lambda name: -free[name])
        heads = {splice.insns[0].address for splice in ordered}
        for number, splice in enumerate(ordered):
            following = ordered[number + 1].insns[0].address if number + 1 < len(ordered) else -1
            if not self._fast_line(splice, heads, following):
                return None
        slow: dict[int, int] = {}
        for splice in ordered:
            if not self._slow_line(splice, slow):
                return None
        self._close(slow)
        code = self._writer.finish()
        base = self._writer.address
        patches = {}
        for splice in ordered:
            line = self._lines[splice.insns[0].address]
            patches[splice] = EmittedPatch(
                line.patch, code[line.patch - base : line.end - base], tuple(line.starts), tuple(line.copies),
                line.patch, _UNDESCRIBED,
            )  # fmt: skip
        return code, patches

    # -- the fast line

    def _fast_line(self, splice: PlannedSplice, heads: set[int], following: int) -> bool:
        line = self._lines[splice.insns[0].address] = _Line(self._writer.here)
        by_address: dict[int, list[Want]] = {}
        for want in splice.wants:
            by_address.setdefault(want.address, []).append(want)
        holder = ""
        for insn in splice.insns:
            for want in by_address.get(insn.address, ()):
                fresh = holder
                holder = self._count(want, holder)
                if insn is splice.insns[0] and not line.warm and holder and not fresh:
                    line.warm, line.holder = self._writer.here - _INCREMENT, holder
            if not self._copy(insn, holder, heads):
                return False
            if holder and _may_change(insn, holder):
                holder = ""
        last = splice.insns[-1]
        if last.falls_through and last.end != following:
            self._writer.relative(b"\xe9", last.end + self._bias)  # jmp back
        line.end = self._writer.here
        return True

    def _count(self, want: Want, holder: str) -> str:
        """Count, and return the register that has the block behind it."""
        action, free = self._action_of(want), self._clobbers(want)
        assert action is not None
        writer = self._writer
        if not free.flags:
            writer.action(action, free)
            return "" if holder in free.registers else holder  # it may have been used
        if not holder or holder not in free.registers:
            holder = next((name for name in self._holders if name in free.registers), "")
            if not holder:
                writer.action(action, free)
                return ""
            number = NUMBERS[holder]
            high, low, slot = number >> 3, number & 7, action.bank.slot
            assert slot is not None
            writer.raw(bytes((0x64, 0x48 | high << 2, 0x8B, 0x04 | low << 3, 0x25)) + _I32.pack(slot))
            # mov holder, fs:[slot]; test [gate], holder; jz slow
            writer.relative(bytes((0x48 | high << 2, 0x85, 0x05 | low << 3)), action.bank.gate)
            writer.raw(b"\x0f\x84\0\0\0\0")
            self._slow.append((len(writer.out) - 4, want.address))
        number = NUMBERS[holder]
        writer.raw(bytes((0x48 | number >> 3, 0xFF, 0x80 | number & 7)) + _I32.pack(action.offset))
        return holder  # inc qword [holder+counter]

    def _copy(self, insn: Insn, holder: str, heads: set[int]) -> bool:
        """Append the copy of an instruction; branches forward to other lines of ours lead straight there."""
        writer, flow = self._writer, insn.flow
        if flow is Flow.NEXT and not insn.iced.is_ip_rel_memory_operand:
            writer.raw(insn.raw)
            return True
        forward = insn.target is not None and insn.target > insn.address and insn.target in heads
        if (
            forward
            and insn.target is not None
            and must_stay(insn) is None
            and (flow is Flow.JUMP or insn.condition is not None)
        ):
            writer.raw(b"\xe9" if flow is Flow.JUMP else bytes((0x0F, 0x80 | (insn.condition or 0))))
            writer.raw(b"\0\0\0\0")
            self._ways.append(_Way(len(writer.out) - 4, insn.target, holder))
            return True
        return self._plain_copy(insn)

    def _plain_copy(self, insn: Insn) -> bool:
        raw = self._writer.raw
        if insn.iced.memory_base == Register.RIP:
            # where the displacement's four bytes can be told from the rest, they are all that changes
            # below the first byte of a file, in the vdso, link-time addresses wrap
            old = _I32.pack(_signed(insn.iced.ip_rel_memory_address - insn.end))
            if insn.raw.count(old) == 1:
                moved = _signed(insn.iced.ip_rel_memory_address + self._bias - self._writer.here - insn.length)
                if -(1 << 31) <= moved < 1 << 31:
                    raw(insn.raw.replace(old, _I32.pack(moved)))
                    return True
        copy = displace(insn.at(insn.address + self._bias), self._writer.here)
        if isinstance(copy, Refusal):
            return False
        raw(copy)
        return True

    # -- the slow line

    def _slow_line(self, splice: PlannedSplice, slow: dict[int, int]) -> bool:
        """Write a line again with routines that count: it needs no block, and leads back into the function."""
        by_address: dict[int, list[Want]] = {}
        for want in splice.wants:
            by_address.setdefault(want.address, []).append(want)
        line = self._lines[splice.insns[0].address]
        for insn in splice.insns:
            slow[insn.address] = self._writer.here
            line.starts.append((insn.address + self._bias, self._writer.here))
            for want in by_address.get(insn.address, ()):
                action, free = self._action_of(want), self._clobbers(want)
                assert action is not None
                if free.flags:
                    self._writer.count_by_routine(action)
                else:
                    self._writer.action(action, free)
            line.copies.append((insn.address + self._bias, self._writer.here))
            if insn.flow is Flow.NEXT and not insn.iced.is_ip_rel_memory_operand:
                self._writer.raw(insn.raw)
            elif not self._plain_copy(insn):
                return False
        if splice.insns[-1].falls_through:
            self._writer.relative(b"\xe9", splice.end + self._bias)  # jmp back
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


_INCREMENT = 7
"""Length of ``inc qword [holder+disp32]``."""
_UNDESCRIBED = object()
"""The front of patches for which there are no recipes: whoever is there is shown as he is."""


def is_described(patch: EmittedPatch) -> bool:
    """Return whether recipes are to be made for a patch."""
    return patch.front is not _UNDESCRIBED


def _may_change(insn: Insn, register: str) -> bool:
    if FLOWS[insn.iced.code] is not Flow.NEXT:
        return False
    return bool(effects_of(insn.iced, insn.raw).may_write >> NUMBERS[register] & 1)


def _signed(difference: int) -> int:
    """Return the difference of two addresses that may have wrapped."""
    return (difference + (1 << 63)) % (1 << 64) - (1 << 63)
