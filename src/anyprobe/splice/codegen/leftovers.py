"""Generated code that makes room on a thread's stack of open calls, once it is full: what was left is dropped."""

from anyprobe.data import layout as at
from anyprobe.data.layout import TOMBSTONE, BankLayout
from anyprobe.isa.assemble import Assembler


def emit_full(asm: Assembler, layout: BankLayout, argument: int, site: int) -> None:
    """Emit the overflow path of ``enter``: drop instances that cannot be alive, try once more, else a miss.

    Two live functions never have the same stack pointer at their entry, so an instance with ours is a leftover of a
    longjmp or an exception, unless another probe at this entry has just pushed it: those are on the top, and none has
    our record. So is one that the same function's entry has followed with the same stack pointer: see ``_drop_left``.
    Nothing is ever concluded from other stack pointers: they may lie on other stacks. A zero is an
    instance that code below this signal handler has reserved and not filled yet: then nothing may move. What has left
    by a jump may still be alive, where functions jump to each other and back: it is counted as missed.
    """
    asm.code(
        f"""
        enter_full:
            dec qword [rcx+{at.BLOCK_TOP}]
        enter_unreserved:
            cmp dword [rcx+{at.BLOCK_PURGING}], 0; jne enter_missed
            inc dword [rcx+{at.BLOCK_PURGING}]
        enter_purging:
            push rdi; push r8; push r9
            lea rsi, [rcx+0x40]; mov rdi, rsi
            mov edx, maxactive
        purge_check:
            cmp qword [rsi], 0; je purge_not
            add rsi, 64
            dec edx; jnz purge_check
        """,
        maxactive=layout.maxactive,
    )
    if not layout.nested:
        _drop_left(asm, layout.maxactive)
    asm.code(
        f"""
            lea rsi, [rdi+instances]
            lea rax, [rsp+site+24]; mov r9, [rsp+argument+24]
        purge_top:
            cmp [rsi-64], rax; jne purge_begin
            mov r8, [rsi-48]; and r8, -2
            cmp r8, r9; je purge_begin
            sub rsi, 64
            cmp rsi, rdi; ja purge_top
        purge_begin:
            mov r9, rsi; mov rsi, rdi; mov edx, maxactive
        purge_next:
            mov r8, [rsi]
            cmp r8, {TOMBSTONE}; jbe purge_skip
            cmp rsi, r9; jae purge_keep
            cmp r8, rax; je purge_drop
        purge_keep:
            mov [rdi], r8
            mov r8, [rsi+8]; mov [rdi+8], r8
            mov r8, [rsi+16]; mov [rdi+16], r8
            mov r8, [rsi+24]; mov [rdi+24], r8
            add rdi, 64
        purge_skip:
            add rsi, 64
            dec edx; jnz purge_next
            mov rdx, rdi
        purge_zero:
            cmp rdi, rsi; jae purge_end
            mov qword [rdi], 0
            add rdi, 64; jmp purge_zero
        purge_end:
            sub rdx, rcx; sub rdx, 0x40; shr rdx, 6
            mov [rcx+{at.BLOCK_TOP}], rdx
            pop r9; pop r8; pop rdi
            dec dword [rcx+{at.BLOCK_PURGING}]
        enter_purged:
            cmp rdx, maxactive; jb enter_block
            jmp enter_missed
        purge_drop:
            mov r8, [rsi+16]
            btr r8, 0; jae purge_left
            inc qword [rcx+r8+{at.RECORD_MISSED}]
            dec qword [rcx+r8+{at.RECORD_JUMPED}]
            jmp purge_skip
        purge_left:  # it has not left by a jump
            inc qword [rcx+r8+{at.RECORD_LEFT}]
            jmp purge_skip
        purge_not:  # nothing has been moved
            pop r9; pop r8; pop rdi
            dec dword [rcx+{at.BLOCK_PURGING}]
        enter_missed:
            mov rax, [rsp+argument]
            inc qword [rcx+rax+{at.RECORD_MISSED}]
        enter_missed_done:
            jmp enter_done
        """,
        site=site,
        argument=argument,
        maxactive=layout.maxactive,
        instances=layout.maxactive * at.INSTANCE_BYTES,
    )


def _drop_left(asm: Assembler, maxactive: int) -> None:
    """Emit: drop each instance that a later one of the same function has the stack pointer of (rcx = block).

    ``rdi`` is the first instance and ``rsi`` where they end. What has left by a jump may be alive, and so may a call
    with a replaced return address: its jump to its own entry is not seen. The last instance of each kind is found by
    a word that all have to spare: what it says is looked at, so it may be outdated or another's.
    """
    asm.code(
        f"""
        purge_later:
            sub rsi, 64
            mov r8, [rsi]; cmp r8, {TOMBSTONE}; jbe purge_looked
            mov rdx, [rsi+{at.INSTANCE_RECORD}]; and rdx, -2
            xor r8d, edx; imul r8d, r8d, {at.GOLDEN_32}
            imul r8, r8, maxactive; shr r8, 32; shl r8, 6
            mov rax, [rdi+r8+{at.INSTANCE_LATER}]; add rax, rdi
            cmp rax, rsi; jbe purge_last
            mov r9, [rax]; cmp r9, [rsi]; jne purge_last
            mov r9, [rax+{at.INSTANCE_RECORD}]; and r9, -2
            cmp r9, rdx; jne purge_last
            cmp rdx, [rsi+{at.INSTANCE_RECORD}]; jne purge_looked
            cmp qword [rcx+rdx+{at.RECORD_REPLACED}], 0; jne purge_looked
            mov qword [rsi], {TOMBSTONE}
            inc qword [rcx+rdx+{at.RECORD_LEFT}]; jmp purge_looked
        purge_last:
            mov rax, rsi; sub rax, rdi; mov [rdi+r8+{at.INSTANCE_LATER}], rax
        purge_looked:
            cmp rsi, rdi; ja purge_later
        """,
        maxactive=maxactive,
    )
