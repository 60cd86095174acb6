"""What an instruction makes of registers and flags, as far as that follows from what is known before it.

Wrong answers change what programs compute: what is not certain is called unknown. Memory is never read.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from iced_x86 import Instruction, Mnemonic, OpKind, Register, RegisterExt

from anyprobe.isa.decode import Insn
from anyprobe.isa.effects import effects
from anyprobe.isa.encode import CONDITIONS

if TYPE_CHECKING:
    from iced_x86 import Register_

OF, SF, ZF, CF, PF = 1, 2, 4, 16, 32
"""As in ``iced_x86.RflagsBits``; the auxiliary flag is never known."""
_TESTED = {0: OF, 1: CF, 2: ZF, 4: SF, 5: PF}
"""The flags that conditions are which test a single one, by half of their numbers: the odd ones are the opposites."""
_BELOW_OR_EQUAL, _LESS = 3, 6
_FULL = (1 << 64) - 1
_HIGH_BYTES = frozenset({Register.AH, Register.CH, Register.DH, Register.BH})
_RAX, _RDX = 0, 2


class Flags(NamedTuple):
    """Status flags of which some are known."""

    known: int = 0
    values: int = 0
    """A part of ``known``."""

    def bit(self, flag: int) -> bool | None:
        """Return whether a flag is set, if that is known."""
        return bool(self.values & flag) if self.known & flag else None


class Known(NamedTuple):
    """What is known at a place: registers by their numbers, ``None`` where nothing is known, and flags."""

    registers: tuple[int | None, ...] = (None,) * 16
    flags: Flags = Flags()

    def with_registers(self, values: Mapping[int, int | None]) -> "Known":
        """Return the same with other registers."""
        return self._replace(registers=tuple(values.get(at, old) for at, old in enumerate(self.registers)))

    def merged(self, other: "Known") -> "Known":
        """Return what is known where control comes from either of two places."""
        registers = tuple(a if a == b else None for a, b in zip(self.registers, other.registers, strict=True))
        mine, its = self.flags, other.flags
        same = mine.known & its.known & ~(mine.values ^ its.values)
        return Known(registers, Flags(same, mine.values & same))


UNKNOWN = Known()


def evaluate(insn: Insn, before: Known) -> Known:
    """Return what is known after an instruction that goes on to the next one."""
    changed = effects(insn).may_write
    registers: dict[int, int | None] = {at: None for at in range(16) if changed >> at & 1}
    flags = before.flags
    touched = insn.iced.rflags_modified
    after = Flags(flags.known & ~touched, flags.values & ~touched)
    maker = _MAKERS.get(insn.iced.mnemonic)
    made = None if maker is None else maker(_Step(insn.iced, before))
    if made is not None:
        registers |= {at: value for at, value in made.registers.items() if at in registers}
        after = Flags(after.known | made.flags.known, after.values | made.flags.values)
    return before.with_registers(registers)._replace(flags=after)


def holds(condition: int, flags: Flags) -> bool | None:
    """Return whether a condition, by its number in opcodes, holds; ``None`` if that is not known."""
    pair = condition >> 1
    if pair in _TESTED:
        result = flags.bit(_TESTED[pair])
    elif pair == _BELOW_OR_EQUAL:
        result = _either(flags.bit(CF), flags.bit(ZF))
    else:
        result = _differ(flags.bit(SF), flags.bit(OF))
        result = result if pair == _LESS else _either(flags.bit(ZF), result)
    return None if result is None else result != bool(condition & 1)


def _either(one: bool | None, other: bool | None) -> bool | None:
    if one or other:
        return True
    return None if one is None or other is None else False


def _differ(one: bool | None, other: bool | None) -> bool | None:
    return None if one is None or other is None else one != other


class _Made(NamedTuple):
    registers: dict[int, int | None]
    flags: Flags = Flags()


class _Step:
    """The operands of one instruction, with what is known of them."""

    def __init__(self, iced: Instruction, before: Known) -> None:
        self.iced, self.before = iced, before

    @property
    def size(self) -> int:
        """Bits of the first operand; 0 where that is no general purpose register and no place in memory."""
        if self.iced.op0_kind == OpKind.REGISTER:
            return 8 * RegisterExt.size(self.iced.op0_register) if RegisterExt.is_gpr(self.iced.op0_register) else 0
        return 8 * _memory_size(self.iced) if self.iced.op0_kind == OpKind.MEMORY else 0

    def value(self, operand: int) -> int | None:
        """Return an operand, without a sign, if it is known; an immediate extended to the first operand's size."""
        kind = self.iced.op_kind(operand)
        if kind == OpKind.REGISTER:
            register = self.iced.op_register(operand)
            if not RegisterExt.is_gpr(register) or register in _HIGH_BYTES:
                return None
            whole = self.before.registers[_number(register)]
            return None if whole is None else whole & (1 << 8 * RegisterExt.size(register)) - 1
        if OpKind.IMMEDIATE8 <= kind <= OpKind.IMMEDIATE32TO64:
            return self.iced.immediate(operand) & (1 << (self.size or 64)) - 1
        return None

    def result(self, value: int | None, flags: Flags | None = None) -> _Made:
        """Return what it makes: a value of the first operand's size, if that is a register, and flags."""
        return _Made({} if value is None else self._written(value), flags or Flags())

    def _written(self, value: int) -> dict[int, int | None]:
        """Return the whole register into which a value is written, as one or two bytes of it, or as all of it."""
        if self.iced.op0_kind != OpKind.REGISTER:
            return {}
        register = self.iced.op0_register
        if not RegisterExt.is_gpr(register) or register in _HIGH_BYTES:
            return {}
        bits, number = 8 * RegisterExt.size(register), _number(register)
        value &= (1 << bits) - 1
        old = self.before.registers[number]
        if bits >= 32:  # the upper half becomes zero
            return {number: value}
        return {number: None if old is None else old >> bits << bits | value}

    @property
    def same_twice(self) -> bool:
        """Whether both operands are the same register."""
        iced = self.iced
        both = iced.op0_kind == iced.op1_kind == OpKind.REGISTER
        return both and iced.op0_register == iced.op1_register and self.size > 0


