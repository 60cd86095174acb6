"""Memory that code goes on to access in any case, by what registers hold at an instruction.

Code that reads some memory right before that instruction changes nothing about whether the program faults: the program
does the same a few instructions later. What is accessed is found along the one way on: without calls, system calls,
locked instructions, others that may raise a signal or change what is accessible (a division, ``wrpkru``), and up to the
first branch that is not decided. A pointer is a *path*: a register and what is added to it, then to each pointer that
is read on the way. A branch on whether a pointer is null is taken for decided where that pointer leads to what is
accessed, as who reads there asks that first. An access may fault, and a handler lead elsewhere: what comes after one is
accessed in any case only if the first pointer leads to the second, as who reads there reads the first before.
"""

from typing import NamedTuple

from iced_x86 import Instruction, MemorySizeExt, Mnemonic, OpKind, Register

from anyprobe.binary.analysis.views import FunctionView
from anyprobe.isa.decode import FLOWS, Flow
from anyprobe.isa.effects import effects_of
from anyprobe.isa.registers import GPRS, NUMBERS

_FURTHEST = 48
"""Instructions that are looked at."""
_LONGEST = 6
_WORD = 8
_NAMES = {gpr.iced: gpr.name for gpr in GPRS}
_EITHER_WAY = {Mnemonic.JE: True, Mnemonic.JNE: False}
"""Branches on null, and whether they go on to the next instruction where the pointer is none."""
_ACCESSING = frozenset({
    Mnemonic.MOV, Mnemonic.MOVSX, Mnemonic.MOVSXD, Mnemonic.MOVZX, Mnemonic.CMP, Mnemonic.TEST, Mnemonic.ADD,
    Mnemonic.SUB, Mnemonic.AND, Mnemonic.OR, Mnemonic.XOR, Mnemonic.INC, Mnemonic.DEC, Mnemonic.NEG, Mnemonic.NOT,
    Mnemonic.IMUL, Mnemonic.MOVSS, Mnemonic.MOVSD, Mnemonic.MOVUPS, Mnemonic.MOVAPS, Mnemonic.MOVDQU, Mnemonic.MOVDQA,
    Mnemonic.MOVQ, Mnemonic.MOVD,
})  # fmt: skip
_ONLY_READING = frozenset({Mnemonic.CMP, Mnemonic.TEST})
_HARMLESS = _ACCESSING | frozenset({
    Mnemonic.LEA, Mnemonic.PUSH, Mnemonic.POP, Mnemonic.LEAVE, Mnemonic.NOP, Mnemonic.ENDBR64, Mnemonic.XCHG,
    Mnemonic.CBW, Mnemonic.CWDE, Mnemonic.CDQE, Mnemonic.CWD, Mnemonic.CDQ, Mnemonic.CQO, Mnemonic.BSWAP, Mnemonic.MUL,
    Mnemonic.ADC, Mnemonic.SBB, Mnemonic.SHL, Mnemonic.SHR, Mnemonic.SAR, Mnemonic.ROL, Mnemonic.ROR, Mnemonic.BT,
    Mnemonic.SETE, Mnemonic.SETNE, Mnemonic.SETL, Mnemonic.SETLE, Mnemonic.SETG, Mnemonic.SETGE, Mnemonic.SETA,
    Mnemonic.SETAE, Mnemonic.SETB, Mnemonic.SETBE, Mnemonic.SETS, Mnemonic.SETNS, Mnemonic.CMOVE, Mnemonic.CMOVNE,
    Mnemonic.CMOVL, Mnemonic.CMOVLE, Mnemonic.CMOVG, Mnemonic.CMOVGE, Mnemonic.CMOVA, Mnemonic.CMOVAE, Mnemonic.CMOVB,
    Mnemonic.CMOVBE, Mnemonic.CMOVS, Mnemonic.CMOVNS, Mnemonic.PXOR, Mnemonic.XORPS, Mnemonic.XORPD, Mnemonic.PAND,
    Mnemonic.POR, Mnemonic.MOVHPS, Mnemonic.MOVLHPS, Mnemonic.PUNPCKLQDQ, Mnemonic.PREFETCHT0, Mnemonic.PREFETCHNTA,
})  # fmt: skip
"""What raises no signal but for the memory that it accesses, and leaves memory as accessible as it was."""
_UNTOUCHED = frozenset({Mnemonic.LEA, Mnemonic.NOP, Mnemonic.PREFETCHT0, Mnemonic.PREFETCHNTA})
_RED_ZONE = 128


class Pointer(NamedTuple):
    """What a register had at the instruction (``path`` is empty), or a word of memory that it led to; and a distance.

    ``path`` is what is added before each read.
    """

    register: str
    path: tuple[int, ...] = ()
    distance: int = 0

    def read(self, displacement: int) -> "Pointer":
        """Return the word at a displacement."""
        return Pointer(self.register, (*self.path, self.distance + displacement))


