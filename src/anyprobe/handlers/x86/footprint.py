"""What generated code takes: registers that it does not give back, and stack. Read from the code itself."""

from dataclasses import dataclass

from iced_x86 import Code, FlowControl, Mnemonic, OpKind, Register

from anyprobe.core.errors import InternalError
from anyprobe.isa.decode import decode_range
from anyprobe.isa.effects import effects
from anyprobe.isa.registers import SYSV_CLOBBERED, mask_of, names_of

_CALLS = frozenset({FlowControl.CALL, FlowControl.INDIRECT_CALL})


@dataclass(frozen=True, slots=True)
class Footprint:
    """What code leaves changed, and how deep its stack gets at most."""

    clobbers: frozenset[str]
    stack: int


def footprint(code: bytes, *, preserving: bool) -> Footprint:
    """Return the footprint of the functions of a handler.

    Each gives back what the System V convention says, and if they are ``preserving`` all but ``r11`` and the flags.
    They call each other without recursion, so the sum of all frames is a bound; routines from outside have stack of
    their own, for which the caller has to provide.
    """
    stack, clobbers, written = 8, {"flags"}, 0
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
        written |= effects(insn).may_write
        if iced.flow_control in _CALLS:
            written |= mask_of(("rax", "r11"))  # what routines change
    changed = mask_of(("r11",)) if preserving else SYSV_CLOBBERED
    return Footprint(frozenset(clobbers) | names_of(written & changed), stack)
