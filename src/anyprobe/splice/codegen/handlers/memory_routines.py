"""Generated routines by which handlers read and write the program's memory without ever faulting.

What a thread has on its own stack is copied: it cannot go away while the thread runs on it. Everything else takes a
system call: ``process_vm_readv`` on the process itself answers a bad address with an error, whatever the program does
about signals, and in whatever process it runs. An exception table would need SIGSEGV and SIGBUS to be anyprobe's and
unblocked in every thread at every read, a child of ``posix_spawn`` included, which can be proven of no program that may
set signal actions.

Handlers call these with ``rdi``, ``rsi`` and ``rdx`` as arguments; all registers but ``rax`` and ``r11`` are preserved.
Where a filter may punish system calls, only the stack is read.
"""

import errno
from dataclasses import dataclass

from anyprobe.data.layouts.guarded import COUNT, RANGES
from anyprobe.data.layouts.guarded import UNKNOWN as UNKNOWN_RANGES
from anyprobe.isa.assemble import Assembler

NAMES = frozenset({"read", "read_text", "write"})
_MINCORE, _GETPID, _READV, _WRITEV = 27, 39, 310, 311
_SELF = 0x10
"""Where glibc's thread control block has its own address."""


@dataclass(frozen=True, slots=True)
class ReadingFacts:
    """What is known of the memory of the process that handlers read."""

    system_calls: bool = True
    """Whether system calls may be made."""
    pid: int = 0
    """The process's id as it is seen inside, for threads whose block is open; 0: it is asked for each time."""
    slot: int = 0
    gate: int = 0
    """Where the thread's block is, and whether it is open: in a fork child only once it has blocks of its own. Without
    a gate no fork child goes on, as in Go."""
    forked: int = 0
    """Where a fork child that has blocks of its own has its id, and its parent 0; 0: no child has any."""
    stack_block: int = 0
    """Offset in the thread control block of the stack's lowest address, after which its size is; 0: not known."""
    main_stack: range = range(0)
    """Where the main thread's stack may be, and nothing else."""
    closed: int = 0
    """Where it is said that no system calls may be made any more; 0: nowhere."""
    guard: int = 0
    """Where it is said which memory must not be faulted in (``data.layouts.guarded``); 0: nowhere."""


UNKNOWN = ReadingFacts()
"""Nothing is known: everything but the stack pointer's page takes two system calls."""


def emit_memory_routines(asm: Assembler, names: frozenset[str], facts: ReadingFacts) -> None:
    """Emit the routines of some names, with a label for each."""
    if names & {"read", "read_text"}:
        _read(asm, facts)
    if "read_text" in names:
        _read_text(asm)
    if "write" in names:
        asm.label("write")
        _transfer(asm, "write", _WRITEV, facts)


def _read(asm: Assembler, facts: ReadingFacts) -> None:
    """Emit ``read(to, from, size)``: 0 if all bytes were read."""
    asm.code("""
    read:
        lea rax, [rsi+rdx]; cmp rax, rsi; jb read_asks
        cmp rsi, rsp; jb read_asks
    """)
    if facts.main_stack:
        _end_of_main_stack(asm, facts.main_stack)
    if facts.stack_block:
        _end_of_stack(asm, facts.stack_block)
    if facts.main_stack or facts.stack_block:
        asm.code("""
        read_bound:
            cmp rax, r11; jbe read_copies
        read_page:
        """)
    # the page of the stack pointer is there in any case
    asm.code("""
        mov r11, rsp; or r11, 0xfff
        cmp rax, r11; ja read_asks
    read_copies:
        push rcx; xor eax, eax
    read_words:
        lea r11, [rax+8]; cmp r11, rdx; ja read_bytes
        mov rcx, [rsi+rax]; mov [rdi+rax], rcx; mov rax, r11
        jmp read_words
    read_bytes:
        cmp rax, rdx; jae read_done
        mov cl, [rsi+rax]; mov [rdi+rax], cl; inc rax; jmp read_bytes
    read_done:
        xor eax, eax; pop rcx; ret
    read_asks:
    """)
    _transfer(asm, "read", _READV, facts)


def _end_of_main_stack(asm: Assembler, stack: range) -> None:
    """Emit: r11 = the end of the main thread's stack, and jump to ``read_bound``; on another stack, fall through."""
    asm.code(
        """
            mov r11, start; cmp rsp, r11; jb read_elsewhere
            mov r11, end; cmp rsp, r11; jb read_bound
        read_elsewhere:
        """,
        start=stack.start,
        end=stack.stop,
    )


def _end_of_stack(asm: Assembler, block: int) -> None:
    """Emit: r11 = the end of the stack that the thread runs on; to ``read_page`` if it runs on another one.

    glibc keeps a thread's control block on the thread's stack, so both the stack pointer and the block's address lie
    between the bounds that the block has. Those of the main thread are others.
    """
    asm.code(
        f"""
            mov r11, fs:[stack_block]
            test r11, r11; jz read_page
            cmp rsp, r11; jb read_page
            cmp fs:[{_SELF}], r11; jb read_page
            add r11, fs:[stack_block+8]
            cmp fs:[{_SELF}], r11; jae read_page
            cmp rsp, r11; jae read_page
        """,
        stack_block=block,
    )


