"""Generated routines by which handlers read and write the program's memory without ever faulting.

What a thread has on its own stack is copied: it cannot go away while the thread runs on it. Everything else takes a
system call: ``process_vm_readv`` on the process itself answers a bad address with an error, whatever the program does
about signals, and in whatever process it runs. An exception table would need SIGSEGV and SIGBUS to be ours and
unblocked in every thread at every read, a child of ``posix_spawn`` included, which can be proven of no program that may
set signal actions.

Handlers call these with ``rdi``, ``rsi`` and ``rdx`` as arguments; all registers but ``rax`` and ``r11`` are preserved.
Where a filter may punish system calls, only the stack is read.
"""

from dataclasses import dataclass

from anyprobe.isa.assemble import Assembler, i32, u64

NAMES = frozenset({"read", "read_text", "write"})
_GETPID, _READV, _WRITEV = 39, 310, 311
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
    """Where the thread's block is, and whether it is open: it never is in a fork child."""
    stack_block: int = 0
    """Offset in the thread control block of the stack's lowest address, behind which its size is; 0: not known."""
    main_stack: range = range(0)
    """Where the main thread's stack may be, and nothing else."""
    closed: int = 0
    """Where it is said that no system calls may be made any more; 0: nowhere."""


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
    asm.label("read")
    asm.emit(b"\x48\x8d\x04\x16\x48\x39\xf0", "lea rax, [rsi+rdx]; cmp rax, rsi")
    asm.jump(b"\x0f\x82", "read_asks", "jb asks")
    asm.emit(b"\x48\x39\xe6", "cmp rsi, rsp")
    asm.jump(b"\x0f\x82", "read_asks", "jb asks")
    if facts.main_stack:
        _end_of_main_stack(asm, facts.main_stack)
    if facts.stack_block:
        _end_of_stack(asm, facts.stack_block)
    if facts.main_stack or facts.stack_block:
        asm.label("read_bound")
        asm.emit(b"\x4c\x39\xd8", "cmp rax, r11")
        asm.jump(b"\x0f\x86", "read_copies", "jbe copies")
        asm.label("read_page")
    # the page of the stack pointer is there in any case
    asm.emit(b"\x49\x89\xe3\x49\x81\xcb\xff\x0f\x00\x00", "mov r11, rsp; or r11, 0xfff")
    asm.emit(b"\x4c\x39\xd8", "cmp rax, r11")
    asm.jump(b"\x0f\x87", "read_asks", "ja asks")
    asm.label("read_copies")
    asm.emit(b"\x51\x31\xc0", "push rcx; xor eax, eax")
    asm.label("read_words")
    asm.emit(b"\x4c\x8d\x58\x08\x49\x39\xd3", "lea r11, [rax+8]; cmp r11, rdx")
    asm.jump(b"\x0f\x87", "read_bytes", "ja bytes")
    asm.emit(b"\x48\x8b\x0c\x06\x48\x89\x0c\x07\x4c\x89\xd8", "mov rcx, [rsi+rax]; mov [rdi+rax], rcx; mov rax, r11")
    asm.jump(b"\xe9", "read_words", "jmp words")
    asm.label("read_bytes")
    asm.emit(b"\x48\x39\xd0", "cmp rax, rdx")
    asm.jump(b"\x0f\x83", "read_done", "jae done")
    asm.emit(b"\x8a\x0c\x06\x88\x0c\x07\x48\xff\xc0", "mov cl, [rsi+rax]; mov [rdi+rax], cl; inc rax")
    asm.jump(b"\xe9", "read_bytes", "jmp bytes")
    asm.label("read_done")
    asm.emit(b"\x31\xc0\x59\xc3", "xor eax, eax; pop rcx; ret")
    asm.label("read_asks")
    _transfer(asm, "read", _READV, facts)


def _end_of_main_stack(asm: Assembler, stack: range) -> None:
    """Emit: r11 = the end of the main thread's stack, on to ``read_bound``; behind it where the thread is elsewhere."""
    asm.emit(b"\x49\xbb" + u64(stack.start) + b"\x4c\x39\xdc", "mov r11, lowest address; cmp rsp, r11")
    asm.jump(b"\x0f\x82", "read_elsewhere", "jb elsewhere")
    asm.emit(b"\x49\xbb" + u64(stack.stop) + b"\x4c\x39\xdc", "mov r11, end; cmp rsp, r11")
    asm.jump(b"\x0f\x82", "read_bound", "jb bound")
    asm.label("read_elsewhere")


