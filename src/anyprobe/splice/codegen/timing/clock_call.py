"""Generated code that calls the vdso's clock: for machines whose time stamp counter does not tick evenly."""

import time

from anyprobe.isa.assemble import Assembler


def emit_now(asm: Assembler, clock: int) -> None:
    """Emit ``now``: rax = nanoseconds of CLOCK_MONOTONIC. Preserves everything else.

    The vdso's function follows the C calling convention on the program's stack: it wants rsp aligned and the direction
    flag clear, and may overwrite the caller-saved registers, vectors included (only their legacy SSE part: the kernel
    builds it without AVX).
    """
    asm.code("""
    now:
        pushfq; cld
        push rcx; push rdx; push rsi; push rdi
        push r8; push r9; push r10; push r11
        push rbp; mov rbp, rsp
        sub rsp, 272; and rsp, -16
    """)
    for number in range(16):
        asm.code(f"movaps [rsp+place], xmm{number}", place=16 + 16 * number)
    asm.code(
        f"""
            mov edi, {time.CLOCK_MONOTONIC}; mov rsi, rsp
            mov rax, clock_gettime; call rax
            imul rax, [rsp], 1000000000
            add rax, [rsp+8]
        """,
        clock_gettime=clock,
    )
    for number in range(16):
        asm.code(f"movaps xmm{number}, [rsp+place]", place=16 + 16 * number)
    asm.code("""
        mov rsp, rbp; pop rbp
        pop r11; pop r10; pop r9; pop r8
        pop rdi; pop rsi; pop rdx; pop rcx; popfq; ret
    """)
