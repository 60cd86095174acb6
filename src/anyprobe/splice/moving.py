"""The patches of many lines of one function in one piece of code, in which control stays as long as it can.

Lines follow one another as they do in the function. A forward branch from one to another goes straight there; what runs
backwards goes by the function, so that no thread stays here for ever once the splices are gone. Calls are made where
they are, with the return address that they have there.

A counter needs the thread's block. What one counter has loaded the next ones use while the register is nobody else's:

    mov r11, fs:[slot]; test [gate], r11; jz slow      each line begins with that, for those who come from the function
    inc qword [r11+counter]                            here enter those who have the block in r11 already
    ...                                                r11 is needed for something else
    mov r11, fs:[slot]                                 the thread is the same: its block needs no second look
    inc qword [r11+counter]

``slow`` is the same line again, with a call of the counting routine at each counter: for a thread that has no block
yet, and for fork children, which never have one. It ends in the function, wherever it leads to.
"""

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from iced_x86 import Code, Register

from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import Flow, Insn
from anyprobe.isa.effects import effects_of
from anyprobe.isa.registers import NUMBERS
from anyprobe.isa.relocate import displace, must_stay
from anyprobe.splice.patchcode import Action, ActionKind, Clobbers, EmittedPatch, PatchWriter
from anyprobe.splice.planned import PlannedSplice, Strategy, Want, WantKind

_HOLDERS = ("r11", "r10", "r9", "r8", "rcx", "rdx", "rsi", "rdi", "rax")
"""Registers that may hold the block, the seldom used first."""
_MOVED = frozenset({Flow.NEXT, Flow.JCC, Flow.JUMP, Flow.RET, Flow.INDIRECT_JUMP})
_SETTING_THREADS = frozenset(
    {
        Code.WRFSBASE_R32, Code.WRFSBASE_R64, Code.MOV_SREG_RM16, Code.MOV_SREG_R32M16, Code.MOV_SREG_R64M16,
        Code.POPW_FS, Code.POPQ_FS, Code.LFS_R16_M1616, Code.LFS_R32_M1632, Code.LFS_R64_M1664,
    }
)  # fmt: skip
"""Behind these ``fs`` may be another thread's."""
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