def _end_of_stack(asm: Assembler, block: int) -> None:
    """Emit: r11 = the end of the stack that the thread runs on; to ``read_page`` if it runs on another one.

    glibc keeps a thread's control block on the thread's stack, so both the stack pointer and the block's address lie
    between the bounds that the block has. Those of the main thread are others.
    """
    asm.emit(b"\x64\x4c\x8b\x1c\x25" + i32(block), "mov r11, fs:[stack_block]")
    asm.emit(b"\x4d\x85\xdb", "test r11, r11")
    asm.jump(b"\x0f\x84", "read_page", "jz page")
    asm.emit(b"\x4c\x39\xdc", "cmp rsp, r11")
    asm.jump(b"\x0f\x82", "read_page", "jb page")
    asm.emit(b"\x64\x4c\x39\x1c\x25" + i32(_SELF), "cmp fs:[SELF], r11")
    asm.jump(b"\x0f\x82", "read_page", "jb page")
    asm.emit(b"\x64\x4c\x03\x1c\x25" + i32(block + 8), "add r11, fs:[stack_block+8]")
    asm.emit(b"\x64\x4c\x39\x1c\x25" + i32(_SELF), "cmp fs:[SELF], r11")
    asm.jump(b"\x0f\x83", "read_page", "jae page")
    asm.emit(b"\x4c\x39\xdc", "cmp rsp, r11")
    asm.jump(b"\x0f\x83", "read_page", "jae page")


def _transfer(asm: Assembler, name: str, number: int, facts: ReadingFacts) -> None:
    """Emit the system call for ``read(to, from, size)`` or ``write(to, from, size)``: 0 if all bytes were moved.

    A fork child has another id than the process that handlers were made for, and no open block. A child that shares
    the memory has another one, too, and may not be permitted to read what it takes to be its parent's: it asks again.
    """
    if not facts.system_calls:
        asm.emit(b"\x48\xc7\xc0\xff\xff\xff\xff\xc3", "mov rax, -1; ret")
        return
    emit_unless_closed(asm, name, facts)
    asm.emit(
        b"\x51\x57\x56\x52\x41\x50\x41\x51\x41\x52",
        "push rcx; push rdi; push rsi; push rdx; push r8; push r9; push r10",
    )
    if name == "read":
        asm.emit(b"\x52\x56\x52\x57", "push rdx; push rsi; push rdx; push rdi")
    else:
        asm.emit(b"\x52\x57\x52\x56", "push rdx; push rdi; push rdx; push rsi")
    if facts.pid:
        asm.emit(b"\x64\x48\x8b\x04\x25" + i32(facts.slot), "mov rax, fs:[slot]")
        asm.emit(b"\x49\xbb" + u64(facts.gate) + b"\x49\x85\x03", "mov r11, &gate; test [r11], rax")
        asm.emit(b"\xbf" + i32(facts.pid), "mov edi, PID")
        asm.jump(b"\x0f\x85", f"{name}_known", "jnz known")
    asm.emit(b"\xb8" + i32(_GETPID) + b"\x0f\x05\x89\xc7", "mov eax, GETPID; syscall; mov edi, eax")
    asm.label(f"{name}_known")
    asm.emit(b"\x48\x89\xe6\xba\x01\x00\x00\x00", "mov rsi, rsp; mov edx, 1")
    asm.emit(b"\x4c\x8d\x54\x24\x10\x41\xb8\x01\x00\x00\x00\x45\x31\xc9", "lea r10, [rsp+16]; mov r8d, 1; xor r9d, r9d")
    asm.emit(b"\xb8" + i32(number) + b"\x0f\x05", f"mov eax, {number}; syscall")
    if facts.pid:
        _ask_again(asm, name, facts)
    asm.emit(b"\x48\x3b\x44\x24\x08\x0f\x95\xc0\x0f\xb6\xc0", "cmp rax, [rsp+8]; setne al; movzx eax, al")
    asm.emit(b"\x48\x8d\x64\x24\x20\x41\x5a\x41\x59\x41\x58", "lea rsp, [rsp+32]; pop r10; pop r9; pop r8")
    asm.emit(b"\x5a\x5e\x5f\x59\xc3", "pop rdx; pop rsi; pop rdi; pop rcx; ret")


def emit_unless_closed(asm: Assembler, name: str, facts: ReadingFacts) -> None:
    """Emit: return -1 if no system calls may be made any more."""
    if facts.closed:
        asm.emit(b"\x48\xb8" + u64(facts.closed) + b"\x83\x38\x00", "mov rax, &closed; cmp dword [rax], 0")
        asm.jump(b"\x0f\x84", f"{name}_open", "je open")
        asm.emit(b"\x48\x83\xc8\xff\xc3", "or rax, -1; ret")
        asm.label(f"{name}_open")


