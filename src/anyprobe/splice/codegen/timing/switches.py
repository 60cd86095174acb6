"""The generated routine that runs where a thread goes on on another stack, by ``swapcontext`` or ``setcontext``.

A switch is a call of its own record (``SWITCHES``): it is entered like any other where the thread leaves its stack, and
ends where that stack is gone on with, by the same stack pointer. So all that another stack does is in the switch, and
in no call of this one: what a call waits for is none of its own time, and none of the time of its calls without caller.
While it waits its own time so far, and that of its callers, is in their records: it may never be gone on with.

What runs on another stack outside of all timed calls, while some wait, is in no row. It is known by what is left: the
time since the thread has come to its stack, without that of calls without caller. So each tick of a thread's time is in
one row.
"""

from typing import TYPE_CHECKING, NamedTuple

from anyprobe.data.layouts import layout as at
from anyprobe.data.layouts.layout import (
    CALLER,
    CHARGED,
    NODE,
    RECORD,
    RESUMED,
    SP,
    START,
    SWITCHES,
    TOMBSTONE,
    UNNAMED,
    UNWOUND,
    WITHIN,
    BankLayout,
)
from anyprobe.splice.codegen.stacks import same_stack
from anyprobe.splice.codegen.timing import slow_paths
from anyprobe.splice.codegen.timing.leftovers import emit_shrink

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyprobe.isa.assemble import Assembler

_SIZE = at.INSTANCE_BYTES
SAVED = """push rax; lahf; seto al; push rax; push rcx; push rdx; push rsi; push rdi
    push r8; push r9; push r10; push r11; push rbx"""
RESTORED = """pop rbx; pop r11; pop r10; pop r9; pop r8
    pop rdi; pop rsi; pop rdx; pop rcx; pop rax; add al, 0x7f; sahf; pop rax; ret"""
RESTORED_BYTES = 19
_ARGUMENT, _SITE = 0x60, 0xE8


class Around(NamedTuple):
    """What stands around the routine."""

    read_clock: "Callable[[], None]"
    """Emits code that has rdx be the time."""
    give_back: "Callable[[], None]"
    """Emits code that restores all and returns."""
    ended: int
    """What the routine costs until the time is read."""
    timed: bool
    """Whether what a search takes is added to the costs."""


