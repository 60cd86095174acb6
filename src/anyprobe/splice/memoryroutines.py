"""Generated routines by which handlers read and write the program's memory without ever faulting: system calls.

``process_vm_readv`` on the process itself takes a microsecond and a half, and answers a bad address with an error,
whatever the program does about signals. Handlers call these with ``rdi``, ``rsi`` and ``rdx`` as arguments; all
registers but ``rax`` and ``r11`` are preserved. Where a filter may punish system calls, they always fail.
"""

from anyprobe.isa.assemble import Assembler

NAMES = frozenset({"read", "read_text", "write"})
_GETPID, _READV, _WRITEV = 39, 310, 311


def emit_memory_routines(asm: Assembler, names: frozenset[str], *, allowed: bool) -> None:
    """Emit the routines of some names, with a label for each."""
    if not allowed:
        for name in sorted(names):
            asm.label(name)
        if names:
            asm.emit(b"\x48\xc7\xc0\xff\xff\xff\xff\xc3", "mov rax, -1; ret")
        return
    if names & {"read", "read_text"}:
        _transfer(asm, "read", _READV)
    if "read_text" in names:
        _read_text(asm)
    if "write" in names:
        _transfer(asm, "write", _WRITEV)


def _transfer(asm: Assembler, name: str, number: int) -> None:
    """Emit ``read(to, from, size)`` or ``write(to, from, size)``: 0 if all bytes were moved.

    The process is asked for by its id each time: a fork child has another one.
    """
    reading = name == "read"
    asm.label(name)
    asm.emit(
        b"\x51\x57\x56\x52\x41\x50\x41\x51\x41\x52",
        "push rcx; push rdi; push rsi; push rdx; push r8; push r9; push r10",
    )
    asm.emit(b"\xb8" + _GETPID.to_bytes(4, "little") + b"\x0f\x05", "mov eax, GETPID; syscall")
    if reading:
        asm.emit(b"\x52\x56\x52\x57", "push rdx; push rsi; push rdx; push rdi")
    else:
        asm.emit(b"\x52\x57\x52\x56", "push rdx; push rdi; push rdx; push rsi")
    asm.emit(b"\x89\xc7\x48\x89\xe6\xba\x01\x00\x00\x00", "mov edi, eax; mov rsi, rsp; mov edx, 1")
    asm.emit(b"\x4c\x8d\x54\x24\x10\x41\xb8\x01\x00\x00\x00\x45\x31\xc9", "lea r10, [rsp+16]; mov r8d, 1; xor r9d, r9d")
    asm.emit(b"\xb8" + number.to_bytes(4, "little") + b"\x0f\x05", f"mov eax, {number}; syscall")
    asm.emit(b"\x48\x3b\x44\x24\x08\x0f\x95\xc0\x0f\xb6\xc0", "cmp rax, [rsp+8]; setne al; movzx eax, al")
    asm.emit(b"\x48\x8d\x64\x24\x20\x41\x5a\x41\x59\x41\x58", "lea rsp, [rsp+32]; pop r10; pop r9; pop r8")
    asm.emit(b"\x5a\x5e\x5f\x59\xc3", "pop rdx; pop rsi; pop rdi; pop rcx; ret")


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
