"""Generated code that makes room on a thread's stack of open calls, once it is full: what was left is dropped.

Where calls are nested, an instance's place in the stack is known in two more places: of its caller to the instances of
the calls that it has made (``INSTANCE_CALLER``), and of a function's outermost call to its record (``RECORD_OPEN``).
Both say where the instance ends, counted from the first one's start. What is dropped hands the calls that it has made,
and their time, to its caller; what moves takes all of its words along, and both are set to where it is then.
"""

from anyprobe.data.layouts import layout as at
from anyprobe.data.layouts.layout import TOMBSTONE, BankLayout
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.stacks import same_stack
from anyprobe.splice.codegen.timing import slow_paths

_SIZE = at.INSTANCE_BYTES
_WORDS = (at.INSTANCE_SP, at.INSTANCE_T0, at.INSTANCE_RECORD, at.INSTANCE_UNWOUND, at.INSTANCE_COST)
"""Words of an instance that are the same wherever it is."""
_NESTED_WORDS = (at.INSTANCE_WITHIN, at.INSTANCE_CHARGED)
"""Words that an instance has besides where calls are nested."""
_PUSHED = 40
"""Bytes on the stack while instances are dropped."""
_PLACE_SHIFT = (_SIZE // at.PLACE_BYTES).bit_length() - 1
"""From where an instance ends to where the word is that says where it moves to."""


def emit_full(
    asm: Assembler, layout: BankLayout, argument: int, site: int, purge: int | str, entered: int, *, timed: bool
) -> None:
    """Emit the overflow path of ``enter``: drop instances that cannot be alive, try once more, else a miss.

    ``purge`` is the routine that does it, 0 where nothing is timed and this never runs. Where calls are nested, and it
    was seen where they began to be left behind, those that were are taken out first. ``entered``: what entries cost;
    ``timed``: what this takes is added to it.
    """
    asm.code(f"""
        enter_full:
            dec qword [rcx+{at.BLOCK_TOP}]
        enter_unreserved:
            cmp dword [rcx+{at.BLOCK_PURGING}], 0; jne enter_missed
    """)
    if layout.nested:
        asm.code(
            f"""
                cmp qword [rcx+{at.BLOCK_LEAVING}], 0; je enter_purge
                lea rax, [rsp+site]; sub rax, [rcx+{at.BLOCK_LEAVING}]
                {same_stack("rax", f"[rcx+{at.BLOCK_LEAVING}]", "rdx", "enter_purge")}
                jz enter_left
            enter_purge:
            """,
            site=site,
        )
    if purge:
        _emit_call(asm, layout, argument, site, purge, timed=timed)
    asm.code(
        f"""
        enter_missed:
            mov rax, [rsp+argument]
            add qword [rcx+{at.BLOCK_COST}], entered; inc qword [rcx+rax+{at.RECORD_MISSED}]
        enter_missed_done:
            jmp enter_done
        """,
        argument=argument,
        entered=entered,
    )


def _emit_call(asm: Assembler, layout: BankLayout, argument: int, site: int, purge: int | str, *, timed: bool) -> None:
    asm.code(
        f"""
            lea rax, [rsp+site]; cmp rax, [rcx+futile]; je enter_futile
            {slow_paths.begun("rcx", asks=layout.on_processors) if timed else ""}
            push rdi; push r8; push r9; push r10; push r11
            lea r10, [rsp+site+{_PUSHED}]; mov rax, [rsp+argument+{_PUSHED}]
            call purge
            pop r11; pop r10; pop r9; pop r8; pop rdi
            {f"mov esi, edx; {slow_paths.over('rcx', asks=layout.on_processors)}; mov edx, esi" if timed else ""}
            test edx, edx; jz enter_block
            lea rax, [rsp+site]; cmp rax, [rcx+futile]; jne enter_missed
        enter_futile:
            mov qword [rcx+futile], 0
        """,
        futile=layout.futile_offset,
        site=site,
        argument=argument,
        purge=purge,
    )


def emit_purge(asm: Assembler, layout: BankLayout, name: str) -> None:
    """Emit ``purge``: drop instances that cannot be alive, if any; edx = 0 if there is room then (rcx = block).

    ``r10`` is the stack pointer of the call that there is to be room for, ``rax`` its record; all other registers that
    ``enter`` has on the stack are overwritten.

    Two live functions never have the same stack pointer at their entry, so an instance with the present one is a
    leftover of a longjmp or an exception, unless another probe at this entry has just pushed it: those are on the top,
    and none has our record. So is one that the same function's entry has followed with the same stack pointer: see
    ``_find_left``. Nothing is ever concluded from other stack pointers: they may lie on other stacks. A zero is an
    instance that code below this signal handler has reserved and not filled yet: then nothing may move. What has left
    by a jump may still be alive, where functions jump to each other and back: it is counted as missed.
    """
    asm.code(
        f"""
        {name}:
            inc dword [rcx+{at.BLOCK_PURGING}]
        {name}_begun:
            lea rdi, [rcx+{at.BLOCK_HEAD_BYTES}]; mov rsi, rdi
            mov edx, maxactive
        {name}_check:
            cmp qword [rsi], 0; je {name}_not
            add rsi, {_SIZE}
            dec edx; jnz {name}_check
        """,
        maxactive=layout.maxactive,
    )
    _find_left(asm, layout, name)
    _move_down(asm, layout, name)
    asm.code(f"""
            mov rdx, rsi; sub rdx, rdi; shr rdx, {_SIZE.bit_length() - 1}
        {name}_zero:
            mov qword [rdi], 0
            add rdi, {_SIZE}
            cmp rdi, rsi; jb {name}_zero
            # not set: code below this signal handler may have reserved one more, and be about to give it back
            sub [rcx+{at.BLOCK_TOP}], rdx
            xor edx, edx; jmp {name}_over
        {name}_not:  # nothing has been moved
            mov edx, 1
            cmp qword [rcx+{layout.futile_offset}], 0; jne {name}_over
            mov [rcx+{layout.futile_offset}], r10
        {name}_over:
            dec dword [rcx+{at.BLOCK_PURGING}]
        {name}_done:
            ret
    """)


def emit_shrink(asm: Assembler, name: str, then: str, top: str = "rsi") -> None:
    """Emit: drop tombstones from the top (rdi = block), then go to a label; rax and ``top`` are overwritten.

    Only tombstones are dropped, never zeros: a zero may be an instance that code below this signal handler has
    reserved and not filled yet. A signal handler that runs in between may drop the same one, so the top is compared
    and lowered by one instruction: what it has lowered is looked at anew.
    """
    asm.code(f"""
    {name}_shrink:
        mov rax, [rdi+{at.BLOCK_TOP}]
        mov {top}, rax; sub {top}, 1; js {name}_{then}
        shl {top}, 6
        cmp qword [rdi+{top}+{at.SP}], {TOMBSTONE}; jne {name}_{then}
        mov qword [rdi+{top}+{at.SP}], 0
        shr {top}, 6
        cmpxchg [rdi+{at.BLOCK_TOP}], {top}; jmp {name}_shrink
    """)


def _find_left(asm: Assembler, layout: BankLayout, name: str) -> None:
    """Emit: make tombstones of what cannot be alive, the last instance first (rcx = block, rsi = where they end).

    ``rdi`` is the first instance, ``r10`` our stack pointer and ``rax`` our record. Besides instances with our stack
    pointer these are such as a later one of the same function has the stack pointer of. What has left by a jump may be
    alive, and so may a call with a replaced return address: its jump to its own entry is not seen. The last instance
    of each kind is found by a word that each instance has to spare: what it says is looked at, so it may be outdated
    or another's.
    """
    word = f"rcx+r8+{layout.places_offset + at.PLACE_BYTES}" if layout.nested else f"rdi+r8+{at.INSTANCE_LATER}"
    size = at.PLACE_BYTES if layout.nested else _SIZE
    asm.code(f"""
            mov r11, rsi
        {name}_top:
            cmp [r11-{_SIZE}], r10; jne {name}_find
            mov r8, [r11-{_SIZE - at.INSTANCE_RECORD}]; and r8, -2
            cmp r8, rax; je {name}_find
            sub r11, {_SIZE}
            cmp r11, rdi; ja {name}_top
        {name}_find:
            sub rsi, {_SIZE}
            mov r8, [rsi]; cmp r8, {TOMBSTONE}; jbe {name}_found
            {f"cmp r8, {at.RESUMED}; je {name}_resumed" if layout.nested else ""}
            mov rdx, [rsi+{at.INSTANCE_RECORD}]; and rdx, -2
            cmp rsi, r11; jae {name}_later
            cmp r8, r10; je {name}_drop
    """)
    asm.code(
        f"""
        {name}_later:
            xor r8d, edx; imul r8d, r8d, {at.GOLDEN_32}
            imul r8, r8, maxactive; shr r8, 32; shl r8, {size.bit_length() - 1}
            mov eax, [{word}]; lea rax, [rdi+rax-{_SIZE}]
            cmp rax, rsi; jbe {name}_last
            mov r9, [rax]; cmp r9, [rsi]; jne {name}_last
            mov r9, [rax+{at.INSTANCE_RECORD}]; and r9, -2
            cmp r9, rdx; jne {name}_last
            cmp rdx, [rsi+{at.INSTANCE_RECORD}]; jne {name}_found
            cmp qword [rcx+rdx+{at.RECORD_REPLACED}], 0; jne {name}_found
        {name}_drop:
            mov qword [rsi], {TOMBSTONE}
            test byte [rsi+{at.INSTANCE_RECORD}], {at.JUMPED}; jz {name}_left
            inc qword [rcx+rdx+{at.RECORD_MISSED}]
            dec qword [rcx+rdx+{at.RECORD_JUMPED}]; jmp {name}_dropped
        {name}_left:
            inc qword [rcx+rdx+{at.RECORD_LEFT}]
        {name}_dropped:
        """,
        maxactive=layout.maxactive,
    )
    if layout.nested:
        _hand_on(asm, name, layout)
    if layout.nested:
        asm.code(f"""
            jmp {name}_found
        {name}_resumed:  # of the calls under the switch none may be left
            cmp dword [rsi+{at.INSTANCE_CALLER}], 0; jne {name}_found
            mov qword [rsi], {TOMBSTONE}
        """)
    asm.code(f"""
            jmp {name}_found
        {name}_last:
            lea rax, [rsi+{_SIZE}]; sub rax, rdi; mov [{word}], eax
        {name}_found:
            cmp rsi, rdi; ja {name}_find
    """)


def _hand_on(asm: Assembler, name: str, layout: BankLayout) -> None:
    """Emit: what the instance rsi of the record rdx has called, its caller has; the calls' own words follow later.

    An instance lies above that of its caller, and instances are dropped from the top down: so when one is dropped, its
    caller's is still there.
    """
    asm.code(
        f"""
            lea rax, [rsi+{_SIZE}]; sub rax, rdi
            cmp [rcx+rdx+{at.RECORD_OPEN}], rax; jne {name}_not_open
            mov qword [rcx+rdx+{at.RECORD_OPEN}], 0
        {name}_not_open:
            mov r8, [rsi+{at.INSTANCE_WITHIN}]; sub r8, [rsi+{at.INSTANCE_CHARGED}]
            mov eax, [rsi+{at.INSTANCE_CALLER}]; test rax, rax; jz {name}_root
            add [rdi+rax+{at.INSTANCE_WITHIN - _SIZE}], r8; jmp {name}_found
        {name}_root:
            add [rcx+rdx+{at.RECORD_ROOTS}], r8; add [rcx+roots], r8
        """,
        roots=layout.offset_of(at.SWITCHES) + at.RECORD_ROOTS,
    )


def _move_down(asm: Assembler, layout: BankLayout, name: str) -> None:
    """Emit: all that is not a tombstone moves to the start (rdi); ``rsi`` = where instances ended, ``rdi`` = they do.

    Where nothing is a tombstone it goes to the label ``not``.
    """
    nested, places = layout.nested, layout.places_offset
    own = f"lea rax, [rsi+{_SIZE}]; sub rax, rdi" if nested else ""
    asm.code(
        f"""
            mov rsi, rdi; mov edx, maxactive
        {name}_whole:
            cmp qword [rsi], {TOMBSTONE}; je {name}_begin
            {f"{own}; mov r8, rax; shr r8, {_PLACE_SHIFT}; mov [rcx+r8+{places}], eax" if nested else ""}
            add rsi, {_SIZE}
            dec edx; jnz {name}_whole
            jmp {name}_not
        {name}_begin:
            {"mov r10, rdi" if nested else ""}
            mov rdi, rsi
        """,
        maxactive=layout.maxactive,
    )
    asm.label(f"{name}_next")
    if nested:
        asm.code(f"""
            lea rax, [rsi+{_SIZE}]; sub rax, r10
            mov r8d, [rsi+{at.INSTANCE_CALLER}]; shr r8, {_PLACE_SHIFT}; mov r8d, [rcx+r8+{places}]
            cmp qword [rsi], {TOMBSTONE}; je {name}_gone
            lea r9, [rdi+{_SIZE}]; sub r9, r10
            mov [rdi+{at.INSTANCE_CALLER}], r8d
            mov r8d, [rsi+{at.INSTANCE_NODE}]; mov [rdi+{at.INSTANCE_NODE}], r8d
            mov r8, [rsi+{at.INSTANCE_RECORD}]; and r8, -2
            cmp [rcx+r8+{at.RECORD_OPEN}], rax; jne {name}_place
            mov [rcx+r8+{at.RECORD_OPEN}], r9
        {name}_place:
            shr rax, {_PLACE_SHIFT}; mov [rcx+rax+{places}], r9d
        """)
    else:
        asm.code(f"cmp qword [rsi], {TOMBSTONE}; je {name}_skip")
    for word in (*_WORDS, *(_NESTED_WORDS if nested else ())):
        asm.code(f"mov r8, [rsi+{word}]; mov [rdi+{word}], r8")
    asm.code(f"add rdi, {_SIZE}")
    if nested:
        asm.code(f"""
            jmp {name}_skip
        {name}_gone:  # what it has called is where its caller is
            shr rax, {_PLACE_SHIFT}; mov [rcx+rax+{places}], r8d
        """)
    asm.code(f"""
        {name}_skip:
            add rsi, {_SIZE}
            dec edx; jnz {name}_next
    """)
