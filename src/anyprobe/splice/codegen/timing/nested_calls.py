"""Parts of the generated routines by which it is known of timed calls which others they have made.

Each open call has a word for the ticks that calls took which it has made itself. A call that ends adds its time to that
word of its caller's, and what is left of its own time is its *self time*. So the self times of all calls and the times
of calls without a timed caller have the same sum, to the tick.

Not all calls end in the order in which they began. What an exception or ``longjmp`` has left behind never ends: all of
it lies between the stack pointers where the unwinding began and where the program has gone on, and is taken out there;
what it has called then belongs to its caller (``left_calls``). Where a thread changes to another stack, calls wait
(``switches``). If that is not seen, calls on other stacks go on where their caller ends: they are charged to it for the
time until then.
"""

from anyprobe.data.layouts import layout as at
from anyprobe.data.layouts.layout import (
    CALLER,
    CHARGED,
    COST,
    NODE,
    RECORD,
    RESUMED,
    SP,
    START,
    SWITCHES,
    TOMBSTONE,
    UNWOUND,
    WITHIN,
    BankLayout,
)
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.stacks import same_stack

_SIZE = at.INSTANCE_BYTES


def low(register: str) -> str:
    """Return the lower half of a register."""
    return f"{register}d" if register[1].isdigit() else f"e{register[1:]}"


def emit_entered(asm: Assembler, argument: int, site: int, keys: int, layout: BankLayout) -> None:
    """Emit, for ``enter``: say who has made the call (rcx = block, rsi = its instance), and if it is the outermost.

    ``keys`` is where the keys of the call tree's nodes are, if there are any. Clobbers rax, rdx.
    """
    switches = layout.offset_of(SWITCHES)
    asm.code(
        f"""
            cmp qword [rcx+{at.BLOCK_LEAVING}], 0; jne enter_leaving
        enter_current:
            mov rax, [rcx+{at.BLOCK_UNWOUND}]; mov [rcx+rsi+{UNWOUND}], rax
            xor eax, eax; mov [rcx+rsi+{WITHIN}], rax; mov [rcx+rsi+{CHARGED}], rax
            mov rdx, rsi; test esi, esi; jz enter_caller
            cmp dword [rcx+rsi+{RECORD - _SIZE}], switches; je enter_switched
            lea rax, [rsp+site]
            cmp [rcx+rsi+{SP - _SIZE}], rax; jbe enter_seek
        enter_caller:
            mov [rcx+rsi+{CALLER}], edx
        """,
        site=site,
        switches=switches,
    )
    if layout.nodes:
        _find_node(asm, argument, keys, layout)
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