def _transfer(asm: Assembler, name: str, number: int, facts: ReadingFacts) -> None:
    """Emit the system call for ``read(to, from, size)`` or ``write(to, from, size)``: 0 if all bytes were moved.

    A fork child has another id than the process that handlers were made for: its own blocks say which. A child that
    shares the memory has another one, too, and may not be permitted to read what it takes to be its parent's: it asks
    again.
    """
    if not facts.system_calls:
        asm.code("mov rax, -1; ret")
        return
    emit_unless_closed(asm, name, facts)
    if facts.guard:
        asm.code(f"mov rax, guard; cmp dword [rax], 0; jne {name}_guarded", guard=facts.guard)
        asm.label(name + "_permitted")
    asm.code("push rcx; push rdi; push rsi; push rdx; push r8; push r9; push r10")
    if name == "read":
        asm.code("push rdx; push rsi; push rdx; push rdi")
    else:
        asm.code("push rdx; push rdi; push rdx; push rsi")
    if facts.pid and not facts.gate:
        asm.code(f"mov edi, pid; jmp {name}_known", pid=facts.pid)
    elif facts.pid:
        child = f"mov rdi, forked; mov edi, [rdi]; test edi, edi; jnz {name}_known" if facts.forked else ""
        asm.code(
            f"""
                mov rax, fs:[slot]; mov r11, gate; test [r11], rax; jz {name}_unknown
                {child}
                mov edi, pid; jmp {name}_known
            {name}_unknown:
            """,
            slot=facts.slot,
            gate=facts.gate,
            pid=facts.pid,
            forked=facts.forked,
        )
    asm.code(
        f"""
            mov eax, {_GETPID}; syscall; mov edi, eax
        {name}_known:
            mov rsi, rsp; mov edx, 1
            lea r10, [rsp+16]; mov r8d, 1; xor r9d, r9d
            mov eax, number; syscall
        """,
        number=number,
    )
    if facts.pid:
        _ask_again(asm, name)
    asm.code("""
        cmp rax, [rsp+8]; setne al; movzx eax, al
        lea rsp, [rsp+32]; pop r10; pop r9; pop r8
        pop rdx; pop rsi; pop rdi; pop rcx; ret
    """)
    if facts.guard:
        _ask_before(asm, name)


def _ask_before(asm: Assembler, name: str) -> None:
    """Emit: go on only if nothing is faulted in that this very thread may have to serve.

    That is what is resident, as ``mincore`` says, and lies in none of the ranges where that says nothing.
    """
    asm.code(
        f"""
        {name}_guarded:
            cmp dword [rax], {UNKNOWN_RANGES}; je {name}_unknown_yet
            push rdi; push rsi; push rdx; push rcx; push r8; push r9; push r10
            mov r8, {"rsi" if name == "read" else "rdi"}
            lea r9, [r8+rdx]
            mov r10, [rax+{COUNT}]; add rax, {RANGES}
        {name}_range:
            test r10, r10; jz {name}_beyond
            cmp r9, [rax]; jbe {name}_beside
            cmp r8, [rax+8]; jb {name}_refused
        {name}_beside:
            add rax, 16; dec r10; jmp {name}_range
        {name}_beyond:
            mov rdi, r8; and rdi, -4096
            push rax; mov rdx, rsp
        {name}_residence:
            cmp rdi, r9; jae {name}_resident
            mov esi, 4096; mov eax, {_MINCORE}; syscall
            test rax, rax; jnz {name}_absent
            test byte [rdx], 1; jz {name}_absent
            add rdi, 4096; jmp {name}_residence
        {name}_absent:
            lea rsp, [rsp+8]
        {name}_refused:
            or rax, -1
            pop r10; pop r9; pop r8; pop rcx; pop rdx; pop rsi; pop rdi; ret
        {name}_resident:
            lea rsp, [rsp+8]
            pop r10; pop r9; pop r8; pop rcx; pop rdx; pop rsi; pop rdi
            jmp {name}_permitted
        {name}_unknown_yet:
            or rax, -1; ret
        """
    )


def emit_unless_closed(asm: Assembler, name: str, facts: ReadingFacts) -> None:
    """Emit: return -1 if no system calls may be made any more."""
    if facts.closed:
        asm.code(
            f"""
                mov rax, closed; cmp dword [rax], 0; je {name}_open
                or rax, -1; ret
            {name}_open:
            """,
            closed=facts.closed,
        )


def _ask_again(asm: Assembler, name: str) -> None:
    """Emit: where the known process is not permitted, or gone, once more for the process that this is."""
    asm.code(
        f"""
            cmp rax, {-errno.EPERM}; je {name}_again
            cmp rax, {-errno.ESRCH}; jne {name}_over
        {name}_again:
            mov eax, {_GETPID}; syscall
            cmp edi, eax; mov edi, eax; jne {name}_known
            or rax, -1
        {name}_over:
        """,
    )


def _read_text(asm: Assembler) -> None:
    """Emit ``read_text(to, from, limit)``: the length up to the NUL, -1 if it could not be read so far.

    What is after the page is read only if the text does not end before. After the text are zeros.
    """
    asm.code("""
    read_text:
        push rcx; push rdi; push rsi; push rdx
        mov ecx, esi; and ecx, 0xfff; mov eax, 0x1000; sub eax, ecx
        cmp rdx, rax; cmova rdx, rax; push rdx
        call read
        test eax, eax; jnz text_bad
        xor eax, eax
    text_scan:
        cmp rax, [rsp]; jae text_scanned
        cmp byte [rdi+rax], 0; je text_found
        inc rax; jmp text_scan
    text_scanned:
        mov rdx, [rsp+8]; cmp rax, rdx; jae text_found
        mov [rsp], rdx; add rdi, rax; add rsi, rax; sub rdx, rax; push rax
        call read
        mov ecx, eax; pop rax; sub rdi, rax; test ecx, ecx; jz text_scan
    text_bad:
        or rax, -1; jmp text_out
    text_found:
        mov rcx, rax
    text_zero:
        cmp rcx, [rsp+8]; jae text_out
        mov byte [rdi+rcx], 0; inc rcx; jmp text_zero
    text_out:
        pop rdx; pop rdx; pop rsi; pop rdi; pop rcx; ret
    """)
