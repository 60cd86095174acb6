"""Parts of the generated routines by which it is known of timed calls which others they have made.

Each open call has a word for the ticks that calls took which it has made itself. A call that ends adds its time to that
word of its caller's, and what is left of its own time is its *self time*. So the self times of all calls and the times
of calls without a timed caller have the same sum, to the tick.

Not all calls end in the order in which they began. What an exception or ``longjmp`` has left behind never ends: all of
it lies between the stack pointers where the unwinding began and where the program has gone on, and is taken out there;
what it has called then belongs to its caller. Calls on other stacks, of coroutines, go on where their caller ends: they
are charged to it for the time until then.
"""

from anyprobe.data import layout as at
from anyprobe.data.layout import CALLER, CHARGED, COST, NODE, RECORD, SP, START, TOMBSTONE, UNWOUND, WITHIN
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.leftovers import emit_shrink
from anyprobe.splice.codegen.stacks import same_stack

_SIZE = at.INSTANCE_BYTES


def _low(register: str) -> str:
    """Return the lower half of a register."""
    return f"{register}d" if register[1].isdigit() else f"e{register[1:]}"


def emit_entered(asm: Assembler, argument: int, site: int, keys: int, nodes: int) -> None:
    """Emit, for ``enter``: say who has made the call (rcx = block, rsi = its instance), and if it is the outermost.

    ``keys`` is where the keys of the call tree's nodes are, if there are any. Clobbers rax, rdx.
    """
    asm.code(
        f"""
            cmp qword [rcx+{at.BLOCK_LEAVING}], 0; jne enter_leaving
        enter_current:
            mov rax, [rcx+{at.BLOCK_UNWOUND}]; mov [rcx+rsi+{UNWOUND}], rax
            xor eax, eax; mov [rcx+rsi+{WITHIN}], rax; mov [rcx+rsi+{CHARGED}], rax
            mov rdx, rsi; test esi, esi; jz enter_caller
            lea rax, [rsp+site]
            cmp [rcx+rsi+{SP - _SIZE}], rax; jbe enter_seek
        enter_caller:
            mov [rcx+rsi+{CALLER}], edx
        """,
        site=site,
    )
    if nodes:
        _find_node(asm, argument, keys, nodes)
    asm.code(
        f"""
            mov rdx, [rsp+argument]
            cmp qword [rcx+rdx+{at.RECORD_OPEN}], 0; jne enter_open
        enter_outermost:
            lea rax, [rsi+{_SIZE}]; mov [rcx+rdx+{at.RECORD_OPEN}], rax
        enter_nested:
        """,
        argument=argument,
    )


def _find_node(asm: Assembler, argument: int, keys: int, nodes: int) -> None:
    """Emit: find the node of a call (rdx = its caller), or make it: one of those with its caller's for each function.

    A key is written once. Threads that make one at the same time see the other's.
    """
    asm.code(
        f"""
            push rdi; push r8
            mov edi, {at.NO_CALLER}; test edx, edx; jz enter_key
            mov edi, {at.UNSURE_CALLER}
            mov rax, [rcx+{at.BLOCK_UNWOUND}]; cmp [rcx+rdx+{UNWOUND - _SIZE}], rax; jne enter_key
            mov edi, [rcx+rdx+{NODE - _SIZE}]; test edi, edi; jz enter_node
        enter_key:
            mov rdx, [rsp+argument+16]; shl rdx, {at.NODE_KEY_SHIFT}; or rdx, rdi
            mov rdi, {at.GOLDEN}; imul rdi, rdx; shr rdi, {64 - (nodes.bit_length() - 1)}
            mov r8d, {at.NODE_PROBES}
        enter_probe:
            test edi, edi; jz enter_next_node
            mov rax, keys; lea rax, [rax+rdi*8]
            cmp [rax], rdx; je enter_node
            cmp qword [rax], 0; je enter_new_node
        enter_next_node:
            inc edi; and edi, {nodes - 1}
            dec r8d; jnz enter_probe
            xor edi, edi
        enter_node:
            mov [rcx+rsi+{NODE}], edi
            pop r8; pop rdi
        """,
        argument=argument,
        keys=keys,
    )