def _number(register: "Register_") -> int:
    """Return the number of the whole register of which one is a part; the bytes of four have two names."""
    return RegisterExt.number(RegisterExt.full_register(register))


def _memory_size(iced: Instruction) -> int:
    from iced_x86 import MemorySizeExt

    return MemorySizeExt.size(iced.memory_size)


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 & 1 else value


def _flags_of(result: int, bits: int, *, carry: bool | None = None, overflow: bool | None = None) -> Flags:
    """Return the flags that tell of a result, and the two others where they are given."""
    values = SF * (result >> bits - 1 & 1) | ZF * (result == 0) | PF * ((result & 0xFF).bit_count() % 2 == 0)
    known = SF | ZF | PF
    for flag, is_set in ((CF, carry), (OF, overflow)):
        if is_set is not None:
            known, values = known | flag, values | flag * is_set
    return Flags(known, values)


def _sum(bits: int, one: int, other: int, carry: int = 0) -> tuple[int, Flags]:
    total = one + other + carry
    result = total & (1 << bits) - 1
    overflow = bool((one ^ result) & (other ^ result) & 1 << bits - 1)
    return result, _flags_of(result, bits, carry=total >> bits != 0, overflow=overflow)


def _difference(bits: int, one: int, other: int, borrow: int = 0) -> tuple[int, Flags]:
    result = one - other - borrow & (1 << bits) - 1
    overflow = bool((one ^ other) & (one ^ result) & 1 << bits - 1)
    return result, _flags_of(result, bits, carry=one < other + borrow, overflow=overflow)


_Arithmetic = Callable[[int, int, int], tuple[int, Flags]]


def _two(arithmetic: _Arithmetic, *, writes: bool = True) -> "Callable[[_Step], _Made | None]":
    """Return what makes a result of two operands, if both are known."""

    def make(step: _Step) -> _Made | None:
        one, other = step.value(0), step.value(1)
        if one is None or other is None or not step.size:
            return None
        result, flags = arithmetic(step.size, one, other)
        return step.result(result if writes else None, flags)

    return make