def _find_node(asm: Assembler, argument: int, keys: int, layout: BankLayout) -> None:
    """Emit: find the node of a call (rdx = its caller), or make it: one of those with its caller's for each function.

    A key is written once. Threads that make one at the same time see the other's.
    """
    nodes = layout.nodes
    asm.code(
        f"""
            push rdi; push r8
            xor edi, edi; cmp dword [rsp+argument+16], switches; je enter_node
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
        switches=layout.offset_of(SWITCHES),
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


def emit_entering(asm: Assembler, argument: int, site: int, settle: int | str, layout: BankLayout) -> None:
    """Emit the rare paths of that: an instance is reserved at ``enter_leaving``, ``enter_seek`` and ``enter_open``.

    Above a switch there is no call of this stack: its caller is the one under the switch that has ended last, by which
    the thread has come here; or none, if it was not seen where the thread has gone (a signal handler has come in).
    """
    switches = layout.offset_of(SWITCHES)
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
            test byte [rcx+rdx+{RECORD - _SIZE}], {at.JUMPED}; jz enter_same
        enter_elsewhere:
            mov rax, [rcx+rdx+{UNWOUND - _SIZE}]; cmp rax, [rcx+{at.BLOCK_UNWOUND}]; je enter_caller
        enter_further:
            sub rdx, {_SIZE}; jz enter_caller
            cmp dword [rcx+rdx+{RECORD - _SIZE}], switches; je enter_switched
            lea rax, [rsp+site]; cmp [rcx+rdx+{SP - _SIZE}], rax; jmp enter_seek
        enter_same:  # over, or left behind; or the function that changes stacks is timed, and has just been called
            cmp rdx, rsi; jne enter_further
            cmp dword [rsp+argument], switches; je enter_caller
            jmp enter_further
        enter_switched:
            cmp qword [rcx+rdx+{SP - _SIZE}], {TOMBSTONE}; jbe enter_further
            cmp qword [rcx+rdx+{WITHIN - _SIZE}], 0; je enter_alone
            mov rax, [rcx+running]; test rax, rax; jz enter_unseen
            cmp qword [rcx+rax+{SP - _SIZE}], {RESUMED}; jne enter_unseen
            cmp dword [rcx+rax+{RECORD - _SIZE}], switches; jne enter_unseen
            mov edx, [rcx+rax+{CALLER - _SIZE}]; jmp enter_caller
        enter_unseen:  # where the call lies on the stack that waits, that has been gone on with
            lea rax, [rsp+site]; cmp rax, [rcx+rdx+{SP - _SIZE}]; jb enter_alone
            mov eax, [rcx+rdx+{CALLER - _SIZE}]; test eax, eax; jz enter_alone
            mov rax, [rcx+rax+{SP - _SIZE}]; sub rax, site; cmp rax, rsp; jbe enter_alone
            mov qword [rcx+rdx+{SP - _SIZE}], {TOMBSTONE}; jmp enter_further
        enter_alone:
            xor edx, edx; jmp enter_caller
        enter_open:
            cmp rdx, switches; je enter_nested
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
        switches=switches,
        running=switches + at.RECORD_OPEN,
    )


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


def roots_of(layout: BankLayout) -> int:
    """Return where the sum of ``RECORD_ROOTS`` of all records is, in a block of nested calls."""
    return layout.offset_of(SWITCHES) + at.RECORD_ROOTS


def emit_rare(asm: Assembler, name: str, ticks: str, rest: str, layout: BankLayout, **values: int) -> None:
    """Emit the rare paths of that: no timed call has made it; it was made within another one of the function.

    ``rest`` is code that adds to ``ticks`` what its end has cost until its time was taken, less what it costs in all.
    """
    asm.code(
        f"""
        {name}_root:
            add [rdi+rcx+{at.RECORD_ROOTS}], {ticks}; add [rdi+roots], {ticks}; jmp {name}_charged
        {name}_recursion:
            mov {ticks}, [rdi+{at.BLOCK_COST}]; {rest}
            sub {ticks}, [rdi+rsi+{COST}]; add [rdi+rcx+{at.RECORD_INNER_COST}], {ticks}
            inc qword [rdi+rcx+{at.RECORD_INNER_COUNT}]; jmp {name}_inner
        """,
        roots=roots_of(layout),
        **values,
    )


def emit_untimed(asm: Assembler, name: str, free: tuple[str, str], layout: BankLayout) -> None:
    """Emit: a call is over of which the time is not known, so what it has called was called by its caller."""
    caller, ticks = free
    asm.code(
        f"""
            mov {ticks}, [rdi+rsi+{WITHIN}]; sub {ticks}, [rdi+rsi+{CHARGED}]
            movsxd {caller}, dword [rdi+rsi+{CALLER}]
            test {caller}, {caller}; jz {name}_rootless
            add [rdi+{caller}+{WITHIN - _SIZE}], {ticks}; jmp {name}_passed_on
        {name}_rootless:
            add [rdi+rcx+{at.RECORD_ROOTS}], {ticks}; add [rdi+roots], {ticks}
        {name}_passed_on:
            lea {caller}, [rsi+{_SIZE}]
            cmp [rdi+rcx+{at.RECORD_OPEN}], {caller}; jne {name}_forgotten
            mov qword [rdi+rcx+{at.RECORD_OPEN}], 0
        {name}_forgotten:
        """,
        roots=roots_of(layout),
    )


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


def emit_split(asm: Assembler, name: str, now: str | None, free: tuple[str, str, str], layout: BankLayout) -> None:
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
        asm.code(
            f"""
                cmp dword [rdi+{other}+{RECORD}], switches; je {name}_goes_with
                mov {ticks}, {now}; sub {ticks}, [rdi+{other}+{START}]
                mov {word}, [rdi+{at.BLOCK_UNWOUND}]
                cmp [rdi+{other}+{UNWOUND}], {word}; jne {name}_unsure
                lea {word}, [rsi+{_SIZE}]
                cmp [rdi+{other}+{CALLER}], {low(word)}; jne {name}_above
                mov {word}, {ticks}; sub {word}, [rdi+{other}+{CHARGED}]
                mov [rdi+{other}+{CHARGED}], {ticks}
                add [rdi+rsi+{WITHIN}], {word}; jmp {name}_goes_on
            {name}_unsure:
                # it may have been left behind: what it has called counts for its caller, and its own time does not
                mov {word}, [rdi+{other}+{WITHIN}]; sub {word}, [rdi+{other}+{CHARGED}]
                mov [rdi+{other}+{WITHIN}], {ticks}; mov [rdi+{other}+{CHARGED}], {ticks}
                movsxd {ticks}, dword [rdi+{other}+{CALLER}]; test {ticks}, {ticks}; jz {name}_above
                add [rdi+{ticks}+{WITHIN - _SIZE}], {word}
            {name}_goes_with:
            """,
            switches=layout.offset_of(SWITCHES),
        )
    asm.code(
        f"""
            lea {word}, [rsi+{_SIZE}]
            cmp [rdi+{other}+{CALLER}], {low(word)}; jne {name}_above
            cmp dword [rdi+{other}+{RECORD}], switches; jne {name}_goes_on
            cmp qword [rdi+{other}+{SP}], {RESUMED}; jbe {name}_goes_on
            mov qword [rdi+{other}+{SP}], {TOMBSTONE}; jmp {name}_above  # its stack has been gone on with, unseen
        {name}_goes_on:
            mov {low(word)}, [rdi+rsi+{CALLER}]; mov [rdi+{other}+{CALLER}], {low(word)}
            jmp {name}_above
        {name}_split:
        """,
        switches=layout.offset_of(SWITCHES),
    )