def _ask_again(asm: Assembler, name: str, facts: ReadingFacts) -> None:
    """Emit: where the known process is not permitted, or gone, once more for the process that this is."""
    asm.emit(b"\x48\x83\xf8\xff", "cmp rax, -EPERM")
    asm.jump(b"\x0f\x84", f"{name}_again", "je again")
    asm.emit(b"\x48\x83\xf8\xfd", "cmp rax, -ESRCH")
    asm.jump(b"\x0f\x85", f"{name}_over", "jne over")
    asm.label(f"{name}_again")
    asm.emit(b"\x81\xff" + i32(facts.pid), "cmp edi, PID")
    asm.jump(b"\x0f\x85", f"{name}_over", "jne over")
    asm.emit(b"\xb8" + i32(_GETPID) + b"\x0f\x05", "mov eax, GETPID; syscall")
    asm.emit(b"\x39\xc7\x89\xc7", "cmp edi, eax; mov edi, eax")
    asm.jump(b"\x0f\x85", f"{name}_known", "jne known")
    asm.emit(b"\x48\x83\xc8\xff", "or rax, -1")
    asm.label(f"{name}_over")


def _read_text(asm: Assembler) -> None:
    """Emit ``read_text(to, from, limit)``: the length up to the NUL, -1 if it could not be read so far.

    What is behind the page is read only if the text does not end before. Behind the text are zeros.
    """
    asm.label("read_text")
    asm.emit(b"\x51\x57\x56\x52", "push rcx; push rdi; push rsi; push rdx")
    asm.emit(
        b"\x89\xf1\x81\xe1\xff\x0f\x00\x00\xb8\x00\x10\x00\x00\x29\xc8",
        "mov ecx, esi; and ecx, 0xfff; mov eax, 0x1000; sub eax, ecx",
    )
    asm.emit(b"\x48\x39\xc2\x48\x0f\x47\xd0\x52", "cmp rdx, rax; cmova rdx, rax; push rdx")
    asm.jump(b"\xe8", "read", "call read")
    asm.emit(b"\x85\xc0", "test eax, eax")
    asm.jump(b"\x0f\x85", "text_bad", "jnz bad")
    asm.emit(b"\x31\xc0", "xor eax, eax")
    asm.label("text_scan")
    asm.emit(b"\x48\x3b\x04\x24", "cmp rax, [rsp]")
    asm.jump(b"\x0f\x83", "text_scanned", "jae scanned")
    asm.emit(b"\x80\x3c\x07\x00", "cmp byte [rdi+rax], 0")
    asm.jump(b"\x0f\x84", "text_found", "je found")
    asm.emit(b"\x48\xff\xc0", "inc rax")
    asm.jump(b"\xe9", "text_scan", "jmp scan")
    asm.label("text_scanned")
    asm.emit(b"\x48\x8b\x54\x24\x08\x48\x39\xd0", "mov rdx, [rsp+8]; cmp rax, rdx")
    asm.jump(b"\x0f\x83", "text_found", "jae found")
    asm.emit(
        b"\x48\x89\x14\x24\x48\x01\xc7\x48\x01\xc6\x48\x29\xc2\x50",
        "mov [rsp], rdx; add rdi, rax; add rsi, rax; sub rdx, rax; push rax",
    )
    asm.jump(b"\xe8", "read", "call read")
    asm.emit(b"\x89\xc1\x58\x48\x29\xc7\x85\xc9", "mov ecx, eax; pop rax; sub rdi, rax; test ecx, ecx")
    asm.jump(b"\x0f\x84", "text_scan", "jz scan")
    asm.label("text_bad")
    asm.emit(b"\x48\x83\xc8\xff", "or rax, -1")
    asm.jump(b"\xe9", "text_out", "jmp out")
    asm.label("text_found")
    asm.emit(b"\x48\x89\xc1", "mov rcx, rax")
    asm.label("text_zero")
    asm.emit(b"\x48\x3b\x4c\x24\x08", "cmp rcx, [rsp+8]")
    asm.jump(b"\x0f\x83", "text_out", "jae out")
    asm.emit(b"\xc6\x04\x0f\x00\x48\xff\xc1", "mov byte [rdi+rcx], 0; inc rcx")
    asm.jump(b"\xe9", "text_zero", "jmp zero")
    asm.label("text_out")
    asm.emit(b"\x5a\x5a\x5e\x5f\x59\xc3", "pop rdx; pop rdx; pop rsi; pop rdi; pop rcx; ret")