def _carrying(arithmetic: Callable[[int, int, int, int], tuple[int, Flags]]) -> "Callable[[_Step], _Made | None]":
    def make(step: _Step) -> _Made | None:
        one, other, carry = step.value(0), step.value(1), step.before.flags.bit(CF)
        if carry is None or not step.size:
            return None
        if step.same_twice and arithmetic is _difference:  # sbb eax, eax: all ones, or none
            one = other = 0
        if one is None or other is None:
            return None
        return step.result(*arithmetic(step.size, one, other, int(carry)))

    return make


def _of_itself(arithmetic: _Arithmetic) -> "Callable[[_Step], _Made | None]":
    """Return what makes zero of a register and itself, whatever is in it."""
    plain = _two(arithmetic)

    def make(step: _Step) -> _Made | None:
        return step.result(*arithmetic(step.size, 0, 0)) if step.same_twice else plain(step)

    return make


def _logic(operation: Callable[[int, int], int]) -> _Arithmetic:
    def arithmetic(bits: int, one: int, other: int) -> tuple[int, Flags]:
        result = operation(one, other)
        return result, _flags_of(result, bits, carry=False, overflow=False)

    return arithmetic


_and = _logic(int.__and__)


def _and_zero(step: _Step) -> _Made | None:
    """Return the result of ``and``, which is zero if one operand is."""
    one, other = step.value(0), step.value(1)
    if step.size and 0 in (one, other):
        return step.result(*_and(step.size, 0, 0))
    return _two(_and)(step)


def _step_by(distance: int) -> "Callable[[_Step], _Made | None]":
    def make(step: _Step) -> _Made | None:
        value = step.value(0)
        if value is None:
            return None
        result, flags = (_sum if distance > 0 else _difference)(step.size, value, 1)
        return step.result(result, Flags(flags.known & ~CF, flags.values & ~CF))

    return make


def _negate(step: _Step) -> _Made | None:
    value = step.value(0)
    return None if value is None else step.result(*_difference(step.size, 0, value))


def _invert(step: _Step) -> _Made | None:
    value = step.value(0)
    return None if value is None else step.result(~value)


def _shift(operation: Callable[[int, int, int], int]) -> "Callable[[_Step], _Made | None]":
    def make(step: _Step) -> _Made | None:
        value, count = step.value(0), step.value(1)
        if value is None or count is None or not step.size:
            return None
        count &= 63 if step.size == 64 else 31
        if count == 0:  # the flags stay; they are called changed, and so are not known
            return step.result(value)
        result = operation(step.size, value, count) & (1 << step.size) - 1
        return step.result(result, _flags_of(result, step.size))

    return make


def _rotate(direction: int) -> "Callable[[_Step], _Made | None]":
    def make(step: _Step) -> _Made | None:
        value, count = step.value(0), step.value(1)
        if value is None or count is None or step.size not in (32, 64):
            return None
        by = (count & (63 if step.size == 64 else 31)) * direction % step.size
        return step.result(value << by | value >> step.size - by)

    return make


def _move(step: _Step) -> _Made | None:
    value = step.value(1)
    return None if value is None else step.result(value)


def _move_signed(step: _Step) -> _Made | None:
    value = step.value(1)
    if value is None:
        return None
    return step.result(_signed(value, 8 * RegisterExt.size(step.iced.op1_register)))


def _exchange(step: _Step) -> _Made | None:
    iced, registers = step.iced, step.before.registers
    both = iced.op0_kind == iced.op1_kind == OpKind.REGISTER
    if not both or RegisterExt.size(iced.op0_register) != 8:
        return None
    first, second = _number(iced.op0_register), _number(iced.op1_register)
    return _Made({first: registers[second], second: registers[first]})


def _address(step: _Step) -> _Made | None:
    iced = step.iced
    if iced.is_ip_rel_memory_operand:
        return None  # it depends on where the code lies
    address = iced.memory_displacement
    for register, scale in ((iced.memory_base, 1), (iced.memory_index, iced.memory_index_scale)):
        if register == Register.NONE:
            continue
        if RegisterExt.size(register) != 8:
            return None
        value = step.before.registers[_number(register)]
        if value is None:
            return None
        address += value * scale
    return step.result(address & _FULL)