_Form = tuple[bytes, bytes, int] | tuple[()]
"""What stands in front of a displacement and behind it, and where that leads; or nothing that saves a closer look."""
_FROM_ITSELF: _Form = ()


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
        self._forms: dict[PlannedSplice, list[_Form | None]] = {}
        self._slow: list[tuple[int, int]] = []
        """(place of a displacement, link-time address of the instruction whose slow copy it leads to)."""

    def write(self, splices: Sequence[PlannedSplice]) -> tuple[bytes, dict[PlannedSplice, EmittedPatch]] | None:
        """Return the code and the patch of each splice; ``None`` where some instruction has no copy there."""
        ordered = sorted(splices, key=lambda splice: splice.insns[0].address)
        self._order_holders(ordered)
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

    def _order_holders(self, splices: Sequence[PlannedSplice]) -> None:
        sets = Counter(self._clobbers(want).registers for splice in splices for want in splice.wants)
        free = dict.fromkeys(_HOLDERS, 0)
        for names, times in sets.items():
            for name in names:
                if name in free:
                    free[name] += times
        self._holders = sorted(_HOLDERS, key=lambda name: -free[name])

    # -- the fast line

    def _fast_line(self, splice: PlannedSplice, heads: set[int], following: int) -> bool:
        line = self._lines[splice.insns[0].address] = _Line(self._writer.here)
        by_address = _by_address(splice.wants)
        out, forms = self._writer.out, [self._form(insn) for insn in splice.insns]
        self._forms[splice] = forms
        holder, known = "", False
        for number, (insn, form) in enumerate(zip(splice.insns, forms, strict=True)):
            for want in by_address.get(insn.address, ()):
                if not self._has(holder, want):
                    holder = self._choose(want, splice.insns[number:], by_address)
                    if holder:
                        self._load(want, holder, known=known)
                        if not known and not number:
                            line.warm, line.holder = self._writer.here, holder
                        known = True
                holder = self._count(want, holder, known=known)
            if form is None:
                out += insn.raw
            elif not self._copy(insn, form, holder, heads):
                return False
            if holder and _changed_by(insn) >> NUMBERS[holder] & 1:
                holder = ""
            known = known and insn.iced.code not in _SETTING_THREADS
        last = splice.insns[-1]
        if last.falls_through and last.end != following:
            self._writer.relative(b"\xe9", last.end + self._bias)  # jmp back
        line.end = self._writer.here
        return True

    def _has(self, holder: str, want: Want) -> bool:
        """Return whether a counter has no use for another register: it has the block, or would not use it."""
        free = self._clobbers(want)
        return not free.flags or (holder != "" and holder in free.registers)

    def _choose(self, want: Want, insns: Sequence[Insn], by_address: dict[int, list[Want]]) -> str:
        """Return the register that has the block for most of the counters that follow, if one is free here."""
        free = self._clobbers(want)
        rest = [name for name in self._holders if name in free.registers]
        for insn in insns if len(rest) > 1 else ():
            for other in by_address.get(insn.address, ()):
                free = self._clobbers(other)
                kept = [name for name in rest if (name in free.registers) is free.flags]  # else it may be used to save
                if not kept:
                    return rest[0]
                rest = kept
            changed = _changed_by(insn)
            kept = [name for name in rest if not changed >> NUMBERS[name] & 1]
            if len(kept) < 2:
                return (kept or rest)[0]
            rest = kept
        return rest[0] if rest else ""

    def _load(self, want: Want, holder: str, *, known: bool) -> None:
        """Append the loading of the block; ``known``: this thread is known to have one, and not to be a fork child."""
        action, number = self._action_of(want), NUMBERS[holder]
        assert action is not None
        assert action.bank.slot is not None
        high, low, writer = number >> 3, number & 7, self._writer
        writer.raw(bytes((0x64, 0x48 | high << 2, 0x8B, 0x04 | low << 3, 0x25)) + _I32.pack(action.bank.slot))
        if not known:
            # mov holder, fs:[slot]; test [gate], holder; jz slow
            writer.relative(bytes((0x48 | high << 2, 0x85, 0x05 | low << 3)), action.bank.gate)
            writer.raw(b"\x0f\x84\0\0\0\0")
            self._slow.append((len(writer.out) - 4, want.address))

    def _count(self, want: Want, holder: str, *, known: bool) -> str:
        """Count, and return the register that has the block behind it."""
        action, free = self._action_of(want), self._clobbers(want)
        assert action is not None
        writer = self._writer
        if not free.flags:
            writer.action(action, free)
            return "" if holder in free.registers else holder  # it may have been used
        if not holder and not known:
            writer.action(action, free)
        elif not holder:
            assert action.bank.slot is not None
            writer.raw(b"\x48\x8d\x64\x24\x80\x50\x64\x48\x8b\x04\x25" + _I32.pack(action.bank.slot))
            writer.raw(b"\x48\xff\x80" + _I32.pack(action.offset) + b"\x58\x48\x8d\xa4\x24\x80\0\0\0")
            # lea rsp, [rsp-128]; push rax; mov rax, fs:[slot]; inc qword [rax+counter]; pop rax; lea rsp, [rsp+128]
        else:
            number = NUMBERS[holder]
            writer.raw(bytes((0x48 | number >> 3, 0xFF, 0x80 | number & 7)) + _I32.pack(action.offset))
            # inc qword [holder+counter]
        return holder

    def _form(self, insn: Insn) -> _Form | None:
        """Return what is to be known of an instruction to copy it; ``None``: its bytes are."""
        if insn.flow is Flow.NEXT and not insn.iced.is_ip_rel_memory_operand:
            return None
        if insn.iced.memory_base != Register.RIP:
            return _FROM_ITSELF
        # where the displacement's four bytes can be told from the rest, they are all that changes
        # below the first byte of a file, in the vdso, link-time addresses wrap
        address = insn.iced.ip_rel_memory_address
        old = _I32.pack(_signed(address - insn.end))
        front, found, back = insn.raw.partition(old)
        return (front, back, address + self._bias) if found and old not in front + back else _FROM_ITSELF

    def _copy(self, insn: Insn, form: _Form, holder: str, heads: set[int]) -> bool:
        """Append the copy of an instruction; branches forward to other lines of ours lead straight there."""
        target = insn.target
        if target is None or target <= insn.address or target not in heads:
            return self._plain_copy(insn, form)
        flow, writer = insn.flow, self._writer
        if must_stay(insn) is None and (flow is Flow.JUMP or insn.condition is not None):
            writer.raw(b"\xe9" if flow is Flow.JUMP else bytes((0x0F, 0x80 | (insn.condition or 0))))
            writer.raw(b"\0\0\0\0")
            self._ways.append(_Way(len(writer.out) - 4, target, holder))
            return True
        return self._plain_copy(insn, form)

    def _plain_copy(self, insn: Insn, form: _Form) -> bool:
        writer = self._writer
        if form:
            front, back, target = form
            moved = _signed(target - writer.here - insn.length)
            if -(1 << 31) <= moved < 1 << 31:
                writer.raw(front + _I32.pack(moved) + back)
                return True
        copy = displace(insn.at(insn.address + self._bias), writer.here)
        if isinstance(copy, Refusal):
            return False
        writer.raw(copy)
        return True

    # -- the slow line

    def _slow_line(self, splice: PlannedSplice, slow: dict[int, int]) -> bool:
        """Write a line again with routines that count: it needs no block, and leads back into the function."""
        by_address, bias = _by_address(splice.wants), self._bias
        line, out, base = self._lines[splice.insns[0].address], self._writer.out, self._writer.address
        starts, copies = line.starts, line.copies
        for insn, form in zip(splice.insns, self._forms[splice], strict=True):
            here = slow[insn.address] = base + len(out)
            pair = insn.address + bias, here
            starts.append(pair)
            if insn.address in by_address:
                for want in by_address[insn.address]:
                    action, free = self._action_of(want), self._clobbers(want)
                    assert action is not None
                    if free.flags:
                        self._writer.count_by_routine(action)
                    else:
                        self._writer.action(action, free)
                pair = pair[0], base + len(out)
            copies.append(pair)
            if form is None:
                out += insn.raw
            elif not self._plain_copy(insn, form):
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


_UNDESCRIBED = object()
"""The front of patches for which there are no recipes: whoever is there is shown as he is."""


def is_described(patch: EmittedPatch) -> bool:
    """Return whether recipes are to be made for a patch."""
    return patch.front is not _UNDESCRIBED


def _by_address(wants: Sequence[Want]) -> dict[int, list[Want]]:
    found: dict[int, list[Want]] = {}
    for want in wants:
        found.setdefault(want.address, []).append(want)
    return found


def _changed_by(insn: Insn) -> int:
    """Return the registers that an instruction may change, if it goes on to the next one."""
    if insn.flow is not Flow.NEXT:
        return 0
    return effects_of(insn.iced, insn.raw).may_write


def _signed(difference: int) -> int:
    """Return the difference of two addresses that may have wrapped."""
    return (difference + (1 << 63)) % (1 << 64) - (1 << 63)
