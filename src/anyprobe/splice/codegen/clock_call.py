"""Generated code that calls the vdso's clock: for machines whose time stamp counter does not tick evenly."""

from anyprobe.isa.assemble import Assembler, i32, u64


def emit_now(asm: Assembler, clock: int) -> None:
    """Emit ``now``: rax = nanoseconds of CLOCK_MONOTONIC. Preserves everything else.

    The vdso's function follows the C calling convention on the program's stack: it wants rsp aligned and the direction
    flag clear, and may overwrite the caller-saved registers, vectors included (only their legacy SSE part: the kernel
    builds it without AVX).
    """
    asm.label("now")
    asm.emit(b"\x9c\xfc", "pushfq; cld")
    asm.emit(b"\x51\x52\x56\x57", "push rcx; push rdx; push rsi; push rdi")
    asm.emit(b"\x41\x50\x41\x51\x41\x52\x41\x53", "push r8; push r9; push r10; push r11")
    asm.emit(b"\x55\x48\x89\xe5", "push rbp; mov rbp, rsp")
    asm.emit(b"\x48\x81\xec\x10\x01\x00\x00\x48\x83\xe4\xf0", "sub rsp, 272; and rsp, -16")
    for number in range(16):
        asm.emit(_movaps(0x29, number), f"movaps [rsp+{16 + 16 * number}], xmm{number}")
    asm.emit(b"\xbf\x01\x00\x00\x00\x48\x89\xe6", "mov edi, CLOCK_MONOTONIC; mov rsi, rsp")
    asm.emit(b"\x48\xb8" + u64(clock) + b"\xff\xd0", "mov rax, clock_gettime; call rax")
    asm.emit(b"\x48\x69\x04\x24" + i32(1_000_000_000), "imul rax, [rsp], 1000000000")
    asm.emit(b"\x48\x03\x44\x24\x08", "add rax, [rsp+8]")
    for number in range(16):
        asm.emit(_movaps(0x28, number), f"movaps xmm{number}, [rsp+{16 + 16 * number}]")
    asm.emit(b"\x48\x89\xec\x5d", "mov rsp, rbp; pop rbp")
    asm.emit(b"\x41\x5b\x41\x5a\x41\x59\x41\x58", "pop r11; pop r10; pop r9; pop r8")
    asm.emit(b"\x5f\x5e\x5a\x59\x9d\xc3", "pop rdi; pop rsi; pop rdx; pop rcx; popfq; ret")


def _movaps(opcode: int, number: int) -> bytes:
    """Return ``movaps`` between xmm ``number`` and its place on the stack (0x29 to, 0x28 from memory)."""
    rex = b"\x44" if number > 7 else b""
    return rex + bytes((0x0F, opcode, 0x84 | (number & 7) << 3, 0x24)) + i32(16 + 16 * number)
