"""Which registers and flags code inserted in front of any instruction of a function may destroy.

The blocks of a function are looked at together, backwards until nothing changes; what other functions overwrite before
they read it is taken from ``liveness``, and as there no convention is relied upon: a return, a call or jump through a
pointer or a linkage stub, a system call, a trap end every path, and what is undecided there is live.
"""

from itertools import pairwise
from typing import NamedTuple

from iced_x86 import Instruction, Mnemonic, OpKind, Register

from anyprobe.binary.cfg import CodeMap, FunctionCode
from anyprobe.binary.liveness import PREFERENCE, Scratch, overwritten_at
from anyprobe.isa.decode import FLOWS, Flow
from anyprobe.isa.effects import STATUS_FLAGS, effects_of, shape_of
from anyprobe.isa.registers import GPRS, NUMBERS, SYSV_CLOBBERED, mask_of

FLAGS = STATUS_FLAGS << 16
_CANDIDATES = SYSV_CLOBBERED | FLAGS
_RESTORING = frozenset({Mnemonic.POP, Mnemonic.MOV})
_FRAME = frozenset({Register.NONE, Register.RSP, Register.RBP})
"""Of a ``mov`` without a memory operand this says nothing; it is taken for one that restores, too."""
_WRITING = frozenset({Mnemonic.POP, Mnemonic.MOV, Mnemonic.XCHG})
_MOVING = _WRITING | {Mnemonic.PUSH, Mnemonic.MOVQ, Mnemonic.VMOVQ, Mnemonic.LEA}
_RSP, _RBP, _R11 = mask_of(("rsp",)), mask_of(("rbp",)), mask_of(("r11",))
FETCHED = 16
"""How much higher stands what is moved into."""
KEEPS_ALL = 1 << 32
"""The stack pointer is put elsewhere, or something is fetched from the stack that callers leave to callees."""
_NOTHING = Scratch((), flags_dead=False)


class Line(NamedTuple):
    """A straight line: what is live in front of it whatever follows, what is undecided behind it, and what follows."""

    live: int
    pending: int
    successors: tuple[int, ...]
    """Numbers of instructions."""


class SiteLiveness:
    """What is dead in front of the instructions of one function; a part elsewhere is a function of its own."""

    ends_line = frozenset(Flow) - {Flow.NEXT, Flow.CALL, Flow.INDIRECT_CALL, Flow.SYSCALL}
    """Behind which instructions another line begins."""

    def __init__(self, code_map: CodeMap, function: FunctionCode) -> None:
        """Solve the function's blocks."""
        self._map, self._function = code_map, function
        self._masks = self._masks_of_all()
        self._heads = self._find_heads()
        self._live = self._solve()
        self._known: dict[int, Scratch] = {}

    @property
    def function(self) -> FunctionCode:
        """Whose lines these are."""
        return self._function

    def line(self, number: int) -> Line:
        """Return the straight line from an instruction on."""
        return self._line(number)

    def scratch(self, address: int) -> Scratch:
        """Return what code in front of the instruction at an address may destroy."""
        number = self._function.index_of(address)
        if number is None or self._function.broken is not None:
            return _NOTHING
        known = self._live.get(number)
        live = self._before(self._line(number)) if known is None else known
        dead = _CANDIDATES & ~live
        found = self._known.get(dead)
        if found is None:
            names = tuple(name for name in PREFERENCE if dead >> NUMBERS[name] & 1)
            found = self._known[dead] = Scratch(names, dead & FLAGS == FLAGS)
        return found

    def _find_heads(self) -> frozenset[int]:
        """Return the numbers of the instructions that lines begin with: what is jumped to, and what is behind jumps."""
        function = self._function
        targets = {function.index_of(target) for target in function.jump_targets | function.table_targets}
        behind = {number + 1 for number, flow in function.turns if flow in self.ends_line}
        return frozenset({0} | behind | {number for number in targets if number is not None})

    def _solve(self) -> dict[int, int]:
        """Return what is live in front of each line."""
        if self._function.broken is not None:
            return {}
        size = len(self._function.iced)
        lines = {head: self._line(head) for head in sorted(self._heads, reverse=True) if head < size}
        live = {head: line.live for head, line in lines.items()}
        open_lines = [(head, line) for head, line in lines.items() if line.pending]
        changed = True
        while changed:
            changed = False
            for head, line in open_lines:
                now = line.live
                for successor in line.successors:
                    now |= line.pending & live[successor]
                if now != live[head]:
                    live[head], changed = now, True
        return live

    def _before(self, line: Line) -> int:
        live = line.live
        for successor in line.successors:
            live |= line.pending & self._live[successor]
        return live

    def _line(self, here: int) -> Line:
        """Go on from an instruction until a line begins or all is decided."""
        heads, masks = self._heads, self._masks
        size, begin, live, pending = len(masks), here, 0, _CANDIDATES
        while pending:
            if here >= size:
                return Line(live | pending, 0, ())  # off the end
            if here in heads and here != begin:
                return Line(live, pending, (here,))
            flow, reads, writes, _, _ = masks[here]
            live |= pending & reads
            pending &= ~live
            if flow is not Flow.NEXT:
                return self._transfer(here, flow, live, pending)
            pending &= ~writes
            here += 1
        return Line(live, 0, ())

    def _masks_of_all(self) -> "list[_Masks]":
        """Return what each instruction does; behind it there may be bytes that are none."""
        content, start = self._function.content, self._function.start
        offsets = [address - start for address in (*self._function.addresses, self._function.end)]
        raws = [content[here:there] for here, there in pairwise(offsets)]
        found = list(map(_known_masks.get, raws))
        return [masks or self._learn(number, raws[number]) for number, masks in enumerate(found)]

    def _learn(self, number: int, raw: bytes) -> "_Masks":
        one = self._function.iced[number]
        shape = shape_of(one, raw[: one.len])
        masks = _known_shapes.get(shape)
        if masks is None:
            masks = _known_shapes[shape] = _masks_from(one, raw[: one.len])
        if len(_known_masks) > _MASKS_LIMIT:
            _known_masks.clear()
        _known_masks[raw] = masks
        return masks

    def _transfer(self, here: int, flow: Flow, live: int, pending: int) -> Line:
        """Return the line up to an instruction that does not go on to the next one, or not at once."""
        one = self._function.iced[here]
        if flow is Flow.JCC:
            return self._outcomes(live, pending, (one.near_branch_target,), here + 1)
        if flow is Flow.JUMP:
            return self._outcomes(live, pending, (one.near_branch_target,))
        if flow is Flow.CALL:
            return Line(live | pending & ~self._dead_in_callee(one.near_branch_target), 0, ())
        if flow is Flow.INDIRECT_JUMP:
            return self._indirect_jump(one.ip, live, pending)
        return Line(live | pending, 0, ())

    def _dead_in_callee(self, target: int) -> int:
        known = self._map.dead_in_callees.get(target)
        if known is None:
            known = self._map.dead_in_callees[target] = overwritten_at(self._map, target)
        return known

    def _outcomes(self, live: int, pending: int, targets: "tuple[int, ...]", below: int = -1) -> Line:
        """Return the line whose end leads to some addresses, and perhaps to the instruction below."""
        successors = [below] if below >= 0 else []
        if below >= len(self._function.iced):
            return Line(live | pending, 0, ())
        for target in targets:
            number = self._function.index_of(target)
            if number is None:
                live |= pending & ~self._dead_in_callee(target)
            else:
                successors.append(number)
        return Line(live, pending & ~live, tuple(successors))

    def _indirect_jump(self, address: int, live: int, pending: int) -> Line:
        table = self._function.table_of(address)
        if table is not None:
            return self._outcomes(live, pending, tuple(table.targets))
        return Line(live | pending, 0, ())


