"""Generated code that gives calls an instance out of a pool which all threads share: no more than so many at a time.

An instance is known by the site's stack pointer, which no two living calls have in common. Where none is free, those of
calls that never came back are given up: of this thread, if the return address is no longer where the call had it; of
another, if its thread has ended, which the kernel says by clearing the thread's id. Memory that may be gone is read by
system calls. Calls that left by ``longjmp`` and whose stack nobody has overwritten yet keep their instance until then,
or until the next call with this stack pointer.

On entry ``rbx`` is the thread's block, or 0: then there is no instance, as a fork child must not take its parent's.
``rdx`` is the site's stack pointer. At the end it is the address of the data, or 0. ``rax``, ``rcx``, ``rdi``, ``r11``
are changed.
"""

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyprobe.isa.assemble import Assembler

SLOT_BYTES, SLOT_DATA = 128, 64
"""Key, return address, thread pointer, thread id; then, on a line of its own, the data."""
_THREAD = 16
_NEXT = b"\x48\x83\xe9\x80\x41\xff\xcb"


def emit_claim(asm: "Assembler", pool: int, count: int, *, tid_offset: int, may_read: bool) -> None:
    """Emit: a call begins. ``may_read``: memory that may be gone can be read (the label ``read``)."""
    asm.emit(b"\x48\x85\xdb", "test rbx, rbx")
    asm.jump(b"\x0f\x84", "pool_none", "jz none")
    _begin(asm, pool, count)
    asm.label("pool_mine")
    asm.emit(b"\x48\x39\x11", "cmp [rcx], rdx")
    asm.jump(b"\x0f\x85", "pool_others", "jne others")
    asm.emit(b"\x48\x8b\x41\x10\x48\x85\xc0", "mov rax, [rcx+16]; test rax, rax")
    asm.jump(b"\x0f\x84", "pool_others", "jz others")  # somebody is just taking it
    _win(asm, "pool_others")
    asm.emit(b"\x48\x39\x11", "cmp [rcx], rdx")
    asm.jump(b"\x0f\x84", "pool_taken", "je taken")
    asm.emit(b"\x48\x89\x41\x10", "mov [rcx+16], rax")  # somebody else had won it before
    asm.label("pool_others")
    _next(asm, "pool_mine")
    _begin(asm, pool, count)
    asm.label("pool_free")
    asm.emit(b"\x31\xc0\x48\x39\x01", "xor eax, eax; cmp [rcx], rax")
    asm.jump(b"\x0f\x85", "pool_used", "jne used")
    asm.emit(b"\xf0\x48\x0f\xb1\x11", "lock cmpxchg [rcx], rdx")
    asm.jump(b"\x0f\x84", "pool_taken", "je taken")
    asm.label("pool_used")
    _next(asm, "pool_free")
    if may_read:
        _give_up(asm, pool, count, tid_offset)
    asm.label("pool_none")
    asm.emit(b"\x31\xd2", "xor edx, edx")
    asm.jump(b"\xe9", "pool_done", "jmp done")
    asm.label("pool_taken")
    asm.emit(b"\x48\x8b\x02\x48\x89\x41\x08", "mov rax, [rdx]; mov [rcx+8], rax")
    asm.emit(
        b"\x64\x8b\x04\x25" + struct.pack("<i", tid_offset) + b"\x48\x89\x41\x18",
        "mov eax, fs:[TID]; mov [rcx+24], rax",
    )
    for at in range(SLOT_DATA, SLOT_BYTES, 8):
        asm.emit(b"\x48\xc7\x41" + bytes([at]) + bytes(4), f"mov qword [rcx+{at}], 0")
    # the thread comes last: from then on others may judge whether the call is over
    asm.emit(b"\x64\x48\x8b\x04\x25\x10\x00\x00\x00\x48\x89\x41\x10", "mov rax, fs:[16]; mov [rcx+16], rax")
    asm.emit(b"\x48\x8d\x51" + bytes([SLOT_DATA]), "lea rdx, [rcx+SLOT_DATA]")
    asm.label("pool_done")


def emit_find(asm: "Assembler", pool: int, count: int) -> None:
    """Emit: a call ends."""
    asm.emit(b"\x48\x85\xdb", "test rbx, rbx")
    asm.jump(b"\x0f\x84", "pool_none", "jz none")
    _begin(asm, pool, count)
    asm.label("pool_mine")
    asm.emit(b"\x48\x39\x11", "cmp [rcx], rdx")
    asm.jump(b"\x0f\x84", "pool_found", "je found")
    _next(asm, "pool_mine")
    asm.label("pool_none")
    asm.emit(b"\x31\xd2", "xor edx, edx")
    asm.jump(b"\xe9", "pool_done", "jmp done")
    asm.label("pool_found")
    asm.emit(b"\x48\x8d\x51" + bytes([SLOT_DATA]), "lea rdx, [rcx+SLOT_DATA]")
    asm.label("pool_done")