def emit_new_node(asm: Assembler) -> None:
    """Emit the rare path of that."""
    asm.code(
        """
        enter_new_node:
            push rbx
            mov rbx, rax; xor eax, eax
            lock cmpxchg [rbx], rdx
            pop rbx
            je enter_node
            cmp rax, rdx; je enter_node
            jmp enter_next_node
        """
    )


def emit_in_tree(asm: Assembler, tree: int, free: str, ticks: str) -> None:
    """Emit: a call has taken rdx ticks, of these ``ticks`` in itself; rdi = block, rsi = its instance."""
    asm.code(f"""
        movsxd {free}, dword [rdi+rsi+{NODE}]; shl {free}, 5; add {free}, rdi
        inc qword [{free}+{tree + at.NODE_COUNT}]
        add [{free}+{tree + at.NODE_SUM}], rdx
        add [{free}+{tree + at.NODE_SELF}], {ticks}
    """)


def emit_entering(asm: Assembler, argument: int, site: int, settle: int | str) -> None:
    """Emit the rare paths of that: an instance is reserved at ``enter_leaving``, ``enter_seek`` and ``enter_open``."""
    asm.code(
        f"""
        enter_leaving:
            lea rax, [rsp+site]; sub rax, [rcx+{at.BLOCK_LEAVING}]
            test byte [rcx+{at.BLOCK_LEAVING}], {at.GONE}; jnz enter_gone
            {same_stack("rax", f"[rcx+{at.BLOCK_LEAVING}]", "rdx", "enter_current")}
            jnz enter_current
        enter_unsettled:
            cmp dword [rcx+{at.BLOCK_PURGING}], 0; je enter_settling
            jmp enter_current
        enter_gone:
            sar rax, {at.CHILD_STACK_SHIFT}; cmp rax, -1; je enter_current
            jmp enter_unsettled
        enter_seek:
            # below: the caller is on another stack; or it is free, or was left behind
            ja enter_caller
            cmp qword [rcx+rdx+{SP - _SIZE}], {TOMBSTONE}; jbe enter_further
            cmp [rcx+rdx+{SP - _SIZE}], rax; jne enter_elsewhere
            test byte [rcx+rdx+{RECORD - _SIZE}], {at.JUMPED}; jz enter_further
        enter_elsewhere:
            mov rax, [rcx+rdx+{UNWOUND - _SIZE}]; cmp rax, [rcx+{at.BLOCK_UNWOUND}]; je enter_caller
        enter_further:
            sub rdx, {_SIZE}; jz enter_caller
            lea rax, [rsp+site]; cmp [rcx+rdx+{SP - _SIZE}], rax; jmp enter_seek
        enter_open:
            mov rax, [rcx+rdx+{at.RECORD_OPEN}]; cmp rax, rsi; ja enter_outermost
            mov edx, [rcx+rax+{RECORD - _SIZE}]; and edx, -8
            cmp edx, [rsp+argument]; mov rdx, [rsp+argument]; jne enter_outermost
            mov rax, [rcx+rax+{SP - _SIZE}]; cmp rax, {TOMBSTONE}; jbe enter_outermost
            sub rax, rsp; cmp rax, site; jg enter_nested
            mov rax, [rcx+rdx+{at.RECORD_OPEN}]; jl enter_open_below
            test byte [rcx+rax+{RECORD - _SIZE}], {at.JUMPED}; jnz enter_nested
            jmp enter_outermost
        enter_open_below:  # on another stack, if it was not left behind; on the main stack it was, even if unseen
            lea rdx, [rsp+site]; sub rdx, [rcx+rax+{SP - _SIZE}]; shr rdx, {at.STACK_SHIFT}; jnz enter_open_far
            lea rdx, [rsp+site]; shr rdx, {at.MAIN_STACK_SHIFT}; cmp edx, {at.MAIN_STACK}
            mov rdx, [rsp+argument]; je enter_outermost
        enter_open_far:
            mov rdx, [rsp+argument]
            mov rax, [rcx+rax+{UNWOUND - _SIZE}]; cmp rax, [rcx+{at.BLOCK_UNWOUND}]; je enter_nested
            jmp enter_outermost
        enter_settling:
            dec qword [rcx+{at.BLOCK_TOP}]
        enter_left:
            push rdi; push r8; push r9; push r11
            mov rdi, rcx; lea r11, [rsp+site+32]
            call settle
            pop r11; pop r9; pop r8; pop rdi; jmp enter_block
        """,
        argument=argument,
        site=site,
        settle=settle,
    )


