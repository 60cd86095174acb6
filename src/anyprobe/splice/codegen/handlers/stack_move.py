"""The end of a handler's call that gives the thread another stack pointer: by ``iretq``, which sets all at once.

A return would need its address on the new stack, and memory there that nobody needs. ``iretq`` takes everything from
the old one, where no register has to be free for it. Its frame of five words ends with the return address's place:

    [frame] rip    [+8] cs    [+16] flags    [+24] rsp    [+32] ss, which was the return address
"""

from collections.abc import Callable

from iced_x86 import Code, Encoder, Instruction, MemoryOperand, Register

from anyprobe.isa import disassemble
from anyprobe.isa.assemble import Assembler

ROOM_BYTES = 32
"""Below the return address."""
ROOM = (b"\x48\x8d\x64\x24\xe0", "lea rsp, [rsp-32]")
STACK_POINTER = -8
"""Where the new stack pointer is put, from the return address on."""
RETURN = (b"\x48\x8d\x64\x24\x20\xc3", "lea rsp, [rsp+32]; ret")
"""The end of a call in which no handler has run."""
LEAVE = (b"\x9c\x8f\x44\x24\x10\x48\xcf", "pushfq; pop [rsp+16]; iretq")
_CODE_SEGMENT, _STACK_SEGMENT = 0x33, 0x2B


def emit_frame(asm: Assembler, at: Callable[[int], MemoryOperand], still_popped: int) -> None:
    """Emit: the frame is complete; rax may be overwritten.

    ``at(0)`` is where the return address is; ``still_popped`` bytes are dropped by who is returned to.
    """
    _one(asm, Instruction.create_reg_mem(Code.MOV_R64_RM64, Register.RAX, at(0)))
    _one(asm, Instruction.create_mem_reg(Code.MOV_RM64_R64, at(-ROOM_BYTES), Register.RAX))
    _one(asm, Instruction.create_mem_i32(Code.MOV_RM64_IMM32, at(8 - ROOM_BYTES), _CODE_SEGMENT))
    _one(asm, Instruction.create_mem_i32(Code.MOV_RM64_IMM32, at(0), _STACK_SEGMENT))
    if still_popped:
        _one(asm, Instruction.create_mem_i32(Code.SUB_RM64_IMM32, at(STACK_POINTER), still_popped))


def _one(asm: Assembler, instruction: Instruction) -> None:
    encoder = Encoder(64)
    encoder.encode(instruction, 0)
    asm.emit(encoder.take_buffer(), disassemble.format_instruction(instruction))
