"""Where the program's registers and flags are while generated code runs: an abstract interpreter, one step at a time.

It knows the instructions by which patches and routines keep what they need (pushes, ``lahf`` and ``seto``, moves of
registers) and takes every other one for an instruction that overwrites what it may write. What it says is certain, and
what it cannot say is lost: wrong code shows as a register that is nowhere.
"""

from functools import cache
from itertools import compress
from operator import ne
from typing import NamedTuple

from iced_x86 import Instruction, MemorySizeExt, Mnemonic, OpKind, Register

from anyprobe.isa.effects import effects_of

RAX, RSP, RBP = 0, 4, 5
REGISTERS = 16

ORIGINAL = "original"
FLAGS_OF = "flags and overflow"
"""``lahf; seto al``: the overflow flag in al, the others in ah."""
FLAGS = "flags"
"""ah holds all status flags but overflow."""
IMAGE = "image"
"""What ``pushfq`` pushed."""
STACK = "stack"
"""The stack pointer plus a number."""
BLOCK = "block"
"""The thread's block, from the slot with that offset."""

Value = tuple[str, int] | None
"""What a register or a word of the stack holds; ``None``: nothing of interest."""

_PLAIN_STACK = frozenset({Mnemonic.PUSH, Mnemonic.PUSHFQ, Mnemonic.POP, Mnemonic.POPFQ})
_FLAG_KEEPING = frozenset({Mnemonic.LAHF, Mnemonic.SETO, Mnemonic.SAHF, Mnemonic.ADD})
_READ_ONLY = frozenset({Mnemonic.CMP, Mnemonic.TEST, Mnemonic.LEA})
_LOST: Value = None
_NUMBERS = range(REGISTERS)
_OWN: tuple[Value, ...] = tuple((ORIGINAL, number) for number in _NUMBERS)
"""What the registers hold at first, and the stack pointer's place at all times."""


class State(NamedTuple):
    """What is where at one instruction."""

    shift: int
    """The stack pointer, relative to where it was."""
    registers: tuple[Value, ...]
    stack: tuple[tuple[int, Value], ...] = ()
    """Words below the old stack pointer, by their place relative to it."""
    overflow: bool = True
    """Whether the overflow flag is the program's."""
    others: bool = True
    """Whether the other status flags are."""

    @property
    def flags(self) -> bool:
        """Whether all status flags are the program's."""
        return self.overflow and self.others

    def lost(self) -> list[int]:
        """Return the registers that do not hold what they held."""
        return [*compress(_NUMBERS, map(ne, self.registers, _OWN))]

    def register_with(self, value: Value) -> int | None:
        """Return a register that holds a value."""
        registers = self.registers
        return registers.index(value) if value in registers else None

    def word_with(self, value: Value) -> int | None:
        """Return the place of a word on the stack that holds a value."""
        for place, held in self.stack:
            if held == value:
                return place
        return None


def initial(shift: int = 0) -> State:
    """Return the state in which every register holds its own value."""
    return State(shift, _OWN)


def meet(one: State, other: State) -> State | None:
    """Return what is certain where two ways come together; ``None`` where the stack is not even as deep."""
    if one == other:
        return one
    if one.shift != other.shift:
        return None
    registers = tuple(a if a == b else _LOST for a, b in zip(one.registers, other.registers, strict=True))
    stack = tuple(sorted(set(one.stack) & set(other.stack)))
    return State(one.shift, registers, stack, one.overflow and other.overflow, one.others and other.others)


@cache
def numbers_in(mask: int) -> frozenset[int]:
    """Return the numbers of the bits of a mask of registers."""
    return frozenset(number for number in _NUMBERS if mask >> number & 1)


def without_registers(state: State, numbers: frozenset[int]) -> State:
    """Return the state with some registers lost."""
    registers = [*state.registers]
    for number in numbers:
        registers[number] = _LOST
    return State(state.shift, tuple(registers), state.stack, state.overflow, state.others)


def number_of(register: int) -> int:
    """Return the number of a 64-bit register, -1 for others."""
    number = register - Register.RAX
    return number if 0 <= number < REGISTERS else -1


def step(state: State, one: Instruction, raw: bytes) -> State | None:
    """Return the state after an instruction that does not branch; ``None`` where the stack pointer is lost."""
    mnemonic = one.mnemonic
    if mnemonic in _PLAIN_STACK:
        return _push_or_pop(state, one)
    if mnemonic in (Mnemonic.ADD, Mnemonic.SUB) and one.op0_register == Register.RSP:
        return _stack_moved(state, one)
    special = _flag_keeping(state, one)
    if special is not None:
        return special
    destination = number_of(one.op0_register) if one.op_count and one.op0_kind == OpKind.REGISTER else -1
    if mnemonic == Mnemonic.LEA and destination == RSP:
        if one.memory_base != Register.RSP or one.memory_index != Register.NONE:
            return None
        return _moved(state, state.shift + signed(one.memory_displacement))
    if mnemonic == Mnemonic.LEA and destination >= 0 and number_of(one.memory_base) == destination:
        raised = _raised(state.registers[destination], one)
        return _set(state, destination, raised)
    if mnemonic == Mnemonic.MOV and destination >= 0:
        return _move(state, one, destination)
    return _general(state, one, raw)