def emit_settle(asm: Assembler, name: str, outer: int) -> None:
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
    _settle(asm, name, outer)
    asm.code(f"test r11d, 1; jnz {name}_over")
    emit_shrink(asm, name, "over", "r8")
    asm.code(f"""
        {name}_over:
            dec dword [rdi+{at.BLOCK_PURGING}]
        {name}_done:
            ret
    """)


def emit_unwind(asm: Assembler, slot: int, gate: int, outer: int) -> None:
    """Emit ``unwind``: calls are left behind from here on. Argument: ``UNWIND_LEAVES`` and the like.

    Where the function of a coroutine has returned, glibc calls ``setcontext`` with nothing on the stack but the context
    where it goes on, and with rbx pointing at that.
    """
    asm.code(
        f"""
        unwind:
            push rax; lahf; seto al; push rax
            push rcx; push rdi; push r8; push r9; push r11
            mov rdi, fs:[slot]; mov rax, gate; test [rax], rdi; jz unwind_done
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
            inc qword [rdi+{at.BLOCK_UNWOUND}]
        unwind_noted:
            mov [rdi+{at.BLOCK_LEAVING}], r11
        unwind_done:
            pop r11; pop r9; pop r8; pop rdi; pop rcx; pop rax
            add al, 0x7f; sahf; pop rax; ret
        unwind_gone:  # where the thread goes on all others are as they were
            dec r11; or r11, {at.GONE}; jmp unwind_noted
        unwind_caught:  # what is above goes on, but for what is being left behind there
            mov rax, [rdi+{at.BLOCK_UNWOUND}]; mov rcx, [rdi+{at.BLOCK_TOP}]; shl rcx, 6
        unwind_alive:
            sub rcx, {_SIZE}; js unwind_done
            mov r8, [rdi+rcx+{SP}]; cmp r8, r11; jbe unwind_alive
            sub r8, [rdi+{at.BLOCK_LEAVING}]; shr r8, {at.STACK_SHIFT}; jz unwind_alive
            test byte [rdi+rcx+{RECORD}], {at.JUMPED}; jnz unwind_alive
            mov [rdi+rcx+{UNWOUND}], rax; jmp unwind_alive
        unwind_context:
            lea rcx, [r11+8]; cmp rbx, rcx; jne unwind_leaves
            mov rcx, [rcx]; cmp rcx, [rsp+0x18]; jne unwind_leaves
            jmp unwind_done
        """,
        slot=slot,
        gate=gate,
        outer=outer,
    )


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


