"""Which general purpose registers and status flags an instruction reads and writes.

Control transfer is not followed: what a callee or the kernel does is for liveness to say.
"""

from typing import TYPE_CHECKING, NamedTuple

from iced_x86 import Code, Decoder, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register, RegisterExt

from anyprobe.isa.decode import Insn
from anyprobe.isa.registers import SYSV_CLOBBERED

if TYPE_CHECKING:
    from iced_x86 import Register_

STATUS_FLAGS = 0x3F
"""``iced_x86.RflagsBits``: OF SF ZF AF CF PF. Generated code never changes the direction flag and the system flags."""


class Effects(NamedTuple):
    """Masks of registers (bit = encoding number) and of status flags."""

    reads: int
    """Read, or kept in part: 8- and 16-bit writes and conditional writes count as reads too."""
    writes: int
    """Overwritten in full whatever happens."""
    may_write: int
    """Changed in any way, perhaps."""
    flags_read: int
    flags_written: int
    """Set to a value that does not depend on the old one, whatever happens."""


READS = frozenset({OpAccess.READ, OpAccess.COND_READ, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE})
WRITES = frozenset({OpAccess.WRITE, OpAccess.COND_WRITE, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE})
"""Ways of access by which something matters that was there before, and by which something may change."""
_CERTAIN = frozenset({OpAccess.WRITE, OpAccess.READ_WRITE})

# With a count of zero these leave the flags alone.
_COUNTED_FLAGS = frozenset(
    {
        Mnemonic.SHL, Mnemonic.SHR, Mnemonic.SAR, Mnemonic.SAL, Mnemonic.SHLD, Mnemonic.SHRD,
        Mnemonic.ROL, Mnemonic.ROR, Mnemonic.RCL, Mnemonic.RCR,
    }
)  # fmt: skip
# glibc asks with a zeroed register, which stays zero where there is no shadow stack.
# Where user mode may not ask for the others (UMIP), the kernel answers in their place, with 16 bits.
_KEEP_THEIR_REGISTER = frozenset({Mnemonic.RDSSPD, Mnemonic.RDSSPQ, Mnemonic.SLDT, Mnemonic.STR, Mnemonic.SMSW})
_CALLING_OUT = frozenset(
    {
        Mnemonic.ENCLU, Mnemonic.VMFUNC,
        Mnemonic.IN, Mnemonic.INSB, Mnemonic.INSW, Mnemonic.INSD,
        Mnemonic.OUT, Mnemonic.OUTSB, Mnemonic.OUTSW, Mnemonic.OUTSD,
    }
)  # fmt: skip
"""What is called by these reads any register: enclaves, functions of a hypervisor, and VMware's monitor by ports."""
_ORS = frozenset({Code.OR_RM32_IMM8, Code.OR_RM64_IMM8})
"""With all bits set these put -1 into a register whatever was there, in fewer bytes than ``mov``."""
_LOGIC = frozenset({Mnemonic.AND, Mnemonic.OR, Mnemonic.XOR, Mnemonic.TEST})
_REPEATED_COMPARES = frozenset(
    getattr(Mnemonic, name + size) for name in ("CMPS", "SCAS") for size in ("B", "W", "D", "Q")
)

_factory = InstructionInfoFactory()
_memo: dict[bytes, Effects] = {}
"""By the instruction's bytes."""
_shapes: dict[bytes, Effects] = {}
"""By all that they depend on."""
_tails: dict[int, int] = {}
"""The bytes after an instruction's shape, by its code and the size of its displacement."""
_full: dict[int, tuple[int, int]] = {}


def effects(insn: Insn) -> Effects:
    """Return what an instruction reads and writes."""
    return effects_of(insn.iced, insn.raw)


def effects_of(iced: Instruction, raw: bytes) -> Effects:
    """Return what an iced instruction decoded from ``raw`` reads and writes."""
    known = _memo.get(raw)
    if known is None:
        shape = shape_of(iced, raw)
        known = _shapes.get(shape)
        if known is None:
            known = _shapes[shape] = _ask(iced)
        if len(_memo) > _MEMO_LIMIT:
            _memo.clear()
        _memo[raw] = known
    return known


_MEMO_LIMIT = 200_000


def shape_of(iced: Instruction, raw: bytes) -> bytes:
    """Return what the effects of an instruction depend on: its bytes without displacement and immediate.

    Immediates of shifts and of ``or`` are part of it: a count of zero leaves the flags alone, -1 sets a register.
    """
    kind = iced.code << 4 | iced.memory_displ_size
    tail = _tails.get(kind)
    if tail is None:
        tail = _tails[kind] = _tail_of(iced, raw)
    return raw[: len(raw) - tail]


def _tail_of(iced: Instruction, raw: bytes) -> int:
    """Return how many bytes at the end of an instruction make no difference to what it does to registers and flags."""
    if iced.mnemonic in _COUNTED_FLAGS or iced.code in _ORS:
        return 0
    decoder = Decoder(64, raw, ip=iced.ip)
    offsets = decoder.get_constant_offsets(decoder.decode())
    return int(offsets.displacement_size + offsets.immediate_size + offsets.immediate_size2)


def _register(register: "Register_") -> tuple[int, int]:
    """Return the bit (0 if not a general purpose register) and the size of a register."""
    known = _full.get(register)
    if known is None:
        bit = 0
        size = int(RegisterExt.size(register))
        if RegisterExt.is_gpr(register):
            bit = 1 << RegisterExt.full_register(register) - Register.RAX
        known = _full[register] = (bit, size)
    return known


def _ask(iced: Instruction) -> Effects:
    """Work out the effects from iced's tables."""
    reads = writes = may_write = 0
    for used in _factory.info(iced).used_registers():
        bit, size = _register(used.register)
        if not bit:
            continue
        access = used.access
        if access in READS:
            reads |= bit
        if access in WRITES:
            may_write |= bit
            if access in _CERTAIN and size >= 4 and iced.mnemonic not in _KEEP_THEIR_REGISTER:
                writes |= bit
            else:
                reads |= bit
    if iced.code in _ORS and iced.op0_register and iced.immediate8 == 0xFF:
        reads &= ~may_write
    flags_read, flags_written = int(iced.rflags_read) & STATUS_FLAGS, _defined_flags(iced)
    if iced.code == Code.SYSCALL:  # r11 receives them, and gives them back
        flags_read, flags_written = STATUS_FLAGS, 0
    elif flags_written and _keeps_flags_sometimes(iced):
        flags_written = 0
    if iced.mnemonic in _CALLING_OUT:
        reads, writes, flags_written = reads | SYSV_CLOBBERED, 0, 0
    return Effects(reads, writes, may_write, flags_read, flags_written)


def _defined_flags(iced: Instruction) -> int:
    """Return the flags to which an instruction gives a value, without those that it leaves "undefined".

    A processor may leave an undefined flag as it was. AF after logic instructions is the exception: all clear it.
    """
    if iced.mnemonic in _LOGIC:
        return STATUS_FLAGS
    return int(iced.rflags_written | iced.rflags_cleared | iced.rflags_set) & STATUS_FLAGS


def _keeps_flags_sometimes(iced: Instruction) -> bool:
    """Return whether the flags may stay as they are, though iced lists them as modified."""
    mnemonic = iced.mnemonic
    if mnemonic in _COUNTED_FLAGS:
        last = iced.op_count - 1
        return bool(iced.op_register(last) == Register.CL) if iced.op_kind(last) == 0 else False
    return mnemonic in _REPEATED_COMPARES and (iced.has_rep_prefix or iced.has_repne_prefix)