def _flag_keeping(state: State, one: Instruction) -> State | None:
    """Return the state after one of the four instructions that keep flags in rax; ``None`` for any other."""
    if one.mnemonic not in _FLAG_KEEPING:
        return None
    rax = state.registers[RAX]
    if one.mnemonic == Mnemonic.LAHF:
        return _set(state, RAX, (FLAGS, 0) if state.others else _LOST)
    if one.mnemonic == Mnemonic.SETO and one.op0_register == Register.AL:
        return _set(state, RAX, (FLAGS_OF, 0) if state.overflow and rax == (FLAGS, 0) else _LOST)
    if one.mnemonic == Mnemonic.SAHF:
        return state._replace(others=rax == (FLAGS, 0))
    if one.mnemonic == Mnemonic.ADD and one.op0_register == Register.AL and one.immediate8 == 0x7F:
        known = rax == (FLAGS_OF, 0)
        return _set(state, RAX, (FLAGS, 0) if known else _LOST)._replace(overflow=known, others=False)
    return None


def _stack_moved(state: State, one: Instruction) -> State | None:
    """Return the state after ``add`` or ``sub`` of a constant."""
    if one.op1_kind in (OpKind.REGISTER, OpKind.MEMORY):
        return None
    distance = signed(one.immediate(1))
    state = state._replace(overflow=False, others=False)
    return _moved(state, state.shift + (distance if one.mnemonic == Mnemonic.ADD else -distance))


def _push_or_pop(state: State, one: Instruction) -> State | None:
    mnemonic = one.mnemonic
    if one.op_count and one.op0_kind == OpKind.REGISTER and number_of(one.op0_register) in (-1, RSP):
        return None
    if mnemonic in (Mnemonic.PUSH, Mnemonic.PUSHFQ):
        value: Value = None
        if mnemonic == Mnemonic.PUSHFQ:
            value = (IMAGE, 0) if state.flags else _LOST
        elif one.op0_kind == OpKind.REGISTER:
            value = state.registers[number_of(one.op0_register)]
        elif one.stack_pointer_increment != -8:
            return None
        place = state.shift - 8
        stack = tuple(sorted((*_without(state.stack, place), (place, value))))
        return State(place, state.registers, stack, state.overflow, state.others)
    value = dict(state.stack).get(state.shift)
    if one.op_count and one.op0_kind != OpKind.REGISTER:
        return None
    after = _moved(state, state.shift + 8)
    if mnemonic == Mnemonic.POPFQ:
        return after._replace(overflow=value == (IMAGE, 0), others=value == (IMAGE, 0))
    return _set(after, number_of(one.op0_register), value)


def _raised(value: Value, one: Instruction) -> Value:
    """Return what ``lea`` makes of a register that it adds a constant to: its own value once as much is taken off."""
    if value is None or one.memory_index != Register.NONE:
        return _LOST
    kind, _, by = value[0].partition("+")
    moved = int(by or 0) + signed(one.memory_displacement)
    return (kind if not moved else f"{kind}+{moved}", value[1]) if kind == ORIGINAL else _LOST


def raised_by(value: Value, number: int) -> int:
    """Return by how much a register's value is above its own at first; 0 where it is not that."""
    _, _, by = (value or ("", 0))[0].partition("+")
    return int(by or 0) if value == (f"{ORIGINAL}+{by}", number) else 0


def _move(state: State, one: Instruction, destination: int) -> State | None:
    """Return the state after ``mov`` to a whole register."""
    value: Value = _LOST
    if one.op1_kind == OpKind.REGISTER:
        source = number_of(one.op1_register)
        value = (STACK, state.shift) if source == RSP else state.registers[source] if source >= 0 else _LOST
    elif one.op1_kind == OpKind.MEMORY and one.segment_prefix == Register.FS:
        value = (BLOCK, signed(one.memory_displacement))
    elif one.op1_kind == OpKind.MEMORY and _is_plain_stack(one):
        value = dict(state.stack).get(state.shift + signed(one.memory_displacement))
    if destination != RSP:
        return _set(state, destination, value)
    return _moved(state, value[1]) if value is not None and value[0] == STACK else None


def _general(state: State, one: Instruction, raw: bytes) -> State | None:
    """Return the state after an instruction of which only what it may overwrite matters."""
    written = effects_of(one, raw).may_write
    if written >> RSP & 1:
        return None
    if written:
        state = without_registers(state, numbers_in(written))
    if one.rflags_modified and (state.overflow or state.others):
        state = State(state.shift, state.registers, state.stack, overflow=False, others=False)
    to_memory = one.op_count and one.op0_kind == OpKind.MEMORY and one.mnemonic not in _READ_ONLY
    if to_memory and one.memory_base == Register.RSP:
        place = state.shift + signed(one.memory_displacement)
        size = MemorySizeExt.size(one.memory_size) or 1 << 16
        kept = tuple((at, value) for at, value in state.stack if not place - 8 < at < place + size)
        return state._replace(stack=kept)
    return state


def _set(state: State, number: int, value: Value) -> State:
    shift, registers, stack, overflow, others = state
    return State(shift, (*registers[:number], value, *registers[number + 1 :]), stack, overflow, others)


def _moved(state: State, shift: int) -> State:
    """Return the state with another stack pointer; what is below it may be overwritten at any time."""
    _, registers, stack, overflow, others = state
    return State(shift, registers, tuple([word for word in stack if word[0] >= shift]), overflow, others)


def _without(stack: tuple[tuple[int, Value], ...], place: int) -> tuple[tuple[int, Value], ...]:
    return tuple((at, value) for at, value in stack if at != place)


def _is_plain_stack(one: Instruction) -> bool:
    plain = one.memory_index == Register.NONE and one.segment_prefix == Register.NONE
    return plain and one.memory_base == Register.RSP


def signed(displacement: int) -> int:
    """Return a 64-bit displacement with its sign."""
    return displacement - (1 << 64) if displacement >> 63 else displacement