def emit_charged(asm: Assembler, name: str, free: tuple[str, str], tree: int = 0) -> None:
    """Emit: a call has taken rdx ticks; rdi = block, rsi = its instance, rcx = record. Rare paths follow later."""
    caller, ticks = free
    asm.code(f"""
            movsxd {caller}, dword [rdi+rsi+{CALLER}]
            mov {ticks}, rdx; sub {ticks}, [rdi+rsi+{CHARGED}]
            test {caller}, {caller}; jz {name}_root
            add [rdi+{caller}+{WITHIN - _SIZE}], {ticks}
            mov {ticks}, [rdi+{caller}+{RECORD - _SIZE}]; and {ticks}, -2; inc qword [rdi+{ticks}+{at.RECORD_MADE}]
        {name}_charged:
            mov {ticks}, rdx; sub {ticks}, [rdi+rsi+{WITHIN}]
            add [rdi+rcx+{at.RECORD_SELF}], {ticks}
    """)
    if tree:
        emit_in_tree(asm, tree, caller, ticks)
    asm.code(f"""
            lea {caller}, [rsi+{_SIZE}]
            cmp [rdi+rcx+{at.RECORD_OPEN}], {caller}; jne {name}_recursion
            mov qword [rdi+rcx+{at.RECORD_OPEN}], 0
            add [rdi+rcx+{at.RECORD_OUTERMOST}], rdx
        {name}_inner:
    """)


def emit_rare(asm: Assembler, name: str, ticks: str, rest: str, **values: int) -> None:
    """Emit the rare paths of that: no timed call has made it; it was made within another one of the function.

    ``rest`` is code that adds to ``ticks`` what its end has cost until its time was taken, less what it costs in all.
    """
    asm.code(
        f"""
        {name}_root:
            add [rdi+rcx+{at.RECORD_ROOTS}], {ticks}; jmp {name}_charged
        {name}_recursion:
            mov {ticks}, [rdi+{at.BLOCK_COST}]; {rest}
            sub {ticks}, [rdi+rsi+{COST}]; add [rdi+rcx+{at.RECORD_INNER_COST}], {ticks}
            inc qword [rdi+rcx+{at.RECORD_INNER_COUNT}]; jmp {name}_inner
        """,
        **values,
    )


def emit_untimed(asm: Assembler, name: str, free: tuple[str, str]) -> None:
    """Emit: a call is over of which the time is not known, so what it has called was called by its caller."""
    caller, ticks = free
    asm.code(f"""
            mov {ticks}, [rdi+rsi+{WITHIN}]; sub {ticks}, [rdi+rsi+{CHARGED}]
            movsxd {caller}, dword [rdi+rsi+{CALLER}]
            test {caller}, {caller}; jz {name}_rootless
            add [rdi+{caller}+{WITHIN - _SIZE}], {ticks}; jmp {name}_passed_on
        {name}_rootless:
            add [rdi+rcx+{at.RECORD_ROOTS}], {ticks}
        {name}_passed_on:
            lea {caller}, [rsi+{_SIZE}]
            cmp [rdi+rcx+{at.RECORD_OPEN}], {caller}; jne {name}_forgotten
            mov qword [rdi+rcx+{at.RECORD_OPEN}], 0
        {name}_forgotten:
    """)


def emit_handed_over(asm: Assembler, name: str, free: tuple[str, str], *, timed: bool) -> None:
    """Emit: a function's outermost call ends (rdi = block, rsi = its instance, rcx = record) before others of it.

    The first of those, on another stack, is the outermost from here on: to its start the function's time is counted,
    if that of the call is known, and the rest when it ends.
    """
    other, word = free
    asm.code(f"""
            lea {word}, [rsi+{_SIZE}]; cmp [rdi+rcx+{at.RECORD_OPEN}], {word}; jne {name}_handed_over
            mov {other}, rsi
        {name}_hand_over:
            add {other}, {_SIZE}
            mov {word}, [rdi+{at.BLOCK_TOP}]; shl {word}, 6; cmp {other}, {word}; jae {name}_handed_over
            cmp qword [rdi+{other}+{SP}], {TOMBSTONE}; jbe {name}_hand_over
            mov {word}, [rdi+{other}+{RECORD}]; and {word}, -2; cmp {word}, rcx; jne {name}_hand_over
            mov {word}, [rdi+{other}+{UNWOUND}]; cmp {word}, [rdi+{at.BLOCK_UNWOUND}]; jne {name}_hand_over
    """)
    if timed:
        asm.code(f"""
            mov {word}, [rdi+{other}+{START}]; sub {word}, [rdi+rsi+{START}]
            add [rdi+rcx+{at.RECORD_OUTERMOST}], {word}
        """)
    asm.code(f"""
            lea {word}, [{other}+{_SIZE}]; mov [rdi+rcx+{at.RECORD_OPEN}], {word}
        {name}_handed_over:
    """)