def _extend(bits: int) -> "Callable[[_Step], _Made | None]":
    """Return what extends the low bits of rax to twice as many, with their sign."""

    def make(step: _Step) -> _Made | None:
        rax = step.before.registers[_RAX]
        if rax is None:
            return None
        return _Made({_RAX: _signed(rax & (1 << bits) - 1, bits) & (1 << 2 * bits) - 1})

    return make


def _spread(bits: int) -> "Callable[[_Step], _Made | None]":
    """Return what fills rdx with the sign of rax."""

    def make(step: _Step) -> _Made | None:
        rax = step.before.registers[_RAX]
        return None if rax is None else _Made({_RDX: (1 << bits) - 1 if rax >> bits - 1 & 1 else 0})

    return make


def _multiply(step: _Step) -> _Made | None:
    """Return the product of ``imul`` with two or three operands, of which the flags are left alone."""
    iced = step.iced
    if iced.op_count < 2:
        return None
    one, other = step.value(iced.op_count - 2), step.value(iced.op_count - 1)
    if 0 in (one, other):
        return step.result(0)
    if one is None or other is None:
        return None
    return step.result(_signed(one, step.size) * _signed(other, step.size))


def _conditional_move(step: _Step) -> _Made | None:
    taken = holds(_condition_of(step.iced), step.before.flags)
    if taken is None:
        return None
    value = step.value(1 if taken else 0)
    return None if value is None else step.result(value)


def _set_byte(step: _Step) -> _Made | None:
    is_set = holds(_condition_of(step.iced), step.before.flags)
    return None if is_set is None else step.result(int(is_set))


def _condition_of(iced: Instruction) -> int:
    """Return a condition's number in opcodes; iced counts from 1."""
    return iced.condition_code - 1


def _test_bit(step: _Step) -> _Made | None:
    value, number = step.value(0), step.value(1)
    if value is None or number is None or not step.size:
        return None
    return _Made({}, Flags(CF, CF * (value >> number % step.size & 1)))


_NAMES = [name.upper() for name in CONDITIONS]

_MAKERS: dict[int, Callable[[_Step], _Made | None]] = {
    Mnemonic.MOV: _move,
    Mnemonic.MOVZX: _move,
    Mnemonic.MOVSX: _move_signed,
    Mnemonic.MOVSXD: _move_signed,
    Mnemonic.LEA: _address,
    Mnemonic.XCHG: _exchange,
    Mnemonic.ADD: _two(_sum),
    Mnemonic.SUB: _of_itself(_difference),
    Mnemonic.CMP: _two(_difference, writes=False),
    Mnemonic.ADC: _carrying(_sum),
    Mnemonic.SBB: _carrying(_difference),
    Mnemonic.AND: _and_zero,
    Mnemonic.TEST: _two(_and, writes=False),
    Mnemonic.OR: _two(_logic(int.__or__)),
    Mnemonic.XOR: _of_itself(_logic(int.__xor__)),
    Mnemonic.NOT: _invert,
    Mnemonic.NEG: _negate,
    Mnemonic.INC: _step_by(1),
    Mnemonic.DEC: _step_by(-1),
    Mnemonic.SHL: _shift(lambda _, value, count: value << count),
    Mnemonic.SAL: _shift(lambda _, value, count: value << count),
    Mnemonic.SHR: _shift(lambda _, value, count: value >> count),
    Mnemonic.SAR: _shift(lambda bits, value, count: _signed(value, bits) >> count),
    Mnemonic.ROL: _rotate(1),
    Mnemonic.ROR: _rotate(-1),
    Mnemonic.IMUL: _multiply,
    Mnemonic.BT: _test_bit,
    Mnemonic.CWDE: _extend(16),
    Mnemonic.CDQE: _extend(32),
    Mnemonic.CDQ: _spread(32),
    Mnemonic.CQO: _spread(64),
    **{getattr(Mnemonic, f"CMOV{name}"): _conditional_move for name in _NAMES},
    **{getattr(Mnemonic, f"SET{name}"): _set_byte for name in _NAMES},
}