_Masks = tuple[Flow, int, int, int, int]
"""Where control goes, what is read, what is overwritten in full, the registers that are not what they were, and those
whose content is moved: from them, sixteen bits higher into them, or as ``KEEPS_ALL`` says."""
_known_masks: dict[bytes, _Masks] = {}
"""By an instruction's bytes."""
_known_shapes: dict[bytes, _Masks] = {}
_MASKS_LIMIT = 200_000


def _masks_from(one: Instruction, raw: bytes) -> _Masks:
    """Work out what an instruction does."""
    effect = effects_of(one, raw)
    reads, writes = effect.reads | effect.flags_read << 16, effect.writes | effect.flags_written << 16
    restores = one.mnemonic in _RESTORING and one.memory_base in _FRAME
    return FLOWS[one.code], reads, writes, 0 if restores else effect.may_write, _moved_by(one)


def _moved_by(one: Instruction) -> int:
    """Return what an instruction copies in full."""
    if one.mnemonic not in _MOVING:
        return 0
    first, second = (_register_at(one, number) for number in (0, 1))
    exchanges = one.mnemonic == Mnemonic.XCHG
    if one.mnemonic in _WRITING and second != _RBP and (first == _RSP or (exchanges and second == _RSP)):
        return KEEPS_ALL
    if one.mnemonic == Mnemonic.POP and first == _R11:
        return KEEPS_ALL
    if one.mnemonic == Mnemonic.LEA:
        return KEEPS_ALL if first == _RSP and one.memory_base not in (Register.RSP, Register.RBP) else 0
    if exchanges:
        return (first | second) * (1 | 1 << FETCHED)
    return first if one.mnemonic == Mnemonic.PUSH else second | first << FETCHED


def _register_at(one: Instruction, number: int) -> int:
    """Return a 64-bit register that is an operand as a mask; 0 for any other operand."""
    if number >= one.op_count or one.op_kind(number) != OpKind.REGISTER:
        return 0
    register = one.op_register(number) - Register.RAX
    return 1 << register if 0 <= register < len(GPRS) else 0


def site_scratch(code_map: CodeMap, function: FunctionCode, address: int) -> Scratch:
    """Return what code in front of an instruction of a function, or of a part of it elsewhere, may destroy."""
    part = function if function.start <= address < function.end else code_map.containing(address)
    if part is None:
        return _NOTHING
    if code_map.is_surveyed and not code_map.text.is_go:
        from anyprobe.binary.moduleliveness import ModuleLiveness

        if not isinstance(code_map.liveness_of_all, ModuleLiveness):
            code_map.liveness_of_all = ModuleLiveness(code_map)
        return code_map.liveness_of_all.scratch(part, address)
    known = code_map.site_liveness.get(part.start)
    if not isinstance(known, SiteLiveness):
        known = code_map.site_liveness[part.start] = SiteLiveness(code_map, part)
    return known.scratch(address)
