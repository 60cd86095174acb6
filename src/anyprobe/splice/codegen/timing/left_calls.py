"""Parts of the generated routines by which calls are taken out that an exception or ``longjmp`` has left behind.

All of them lie between the stack pointers where the unwinding began and where the program has gone on. What they have
called then belongs to their callers. Calls on other stacks go on.
"""

from anyprobe.data.layouts import layout as at
from anyprobe.data.layouts.layout import (
    CALLER,
    CHARGED,
    RECORD,
    RESUMED,
    SP,
    SWITCHES,
    TOMBSTONE,
    UNWOUND,
    WITHIN,
    BankLayout,
)
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen import child_gates
from anyprobe.splice.codegen.stacks import same_stack
from anyprobe.splice.codegen.timing.leftovers import emit_shrink
from anyprobe.splice.codegen.timing.nested_calls import low, roots_of

_SIZE = at.INSTANCE_BYTES
_RDTSC, _ASKED = "mov rcx, rdx; rdtsc; shl rdx, 32; or rax, rdx; mov rdx, rcx", "call waited"
_NOTE_TIME = f"""
            mov rax, dark; test rax, rax; jz unwind_lit
            cmp dword [rax], 0; jne unwind_untold
        unwind_lit:
            {{now}}; mov [rdi+{at.BLOCK_SLOW}], rax
"""


def emit_settle(asm: Assembler, name: str, layout: BankLayout) -> None:
    """Emit ``settle``: the program has called a function at the stack pointer r11 (rdi = block); rax, r8, r9 change.

    What was left behind up to there is taken out, and dropped from the top unless r11 is odd: then a call ends, which
    drops more. Where code below this signal handler is at that, or moves instances, it is left to that.
    """
    asm.code(f"""
        {name}:
            cmp dword [rdi+{at.BLOCK_PURGING}], 0; jne {name}_done
            inc dword [rdi+{at.BLOCK_PURGING}]
        {name}_begun:
    """)
    _settle(asm, name, layout)
    asm.code(f"test r11d, 1; jnz {name}_over")
    emit_shrink(asm, name, "over", "r8")
    asm.code(f"""
        {name}_over:
            dec dword [rdi+{at.BLOCK_PURGING}]
        {name}_done:
            ret
    """)


