"""Code in which a hit sleeps for a while, by the thread alone: no controller is needed for it to go on."""

import errno
import time
from functools import cache

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.handlers.rendezvous import CLOSED

_SYS_CLOCK_GETTIME, _SYS_CLOCK_NANOSLEEP = 228, 230
CALLS = frozenset({_SYS_CLOCK_GETTIME, _SYS_CLOCK_NANOSLEEP})
"""The system calls of a thread that sleeps."""
_ABSOLUTE = 1
_BILLION = 1_000_000_000
_CLOBBERS = frozenset({"rax", "rcx", "rdx", "rsi", "rdi", "r10", "r11", "flags"})
_STACK = 16


@cache
def sleeping_code(nanoseconds: int) -> NativeCode:
    """Return the code that has a hit sleep; not in a program that filters its system calls, as callbacks see it."""
    asm = Assembler()
    seconds, rest = divmod(nanoseconds, _BILLION)
    asm.code(
        f"""
            mov rax, [rdi]
            cmp dword [rax+{CLOSED}], 0; jne short closed
            sub rsp, {_STACK}
            mov edi, {time.CLOCK_MONOTONIC}; mov rsi, rsp
            mov eax, {_SYS_CLOCK_GETTIME}; syscall
            add qword [rsp], seconds
            mov rax, [rsp+8]; add rax, nanoseconds
            cmp rax, {_BILLION}; jb short deadline
            sub rax, {_BILLION}; inc qword [rsp]
        deadline:
            mov [rsp+8], rax
        again:
            # until a moment, not for a time: signals that are handled meanwhile do not make it longer
            mov edi, {time.CLOCK_MONOTONIC}; mov esi, {_ABSOLUTE}; mov rdx, rsp; xor r10d, r10d
            mov eax, {_SYS_CLOCK_NANOSLEEP}; syscall
            cmp rax, {-errno.EINTR}; je short again
            add rsp, {_STACK}
        closed:
            ret
        """,
        seconds=seconds,
        nanoseconds=rest,
    )
    return NativeCode(asm.finish(0), (Input(InputKind.STORAGE),), _CLOBBERS, stack=_STACK, steps=len(asm))
