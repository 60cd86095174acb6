"""Handlers of returns that run where the caller goes on: what comes before them in the routine that calls them.

A function that ends in a jump to another one is over when that returns, at the *return point* in its caller. Where the
function is left (or entered), the call is noted among the thread's open calls, as those that are timed are; where the
caller goes on, each call that was entered with this very stack pointer ends, and the handler runs. Nothing is noted of
calls whose return point is not watched: the handler then runs at the jump, where there is no result yet.

A signal may interrupt any instruction, and its handler may come through the same routine. What it leaves behind when it
returns is over. So every change of the stack of open calls is one instruction, and dropping ends of it compares first.
"""

from typing import TYPE_CHECKING

from anyprobe.data.layouts.layout import (
    BLOCK_GUARD,
    BLOCK_REFUSED,
    BLOCK_TOP,
    BLOCK_UNWOUND,
    CALL_COUNTERS,
    CALL_LEARNING,
    CALL_MISSED,
    CALL_UNSEEN,
    CERTAIN,
    JUMPED,
    RECORD,
    SP,
    START,
    TOMBSTONE,
    UNSEEN,
    UNWOUND,
    WITHIN,
)
from anyprobe.splice.codegen.handlers.facts import PLACE, CallEnd, HandlerFacts
from anyprobe.splice.codegen.timing.exit_routines import emit_look_up

if TYPE_CHECKING:
    from anyprobe.isa.assemble import Assembler
    from anyprobe.splice.codegen.routines import RoutineFacts

SCRATCH = ("rcx", "rdx", "rsi", "r8", "r9")
"""What is changed here, besides what each handler's call changes."""
LEFT_AT = WITHIN
"""Where an open call has the address of the instruction by which it has left its function, if a handler asks."""
PATIENCE = 1 << 16
"""Misses in a row after which the handler that causes them is taken to be gone; if it is not, no harm is done."""


def emit_left(
    asm: "Assembler", facts: "RoutineFacts", handler: HandlerFacts, base: str, argument: int, site: int
) -> None:
    """Emit: note the call, and go to ``done``, if its return point is watched; else count that it is not.

    rbx is the block; ``argument`` and ``site`` are where the argument and the site's stack pointer point, relative to
    the base. The argument is the offset of the counters, and how many places of the same group come before this one.
    """
    if not facts.layout.notes_calls:
        asm.code(f"mov edx, {CALL_UNSEEN}")
    else:
        asm.code(
            f"""
                mov rax, [{base}+argument]; mov ecx, eax; and ecx, 7
                and eax, -8; shl ecx, {(8 * CALL_COUNTERS).bit_length() - 1}; sub eax, ecx
                mov ecx, eax; mov rsi, [{base}+site]
            """,
            argument=argument,
            site=site,
        )
        emit_look_up(asm, facts, "left", CALL_LEARNING, CALL_UNSEEN)
        _note(asm, facts, base, argument, site, tells_ip=handler.tells_ip)
    asm.code(
        f"mov rax, [{base}+argument]; and rax, -8; add rax, rbx; inc qword [rax+rdx]",
        argument=argument,
    )
    if handler.ends is CallEnd.AT_ENTRY:
        asm.code("jmp done")


