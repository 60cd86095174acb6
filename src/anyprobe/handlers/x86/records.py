"""A record as instructions: what ``handlers.llvm.rings`` makes, which says why it needs no locks."""

from collections.abc import Sequence

from anyprobe.data.aggregates.records import Field
from anyprobe.data.readers.rings import (
    CONSUMED,
    CONSUMED_SEEN,
    FULL,
    HEAD_BYTES,
    MARGIN,
    NEXT_RING,
    PRODUCED,
    RETIRED,
    RING,
    ROW_BYTES,
    RingLayout,
)
from anyprobe.isa.assemble import Assembler

_PARTS = {1: "al", 2: "ax", 4: "eax", 8: "rax"}


def emit_record(
    asm: Assembler, layout: RingLayout, base: int, thread: int, now: int | None, *, is_shared: bool = False
) -> None:
    """Emit: the words on the stack become the fields of a record.

    Args:
        asm: where to append; ``rbx`` leads to the words of the context, and ``out`` is where it goes on.
        layout: of the rings.
        base: which word has their address.
        thread: which word has the number of the thread.
        now: which word has the time; None: it is that of the time stamp counter.
        is_shared: whether it goes to the ring that threads share; then its last field, of 32 bits, says how many
            records that has dropped before.
    """
    asm.code("mov rdi, [rbx+base]", base=base)
    if not is_shared:
        emit_own_ring(asm, layout, thread)
        _position(asm, "own", layout.slots - MARGIN, lock="")
        asm.code("jmp place")
    asm.code(
        f"""
        shared_ring:
            lea rsi, [rdi+{HEAD_BYTES}]; mov r8, shared_offset
        """,
        shared_offset=layout.shared_offset,
    )
    _position(asm, "others", layout.slots - layout.shared_margin, lock="lock ")
    asm.code(
        """
        place:
            mov r10, r9; and r10d, last; imul r10, r10, bytes; add r10, r8; add r10, rdi
            shr r9, laps
            mov rax, [r10]; mov rdx, retired; cmp rax, rdx; jae retired_place
        """,
        last=layout.slots - 1,
        bytes=layout.record.bytes,
        laps=layout.slots.bit_length() - 1,
        retired=RETIRED,
    )
    _fields(asm, layout.record.fields[:-1] if is_shared else layout.record.fields, layout.record.offsets)
    if is_shared:
        asm.code(f"mov eax, [rsi+{FULL}]; mov [r10+place], eax", place=layout.record.offsets[-2])
    if now is None:
        asm.code("rdtsc; shl rdx, 32; or rax, rdx")
    else:
        asm.code("mov rax, [rbx+now]", now=now)
    asm.code(
        f"""
            add rax, rax; not r9; and r9d, 1; or rax, r9; mov [r10], rax
            jmp out
        retired_place:
            or rdx, r9; cmp rax, rdx; je out
        full:
            lock inc qword [rsi+{FULL}]; jmp out
        """
    )


def emit_own_ring(asm: Assembler, layout: RingLayout, thread: int) -> None:
    """Emit: rsi = the row of the thread, r8 = the offset of its ring; on to ``shared_ring`` where it has none.

    Args:
        asm: where to append; rdi has the address of the rings.
        layout: of the rings.
        thread: which word has the number of the thread.
    """
    asm.code(
        f"""
            mov rcx, [rbx+thread]; lea rax, [rcx-1]; cmp rax, threads; jae shared_ring
            imul rcx, rcx, {ROW_BYTES}; lea rsi, [rdi+rcx+{HEAD_BYTES}]
            mov r8, [rsi+{RING}]; test r8, r8; jnz own_ring
            cmp qword [rdi+{NEXT_RING}], rings; jae shared_ring
            mov r8d, 1; lock xadd [rdi+{NEXT_RING}], r8
            cmp r8, rings; jae shared_ring
            imul r8, r8, ring_bytes; add r8, rings_offset
            xor eax, eax; lock cmpxchg [rsi+{RING}], r8; je own_ring
            mov r8, rax
        own_ring:
        """,
        thread=thread,
        threads=layout.threads,
        rings=layout.rings,
        ring_bytes=layout.ring_bytes,
        rings_offset=layout.rings_offset,
    )


def _position(asm: Assembler, label: str, limit: int, *, lock: str) -> None:
    """Emit: r9 = the next position of the ring whose row is rsi, unless that is full."""
    asm.code(
        f"""
            mov rax, [rsi+{PRODUCED}]; mov rdx, rax
            sub rdx, [rsi+{CONSUMED_SEEN}]; cmp rdx, limit; jb {label}_room
            mov rdx, [rsi+{CONSUMED}]; mov [rsi+{CONSUMED_SEEN}], rdx
            sub rax, rdx; cmp rax, limit; jae full
        {label}_room:
            mov r9d, 1; {lock}xadd [rsi+{PRODUCED}], r9
        """,
        limit=limit,
    )


def _fields(asm: Assembler, fields: Sequence[Field], offsets: Sequence[int]) -> None:
    """Emit: the words on the stack are stored where the record at r10 has its fields."""
    at = 0
    # the last offset is that of the end
    for each, offset in zip(fields, offsets, strict=False):
        if each.kind == "text":
            for word in range(0, each.bytes, 8):
                asm.code("mov rax, [rsp+word]; mov [r10+place], rax", word=at, place=offset + word)
                at += 8
        else:
            asm.code(f"mov rax, [rsp+word]; mov [r10+place], {_PARTS[each.bytes]}", word=at, place=offset)
            at += 8