def emit_unwind(asm: Assembler, facts: child_gates.Gated, layout: BankLayout, clock: int, dark: int) -> None:
    """Emit ``unwind``: calls are left behind from here on. Argument: ``UNWIND_LEAVES`` and the like.

    Where the process ends, and threads may read the time stamp counter, it is noted when (``clock``, ``dark``: as in
    ``RoutineFacts``).

    None of those that wait on other stacks is: these take note that there is one unwinding more, before it is counted.

    Where the function of a coroutine has returned, glibc calls ``setcontext`` with nothing on the stack but the context
    where it goes on, and with rbx pointing at that.
    """
    asm.code("""
        unwind:
            push rax; lahf; seto al; push rax
            push rcx; push rdi; push r8; push r9; push r11
    """)
    child_gates.emit_block(asm, facts, "unwind")
    asm.code(
        f"""
            lea r11, [rsp+0xc8]
            cmp qword [rsp+0x40], {at.UNWIND_CONTEXT}; je unwind_context
        unwind_leaves:
            mov rcx, [rdi+{at.BLOCK_LEAVING}]; test rcx, rcx; jz unwind_begins
            cmp r11, rcx; jb unwind_begins
            call settle
        unwind_begins:
            cmp qword [rsp+0x40], {at.UNWIND_CAUGHT}; je unwind_caught
            # what was left behind before, and is deeper, is still there
            mov rax, r11; sub rax, rcx
            {same_stack("rax", "rcx", "r8", "unwind_above")}
            cmovz r11, rcx
        unwind_above:
            # and so is what is left behind while this comes in between
            mov rax, [rdi+{at.BLOCK_LEAVING}]; test rax, rax; jz unwind_alone
            cmp qword [rdi+outer], 0; jne unwind_alone
            cmp rax, r11; je unwind_alone
            mov [rdi+outer], rax
        unwind_alone:
            cmp qword [rsp+0x40], {at.UNWIND_GONE}; je unwind_gone
            cmp qword [rdi+switched], 0; jne unwind_switched
        unwind_counts:
            inc qword [rdi+{at.BLOCK_UNWOUND}]
        unwind_noted:
            mov [rdi+{at.BLOCK_LEAVING}], r11
        unwind_done:
            pop r11; pop r9; pop r8; pop rdi; pop rcx; pop rax
            add al, 0x7f; sahf; pop rax; ret
        unwind_gone:  # where the thread goes on all others are as they were
            {"" if clock else _NOTE_TIME.format(now=_ASKED if layout.on_processors else _RDTSC)}
        unwind_untold:
            dec r11; or r11, {at.GONE}; jmp unwind_noted
        unwind_caught:  # what is above goes on, but for what is being left behind there
            mov rax, [rdi+{at.BLOCK_UNWOUND}]; mov rcx, [rdi+{at.BLOCK_TOP}]; shl rcx, 6
        unwind_alive:
            sub rcx, {_SIZE}; js unwind_done
            mov r8, [rdi+rcx+{SP}]; cmp r8, r11; jbe unwind_alive
            sub r8, [rdi+{at.BLOCK_LEAVING}]; shr r8, {at.STACK_SHIFT}; jz unwind_alive
            test byte [rdi+rcx+{RECORD}], {at.JUMPED}; jnz unwind_alive
            mov [rdi+rcx+{UNWOUND}], rax; jmp unwind_alive
        unwind_switched:
            mov rax, [rdi+{at.BLOCK_UNWOUND}]; mov rcx, [rdi+{at.BLOCK_TOP}]; shl rcx, 6
        unwind_waiting:
            sub rcx, {_SIZE}; js unwind_counts
            cmp dword [rdi+rcx+{RECORD}], switches; jne unwind_waiting
            cmp qword [rdi+rcx+{SP}], {RESUMED}; jbe unwind_waiting
            cmp qword [rdi+rcx+{WITHIN}], 0; je unwind_waiting
            lea r9, [rcx+{CALLER}]
        unwind_waits:
            movsxd r9, dword [rdi+r9]; test r9, r9; jz unwind_waiting
            cmp [rdi+r9+{UNWOUND - _SIZE}], rax; jne unwind_older
            inc qword [rdi+r9+{UNWOUND - _SIZE}]
        unwind_older:
            add r9, {CALLER - _SIZE}; jmp unwind_waits
        unwind_context:
            lea rcx, [r11+8]; cmp rbx, rcx; jne unwind_leaves
            mov rcx, [rcx]; cmp rcx, [rsp+0x18]; jne unwind_leaves
            jmp unwind_done
        """,
        dark=dark,
        outer=layout.outer_offset,
        switches=layout.offset_of(SWITCHES),
        switched=layout.offset_of(SWITCHES) + at.SWITCHED,
    )
    child_gates.emit_closed(asm, facts, "unwind")


def emit_settled(asm: Assembler, name: str, before: str, after: str = "") -> None:
    """Emit, where a call ends: take out what was left behind above it (rdi = block); rax, r8, r9 change.

    ``before`` is code that has r11 be one less than the call's stack pointer, and ``after`` undoes that.
    """
    prefix = "finish_" if name.startswith("finish_") else ""
    asm.code(f"""
            cmp qword [rdi+{at.BLOCK_LEAVING}], 0; je {name}_settled
            {before}; call {prefix}settle
            {after}
        {name}_settled:
    """)


def emit_known(asm: Assembler, name: str, sp: str, free: tuple[str, str], outer: int) -> None:
    """Emit: it is known what was left behind up to ``sp``; what was being left behind before that still is."""
    word, more = free
    asm.code(f"""
            mov {word}, {sp}; sub {word}, [rdi+{outer}]
            {same_stack(word, f"[rdi+{outer}]", more, name + "_other")}
            jnz {name}_other
            xor {word}, {word}; jmp {name}_outer
        {name}_other:
            mov {word}, [rdi+{outer}]
        {name}_outer:
            mov [rdi+{at.BLOCK_LEAVING}], {word}; mov qword [rdi+{outer}], 0
    """)


