"""Stacks on which handlers run where the program's have no room: those of goroutines may end anywhere below.

There are a few for all threads. A call takes one that is free by one instruction, so a signal handler that interrupts a
handler, and hits a probe, takes another one. The lowest word of each says whether it is taken.
"""

from anyprobe.isa.assemble import Assembler

STACKS = 64
"""How many handlers can run at one time; further hits are counted as missed."""
STACK_BYTES = 8192
"""Bytes of one: handlers may take 2 KiB, and the routines that they call a fraction of that."""
ROOM = 512
"""Bytes of the program's stack that a call takes at most before it leaves it: what it pushes, and the way there."""


def spare_stacks_bytes() -> int:
    """Return the size of all stacks, which begin at a multiple of ``STACK_BYTES`` within it."""
    return (STACKS + 1) * STACK_BYTES


def first_stack(address: int) -> int:
    """Return where the first stack is in memory of that size at an address."""
    return (address + STACK_BYTES - 1) & -STACK_BYTES


def emit_take(asm: Assembler, stacks: int) -> None:
    """Emit: rsp = the end of a free stack, or go to ``no_stack``; clobbers rax, rbx, rdi. rbp: the program's stack."""
    asm.code(
        f"""
            mov rbx, rbp; shr rbx, 11
            mov eax, {STACKS}
        stack_try:
            dec eax; js no_stack
            inc ebx; and ebx, {STACKS - 1}
            mov edi, ebx; shl rdi, {STACK_BYTES.bit_length() - 1}
            push rax; mov rax, stacks; add rdi, rax; pop rax
            cmp qword [rdi], 0; jne stack_try
            lock bts qword [rdi], 0; jc stack_try
            lea rsp, [rdi+{STACK_BYTES}]
        """,
        stacks=stacks,
    )


def emit_give_back(asm: Assembler) -> None:
    """Emit: the stack is free, and rsp what it was; clobbers rax."""
    asm.code(f"lea rax, [rsp-8]; and rax, {-STACK_BYTES}; mov rsp, rbp; mov qword [rax], 0")
