"""What follows in a function if registers have certain values at its entry: ways that are taken, fixed results.

Conditional constant propagation (Wegman and Zadeck, 1991) on machine code. What memory holds is not assumed. Each
instruction that is left out or replaced leaves all registers as the original does, and flags that are still to be read:
so a thread can go on in the original after each of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from iced_x86 import Mnemonic, OpKind, Register, RegisterExt

from anyprobe.isa.assemble import Assembler
from anyprobe.isa.decode import Flow, Insn
from anyprobe.isa.effects import effects
from anyprobe.isa.encode import machine_code
from anyprobe.isa.evaluate import UNKNOWN, Known, evaluate, holds
from anyprobe.isa.registers import GPRS, part_of

_SHIFTS = frozenset({Mnemonic.SHL, Mnemonic.SHR, Mnemonic.SAR, Mnemonic.ROL, Mnemonic.ROR})
_BY_CL, _BY_NUMBER = 0xD3, 0xC1
_BITS = (32, 64)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is always so in calls in which the registers have these values."""

    reached: frozenset[int]
    """The blocks that control comes to, by where they begin."""
    taken: Mapping[int, int]
    """Where conditional jumps lead that always go one way, by their addresses."""
    fixed: Mapping[int, bytes]
    """What does the same as an instruction, and takes less time, by its address."""


def find_facts(
    blocks: Mapping[int, Sequence[Insn]],
    entry: int,
    values: Mapping[int, int],
    are_flags_dead: Callable[[int], bool],
) -> Facts:
    """Return what follows from the values that registers have at a function's entry.

    Args:
        blocks: The blocks of the function by where they begin, each as far as it is copied.
        entry: The block that it begins with.
        values: The values by the numbers of the registers.
        are_flags_dead: Whether no flag is read any more from an address on.

    """
    states = {entry: UNKNOWN.with_registers(values)}
    todo = [entry]
    while todo:
        start = todo.pop()
        for target, state in _after(blocks[start], states[start]) if start in blocks else ():
            old = states.get(target)
            new = state if old is None else old.merged(state)
            if new != old:
                states[target] = new
                todo.append(target)
    taken: dict[int, int] = {}
    fixed: dict[int, bytes] = {}
    for start, known in states.items():
        state = known
        for insn in blocks.get(start, ()):
            if insn.flow is Flow.JCC and (way := _way(insn, state)) is not None:
                taken[insn.address] = way
            if insn.flow is not Flow.NEXT:
                continue
            after = evaluate(insn, state)
            same = _same(insn, state, after, are_flags_dead)
            if same is not None:
                fixed[insn.address] = same
            state = after
    return Facts(frozenset(start for start in states if start in blocks), taken, fixed)


def guard(register: int, value: int) -> bytes | None:
    """Return what compares a register with a value; ``None`` where that takes more than 32 bits, with a sign."""
    signed = value - (1 << 64) if value >> 63 else value
    if not -(1 << 31) <= signed < 1 << 31:
        return None
    asm = Assembler()
    asm.code(f"cmp {GPRS[register].name}, value", value=signed)
    return asm.finish(0)


def _after(block: Sequence[Insn], state: Known) -> list[tuple[int, Known]]:
    """Return where control goes after a block, with what is known there."""
    for insn in block:
        if insn.flow is Flow.NEXT:
            state = evaluate(insn, state)
    last = block[-1]
    if last.flow is Flow.JCC:
        if last.condition is None or last.target is None:
            return []  # it is run in the original
        way = _way(last, state)
        return [(at, state) for at in ((last.target, last.end) if way is None else (way,))]
    if last.flow is Flow.JUMP:
        return [] if last.target is None else [(last.target, state)]
    if last.flow is Flow.TRAP:
        return [(last.end, UNKNOWN)] if last.may_go_on else []  # a handler may have changed anything
    return [(last.end, state)] if last.flow is Flow.NEXT else []


def _way(jump: Insn, state: Known) -> int | None:
    """Return where a conditional jump leads, if it can lead to one place only."""
    condition = jump.condition
    is_taken = None if condition is None else holds(condition, state.flags)
    return None if is_taken is None else jump.target if is_taken else jump.end


def _same(insn: Insn, before: Known, after: Known, are_flags_dead: Callable[[int], bool]) -> bytes | None:
    """Return what does the same in less time, if something does."""
    iced = insn.iced
    if iced.op_count == 0 or iced.op0_kind != OpKind.REGISTER or not RegisterExt.is_gpr(iced.op0_register):
        return None
    if insn.iced.mnemonic != Mnemonic.LEA and OpKind.MEMORY in map(iced.op_kind, range(iced.op_count)):
        return None  # what it reads may be missing, which the program is to notice
    size, number = 8 * RegisterExt.size(iced.op0_register), RegisterExt.number(iced.op0_register)
    if size not in _BITS or effects(insn).may_write != 1 << number:
        return None
    value = after.registers[number]
    if value is not None and evaluate(insn, UNKNOWN).registers[number] is None:
        keeps_flags = not iced.rflags_modified or are_flags_dead(insn.end)
        return _load(number, value) if keeps_flags else None
    if iced.op_count != 2 or iced.op1_kind != OpKind.REGISTER:
        return None
    if iced.mnemonic in _SHIFTS and iced.op1_register == Register.CL and insn.raw[-2] == _BY_CL:
        count = before.registers[1]
        count = None if count is None else count & size - 1
        return insn.raw[:-2] + bytes((_BY_NUMBER, insn.raw[-1], count)) if count else None  # 0: the flags stay
    if iced.mnemonic == Mnemonic.IMUL and RegisterExt.size(iced.op1_register) * 8 == size:
        factor = before.registers[RegisterExt.number(iced.op1_register)]
        factor = 0 if factor is None else factor & (1 << size) - 1
        if factor > 1 and factor & factor - 1 == 0 and are_flags_dead(insn.end):
            return machine_code(f"shl {part_of(GPRS[number].name, size)}, {factor.bit_length() - 1}")
    return None


def _load(number: int, value: int) -> bytes:
    """Return what puts a value into a register."""
    name, asm = GPRS[number].name, Assembler()
    asm.code(f"mov {name if value >> 32 else part_of(name, 32)}, value", value=value)
    return asm.finish(0)