class Access(NamedTuple):
    """Bytes that are accessed: from ``start`` to ``end``, counted from a pointer without a distance."""

    pointer: Pointer
    start: int
    end: int


def certain_accesses(function: FunctionView, address: int) -> frozenset[Access]:
    """Return what code from an instruction on accesses in any case."""
    number = function.index_of(address)
    if number is None or function.broken is not None:
        return frozenset()
    return _Way(function, lowest=0 if address == function.entry else -_RED_ZONE).follow(number)


class _Way:
    """The one way on from an instruction, and what is known there of registers and of the stack."""

    def __init__(self, function: FunctionView, *, lowest: int) -> None:
        self._function = function
        self._lowest = lowest
        """Where the stack begins that something else may point to."""
        self._registers: dict[str, Pointer] = {name: Pointer(name) for name in NUMBERS}
        self._stack: dict[int, Pointer] = {}
        """Words of the stack that were written, by their distance from what the stack pointer was."""
        self._stored = False
        """Whether memory elsewhere was written: what is read from then on need not have been there before."""
        self._assumed: set[Pointer] = set()
        """Pointers that are not null, or the way would be another one."""
        self._compared: Pointer | None = None
        self._met: set[Pointer] = set()
        """Pointers to memory beyond the stack that has been accessed."""
        self._found: set[Access] = set()

    def follow(self, number: int) -> frozenset[Access]:
        for _ in range(_FURTHEST):
            if number >= len(self._function.iced):
                break
            one = self._function.iced[number]
            flow = FLOWS[one.code]
            if flow is Flow.JUMP:
                following = self._function.index_of(one.near_branch_target)
            elif flow is Flow.JCC:
                following = self._decide(one, number)
            else:
                following = number + 1 if flow is Flow.NEXT and self._step(one, number) else None
            if following is None:
                break
            number = following
        return frozenset(self._found)

    def _decide(self, one: Instruction, number: int) -> int | None:
        """Return where a branch leads if the pointer that was just compared is not null."""
        if self._compared is None or one.mnemonic not in _EITHER_WAY:
            return None
        self._assumed.add(self._compared)
        return number + 1 if _EITHER_WAY[one.mnemonic] else self._function.index_of(one.near_branch_target)

    def _step(self, one: Instruction, number: int) -> bool:
        """Go past an instruction; return whether what comes after it runs in any case."""
        if one.mnemonic not in _HARMLESS:
            return False
        if one.has_lock_prefix or one.has_rep_prefix or one.has_repne_prefix or one.is_string_instruction:
            return False
        if one.mnemonic == Mnemonic.XCHG and one.op0_kind == OpKind.MEMORY:
            return False
        place = self._place(one)
        if place is not None:
            self._note(one, *place)
        elif not _is_there(one):
            return False
        before, moved = dict(self._registers), self._moved(one, place)
        if one.rflags_modified:
            held = self._compared_with_null(one, place)
            self._compared = held if held is not None and not held.distance else None
        self._store(one, place, before)
        raw = self._function.insn_at(self._function.iced[number].ip)
        if raw is None:
            return False
        written = effects_of(one, raw.raw).may_write
        for name, bit in NUMBERS.items():
            if written >> bit & 1:
                self._registers.pop(name, None)
        self._registers |= moved
        return True

    def _compared_with_null(self, one: Instruction, place: tuple[Pointer, int] | None) -> Pointer | None:
        """Return the pointer that an instruction compares with null, if it does."""
        if one.op_count != 2:
            return None
        if one.mnemonic == Mnemonic.TEST and one.op0_kind == OpKind.REGISTER == one.op1_kind:
            return (
                self._registers.get(_NAMES.get(one.op0_register, "")) if one.op0_register == one.op1_register else None
            )
        if one.mnemonic != Mnemonic.CMP or one.op1_kind in (OpKind.REGISTER, OpKind.MEMORY) or one.immediate(1):
            return None
        if one.op0_kind == OpKind.REGISTER:
            return self._registers.get(_NAMES.get(one.op0_register, ""))
        is_word = place is not None and _is_stack(place[0]) and MemorySizeExt.size(one.memory_size) == _WORD
        return self._stack.get(place[0].distance + place[1]) if place is not None and is_word else None

    def _place(self, one: Instruction) -> tuple[Pointer, int] | None:
        """Return the pointer and the displacement of a memory operand, if they are known."""
        kinds = [one.op_kind(each) for each in range(min(one.op_count, 2))]
        if OpKind.MEMORY not in kinds or one.segment_prefix not in (Register.NONE, Register.DS, Register.SS):
            return None
        pointer = self._registers.get(_NAMES.get(one.memory_base, ""))
        if pointer is None or one.memory_index != Register.NONE:
            return None
        displacement = one.memory_displacement
        return pointer, displacement - (1 << 64) if displacement >> 63 else displacement

    def _note(self, one: Instruction, pointer: Pointer, displacement: int) -> None:
        """Take note of an access, if all pointers that were asked about or led to memory before lead there, too."""
        size = MemorySizeExt.size(one.memory_size)
        if one.mnemonic in _UNTOUCHED:
            return
        leading = {Pointer(pointer.register, pointer.path[:length]) for length in range(len(pointer.path) + 1)}
        if one.mnemonic in _ACCESSING and size and self._assumed | self._met <= leading:
            start = pointer.distance + displacement
            self._found.add(Access(pointer._replace(distance=0), start, start + size))
        if not _is_stack(pointer):
            self._met.add(pointer._replace(distance=0))

    def _moved(self, one: Instruction, place: tuple[Pointer, int] | None) -> dict[str, Pointer]:
        """Return which registers an instruction gives values that are known."""
        name = _NAMES.get(one.op0_register, "") if one.op_count and one.op0_kind == OpKind.REGISTER else ""
        stack = self._registers.get("rsp")
        if one.mnemonic == Mnemonic.PUSH and stack is not None:
            return {"rsp": stack._replace(distance=stack.distance - 8)}
        if one.mnemonic == Mnemonic.POP and stack is not None and name:
            held = self._stack.get(stack.distance)
            return {"rsp": stack._replace(distance=stack.distance + 8)} | ({name: held} if held is not None else {})
        held = self._registers.get(name)
        if one.mnemonic in (Mnemonic.ADD, Mnemonic.SUB) and held is not None and one.op_kind(1) != OpKind.REGISTER:
            if one.op_kind(1) == OpKind.MEMORY:
                return {}
            by = one.immediate(1)
            by = (by - (1 << 64) if by >> 63 else by) * (1 if one.mnemonic == Mnemonic.ADD else -1)
            return {name: held._replace(distance=held.distance + by)}
        if not name or one.mnemonic not in (Mnemonic.MOV, Mnemonic.LEA):
            return {}
        if one.mnemonic == Mnemonic.LEA:
            return {} if place is None else {name: place[0]._replace(distance=place[0].distance + place[1])}
        if one.op1_kind == OpKind.REGISTER:
            held = self._registers.get(_NAMES.get(one.op1_register, ""))
            return {} if held is None else {name: held}
        return self._loaded(name, *place) if place is not None else {}

    def _loaded(self, name: str, pointer: Pointer, displacement: int) -> dict[str, Pointer]:
        at = pointer.distance + displacement
        known = self._stack.get(at) if _is_stack(pointer) else None
        if known is not None:
            return {name: known}
        if (_is_stack(pointer) and at < 0) or self._stored or len(pointer.path) == _LONGEST:
            return {}
        return {name: pointer.read(displacement)}

    def _store(self, one: Instruction, place: tuple[Pointer, int] | None, before: dict[str, Pointer]) -> None:
        """Take note of what an instruction writes to memory."""
        stack = before.get("rsp")
        if one.mnemonic == Mnemonic.PUSH and stack is not None:
            self._keep(stack.distance - 8, 8, before.get(_NAMES.get(one.op0_register, "")))
            return
        if not one.op_count or one.op0_kind != OpKind.MEMORY or one.mnemonic in _ONLY_READING:
            return
        size = MemorySizeExt.size(one.memory_size)
        if place is None or not _is_stack(place[0]) or not size:
            self._stored = True
            self._stack.clear()
            return
        plain = one.mnemonic == Mnemonic.MOV and size == 8 and one.op1_kind == OpKind.REGISTER
        value = before.get(_NAMES.get(one.op1_register, "")) if plain else None
        self._keep(place[0].distance + place[1], size, value)

    def _keep(self, at: int, size: int, value: Pointer | None) -> None:
        """Take note that a word of the stack was written."""
        self._stack = {known: held for known, held in self._stack.items() if not at - 8 < known < at + size}
        if value is not None:
            self._stack[at] = value
        if at + size > self._lowest:  # a parameter, or a variable that a pointer may lead to
            self._stored = True


def _is_stack(pointer: Pointer) -> bool:
    return pointer.register == "rsp" and not pointer.path


def _is_there(one: Instruction) -> bool:
    """Return whether an instruction, whose place is not known, accesses no memory that may be missing."""
    accesses = any(one.op_kind(each) == OpKind.MEMORY for each in range(one.op_count))
    own = one.memory_base == Register.RIP or one.segment_prefix == Register.FS  # variables, of the thread or of all
    return not accesses or one.mnemonic in _UNTOUCHED or (own and one.memory_index == Register.NONE)
