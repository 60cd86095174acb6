"""Generated routines by which handlers learn what only the kernel knows: the thread's name, parts of its stack.

They are called like those of ``memoryroutines``: ``rdi``, ``rsi`` and ``rdx`` are arguments, all registers but ``rax``
and ``r11`` are preserved. Where a filter may punish system calls, they always fail.
"""

from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.handlers.memory_routines import ReadingFacts, emit_unless_closed

COMM, PEEK = "comm", "peek"
NAMES = frozenset({COMM, PEEK})
_GETPID, _PRCTL, _READV, _GET_NAME = 39, 157, 310, 16
_COMM_BYTES = 16


def emit_context_routines(asm: Assembler, names: frozenset[str], facts: ReadingFacts) -> None:
    """Emit the routines of some names, with a label for each."""
    if not facts.system_calls:
        for name in sorted(names):
            asm.label(name)
        if names:
            asm.emit(b"\x48\xc7\xc0\xff\xff\xff\xff\xc3", "mov rax, -1; ret")
        return
    if COMM in names:
        _comm(asm, facts)
    if PEEK in names:
        _peek(asm, facts)


def _comm(asm: Assembler, facts: ReadingFacts) -> None:
    """Emit ``comm(to)``: the thread's name of at most 15 bytes and zeros up to 16; its length."""
    asm.label(COMM)
    emit_unless_closed(asm, COMM, facts)
    asm.emit(b"\x51\x56\x57\x48\x89\xfe", "push rcx; push rsi; push rdi; mov rsi, rdi")
    asm.emit(b"\xbf" + _GET_NAME.to_bytes(4, "little"), "mov edi, PR_GET_NAME")
    asm.emit(b"\xb8" + _PRCTL.to_bytes(4, "little") + b"\x0f\x05", "mov eax, PRCTL; syscall")
    asm.emit(b"\x5f\x5e\x85\xc0", "pop rdi; pop rsi; test eax, eax")
    asm.jump(b"\x0f\x85", "comm_bad", "jnz bad")
    asm.emit(b"\x31\xc0", "xor eax, eax")
    asm.label("comm_scan")
    asm.emit(b"\x80\x3c\x07\x00", "cmp byte [rdi+rax], 0")
    asm.jump(b"\x0f\x84", "comm_out", "je out")
    asm.emit(b"\xff\xc0\x83\xf8" + bytes([_COMM_BYTES]), "inc eax; cmp eax, 16")
    asm.jump(b"\x0f\x85", "comm_scan", "jne scan")
    asm.jump(b"\xe9", "comm_out", "jmp out")
    asm.label("comm_bad")
    asm.emit(b"\x48\x83\xc8\xff", "or rax, -1")
    asm.label("comm_out")
    asm.emit(b"\x59\xc3", "pop rcx; ret")


def _peek(asm: Assembler, facts: ReadingFacts) -> None:
    """Emit ``peek(to, from, size)``: the number of bytes that could be read, up to the first that could not."""
    asm.label(PEEK)
    emit_unless_closed(asm, PEEK, facts)
    asm.emit(
        b"\x51\x57\x56\x52\x41\x50\x41\x51\x41\x52",
        "push rcx; push rdi; push rsi; push rdx; push r8; push r9; push r10",
    )
    asm.emit(b"\xb8" + _GETPID.to_bytes(4, "little") + b"\x0f\x05", "mov eax, GETPID; syscall")
    asm.emit(b"\x52\x56\x52\x57", "push rdx; push rsi; push rdx; push rdi")
    asm.emit(b"\x89\xc7\x48\x89\xe6\xba\x01\x00\x00\x00", "mov edi, eax; mov rsi, rsp; mov edx, 1")
    asm.emit(b"\x4c\x8d\x54\x24\x10\x41\xb8\x01\x00\x00\x00\x45\x31\xc9", "lea r10, [rsp+16]; mov r8d, 1; xor r9d, r9d")
    asm.emit(b"\xb8" + _READV.to_bytes(4, "little") + b"\x0f\x05", "mov eax, PROCESS_VM_READV; syscall")
    asm.emit(b"\x48\x8d\x64\x24\x20\x41\x5a\x41\x59\x41\x58", "lea rsp, [rsp+32]; pop r10; pop r9; pop r8")
    asm.emit(b"\x5a\x5e\x5f\x59\xc3", "pop rdx; pop rsi; pop rdi; pop rcx; ret")
