"""What handlers are told that takes more than an instruction to find out."""

from anyprobe.data.layout import BLOCK_NUMBER, FORKED
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.handlers.facts import HandlerFacts
from anyprobe.splice.codegen.routines import RoutineFacts


def emit_errno(asm: Assembler, handler: HandlerFacts) -> None:
    """Emit: rax = errno; 0 where nobody has said yet where it is."""
    if handler.errno:
        asm.code("movsxd rax, dword fs:[errno]", errno=handler.errno)
        return
    asm.code("mov rax, place; mov rax, [rax]", place=handler.errno_word)
    for text in ("mov rax, [rax]", "movsxd rax, dword fs:[rax]"):
        asm.code(f"test rax, rax; jz no_errno; {text}")
    asm.label("no_errno")


def emit_set_errno(asm: Assembler, handler: HandlerFacts) -> None:
    """Emit: errno = eax; rdi is free."""
    if handler.errno:
        asm.code("mov fs:[errno], eax", errno=handler.errno)
        return
    asm.code("mov rdi, place; mov rdi, [rdi]", place=handler.errno_word)
    for text in ("mov rdi, [rdi]", "mov fs:[rdi], eax"):
        asm.code(f"test rdi, rdi; jz errno_set; {text}")
    asm.label("errno_set")


def emit_thread_number(asm: Assembler, facts: RoutineFacts, known: str) -> None:
    """Emit: rax = the thread's number, 0 without a block. It is worked out once and kept in the block.

    rbx is the block, ``known`` a label of its own.
    """
    asm.code(
        f"""
            xor eax, eax; test rbx, rbx; jz {known}
            mov rax, [rbx+{BLOCK_NUMBER}]
            test rax, rax; jnz {known}
        """,
    )
    if facts.adopted:  # rows of its parent are no fork child's
        asm.code(
            f"""
                push rcx; mov rcx, forked; cmp qword [rcx], 0; pop rcx
                jne {known}
            """,
            forked=facts.data + FORKED,
        )
    first = facts.data + facts.layout.blocks_offset
    asm.code(
        f"""
            push rcx; push rdx; mov rcx, first
            mov rax, rbx; sub rax, rcx; xor edx, edx
            mov ecx, stride; div rcx
            add rax, numbered; pop rdx; pop rcx
            mov [rbx+{BLOCK_NUMBER}], rax
        """,
        first=first,
        stride=facts.layout.stride,
        numbered=facts.numbered + 1,
    )
    asm.label(known)
