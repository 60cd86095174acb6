"""Generated code that gives calls an instance out of a pool which all threads share: no more than so many at a time.

An instance is known by the site's stack pointer, which no two living calls have in common. Where none is free, those of
calls that never came back are given up: of this thread, if the return address is no longer where the call had it; of
another, if its thread has ended, which the kernel says by clearing the thread's id. Memory that may be gone is read by
system calls. Calls that left by ``longjmp`` and whose stack has not been overwritten yet keep their instance until
then, or until the next call with this stack pointer.

Fork children share the pool. In a child that has blocks of its own the upper 16 bits of what an instance is known by
are the number of its copy: whether a call of another process is over cannot be told here.

On entry ``rbx`` is the thread's block, or 0: then there is no instance, as a fork child must not take its parent's.
``rdx`` is the site's stack pointer, with that number. At the end it is the address of the data, or 0. ``rax``, ``rcx``,
``rdi``, ``r11`` are changed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyprobe.isa.assemble import Assembler

SLOT_BYTES, SLOT_DATA = 256, 56
"""Key, return address, thread pointer, thread id; then the data."""
_THREAD = 16


def emit_claim(
    asm: "Assembler", pool: int, count: int, *, tid_offset: int, may_read: bool, forked: bool = False
) -> None:
    """Emit: a call begins. ``may_read``: memory that may be gone can be read (the label ``read``).

    ``forked``: fork children may share the pool.
    """
    asm.code("test rbx, rbx; jz pool_none")
    _begin(asm, pool, count)
    asm.code("""
    pool_mine:
        cmp [rcx], rdx; jne pool_others
        mov rax, [rcx+16]; test rax, rax
        jz pool_others  # another thread is just taking it
    """)
    _win(asm, "pool_others")
    asm.code("""
        cmp [rcx], rdx; je pool_taken
        mov [rcx+16], rax  # another thread had won it before
    pool_others:
    """)
    _next(asm, "pool_mine")
    _begin(asm, pool, count)
    asm.code("""
    pool_free:
        xor eax, eax; cmp [rcx], rax; jne pool_used
        lock cmpxchg [rcx], rdx; je pool_taken
    pool_used:
    """)
    _next(asm, "pool_free")
    if may_read:
        _give_up(asm, pool, count, tid_offset, forked=forked)
    asm.code(
        f"""
        pool_none:
            xor edx, edx; jmp pool_done
        pool_taken:
            {"mov rax, rdx; shl rax, 16; shr rax, 16; mov rax, [rax]" if forked else "mov rax, [rdx]"}; mov [rcx+8], rax
            mov eax, fs:[tid]; mov [rcx+24], rax
        """,
        tid=tid_offset,
    )
    for at in (SLOT_DATA, SLOT_DATA + 64):  # the first word, and the one that says which were stored
        asm.code(f"mov qword [rcx+{at}], 0")
    # the thread comes last: from then on others may judge whether the call is over
    asm.code(f"""
        mov rax, fs:[16]; mov [rcx+16], rax
        lea rdx, [rcx+{SLOT_DATA}]
    pool_done:
    """)


def emit_find(asm: "Assembler", pool: int, count: int) -> None:
    """Emit: a call ends."""
    asm.code("test rbx, rbx; jz pool_none")
    _begin(asm, pool, count)
    asm.code("""
    pool_mine:
        cmp [rcx], rdx; je pool_found
    """)
    _next(asm, "pool_mine")
    asm.code(f"""
    pool_none:
        xor edx, edx; jmp pool_done
    pool_found:
        lea rdx, [rcx+{SLOT_DATA}]
    pool_done:
    """)


def emit_decline(asm: "Assembler") -> None:
    """Emit: a call is not to be followed if its first word of data is 0. ``rax`` = the data, or 0."""
    asm.code("test rax, rax; jz pool_kept; cmp qword [rax], 0; jne pool_kept")
    emit_release(asm)
    asm.label("pool_kept")


def emit_release(asm: "Assembler") -> None:
    """Emit: an instance is free. Its thread is forgotten first. ``rax`` = the data."""
    asm.code(f"mov qword [rax-{SLOT_DATA - _THREAD}], 0; mov qword [rax-{SLOT_DATA}], 0")


def _win(asm: "Assembler", lost: str) -> None:
    """Emit: take an instance from the call that has it, by forgetting its thread ``rax``: who does so has it."""
    asm.code(f"xor edi, edi; lock cmpxchg [rcx+16], rdi; jne {lost}")


def _begin(asm: "Assembler", pool: int, count: int) -> None:
    asm.code("mov rcx, pool; mov r11d, instances", pool=pool, instances=count)


def _next(asm: "Assembler", loop: str) -> None:
    asm.code(f"sub rcx, {-SLOT_BYTES}; dec r11d; jnz {loop}")


def _give_up(asm: "Assembler", pool: int, count: int, tid_offset: int, *, forked: bool) -> None:
    """Emit: look for an instance of a call that never came back."""
    _begin(asm, pool, count)
    asm.code(
        f"""
        pool_old:
            mov rax, [rcx]; test rax, rax
            jz pool_again  # it has become free
            {"mov rdi, rax; xor rdi, rdx; shr rdi, 48; jnz pool_alive" if forked else ""}
            mov rdi, [rcx+16]; test rdi, rdi; jz pool_alive
            push rdi; push rsi; push rdx; push r11; push 0
            mov rsi, rax; {"shl rsi, 16; shr rsi, 16; " if forked else ""}mov edx, 8
            cmp rdi, fs:[16]; je pool_own
            lea rsi, [rdi+tid]; mov edx, 4
        pool_own:
            mov rdi, rsp; call read
            # rdi becomes 0 if the word could be read and is what the call has left
            mov rdi, [rsp]
            cmp edx, 4; je pool_other
            xor rdi, [rcx+8]; jmp pool_judge
        pool_other:
            xor rdi, [rcx+24]
        pool_judge:
            or rdi, rax
            pop rax; pop r11; pop rdx; pop rsi; pop rax
            test rdi, rdi; jz pool_alive
        """,
        tid=tid_offset,
    )
    _win(asm, "pool_alive")
    asm.code("""
        mov [rcx], rdx; jmp pool_taken
    pool_again:
        lock cmpxchg [rcx], rdx; je pool_taken
    pool_alive:
    """)
    _next(asm, "pool_old")