def emit_decline(asm: "Assembler") -> None:
    """Emit: a call is not to be followed if its first word of data is 0. ``rax`` = the data, or 0."""
    asm.emit(b"\x48\x85\xc0", "test rax, rax")
    asm.jump(b"\x0f\x84", "pool_kept", "jz kept")
    asm.emit(b"\x48\x83\x38\x00", "cmp qword [rax], 0")
    asm.jump(b"\x0f\x85", "pool_kept", "jne kept")
    emit_release(asm)
    asm.label("pool_kept")


def emit_release(asm: "Assembler") -> None:
    """Emit: an instance is free. Its thread is forgotten first. ``rax`` = the data."""
    asm.emit(b"\x48\xc7\x40" + bytes([256 - SLOT_DATA + _THREAD]) + bytes(4), "mov qword [rax-SLOT_DATA+16], 0")
    asm.emit(b"\x48\xc7\x40" + bytes([256 - SLOT_DATA]) + bytes(4), "mov qword [rax-SLOT_DATA], 0")


def _win(asm: "Assembler", lost: str) -> None:
    """Emit: take an instance from the call that has it, by forgetting its thread ``rax``; whoever does that has it."""
    asm.emit(b"\x31\xff\xf0\x48\x0f\xb1\x79\x10", "xor edi, edi; lock cmpxchg [rcx+16], rdi")
    asm.jump(b"\x0f\x85", lost, "jne lost")


def _begin(asm: "Assembler", pool: int, count: int) -> None:
    asm.emit(b"\x48\xb9" + struct.pack("<Q", pool), "mov rcx, pool")
    asm.emit(b"\x41\xbb" + struct.pack("<I", count), "mov r11d, instances")


def _next(asm: "Assembler", loop: str) -> None:
    asm.emit(_NEXT, "sub rcx, -SLOT_BYTES; dec r11d")
    asm.jump(b"\x0f\x85", loop, "jnz next")


def _give_up(asm: "Assembler", pool: int, count: int, tid_offset: int) -> None:
    """Emit: look for an instance of a call that never came back."""
    _begin(asm, pool, count)
    asm.label("pool_old")
    asm.emit(b"\x48\x8b\x01\x48\x85\xc0", "mov rax, [rcx]; test rax, rax")
    asm.jump(b"\x0f\x84", "pool_again", "jz again")  # it has become free
    asm.emit(b"\x48\x8b\x79\x10\x48\x85\xff", "mov rdi, [rcx+16]; test rdi, rdi")
    asm.jump(b"\x0f\x84", "pool_alive", "jz alive")
    asm.emit(b"\x57\x56\x52\x41\x53\x6a\x00", "push rdi; push rsi; push rdx; push r11; push 0")
    asm.emit(b"\x48\x89\xc6\xba\x08\x00\x00\x00", "mov rsi, rax; mov edx, 8")
    asm.emit(b"\x64\x48\x3b\x3c\x25\x10\x00\x00\x00", "cmp rdi, fs:[16]")
    asm.jump(b"\x0f\x84", "pool_own", "je own")
    asm.emit(b"\x48\x8d\xb7" + struct.pack("<i", tid_offset), "lea rsi, [rdi+TID]")
    asm.emit(b"\xba\x04\x00\x00\x00", "mov edx, 4")
    asm.label("pool_own")
    asm.emit(b"\x48\x89\xe7", "mov rdi, rsp")
    asm.jump(b"\xe8", "read", "call read")
    # rdi becomes 0 if the word could be read and is what the call has left
    asm.emit(b"\x48\x8b\x3c\x24", "mov rdi, [rsp]")
    asm.emit(b"\x83\xfa\x04", "cmp edx, 4")
    asm.jump(b"\x0f\x84", "pool_other", "je other")
    asm.emit(b"\x48\x33\x79\x08", "xor rdi, [rcx+8]")
    asm.jump(b"\xe9", "pool_judge", "jmp judge")
    asm.label("pool_other")
    asm.emit(b"\x48\x33\x79\x18", "xor rdi, [rcx+24]")
    asm.label("pool_judge")
    asm.emit(b"\x48\x09\xc7", "or rdi, rax")
    asm.emit(b"\x58\x41\x5b\x5a\x5e\x58", "pop rax; pop r11; pop rdx; pop rsi; pop rax")
    asm.emit(b"\x48\x85\xff", "test rdi, rdi")
    asm.jump(b"\x0f\x84", "pool_alive", "jz alive")
    _win(asm, "pool_alive")
    asm.emit(b"\x48\x89\x11", "mov [rcx], rdx")
    asm.jump(b"\xe9", "pool_taken", "jmp taken")
    asm.label("pool_again")
    asm.emit(b"\xf0\x48\x0f\xb1\x11", "lock cmpxchg [rcx], rdx")
    asm.jump(b"\x0f\x84", "pool_taken", "je taken")
    asm.label("pool_alive")
    _next(asm, "pool_old")