def emit_arrival(asm: "Assembler", layout: BankLayout, name: str, around: Around) -> None:
    """Emit: the thread has changed to the stack that it is on now, if it has just left one (rdi = block, all is saved).

    The argument is the offset of ``SWITCHES``, with ``MAY_STAY`` where calls of the same stack may have been left
    behind instead. All is known by the time that anything is done: the switch on the top, which is not seen yet (r9),
    and the one that ends (rsi).
    """
    switches, outer = layout.offset_of(SWITCHES), layout.outer_offset
    around.read_clock()
    asm.code(
        f"""
            mov rax, [rdi+{at.BLOCK_COST}]; add rax, ended; sar rax, {at.COST_BITS}; sub rdx, rax
            lea r11, [rsp+{_SITE}]; mov r10d, [rsp+{_ARGUMENT}]
            mov rax, rbx; sub rax, r11; sub rax, {at.FRESH_LOW}; cmp rax, {at.FRESH_BYTES}; jae {name}_looked
            and r10d, {-1 - at.MAY_STAY}
        {name}_looked:
            mov ecx, switches
            mov r9, [rdi+{at.BLOCK_TOP}]; sub r9, 1; js {name}_none
            shl r9, 6
            cmp [rdi+r9+{RECORD}], rcx; jne {name}_none
            cmp qword [rdi+r9+{SP}], {RESUMED}; jbe {name}_none
            cmp qword [rdi+r9+{WITHIN}], 0; jne {name}_none
            {slow_paths.keeping("rdi", slow_paths.begun("rdi", asks=layout.on_processors)) if around.timed else ""}
        {name}_again:
            mov rsi, r9
        {name}_search:
            cmp [rdi+rsi+{SP}], r11; jne {name}_below
            cmp [rdi+rsi+{RECORD}], rcx; jne {name}_below
            cmp rsi, r9; je {name}_stayed
            cmp dword [rdi+rsi+{CALLER}], 0; jne {name}_taken
        {name}_below:
            sub rsi, {_SIZE}; jns {name}_search
            btr r10d, {at.BY_JUMP.bit_length() - 1}; jae {name}_new
            sub r11, 8; jmp {name}_again
        {name}_new:
            test r10d, {at.MAY_STAY}; jz {name}_taken
            cmp dword [rdi+r9+{CALLER}], 0; je {name}_taken
            mov rax, r11; sub rax, [rdi+r9+{SP}]
            {same_stack("rax", f"[rdi+r9+{SP}]", "r8", name + "_taken")}
            jz {name}_stayed
            jmp {name}_taken
        {name}_none:
            mov rax, [rdi+{at.BLOCK_LEFT}]; add [rdi+{at.BLOCK_COST}], rax; jmp {name}_done
        {name}_stayed:
            mov qword [rdi+r9+{SP}], {TOMBSTONE}; jmp {name}_none
        {name}_taken:  # where the block was another thread's, which has ended, nothing is known of the time since
            mov eax, fs:[{at.TID_OFFSET}]; cmp [rdi+thread], rax; je {name}_known
            mov [rdi+thread], rax; mov qword [rdi+counts], 0
        {name}_known:
            {slow_paths.keeping("rdi", slow_paths.over("rdi", asks=layout.on_processors)) if around.timed else ""}
            mov rax, [rdi+counts]; inc rax; mov [rdi+r9+{WITHIN}], rax; mov [rdi+r9+{CHARGED}], rax
            mov rax, [rdi+r9+{SP}]
            cmp [rdi+{at.BLOCK_LEAVING}], rax; jne {name}_none_left
            cmp qword [rdi+outer], 0; jne {name}_none_left
            mov qword [rdi+{at.BLOCK_LEAVING}], 0
            lea rbx, [r9+{CALLER}]; mov rax, [rdi+{at.BLOCK_UNWOUND}]; lea r8, [rax-1]
        {name}_not_left:  # by setcontext, as it had seemed
            movsxd rbx, dword [rdi+rbx]; test rbx, rbx; jz {name}_none_left
            cmp [rdi+rbx+{UNWOUND - _SIZE}], r8; jne {name}_older
            mov [rdi+rbx+{UNWOUND - _SIZE}], rax
        {name}_older:
            add rbx, {CALLER - _SIZE}; jmp {name}_not_left
        {name}_none_left:
            inc qword [rdi+switched]
            mov rax, [rdi+running]; test rax, rax; jz {name}_only
            cmp qword [rdi+rax+{SP - _SIZE}], {RESUMED}; jne {name}_only
            cmp [rdi+rax+{RECORD - _SIZE}], rcx; jne {name}_only
            mov qword [rdi+rax+{SP - _SIZE}], {TOMBSTONE}
        {name}_only:
            lea rax, [rsi+{_SIZE}]; mov [rdi+running], rax
        """,
        ended=around.ended,
        switches=switches,
        thread=switches + at.SWITCH_TID,
        counts=switches + at.SWITCH_COUNTS,
        running=switches + at.RECORD_OPEN,
        switched=switches + at.SWITCHED,
        outer=outer,
    )
    _emit_waiting(asm, layout, name)
    _emit_going_on(asm, layout, name)
    emit_shrink(asm, name, "done")
    asm.label(name + "_done")
    around.give_back()


