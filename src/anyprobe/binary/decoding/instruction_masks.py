"""What instructions do to registers and flags, as masks for the analysis of what is dead.

Registers are bits 0 to 15 by encoding number, status flags are bits from 16 on.
"""

from threading import Lock
from typing import NamedTuple

from iced_x86 import Instruction, Mnemonic, OpKind, Register

from anyprobe.binary.decoding.instructions import Instructions
from anyprobe.isa.decode import FLOWS, Flow
from anyprobe.isa.effects import STATUS_FLAGS, effects_of, shape_of
from anyprobe.isa.faults import may_fault
from anyprobe.isa.registers import GPRS, SYSV_CLOBBERED, mask_of

FLAGS = STATUS_FLAGS << 16
CANDIDATES = SYSV_CLOBBERED | FLAGS
"""What code before an instruction may ever be allowed to destroy."""
FETCHED = 16
"""How much higher stands what is moved into."""
KEEPS_ALL = 1 << 32
"""The stack pointer is put elsewhere, or something is fetched from the stack that callers leave to callees."""
_RESTORING = frozenset({Mnemonic.POP, Mnemonic.MOV})
_FRAME = frozenset({Register.NONE, Register.RSP, Register.RBP})
"""Bases in the frame; NONE is of a ``mov`` without a memory operand, which is taken for one that restores, too."""
_WRITING = frozenset({Mnemonic.POP, Mnemonic.MOV, Mnemonic.XCHG})
_MOVING = _WRITING | {Mnemonic.PUSH, Mnemonic.MOVQ, Mnemonic.VMOVQ, Mnemonic.LEA}
_RSP, _RBP, _R11 = mask_of(("rsp",)), mask_of(("rbp",)), mask_of(("r11",))


class Masks(NamedTuple):
    """What an instruction does."""

    flow: Flow
    reads: int
    writes: int
    """Overwritten in full."""
    changed: int
    """The registers that are not what they were."""
    may_write: int
    """The same, what is restored included."""
    moved: int
    """Registers whose content is moved: from them, ``FETCHED`` bits higher into them, or as ``KEEPS_ALL`` says."""
    may_fault: bool


MASKS: list[Masks] = []
"""By the numbers that ``shape_number`` returns."""
_shapes: dict[bytes, int] = {}
"""By an instruction's bytes without displacement and immediate."""
_numbering = Lock()


def masks_of(function: Instructions) -> list[Masks]:
    """Return what each instruction of a function does."""
    return [MASKS[number] for number in mask_numbers(function)]


def mask_numbers(function: Instructions) -> list[int]:
    """Return the same as numbers in ``MASKS``."""
    content, start = function.content, function.start
    return [shape_number(one, content[one.ip - start : one.next_ip - start]) for one in function.iced]


def masks_at(function: Instructions, number: int) -> Masks:
    """Return what the instruction of a function with this number does."""
    return MASKS[shape_number(function.iced[number], function.raw_at(number))]


def shape_number(one: Instruction, raw: bytes) -> int:
    """Return what an instruction, and any other of its shape, does, as a number in ``MASKS``."""
    shape = shape_of(one, raw)
    number = _shapes.get(shape)
    if number is None:
        masks = _masks_of(one, raw)
        with _numbering:  # modules are analysed in several threads: a number is one shape's
            number = _shapes.get(shape)
            if number is None:
                MASKS.append(masks)
                number = _shapes[shape] = len(MASKS) - 1
    return number


def _masks_of(one: Instruction, raw: bytes) -> Masks:
    effect = effects_of(one, raw)
    reads, writes = effect.reads | effect.flags_read << 16, effect.writes | effect.flags_written << 16
    restores = one.mnemonic in _RESTORING and one.memory_base in _FRAME
    changed = 0 if restores else effect.may_write
    return Masks(FLOWS[one.code], reads, writes, changed, effect.may_write, _moved_by(one), may_fault(one))


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
