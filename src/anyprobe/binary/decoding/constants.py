"""Which numbers registers hold at the end of a straight line of instructions, as far as the line alone says so."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from iced_x86 import Code, InstructionInfoFactory, Mnemonic, OpKind, Register, RegisterExt

from anyprobe.isa.effects import WRITES

if TYPE_CHECKING:
    from iced_x86 import Instruction, Register_

_factory = InstructionInfoFactory()
_MASKS = {1: 0xFF, 2: 0xFFFF, 4: 0xFFFF_FFFF, 8: 0xFFFF_FFFF_FFFF_FFFF}
_HIGH = frozenset({Register.AH, Register.BH, Register.CH, Register.DH})
_IMMEDIATES = frozenset(range(OpKind.IMMEDIATE8, OpKind.IMMEDIATE32TO64 + 1))
_STEPS = {Mnemonic.INC: 1, Mnemonic.DEC: -1}


class Constants:
    """Registers with a known value, by following instructions that only move and add numbers."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._known: dict[Register_, int] = {}
        self._pushed: list[int | None] = []

    def follow(self, line: "Iterable[Instruction]") -> "Constants":
        """Go through instructions one after the other, none of which branches."""
        for one in line:
            value = self._value_set(one)
            if one.mnemonic == Mnemonic.PUSH:
                self._pushed.append(self._source(one, 0))
                continue
            if value is None:
                self._forget(one)
            else:
                self._set(one.op0_register, value)
        return self

    def value_of(self, register: "Register_") -> int | None:
        """Return what a full register holds."""
        return self._known.get(register)

    def _value_set(self, one: "Instruction") -> int | None:
        """Return what an instruction puts into its first operand, a register, if that is known."""
        mnemonic = one.mnemonic
        if one.op_count == 0 or one.op0_kind != OpKind.REGISTER:
            return None
        if mnemonic == Mnemonic.POP:
            return self._pushed.pop() if self._pushed else None
        own, source = self._read(one.op0_register), self._source(one, 1) if one.op_count > 1 else None
        if mnemonic == Mnemonic.MOV:
            return source
        if mnemonic == Mnemonic.LEA:
            base = self._read(one.memory_base) if one.memory_index == Register.NONE else None
            return None if base is None else base + one.memory_displacement
        if mnemonic in (Mnemonic.XOR, Mnemonic.SUB) and one.op1_kind == OpKind.REGISTER:
            return 0 if one.op0_register == one.op1_register else None
        if mnemonic in _STEPS:
            return None if own is None else own + _STEPS[mnemonic]
        if mnemonic in (Mnemonic.ADD, Mnemonic.SUB) and own is not None and source is not None:
            return own + source if mnemonic == Mnemonic.ADD else own - source
        return source if one.code in (Code.OR_RM32_IMM8, Code.OR_RM64_IMM8) and source == _MASKS[8] else None

    def _source(self, one: "Instruction", operand: int) -> int | None:
        kind = one.op_kind(operand)
        if kind in _IMMEDIATES:
            return one.immediate(operand)
        return self._read(one.op_register(operand)) if kind == OpKind.REGISTER else None

    def _read(self, register: "Register_") -> int | None:
        if register == Register.NONE or register in _HIGH or not RegisterExt.is_gpr(register):
            return None
        value = self._known.get(RegisterExt.full_register(register))
        return None if value is None else value & _MASKS[RegisterExt.size(register)]

    def _set(self, register: "Register_", value: int) -> None:
        full, size = RegisterExt.full_register(register), RegisterExt.size(register)
        if register in _HIGH or not RegisterExt.is_gpr(register):
            self._known.pop(full, None)
        elif size >= 4:  # a write of the lower half clears the upper one
            self._known[full] = value & _MASKS[size]
        elif full in self._known:
            self._known[full] = self._known[full] & ~_MASKS[size] | value & _MASKS[size]

    def _forget(self, one: "Instruction") -> None:
        if one.is_stack_instruction and one.mnemonic != Mnemonic.POP:
            self._pushed = []
        for used in _factory.info(one).used_registers():
            if used.access in WRITES:
                full = RegisterExt.full_register(used.register)
                self._known.pop(full, None)
                if full == Register.RSP and one.mnemonic != Mnemonic.POP:
                    self._pushed = []
