"""The data of calls under way in a kernel: a table in shared memory, by the stack pointer at a call's beginning.

No two calls that are under way have the same one, whatever task or interrupt they are of, and whichever processor they
go on at: so a place is one call's. A call looks for its place among a few from where its stack pointer leads. What was
left by one that never came back is taken over by the next call with this stack pointer. A call that finds no place has
no data, and is counted; so is one while as many are under way as are to be followed.
"""

from anyprobe.isa.assemble import Assembler

OPEN, DROPPED, UNDER_WAY = 0, 8, 16
"""Head: whether both ends are in place, so that handlers run; calls without a place; those under way, if limited."""
HEAD_BYTES, SLOT_BYTES, SLOT_DATA = 128, 128, 56
"""Bytes of the table's head and of a place, which begins with the stack pointer; where a place has its data."""
_PROBES = 16
CHANGED = frozenset({"rcx", "rdx", "r11"})
"""Registers that the code here changes, besides rax, rdi and the flags."""


def size(calls: int) -> int:
    """Return the bytes of a table in which so many calls, a power of two, have room."""
    return HEAD_BYTES + (calls + _PROBES) * SLOT_BYTES


CALLS = 1 << 14
"""Places of a table."""


def _begin(asm: Assembler, table: int, closed: str) -> None:
    """Emit: rcx = the first place for the stack pointer rdx; go where nothing is done unless handlers run."""
    asm.code(
        f"""
            mov rcx, table; cmp dword [rcx+{OPEN}], 0; je closed
            mov rax, rdx; shr rax, 3; mov rdi, rdx; shr rdi, 14; imul rdi, rdi, 0x1e3779b1; xor rax, rdi
            and eax, {CALLS - 1}; shl eax, 7; lea rcx, [rcx+rax+{HEAD_BYTES}]
            mov r11d, {_PROBES}
        """,
        table=table,
        closed=closed,
    )


def emit_claim(asm: Assembler, table: int, closed: str, limit: int = 0) -> None:
    """Emit: a call with the stack pointer rdx begins; rdx = its data, 0 if there is no place.

    ``limit``: how many calls may have one at a time; 0: as many as there are.
    """
    _begin(asm, table, closed)
    asm.code(
        f"""
        calls_probe:
            mov rax, [rcx]; cmp rax, rdx; je calls_found
            test rax, rax; jnz calls_next
            lock cmpxchg [rcx], rdx; je {"calls_new" if limit else "calls_found"}
        calls_next:
            sub rcx, {-SLOT_BYTES}; dec r11d; jnz calls_probe
        calls_lost:
            mov rcx, table; lock inc qword [rcx+{DROPPED}]
            xor edx, edx; jmp calls_done
        """,
        table=table,
    )
    if limit:
        asm.code(
            f"""
            calls_new:
                mov rdi, table; mov eax, [rdi+{UNDER_WAY}]
            calls_count:
                cmp eax, {limit}; jae calls_full
                lea r11d, [rax+1]; lock cmpxchg [rdi+{UNDER_WAY}], r11d; je calls_found
                jmp calls_count
            calls_full:
                mov qword [rcx], 0; jmp calls_lost
            """,
            table=table,
        )
    asm.label("calls_found")
    asm.code("xor eax, eax")
    for at in range(SLOT_DATA, SLOT_BYTES, 8):
        asm.code(f"mov [rcx+{at}], rax")
    asm.code(f"""
        lea rdx, [rcx+{SLOT_DATA}]
    calls_done:
    """)


def emit_find(asm: Assembler, table: int, closed: str) -> None:
    """Emit: a call with the stack pointer rdx ends; rdx = its data, 0 if it has none."""
    _begin(asm, table, closed)
    asm.code(f"""
    calls_probe:
        cmp [rcx], rdx; je calls_found
        sub rcx, {-SLOT_BYTES}; dec r11d; jnz calls_probe
        xor edx, edx; jmp calls_done
    calls_found:
        lea rdx, [rcx+{SLOT_DATA}]
    calls_done:
    """)


def emit_release(asm: Assembler, table: int, limit: int = 0) -> None:
    """Emit: the place of the data rax, which may be 0, is free."""
    asm.code(f"test rax, rax; jz calls_released; mov qword [rax-{SLOT_DATA}], 0")
    if limit:
        asm.code(f"mov rdi, table; lock dec dword [rdi+{UNDER_WAY}]", table=table)
    asm.label("calls_released")
