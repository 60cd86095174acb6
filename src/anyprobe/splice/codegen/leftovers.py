"""Generated code that makes room on a thread's stack of open calls, once it is full: what was left is dropped.

Where calls are nested, an instance's place in the stack is known in two more places: of its caller to the instances of
the calls that it has made (``INSTANCE_CALLER``), and of a function's outermost call to its record (``RECORD_OPEN``).
Both say where the instance ends, counted from the first one's start. What is dropped hands the calls that it has made,
and their time, to its caller; what moves takes all of its words along, and both are set to where it is then.
"""

from anyprobe.data import layout as at
from anyprobe.data.layout import TOMBSTONE, BankLayout
from anyprobe.isa.assemble import Assembler

_SIZE = at.INSTANCE_BYTES
_WORDS = (at.INSTANCE_SP, at.INSTANCE_T0, at.INSTANCE_RECORD, at.INSTANCE_UNWOUND)
"""Words of an instance that are the same wherever it is."""
_NESTED_WORDS = (at.INSTANCE_WITHIN, at.INSTANCE_CHARGED, at.INSTANCE_NODE)
"""Those that it has besides where calls are nested."""
_PUSHED = 40
"""Bytes on the stack while instances are dropped."""
_PLACE_SHIFT = (_SIZE // at.PLACE_BYTES).bit_length() - 1
"""From where an instance ends to where the word is that says where it moves to."""


def emit_full(asm: Assembler, layout: BankLayout, argument: int, site: int) -> None:
    """Emit the overflow path of ``enter``: drop instances that cannot be alive, try once more, else a miss.

    Two live functions never have the same stack pointer at their entry, so an instance with ours is a leftover of a
    longjmp or an exception, unless another probe at this entry has just pushed it: those are on the top, and none has
    our record. So is one that the same function's entry has followed with the same stack pointer: see ``_find_left``.
    Nothing is ever concluded from other stack pointers, which may lie on other stacks, but where calls are nested and
    it was seen where they began to be left behind. A zero is an instance that code below this signal handler has
    reserved and not filled yet: then nothing may move. What has left by a jump may still be alive, where functions
    jump to each other and back: it is counted as missed.
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
                lea rax, [rsp+site]; cmp rax, [rcx+{at.BLOCK_LEAVING}]; jae enter_left
            enter_purge:
            """,
            site=site,
        )
    asm.code(
        f"""
            inc dword [rcx+{at.BLOCK_PURGING}]
        enter_purging:
            push rdi; push r8; push r9; push r10; push r11
            lea rdi, [rcx+{at.BLOCK_HEAD_BYTES}]; mov rsi, rdi
            mov edx, maxactive
        purge_check:
            cmp qword [rsi], 0; je purge_not
            add rsi, {_SIZE}
            dec edx; jnz purge_check
            lea r10, [rsp+site]; mov rax, [rsp+argument]
        """,
        maxactive=layout.maxactive,
        site=site + _PUSHED,
        argument=argument + _PUSHED,
    )
    _find_left(asm, layout)
    _move_down(asm, layout)
    asm.code(
        f"""
            mov rdx, rdi; sub rdx, rcx; sub rdx, {at.BLOCK_HEAD_BYTES}; shr rdx, {_SIZE.bit_length() - 1}
        purge_zero:
            mov qword [rdi], 0
            add rdi, {_SIZE}
            cmp rdi, rsi; jb purge_zero
            mov [rcx+{at.BLOCK_TOP}], rdx
            pop r11; pop r10; pop r9; pop r8; pop rdi
            dec dword [rcx+{at.BLOCK_PURGING}]
        enter_purged:
            jmp enter_block
        purge_not:  # nothing has been moved
            pop r11; pop r10; pop r9; pop r8; pop rdi
            dec dword [rcx+{at.BLOCK_PURGING}]
        enter_missed:
            mov rax, [rsp+argument]
            inc qword [rcx+rax+{at.RECORD_MISSED}]
        enter_missed_done:
            jmp enter_done
        """,
        argument=argument,
    )