def _note(asm: "Assembler", facts: "RoutineFacts", base: str, argument: int, site: int, *, tells_ip: bool) -> None:
    """Emit: unless edx says otherwise, note the call and go to ``done``. ecx is the group's offset.

    Where there is no room, what has the same stack pointer and is of the same group is a call that an exception, or
    ``longjmp``, has left behind: it is missed, and gives its place.
    """
    offset = f"mov rax, [{base}+argument]; and rax, -8"
    place = f"""
        mov rax, [{base}+back]; movsxd rdx, dword [rax+{PLACE["ip"]}]
        lea rax, [rax+rdx+{PLACE["ip"] + 4}]; mov [rdi+{LEFT_AT}], rax
    """
    asm.code(
        f"""
            test edx, edx; jnz unwatched
            or ecx, {JUMPED}
            mov edi, 1; xadd [rbx+{BLOCK_TOP}], rdi
            cmp rdi, maxactive; jae open_full
            shl rdi, 6; add rdi, rbx
        note:
            mov [rdi+{RECORD}], rcx
            {offset}; mov [rdi+{START}], rax
            {place if tells_ip else ""}
            mov rax, [rbx+{BLOCK_UNWOUND}]; mov [rdi+{UNWOUND}], rax
            lea rax, [{base}+site]; mov [rdi+{SP}], rax; jmp done
        open_full:
            dec qword [rbx+{BLOCK_TOP}]
            lea rsi, [{base}+site]; mov rdi, rbx; mov edx, maxactive
        open_search:
            cmp [rdi+{SP}], rsi; jne open_next
            cmp [rdi+{RECORD}], rcx; je open_left
        open_next:
            add rdi, 64; dec edx; jnz open_search
            {offset}; inc qword [rbx+rax+{CALL_MISSED}]; jmp done
        open_left:
            mov rax, [rdi+{START}]; inc qword [rbx+rax+{CALL_MISSED}]; jmp note
        unwatched:
        """,
        maxactive=facts.layout.maxactive,
        argument=argument,
        back=argument - 8,
        site=site,
    )


def emit_ended(asm: "Assembler", base: str, argument: int, site: int) -> None:
    """Emit: find a call that ends here, and count it; go to ``done`` where there is none. r9 = where it has left.

    The argument is the offset of the counters of the group's first place, and ``CERTAIN`` and ``UNSEEN``, which mean
    what they mean for calls that are timed (``exit_routines``).
    """
    asm.code(
        f"""
        ended:
            mov rax, [{base}+argument]; mov rcx, rax; and rcx, -8; or rcx, {JUMPED}
            lea rdi, [{base}+site]
            mov rsi, [rbx+{BLOCK_TOP}]
        ended_search:
            sub rsi, 1; js done
            mov rdx, rsi; shl rdx, 6
            cmp [rbx+rdx+{SP}], rdi; jne ended_search
            cmp [rbx+rdx+{RECORD}], rcx; jne ended_search
            mov rcx, [rbx+rdx+{START}]; mov r8, [rbx+rdx+{UNWOUND}]; mov r9, [rbx+rdx+{LEFT_AT}]
            mov qword [rbx+rdx+{SP}], {TOMBSTONE}
        ended_drop:
            mov rax, [rbx+{BLOCK_TOP}]; mov rsi, rax; sub rsi, 1; js ended_dropped
            mov rdx, rsi; shl rdx, 6
            cmp qword [rbx+rdx+{SP}], {TOMBSTONE}; jne ended_dropped
            mov qword [rbx+rdx+{SP}], 0
            cmpxchg [rbx+{BLOCK_TOP}], rsi; jmp ended_drop
        ended_dropped:
            mov rax, [{base}+argument]
            btr rax, {CERTAIN.bit_length() - 1}; mov [{base}+argument], rax; jb ended_surely
            test eax, {UNSEEN}; jnz ended_missed
            cmp r8, [rbx+{BLOCK_UNWOUND}]; jne ended_missed
        ended_surely:
            mov rax, [rbx+{BLOCK_GUARD}]; cmp rsp, rax; jb ended_nested
        ended_free:
            mov [rbx+{BLOCK_GUARD}], rsp
            inc qword [rbx+rcx]
            jmp run
        ended_nested:
            inc dword [rbx+{BLOCK_REFUSED}]
            cmp dword [rbx+{BLOCK_REFUSED}], {PATIENCE}; jae ended_free
        ended_missed:
            inc qword [rbx+rcx+{CALL_MISSED}]; jmp ended
        """,
        argument=argument,
        site=site,
    )


def emit_next_end(asm: "Assembler") -> None:
    """Emit: the handler is over for one call; see whether another ends here, too."""
    asm.code(f"""
        mov qword [rbx+{BLOCK_GUARD}], 0
        mov dword [rbx+{BLOCK_REFUSED}], 0
        jmp ended
    """)
