"""What is known of displaced instructions that have run: whether they may run once more, from the site on.

They may, if that comes to the same. So they write no memory but by pushes, before anything has been read, no vector
register, and nothing else that is not followed. A register that they overwrite before they read it may have
any value.
"""

from collections.abc import Hashable
from typing import NamedTuple

from iced_x86 import (
    CpuidFeature,
    Instruction,
    InstructionInfoFactory,
    Mnemonic,
    OpAccess,
    Register,
    RegisterExt,
    UsedMemory,
)

from anyprobe.isa.decode import Flow, Insn
from anyprobe.isa.effects import STATUS_FLAGS, effects
from anyprobe.splice.translate.abstract_state import State, numbers_in, signed, step

_READS = frozenset({OpAccess.READ, OpAccess.COND_READ, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE})
_WRITES = frozenset({OpAccess.WRITE, OpAccess.COND_WRITE, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE})
_NOWHERE = 1 << 62
_RED_ZONE = 128
"""What signals and anyprobe's code leave alone below the stack pointer."""
_NUMBERS_DO_NOT_MATTER = frozenset(
    {
        Mnemonic.MOV, Mnemonic.LEA, Mnemonic.ADD, Mnemonic.SUB, Mnemonic.AND, Mnemonic.XOR,
        Mnemonic.CMP, Mnemonic.TEST, Mnemonic.IMUL, Mnemonic.MOVZX, Mnemonic.MOVSX, Mnemonic.MOVSXD, Mnemonic.NOP,
    }
)  # fmt: skip
"""Whatever their immediate and displacement, these read and write the same; not so shifts, which may be by zero."""
_FOLLOWED = frozenset(
    {
        CpuidFeature.INTEL8086, CpuidFeature.INTEL186, CpuidFeature.INTEL286, CpuidFeature.INTEL386,
        CpuidFeature.INTEL486, CpuidFeature.X64, CpuidFeature.CMOV, CpuidFeature.MULTIBYTENOP, CpuidFeature.PAUSE,
        CpuidFeature.BMI1, CpuidFeature.BMI2, CpuidFeature.ADX, CpuidFeature.LZCNT, CpuidFeature.POPCNT,
        CpuidFeature.MOVBE, CpuidFeature.SSE, CpuidFeature.SSE2, CpuidFeature.SSE4_1, CpuidFeature.SSE4_2,
        CpuidFeature.AVX, CpuidFeature.CET_IBT, CpuidFeature.TSC, CpuidFeature.CPUID,
    }
)  # fmt: skip
"""What these extensions change stands among an instruction's registers, flags and memory. It does not for x87's stack,
shadow stacks, transactions and the like."""
_SETTING_MODES = frozenset({Mnemonic.LDMXCSR, Mnemonic.VLDMXCSR})
"""What has been rounded before these may be rounded otherwise after them."""
_PUSHES = frozenset({Mnemonic.PUSH, Mnemonic.PUSHFQ})
"""No other code knows what is below the stack pointer. Other places on the stack may be shared: with another thread
that answers a request there, or with the handler."""
_factory = InstructionInfoFactory()


class Replay(NamedTuple):
    """Where registers are since the site, and what has been read and overwritten since, as masks."""

    state: State
    read: int = 0
    overwritten: int = 0
    flags_read: int = 0
    flags_overwritten: int = 0
    memory_read: bool = False
    lowest: int = _NOWHERE
    """The lowest place on the stack that has been read, relative to the stack pointer at the site."""

    def dead(self) -> frozenset[int]:
        """Return the registers whose value at the site does not matter."""
        return numbers_in(self.overwritten)

    @property
    def flags_dead(self) -> bool:
        """Whether the same goes for all status flags."""
        return self.flags_overwritten == STATUS_FLAGS


def replay_after(replay: Replay, insn: Insn) -> Replay | None:
    """Return what is known after a displaced instruction; ``None`` where it must not run twice."""
    if (insn.flow is not Flow.NEXT and insn.condition is None) or not _is_followed_wholly(insn.iced):
        return None
    reads_memory, lowest = False, replay.lowest
    if insn.flow is Flow.NEXT:
        info = _factory.info(insn.iced)
        if any(used.access in _WRITES and not _is_followed(used.register) for used in info.used_registers()):
            return None
        for used in info.used_memory():
            if used.access in _READS:
                reads_memory = True
                lowest = min(lowest, _place(replay, used, by_bits=insn.iced.mnemonic == Mnemonic.BT))
            if used.access in _WRITES and (insn.iced.mnemonic not in _PUSHES or replay.memory_read or reads_memory):
                return None
    state = step(replay.state, insn.iced, insn.raw) if insn.flow is Flow.NEXT else replay.state
    if state is None or lowest < state.shift - _RED_ZONE:
        return None
    done = effects(insn)
    fresh = done.writes & ~done.reads & ~replay.read
    flags = done.flags_written & ~done.flags_read & ~replay.flags_read
    return Replay(
        state,
        replay.read | done.reads & ~replay.overwritten,
        replay.overwritten | fresh,
        replay.flags_read | done.flags_read & ~replay.flags_overwritten,
        replay.flags_overwritten | flags,
        replay.memory_read or reads_memory,
        lowest,
    )


def is_repeated(insn: Insn) -> bool:
    """Return whether a signal may come when an instruction is half done, with a count of what is left to do.

    It can be gone on with, and not begun again together with what has set its count.
    """
    one = insn.iced
    return one.is_string_instruction and (one.has_rep_prefix or one.has_repne_prefix)


def likeness(insn: Insn) -> Hashable:
    """Return the same for displaced instructions of which the same is known, and that are as long."""
    one = insn.iced
    if insn.flow is Flow.CALL:
        return one.code, insn.length
    registers = (one.op0_register, one.op1_register, one.op2_register, one.memory_base, one.memory_index)
    followed = Register.RSP in registers or Register.AL in registers or one.segment_prefix != Register.NONE
    if one.mnemonic not in _NUMBERS_DO_NOT_MATTER or followed:
        return insn.raw
    return one.code, insn.length, registers


def _place(replay: Replay, used: UsedMemory, *, by_bits: bool) -> int:
    """Return where on the stack something is read, or the lowest place where it can be.

    ``by_bits``: by the number of a bit, which may be far away.
    """
    if used.index == Register.NONE and not by_bits:
        if used.base == Register.RSP:
            return replay.state.shift + signed(used.displacement)
        if used.base in (Register.NONE, Register.RIP):
            return _NOWHERE
    return replay.state.shift - _RED_ZONE


def _is_followed_wholly(one: Instruction) -> bool:
    """Return whether all that an instruction changes is known: registers, status flags and memory."""
    if one.mnemonic in _SETTING_MODES or one.is_privileged or int(one.rflags_modified) & ~STATUS_FLAGS:
        return False
    return _FOLLOWED.issuperset(one.cpuid_features())


def _is_followed(register: int) -> bool:
    return RegisterExt.is_gpr(register)  # type: ignore[arg-type]
