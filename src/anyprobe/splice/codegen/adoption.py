"""Generated code by which a fork child comes to blocks of its own.

A child inherits the thread slots of its parent, and with them pointers to the parent's blocks. So what these point to
is replaced: the child maps a copy of header and blocks, all zeros, over the ones that it has inherited. It needs no
file descriptor for that: ``mremap`` with an old size of 0 maps further pages of a file that is mapped. Every thread's
pointer is good again then, and no two threads of the child have the same one, as they had not in the parent.

Nothing here takes a lock. Who comes first takes a copy and notes that on a page which is wiped at a fork. Other threads
of the child, and signal handlers in between, do the same work with the same copy, which does no harm: the same pages
are mapped where they are mapped already. A signal handler that is shown the program's own pc has the thread begin anew,
but for the moment in which all copies up to the child's are mapped: there it goes on where it was. What the copy has to
say in its header is written before it can be seen.
"""

from anyprobe.data.layouts import layout as at
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.child_gates import MAPPED
from anyprobe.splice.codegen.routines import RoutineFacts

_MUNMAP, _MREMAP, _GETPID, _MUNLOCK = 11, 25, 39, 150
_MAYMOVE, _FIXED = 1, 2
_ERRORS = -4095
"""What system calls return at least that have failed."""
_NEVER = -1
"""Noted where a child has no copy: it counts as one block, and is not timed."""


def emit_adopt(asm: Assembler, facts: RoutineFacts) -> None:
    """Emit ``adopt``: give this fork child blocks of its own, if it has none. Clobbers rcx, flags.

    rax = 0 where that cannot be; else this gate is open. The note has the number of the copy, from 1, and above it how
    many blocks the parent had handed out: only those beyond are free for the child's new threads. ``MAPPED`` is added
    to it when all is done: gates of other code regions are opened without system calls.
    """
    layout = facts.layout
    region, table = facts.data, facts.data + layout.children_offset
    after = layout.size - layout.children_offset
    asm.code("""
    adopt:
        push rbx; push rdx; push rsi; push rdi; push r8; push r9; push r10; push r11
    """)
    asm.code(
        f"""
        adopt_again:
            mov rdx, adopted; mov rbx, [rdx]
            test rbx, rbx; js adopt_none
            btr rbx, {MAPPED}; jb adopt_mapped
            mov rax, closed; cmp dword [rax], 0; jne adopt_never
            test rbx, rbx; jnz adopt_noted
        """,
        adopted=facts.adopted,
        closed=facts.closed,
    )
    _take_copy(asm, facts, table)
    asm.code(
        f"""
        adopt_noted:
            # what is locked would be given memory, all of it
            mov rdi, table; mov esi, 4096; mov eax, {_MUNLOCK}; syscall
            mov r9d, ebx; mov rax, size; imul r9, rax
            mov rax, after; add r9, rax
            mov rdi, table; xor esi, esi; mov rdx, r9; mov r10d, {_MAYMOVE}
            mov eax, {_MREMAP}; syscall
        adopt_half:
            cmp rax, {_ERRORS}; jae adopt_never
            push rax; push r9
            lea rdi, [rax+r9]; mov rax, size; sub rdi, rax
        """,
        table=table,
        size=layout.child_bytes,
        after=after,
    )
    _fill_header(asm, layout, region)
    asm.code(
        f"""
            xor esi, esi; mov rdx, size; mov r10d, {_MAYMOVE | _FIXED}; mov r8, region
            mov eax, {_MREMAP}; syscall
            mov r8, rax
            pop rsi; pop rdi; mov eax, {_MUNMAP}; syscall
        adopt_whole:
            cmp r8, {_ERRORS}; jae adopt_never
            mov rdx, adopted; mov rax, rbx; mov rcx, rbx; bts rcx, {MAPPED}
            lock cmpxchg [rdx], rcx; je adopt_mapped
            cmp rax, rcx; jne adopt_again  # a signal handler has forked: this is another process
        adopt_mapped:
            mov rax, mask; mov rcx, gate; mov [rcx], rax
        adopt_over:
            pop r11; pop r10; pop r9; pop r8; pop rdi; pop rsi; pop rdx; pop rbx
            ret
        adopt_never:
            mov rdx, adopted; mov qword [rdx], {_NEVER}
        adopt_none:
            xor eax, eax; jmp adopt_over
        """,
        size=layout.child_bytes,
        region=region,
        mask=facts.mask,
        gate=facts.gate,
        adopted=facts.adopted,
    )


def _take_copy(asm: Assembler, facts: RoutineFacts, table: int) -> None:
    """Emit: rbx = the note of the copy that this child has, taken just now; rdx is where it is noted."""
    layout = facts.layout
    asm.code(
        f"""
            mov eax, {_GETPID}; syscall
            mov esi, eax; bts rsi, {at.CHILD_BIT}
            # where it begins to look depends on the process: there is a free one nearby
            mov r8, rdx; xor edx, edx; mov r10d, children; div r10d; mov r9d, edx; mov rdx, r8
        adopt_next:
            mov rdi, table; lea rdi, [rdi+r9*{at.CHILD_BYTES}]; inc r9d
            xor eax, eax
            lock cmpxchg [rdi], rsi; je adopt_taken
            cmp r9d, children; jb adopt_looked
            xor r9d, r9d
        adopt_looked:
            dec r10d; jnz adopt_next
            jmp adopt_never
        adopt_taken:
            mov rax, region; mov rbx, [rax+{at.NEXT_BLOCK}]
            mov eax, blocks; cmp rbx, rax; cmova rbx, rax
            shl rbx, 32; or rbx, r9
            xor eax, eax
            lock cmpxchg [rdx], rbx; je adopt_noted
            # another thread, or a signal handler, was first
            mov qword [rdi], 0; jmp adopt_again
        """,
        table=table,
        children=layout.children,
        region=facts.data,
        blocks=layout.blocks,
    )


def _fill_header(asm: Assembler, layout: at.BankLayout, region: int) -> None:
    """Emit: the copy at rdi says which blocks are handed out, and to whom they were: slots are cleared by that."""
    asm.code(
        f"""
            mov r10, rbx; shr r10, 32
            mov eax, ebx; mov [rdi+{at.COPY}], rax
            mov rsi, table; mov eax, [rsi+rax*{at.CHILD_BYTES}-{at.CHILD_BYTES}]; mov [rdi+{at.FORKED}], rax
            mov rsi, region; mov rax, [rsi+{at.DARK}]; mov [rdi+{at.DARK}], rax
            mov rax, [rsi+{at.NOWHERE + 8}]; mov [rdi+{at.NOWHERE + 8}], rax
            xor eax, eax
            lock cmpxchg [rdi+{at.NEXT_BLOCK}], r10
            mov rsi, region; mov r8, blocks
            mov rdx, rdi; add rdx, r8; add rsi, r8
        adopt_owner:
            sub r10, 1; js adopt_owners
            mov rax, [rsi]; mov [rdx], rax
            {f"mov rax, nowhere; mov [rdx+{at.BLOCK_PAGE}], rax" if layout.on_processors else ""}
            add rsi, stride; add rdx, stride
            jmp adopt_owner
        adopt_owners:
        """,
        region=region,
        table=region + layout.children_offset,
        blocks=layout.blocks_offset + at.BLOCK_OWNER,
        stride=layout.stride,
        nowhere=region + at.NOWHERE,
    )
