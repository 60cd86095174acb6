"""What generated code takes: registers that it does not give back, and stack. Read from the code itself."""

from dataclasses import dataclass

from iced_x86 import Code, FlowControl, Mnemonic, OpKind, Register

from anyprobe.core.errors import InternalError
from anyprobe.isa.decode import decode_range
from anyprobe.isa.effects import effects
from anyprobe.isa.registers import NUMBERS

_CALLS = frozenset({FlowControl.CALL, FlowControl.INDIRECT_CALL})


@dataclass(frozen=True, slots=True)
class Footprint:
    """What code leaves changed, and how deep its stack gets at most."""

    clobbers: frozenset[str]
    stack: int


def footprint(code: bytes) -> Footprint:
    """Return the footprint of the functions of a handler.

    Each keeps what it uses, except ``r11`` and the flags. They call each other without recursion, so the sum of all
    frames is a bound; routines from outside have stack of their own, for which the caller has to provide.
    """
    stack, clobbers = 8, {"flags"}
    for insn in decode_range(code, 0):
        iced = insn.iced
        if iced.code == Code.INT3:
            continue
        if iced.code == Code.INVALID:
            raise InternalError(f"generated code that is none at {insn.address:#x}")
        if iced.mnemonic == Mnemonic.PUSH or iced.flow_control in _CALLS:
            stack += 8
        elif iced.mnemonic == Mnemonic.SUB and iced.op0_register == Register.RSP:
            if iced.op1_kind == OpKind.REGISTER:
                raise InternalError("generated code with a frame of unknown size")
            stack += iced.immediate(1)
        elif iced.mnemonic == Mnemonic.LEA and iced.op0_register == Register.RSP and iced.memory_displacement >> 63:
            stack += (1 << 64) - iced.memory_displacement
        if iced.is_string_instruction:
            clobbers.add("df")
        if iced.flow_control in _CALLS or effects(insn).may_write >> NUMBERS["r11"] & 1:
            clobbers.add("r11")
    return Footprint(frozenset(clobbers), stack)