def _settle(asm: Assembler, name: str, layout: BankLayout) -> None:
    """Emit: take out what lies from where calls began to be left behind up to r11, as that is on the same stack."""
    outer = layout.outer_offset
    sp, other, word, more = "r11", "rax", "r8", "r9"
    asm.code(
        f"""
            test byte [rdi+{at.BLOCK_LEAVING}], {at.GONE}; jnz {name}_all
            mov {word}, {sp}; sub {word}, [rdi+{at.BLOCK_LEAVING}]
            {same_stack(word, f"[rdi+{at.BLOCK_LEAVING}]", more, name + "_settled")}
            jnz {name}_settled
        {name}_all:
            mov {other}, [rdi+{at.BLOCK_TOP}]; shl {other}, 6
        {name}_settle:
            sub {other}, {_SIZE}; js {name}_gone
            mov {word}, [rdi+{other}+{SP}]
            cmp {word}, [rdi+{at.BLOCK_LEAVING}]; jb {name}_settle
            test byte [rdi+{at.BLOCK_LEAVING}], {at.GONE}; jnz {name}_of_child
            cmp {word}, {sp}; ja {name}_alive
            mov {word}, [rdi+{at.BLOCK_UNWOUND}]
            cmp [rdi+{other}+{UNWOUND}], {word}; je {name}_settle
        {name}_left:
            mov qword [rdi+{other}+{SP}], {TOMBSTONE}
            mov {more}, [rdi+{other}+{RECORD}]
            btr {more}, 0; jae {name}_not_jumped
            dec qword [rdi+{more}+{at.RECORD_JUMPED}]
        {name}_not_jumped:
            inc qword [rdi+{more}+{at.RECORD_LEFT}]
            lea {word}, [{other}+{_SIZE}]
            cmp [rdi+{more}+{at.RECORD_OPEN}], {word}; jne {name}_not_open
            mov qword [rdi+{more}+{at.RECORD_OPEN}], 0
        {name}_not_open:
            mov {word}, [rdi+{other}+{WITHIN}]; sub {word}, [rdi+{other}+{CHARGED}]
            cmp dword [rdi+{other}+{CALLER}], 0; jne {name}_dead_called
            add [rdi+{more}+{at.RECORD_ROOTS}], {word}; add [rdi+roots], {word}; jmp {name}_passed_down
        {name}_dead_called:
            mov {low(more)}, [rdi+{other}+{CALLER}]
            add [rdi+{more}+{WITHIN - _SIZE}], {word}
        {name}_passed_down:
            mov {word}, [rdi+{at.BLOCK_TOP}]; shl {word}, 6
        {name}_its_calls:
            sub {word}, {_SIZE}; cmp {word}, {other}; jbe {name}_settle
            lea {more}, [{other}+{_SIZE}]
            cmp [rdi+{word}+{CALLER}], {low(more)}; jne {name}_its_calls
            mov {low(more)}, [rdi+{other}+{CALLER}]
            mov [rdi+{word}+{CALLER}], {low(more)}; jmp {name}_its_calls
        {name}_of_child:  # which shares the memory: on a stack of its own, or further down on that of its parent
            mov {more}, {word}; sub {more}, [rdi+{at.BLOCK_LEAVING}]; shr {more}, {at.CHILD_STACK_SHIFT}
            jnz {name}_settle
            cmp {word}, {sp}; jbe {name}_left
            mov {more}, {sp}; sub {more}, [rdi+{at.BLOCK_LEAVING}]; jae {name}_settle
            sar {more}, {at.CHILD_STACK_SHIFT}; cmp {more}, -1; jne {name}_left
            jmp {name}_settle
        {name}_alive:  # what is above a call that ends goes on, unless more is being left behind there
            test {sp}, 1; jz {name}_settle
            cmp qword [rdi+{outer}], 0; jne {name}_settle
            sub {word}, {sp}
            {same_stack(word, sp, more, name + "_settle")}
            jnz {name}_settle
            test byte [rdi+{other}+{RECORD}], {at.JUMPED}; jnz {name}_settle
            mov {word}, [rdi+{at.BLOCK_UNWOUND}]; mov [rdi+{other}+{UNWOUND}], {word}; jmp {name}_settle
        {name}_gone:
        """,
        roots=roots_of(layout),
    )
    emit_known(asm, name, sp, (word, more), outer)
    asm.label(name + "_settled")
