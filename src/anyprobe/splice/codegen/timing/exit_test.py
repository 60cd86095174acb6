"""Code before an indirect jump that decides at run time whether the jump leaves its function."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from iced_x86 import Code as Opcode
from iced_x86 import Encoder, Instruction, MemoryOperand, OpKind, Register

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Insn
from anyprobe.splice.codegen.patch import PatchWriter, UndisplaceableError

if TYPE_CHECKING:
    from iced_x86 import Register_

DECISION_ESTIMATE = 64
"""Upper bound of the bytes of a decision that are there once; ``RANGE_ESTIMATE`` more for each range."""
RANGE_ESTIMATE = 56
_MOVED = 136
"""How far rsp has moved when the operand is read: the red zone and one register."""
_SCRATCH = {Register.RCX: "rcx", Register.RDX: "rdx", Register.RSI: "rsi", Register.RDI: "rdi"}


def decide(
    writer: PatchWriter, jump: Insn, inside: Sequence[tuple[int, int]], when_leaving: Callable[[], None]
) -> None:
    """Append code that runs what ``when_leaving`` appends only if the jump's target lies in none of the ranges.

    Everything is as it was before the jump afterwards, all registers, flags and the red zone. The target is read
    a second time by the jump itself. All addresses are run-time addresses.
    """
    iced = jump.iced
    used = {iced.op0_register, iced.memory_base, iced.memory_index} if iced.op_count else set()
    scratch = next(register for register in _SCRATCH if register not in used)
    name = _SCRATCH[scratch]
    writer.code(f"lea rsp, [rsp-128]; push {name}")
    writer.raw(_load(jump, scratch, writer.here))  # mov scratch, operand of the jump
    writer.code("push rax; lahf; seto al; push rax")
    restore = f"pop rax; add al, 0x7f; sahf; pop rax; pop {name}; lea rsp, [rsp+128]"
    resume: list[int] = []

    def stays() -> None:
        writer.code(restore)
        writer.relative("jmp displaced_jump", resume[0])

    for low, high in inside:
        writer.relative("lea rax, [rel low]", low)
        writer.code(f"sub rax, {name}; neg rax")
        writer.value("cmp rax, size", high - low)
        writer.cold("jb stays", stays)
    writer.code(restore)
    when_leaving()
    resume.append(writer.here)


def push_target(branch: Insn, at: int, moved: int) -> bytes:
    """Return code at ``at`` that pushes where an indirect jump or call goes; rsp is ``moved`` lower by then."""
    operand = _operand(branch, moved)
    if isinstance(operand, MemoryOperand):
        return _encoded(branch, Instruction.create_mem(Opcode.PUSH_RM64, operand), at)
    return _encoded(branch, Instruction.create_reg(Opcode.PUSH_R64, operand), at)


def _load(jump: Insn, scratch: "Register_", at: int) -> bytes:
    """Return ``mov scratch, operand`` for the operand of an indirect jump."""
    if jump.iced.code != Opcode.JMP_RM64:
        raise _undecidable(jump)
    operand = _operand(jump, _MOVED)
    if isinstance(operand, MemoryOperand):
        return _encoded(jump, Instruction.create_reg_mem(Opcode.MOV_R64_RM64, scratch, operand), at)
    return _encoded(jump, Instruction.create_reg_reg(Opcode.MOV_R64_RM64, scratch, operand), at)


def _operand(branch: Insn, moved: int) -> "MemoryOperand | Register_":
    """Return the operand of an indirect branch where rsp is ``moved`` lower than before it."""
    iced = branch.iced
    if iced.memory_base in (Register.ESP, Register.EIP):
        raise _undecidable(branch)
    if iced.op0_kind == OpKind.REGISTER:
        if iced.op0_register == Register.RSP:
            raise _undecidable(branch)
        return iced.op0_register
    displacement = iced.memory_displacement
    signed = displacement - (1 << 64) if displacement >> 63 else displacement
    size = iced.memory_displ_size
    if iced.memory_base == Register.RSP:
        signed, size = signed + moved, 8
    return MemoryOperand(
        iced.memory_base, iced.memory_index, iced.memory_index_scale, signed, size, False, iced.segment_prefix
    )


def _encoded(branch: Insn, instruction: Instruction, at: int) -> bytes:
    encoder = Encoder(64)
    try:
        encoder.encode(instruction, at)
    except ValueError as failure:
        raise _undecidable(branch) from failure
    return bytes(encoder.take_buffer())


def _undecidable(jump: Insn) -> UndisplaceableError:
    detail = f"{jump.text}: where it goes cannot be computed in front of it"
    return UndisplaceableError(Refusal(Reason.NO_DISPLACED_FORM, jump.address, detail))
