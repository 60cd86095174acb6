"""What handlers are told that takes more than an instruction to find out."""

from anyprobe.data.layout import BLOCK_NUMBER
from anyprobe.isa.assemble import Assembler, i32, u64
from anyprobe.splice.codegen.handlers.facts import HandlerFacts
from anyprobe.splice.codegen.routines import RoutineFacts


def emit_errno(asm: Assembler, handler: HandlerFacts) -> None:
    """Emit: rax = errno; 0 where nobody has said yet where it is."""
    if handler.errno:
        asm.emit(b"\x64\x48\x63\x04\x25" + i32(handler.errno), "movsxd rax, dword fs:[errno]")
        return
    asm.emit(b"\x48\xb8" + u64(handler.errno_word) + b"\x48\x8b\x00", "mov rax, &word; mov rax, [rax]")
    for text in ("mov rax, [rax]", "movsxd rax, dword fs:[rax]"):
        asm.emit(b"\x48\x85\xc0", "test rax, rax")
        asm.jump(b"\x0f\x84", "no_errno", "jz no_errno")
        asm.emit(b"\x48\x8b\x00" if text.startswith("mov ") else b"\x64\x48\x63\x00", text)
    asm.label("no_errno")


def emit_set_errno(asm: Assembler, handler: HandlerFacts) -> None:
    """Emit: errno = eax; rdi is free."""
    if handler.errno:
        asm.emit(b"\x64\x89\x04\x25" + i32(handler.errno), "mov fs:[errno], eax")
        return
    asm.emit(b"\x48\xbf" + u64(handler.errno_word) + b"\x48\x8b\x3f", "mov rdi, &word; mov rdi, [rdi]")
    for text in ("mov rdi, [rdi]", "mov fs:[rdi], eax"):
        asm.emit(b"\x48\x85\xff", "test rdi, rdi")
        asm.jump(b"\x0f\x84", "errno_set", "jz errno_set")
        asm.emit(b"\x48\x8b\x3f" if text.startswith("mov r") else b"\x64\x89\x07", text)
    asm.label("errno_set")


def emit_thread_number(asm: Assembler, facts: RoutineFacts, known: str) -> None:
    """Emit: rax = the thread's number, 0 without a block. It is worked out once and kept in the block.

    rbx is the block, ``known`` a label of its own.
    """
    asm.emit(b"\x31\xc0\x48\x85\xdb", "xor eax, eax; test rbx, rbx")
    asm.jump(b"\x0f\x84", known, "jz number")
    asm.emit(b"\x48\x8b\x43" + bytes([BLOCK_NUMBER]), "mov rax, [rbx+BLOCK_NUMBER]")
    asm.emit(b"\x48\x85\xc0", "test rax, rax")
    asm.jump(b"\x0f\x85", known, "jnz number")
    first = facts.data + facts.layout.blocks_offset
    asm.emit(b"\x51\x52\x48\xb9" + u64(first), "push rcx; push rdx; mov rcx, first block")
    asm.emit(b"\x48\x89\xd8\x48\x29\xc8\x31\xd2", "mov rax, rbx; sub rax, rcx; xor edx, edx")
    asm.emit(b"\xb9" + i32(facts.layout.stride), "mov ecx, stride")
    asm.emit(b"\x48\xf7\xf1", "div rcx")
    asm.emit(b"\x48\x05" + i32(facts.numbered + 1) + b"\x5a\x59", "add rax, first number; pop rdx; pop rcx")
    asm.emit(b"\x48\x89\x43" + bytes([BLOCK_NUMBER]), "mov [rbx+BLOCK_NUMBER], rax")
    asm.label(known)
