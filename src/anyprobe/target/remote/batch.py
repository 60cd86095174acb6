"""Many system calls in one run of a stopped thread: a few generated instructions work through a list of them.

One call at a time costs two stops of the thread each. The code runs from anyprobe's executable memory, records how far
it came, then sleeps for a moment, so that the controller finds it there. If the controller does not come (it died, or
was kept from running), the code returns through the signal frame and the thread goes on as if nothing had been
(docs/safety.md, rule 1). It sleeps in ``select``, which does not touch what the kernel keeps of a call that the thread
was interrupted in.
"""

import struct
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

_OUTCOME = struct.Struct("<3Q")
WAIT_US = 20_000
"""How long it waits to be found, in microseconds."""
_ENTRY = struct.Struct("<8Q")
_MASK64 = (1 << 64) - 1
_END = struct.pack("<Q", _MASK64)


class BatchedCall(NamedTuple):
    """A system call and what it must return; any other result ends the batch."""

    number: int
    arguments: tuple[int, ...]
    expected: int = 0


class Outcome(NamedTuple):
    """How far a batch came."""

    done: bool
    last: int
    """Result of the last call made."""
    succeeded: int
    """How many calls returned what they had to."""


def assemble() -> tuple[bytes, Callable[[], str]]:
    """Return the code that works through the list after it, and what makes its listing. r12: see ``blank_outcome``."""
    from anyprobe.isa.assemble import Assembler

    asm = Assembler()
    asm.code("""
        lea r13, [rel list]
        xor r14d, r14d
    next:
        mov rax, [r13]
        cmp rax, -1; je short done
        mov rdi, [r13+8]; mov rsi, [r13+16]
        mov rdx, [r13+24]; mov r10, [r13+32]
        mov r8, [r13+40]; mov r9, [r13+48]
        syscall
        cmp rax, [r13+56]; jne short done
        add r13, 64
        inc r14; jmp short next
    done:
        mov [r12+8], rax; mov [r12+16], r14
        mov qword [r12], 1
        mov eax, 23  # SYS_select
        xor edi, edi; xor esi, esi; xor edx, edx; xor r10d, r10d
        lea r8, [r12+24]
        syscall
        ret  # into the restorer, as every injected call could
    """)
    while len(asm) % _ENTRY.size:
        asm.code("int3")
    asm.label("list")
    return asm.finish(0), asm.listing_at(0)


@cache
def _code() -> bytes:
    return assemble()[0]


def capacity(size: int) -> int:
    """Return how many calls a batch in ``size`` bytes can have."""
    return (size - len(_code())) // _ENTRY.size - 1


def batch_size(calls: int) -> int:
    """Return how many bytes a batch of so many calls takes."""
    return len(_code()) + calls * _ENTRY.size + len(_END)


def batch_code(calls: Sequence[BatchedCall]) -> bytes:
    """Return the position independent bytes of a batch."""
    entries = [_ENTRY.pack(call.number, *_six(call.arguments), call.expected) for call in calls]
    return _code() + b"".join(entries) + _END


def _six(arguments: tuple[int, ...]) -> list[int]:
    return [argument & _MASK64 for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]


def blank_outcome(wait_us: int = WAIT_US) -> bytes:
    """Return what has to be where r12 points at: room for the outcome, then how long to wait."""
    return bytes(_OUTCOME.size) + struct.pack("<QQ", 0, wait_us)


def read_outcome(content: bytes) -> Outcome:
    """Return what the code has written down."""
    done, last, succeeded = _OUTCOME.unpack_from(content)
    return Outcome(done == 1, last, succeeded)