def _find_left(asm: Assembler, layout: BankLayout) -> None:
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
        purge_top:
            cmp [r11-{_SIZE}], r10; jne purge_find
            mov r8, [r11-{_SIZE - at.INSTANCE_RECORD}]; and r8, -2
            cmp r8, rax; je purge_find
            sub r11, {_SIZE}
            cmp r11, rdi; ja purge_top
        purge_find:
            sub rsi, {_SIZE}
            mov r8, [rsi]; cmp r8, {TOMBSTONE}; jbe purge_found
            mov rdx, [rsi+{at.INSTANCE_RECORD}]; and rdx, -2
            cmp rsi, r11; jae purge_later
            cmp r8, r10; je purge_drop
    """)
    asm.code(
        f"""
        purge_later:
            xor r8d, edx; imul r8d, r8d, {at.GOLDEN_32}
            imul r8, r8, maxactive; shr r8, 32; shl r8, {size.bit_length() - 1}
            mov eax, [{word}]; lea rax, [rdi+rax-{_SIZE}]
            cmp rax, rsi; jbe purge_last
            mov r9, [rax]; cmp r9, [rsi]; jne purge_last
            mov r9, [rax+{at.INSTANCE_RECORD}]; and r9, -2
            cmp r9, rdx; jne purge_last
            cmp rdx, [rsi+{at.INSTANCE_RECORD}]; jne purge_found
            cmp qword [rcx+rdx+{at.RECORD_REPLACED}], 0; jne purge_found
        purge_drop:
            mov qword [rsi], {TOMBSTONE}
            test byte [rsi+{at.INSTANCE_RECORD}], {at.JUMPED}; jz purge_left
            inc qword [rcx+rdx+{at.RECORD_MISSED}]
            dec qword [rcx+rdx+{at.RECORD_JUMPED}]; jmp purge_dropped
        purge_left:
            inc qword [rcx+rdx+{at.RECORD_LEFT}]
        purge_dropped:
        """,
        maxactive=layout.maxactive,
    )
    if layout.nested:
        _hand_on(asm)
    asm.code(f"""
            jmp purge_found
        purge_last:
            lea rax, [rsi+{_SIZE}]; sub rax, rdi; mov [{word}], eax
        purge_found:
            cmp rsi, rdi; ja purge_find
    """)


def _hand_on(asm: Assembler) -> None:
    """Emit: what the instance rsi of the record rdx has called, its caller has; the calls' own words follow later.

    Callers are below what they have called, and what is dropped is dropped from the top: so whoever is the caller of
    an instance is not gone yet.
    """
    asm.code(f"""
            lea rax, [rsi+{_SIZE}]; sub rax, rdi
            cmp [rcx+rdx+{at.RECORD_OPEN}], rax; jne purge_not_open
            mov qword [rcx+rdx+{at.RECORD_OPEN}], 0
        purge_not_open:
            mov r8, [rsi+{at.INSTANCE_WITHIN}]; sub r8, [rsi+{at.INSTANCE_CHARGED}]
            mov rax, [rsi+{at.INSTANCE_CALLER}]; test rax, rax; jz purge_root
            add [rdi+rax+{at.INSTANCE_WITHIN - _SIZE}], r8; jmp purge_found
        purge_root:
            add [rcx+rdx+{at.RECORD_ROOTS}], r8
    """)


def _move_down(asm: Assembler, layout: BankLayout) -> None:
    """Emit: all that is not a tombstone moves to the start (rdi); ``rsi`` = where instances ended, ``rdi`` = they do.

    Where nothing is a tombstone it goes to ``purge_not``.
    """
    nested, places = layout.nested, layout.places_offset
    own = f"lea rax, [rsi+{_SIZE}]; sub rax, rdi" if nested else ""
    asm.code(
        f"""
            mov rsi, rdi; mov edx, maxactive
        purge_whole:
            cmp qword [rsi], {TOMBSTONE}; je purge_begin
            {f"{own}; mov r8, rax; shr r8, {_PLACE_SHIFT}; mov [rcx+r8+{places}], eax" if nested else ""}
            add rsi, {_SIZE}
            dec edx; jnz purge_whole
            jmp purge_not
        purge_begin:
            {"mov r10, rdi" if nested else ""}
            mov rdi, rsi
        """,
        maxactive=layout.maxactive,
    )
    asm.code("purge_next:")
    if nested:
        asm.code(f"""
            lea rax, [rsi+{_SIZE}]; sub rax, r10
            mov r8, [rsi+{at.INSTANCE_CALLER}]; shr r8, {_PLACE_SHIFT}; mov r8d, [rcx+r8+{places}]
            cmp qword [rsi], {TOMBSTONE}; je purge_gone
            lea r9, [rdi+{_SIZE}]; sub r9, r10
            mov [rdi+{at.INSTANCE_CALLER}], r8
            mov r8, [rsi+{at.INSTANCE_RECORD}]; and r8, -2
            cmp [rcx+r8+{at.RECORD_OPEN}], rax; jne purge_place
            mov [rcx+r8+{at.RECORD_OPEN}], r9
        purge_place:
            shr rax, {_PLACE_SHIFT}; mov [rcx+rax+{places}], r9d
        """)
    else:
        asm.code(f"cmp qword [rsi], {TOMBSTONE}; je purge_skip")
    for word in (*_WORDS, *(_NESTED_WORDS if nested else ())):
        asm.code(f"mov r8, [rsi+{word}]; mov [rdi+{word}], r8")
    asm.code(f"add rdi, {_SIZE}")
    if nested:
        asm.code(f"""
            jmp purge_skip
        purge_gone:  # what it has called is where its caller is
            shr rax, {_PLACE_SHIFT}; mov [rcx+rax+{places}], r8d
        """)
    asm.code(f"""
        purge_skip:
            add rsi, {_SIZE}
            dec edx; jnz purge_next
    """)