def emit_split(asm: Assembler, name: str, now: str | None, free: tuple[str, str, str]) -> None:
    """Emit: a call ends before others that it has made (rdi = block, rsi = its instance); they go on for its caller.

    ``now`` holds the time: what they took until then is within the call's. Where it is ``None`` that is not known.
    """
    other, ticks, word = free
    asm.code(f"""
            mov {other}, [rdi+{at.BLOCK_TOP}]; shl {other}, 6
        {name}_above:
            sub {other}, {_SIZE}; cmp {other}, rsi; jbe {name}_split
            cmp qword [rdi+{other}+{SP}], {TOMBSTONE}; jbe {name}_above
    """)
    if now is not None:
        asm.code(f"""
                mov {ticks}, {now}; sub {ticks}, [rdi+{other}+{START}]
                mov {word}, [rdi+{at.BLOCK_UNWOUND}]
                cmp [rdi+{other}+{UNWOUND}], {word}; jne {name}_unsure
                lea {word}, [rsi+{_SIZE}]
                cmp [rdi+{other}+{CALLER}], {_low(word)}; jne {name}_above
                mov {word}, {ticks}; sub {word}, [rdi+{other}+{CHARGED}]
                mov [rdi+{other}+{CHARGED}], {ticks}
                add [rdi+rsi+{WITHIN}], {word}; jmp {name}_goes_on
            {name}_unsure:
                # it may have been left behind: what it has called counts for its caller, and its own time does not
                mov {word}, [rdi+{other}+{WITHIN}]; sub {word}, [rdi+{other}+{CHARGED}]
                mov [rdi+{other}+{WITHIN}], {ticks}; mov [rdi+{other}+{CHARGED}], {ticks}
                movsxd {ticks}, dword [rdi+{other}+{CALLER}]; test {ticks}, {ticks}; jz {name}_above
                add [rdi+{ticks}+{WITHIN - _SIZE}], {word}
        """)
    asm.code(f"""
            lea {word}, [rsi+{_SIZE}]
            cmp [rdi+{other}+{CALLER}], {_low(word)}; jne {name}_above
        {name}_goes_on:
            mov {_low(word)}, [rdi+rsi+{CALLER}]; mov [rdi+{other}+{CALLER}], {_low(word)}
            jmp {name}_above
        {name}_split:
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


def _settle(asm: Assembler, name: str, outer: int) -> None:
    """Emit: take out what lies from where calls began to be left behind up to r11, as that is on the same stack."""
    sp, other, word, more = "r11", "rax", "r8", "r9"
    asm.code(f"""
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
            add [rdi+{more}+{at.RECORD_ROOTS}], {word}; jmp {name}_passed_down
        {name}_dead_called:
            mov {_low(more)}, [rdi+{other}+{CALLER}]
            add [rdi+{more}+{WITHIN - _SIZE}], {word}
        {name}_passed_down:
            mov {word}, [rdi+{at.BLOCK_TOP}]; shl {word}, 6
        {name}_its_calls:
            sub {word}, {_SIZE}; cmp {word}, {other}; jbe {name}_settle
            lea {more}, [{other}+{_SIZE}]
            cmp [rdi+{word}+{CALLER}], {_low(more)}; jne {name}_its_calls
            mov {_low(more)}, [rdi+{other}+{CALLER}]
            mov [rdi+{word}+{CALLER}], {_low(more)}; jmp {name}_its_calls
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
    """)
    emit_known(asm, name, sp, (word, more), outer)
    asm.label(name + "_settled")
