"""Generated routines by which handlers learn what only the kernel knows: the thread's name, parts of its stack.

They are called like those of ``memoryroutines``: ``rdi``, ``rsi`` and ``rdx`` are arguments, all registers but ``rax``
and ``r11`` are preserved. Where a filter may punish system calls, they always fail.
"""

from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.handlers.memory_routines import ReadingFacts, emit_unless_closed

COMM, PEEK, CPU_TIME = "comm", "peek", "cpu_time"
NAMES = frozenset({COMM, PEEK, CPU_TIME})
_GETPID, _PRCTL, _CLOCK_GETTIME, _READV, _GET_NAME = 39, 157, 228, 310, 16
_THREAD_CPUTIME = 3
_SECOND = 1_000_000_000
_COMM_BYTES = 16


def emit_context_routines(asm: Assembler, names: frozenset[str], facts: ReadingFacts) -> None:
    """Emit the routines of some names, with a label for each."""
    if not facts.system_calls:
        for name in sorted(names):
            asm.label(name)
        if names:
            asm.code("mov rax, -1; ret")
        return
    if COMM in names:
        _comm(asm, facts)
    if PEEK in names:
        _peek(asm, facts)
    if CPU_TIME in names:
        _cpu_time(asm, facts)


def _comm(asm: Assembler, facts: ReadingFacts) -> None:
    """Emit ``comm(to)``: the thread's name of at most 15 bytes and zeros up to 16; its length."""
    asm.label(COMM)
    emit_unless_closed(asm, COMM, facts)
    asm.code(f"""
        push rcx; push rsi; push rdi; mov rsi, rdi
        mov edi, {_GET_NAME}
        mov eax, {_PRCTL}; syscall
        pop rdi; pop rsi; test eax, eax; jnz comm_bad
        xor eax, eax
    comm_scan:
        cmp byte [rdi+rax], 0; je comm_out
        inc eax; cmp eax, {_COMM_BYTES}; jne comm_scan
        jmp comm_out
    comm_bad:
        or rax, -1
    comm_out:
        pop rcx; ret
    """)


def _peek(asm: Assembler, facts: ReadingFacts) -> None:
    """Emit ``peek(to, from, size)``: the number of bytes that could be read, up to the first that could not."""
    asm.label(PEEK)
    emit_unless_closed(asm, PEEK, facts)
    asm.code(f"""
        push rcx; push rdi; push rsi; push rdx; push r8; push r9; push r10
        mov eax, {_GETPID}; syscall
        push rdx; push rsi; push rdx; push rdi
        mov edi, eax; mov rsi, rsp; mov edx, 1
        lea r10, [rsp+16]; mov r8d, 1; xor r9d, r9d
        mov eax, {_READV}; syscall
        lea rsp, [rsp+32]; pop r10; pop r9; pop r8
        pop rdx; pop rsi; pop rdi; pop rcx; ret
    """)


def _cpu_time(asm: Assembler, facts: ReadingFacts) -> None:
    """Emit ``cpu_time()``: for how many nanoseconds the thread has been on processors, by the kernel's clock of it."""
    asm.label(CPU_TIME)
    emit_unless_closed(asm, CPU_TIME, facts)
    asm.code(f"""
        push rcx; push rsi; push rdi; lea rsp, [rsp-16]
        mov edi, {_THREAD_CPUTIME}; mov rsi, rsp
        mov eax, {_CLOCK_GETTIME}; syscall
        test eax, eax; jnz cpu_time_bad
        imul rax, [rsp], {_SECOND}; add rax, [rsp+8]
        jmp cpu_time_out
    cpu_time_bad:
        or rax, -1
    cpu_time_out:
        lea rsp, [rsp+16]; pop rdi; pop rsi; pop rcx; ret
    """)