def _emit_waiting(asm: "Assembler", layout: BankLayout, name: str) -> None:
    """Emit: the calls under the switch r9 wait from now on (rdx).

    What the switch itself has taken is the own time of the call that has made it, so none is lost between two stacks.
    Where a call has no more time of its own than was known, neither have its callers: they have waited with it.
    """
    switches, unnamed = layout.offset_of(SWITCHES), layout.offset_of(UNNAMED)
    asm.code(f"""
            mov [rdi+r9+{START}], rdx
            movsxd rax, dword [rdi+r9+{CALLER}]; test rax, rax; jz {name}_nothing
            mov r10, rdx; sub r10, [rdi+rax+{START - _SIZE}]; sub r10, [rdi+rax+{WITHIN - _SIZE}]
        {name}_own:
            add [rdi+rax+{WITHIN - _SIZE}], r10
            mov rbx, [rdi+rax+{RECORD - _SIZE}]; and rbx, -2; add [rdi+rbx+{at.RECORD_SELF}], r10
    """)
    if layout.nodes:
        asm.code(f"""
            movsxd rbx, dword [rdi+rax+{NODE - _SIZE}]; shl rbx, 5
            add [rdi+rbx+{layout.tree_offset + at.NODE_SELF}], r10
        """)
    asm.code(
        f"""
            movsxd rbx, dword [rdi+rax+{CALLER - _SIZE}]; test rbx, rbx; jz {name}_owned
            mov r10, [rdi+rax+{START - _SIZE}]; add r10, [rdi+rax+{CHARGED - _SIZE}]
            mov rax, rbx
            sub r10, [rdi+rax+{START - _SIZE}]; sub r10, [rdi+rax+{WITHIN - _SIZE}]; jnz {name}_own
        {name}_up:
            movsxd rbx, dword [rdi+rax+{CALLER - _SIZE}]; test rbx, rbx; jz {name}_owned
            mov rax, rbx; jmp {name}_up
        {name}_owned:
            mov r10, rdx; sub r10, [rdi+rax+{START - _SIZE}]; sub r10, [rdi+rax+{CHARGED - _SIZE}]
            add [rdi+rax+{CHARGED - _SIZE}], r10
            mov rbx, [rdi+rax+{RECORD - _SIZE}]; and rbx, -2; add [rdi+rbx+{at.RECORD_ROOTS}], r10
            add [rdi+roots], r10; jmp {name}_waits
        {name}_nothing:
            mov qword [rdi+r9+{SP}], {TOMBSTONE}
        {name}_waits:
            cmp qword [rdi+counts], 0; je {name}_counted
            mov rax, rdx; sub rax, [rdi+since]
            sub rax, [rdi+roots]; add rax, [rdi+roots_then]
            add [rdi+unnamed_self], rax; add [rdi+unnamed_roots], rax
        {name}_counted:
            mov [rdi+since], rdx; mov rax, [rdi+roots]; mov [rdi+roots_then], rax
        """,
        counts=switches + at.SWITCH_COUNTS,
        since=switches + at.SWITCH_SINCE,
        roots=switches + at.RECORD_ROOTS,
        roots_then=switches + at.SWITCH_ROOTS,
        unnamed_self=unnamed + at.RECORD_SELF,
        unnamed_roots=unnamed + at.RECORD_ROOTS,
    )


def _emit_going_on(asm: "Assembler", layout: BankLayout, name: str) -> None:
    """Emit: calls under the switch that ends go on at the time rdx; what is not theirs is in no row if it was before.

    If there is none: while those wait that are under the switch r9, or others.
    """
    switches = layout.offset_of(SWITCHES)
    asm.code(
        f"""
            mov rsi, [rdi+running]; sub rsi, {_SIZE}; js {name}_elsewhere
            mov qword [rdi+rsi+{SP}], {RESUMED}
            mov rax, [rdi+rsi+{WITHIN}]; dec rax; mov [rdi+counts], rax
            mov r10, rdx; sub r10, [rdi+rsi+{START}]
            movsxd rbx, dword [rdi+rsi+{CALLER}]; test rbx, rbx; jz {name}_over
            add [rdi+rbx+{WITHIN - _SIZE}], r10
        {name}_down:
            mov rax, rbx; movsxd rbx, dword [rdi+rax+{CALLER - _SIZE}]; test rbx, rbx; jnz {name}_down
            add [rdi+rax+{CHARGED - _SIZE}], r10; jmp {name}_over
        {name}_elsewhere:
            cmp dword [rdi+r9+{CALLER}], 0; je {name}_over
            mov qword [rdi+counts], 1
        {name}_over:
            mov rax, [rdi+{at.BLOCK_LEFT}]; add [rdi+{at.BLOCK_COST}], rax
        """,
        running=switches + at.RECORD_OPEN,
        counts=switches + at.SWITCH_COUNTS,
    )
