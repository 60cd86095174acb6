"""What handlers are told that takes more than an instruction to find out."""

from collections.abc import Sequence

from anyprobe.core.code import InputKind, NativeCode
from anyprobe.data.layouts.layout import BLOCK_NUMBER, COPY, FORKED, GOLDEN, TID_OFFSET
from anyprobe.isa.assemble import Assembler
from anyprobe.isa.registers import NUMBERS
from anyprobe.splice.codegen.handlers.facts import (
    INSTANCE_BYTES,
    INSTANCE_CLEARED,
    INSTANCE_DATA,
    INSTANCES,
    OWN_INSTANCES_AT,
    SHARED_INSTANCES,
    HandlerFacts,
)
from anyprobe.splice.codegen.routines import RoutineFacts

_PROBES, _OWN_PROBES = 16, 8
_GETTID = 186
_ALWAYS_SAVED = ("rax", "flags", "rbx", "rdi")
"""What every handler's call changes; ``flags`` are kept as ``lahf`` and ``seto`` have them."""
_SCRATCH = {"now": {"rdx"}, "cpu": {"rcx", "rdx"}, "true_caller": {"rcx", "rdx"}}
"""What finding out attributes of ``ctx`` changes."""


def emit_errno(asm: Assembler, handler: HandlerFacts) -> None:
    """Emit: rax = errno; 0 where its place is not known yet."""
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
            mov eax, [rbx+{BLOCK_NUMBER}]
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
            mov [rbx+{BLOCK_NUMBER}], eax
        """,
        first=first,
        stride=facts.layout.stride,
        numbered=facts.numbered + 1,
    )
    asm.label(known)


def emit_instances_number(asm: Assembler, facts: RoutineFacts, handler: HandlerFacts) -> None:
    """Emit: rax = which instances are the thread's whose number it is; go to ``no_instance`` where it has none."""
    if facts.numbered:  # both ends of a call are seen by one bank
        asm.code("sub rax, numbered", numbered=facts.numbered)
    if facts.layout.blocks > handler.instance_threads:
        asm.code(f"cmp rax, {handler.instance_threads}; ja no_instance")


def emit_process_number(asm: Assembler, facts: RoutineFacts, handler: HandlerFacts) -> None:
    """Emit: rax = the process's number; in a fork child without blocks of its own that of the thread."""
    if not facts.adopted:
        asm.code("mov eax, pid", pid=handler.pid)
        return
    told = f"process_told_{len(asm)}"  # several handlers of one site ask for it
    asm.code(
        f"""
            mov eax, fs:[{TID_OFFSET}]
            test rbx, rbx; jz told
            push rcx; mov rcx, forked; mov rax, [rcx]; pop rcx
            test rax, rax; jnz told
            mov eax, pid
        """,
        forked=facts.data + FORKED,
        pid=handler.pid,
        told=told,
    )
    asm.label(told)


def emit_nanoseconds(asm: Assembler, handler: HandlerFacts) -> None:
    """Emit: rax = nanoseconds, from the time stamp counter; clobbers rdx."""
    asm.code(
        """
            rdtsc; shl rdx, 32; or rax, rdx
            mov rdx, nanoseconds
            mul rdx; shrd rax, rdx, 32
        """,
        nanoseconds=handler.nanoseconds,
    )


def emit_own_instance(asm: Assembler, handler: HandlerFacts) -> None:
    """Emit: rdx = the data of the call with the stack pointer rdx, of the thread with the number rax; 0: none."""
    asm.code(
        f"""
            imul rax, rax, {INSTANCES * INSTANCE_BYTES}
            mov rcx, instances; add rcx, rax
            mov rax, rdx; shr rax, 4; and eax, {INSTANCES - 1}
            mov r11d, {_OWN_PROBES}
        probe:
            mov edi, eax; shl edi, {INSTANCE_BYTES.bit_length() - 1}; add rdi, rcx
            cmp [rdi], rdx; je instance
        """,
        instances=handler.instances + OWN_INSTANCES_AT,
    )
    if handler.enters:
        asm.code("cmp qword [rdi], 0; je instance")
    asm.code(f"""
        inc eax; and eax, {INSTANCES - 1}
        dec r11d; jnz probe
        xor edx, edx; jmp no_instance
    instance:
    """)
    if handler.enters:
        asm.code("mov [rdi], rdx")
        for at in INSTANCE_CLEARED:
            asm.code(f"mov qword [rdi+{at}], 0")
    asm.code(f"""
    instance_data:
        lea rdx, [rdi+{INSTANCE_DATA}]
    no_instance:
    """)


def emit_shared_instance(asm: Assembler, facts: RoutineFacts, handler: HandlerFacts) -> None:
    """Emit: rdi = the instance of a fork child's call, and go to ``instance_data``, or ``no_instance`` with rdx = 0.

    ``rdx`` is the site's stack pointer. All children share these instances: who takes one does it by one instruction.
    """
    taken = ""
    if handler.enters:
        taken = """
            cmp qword [rdi], 0; jne shared_next
            push rax; xor eax, eax; lock cmpxchg [rdi], rdx; pop rax; je shared_found
        """
    cleared = "; ".join(f"mov qword [rdi+{at}], 0" for at in INSTANCE_CLEARED)
    asm.code(
        f"""
            mov rcx, copy; mov rax, [rcx]
            shl rax, 48; jz shared_none
            or rdx, rax
            mov rcx, shared; mov rax, {GOLDEN}; imul rax, rdx
            shr rax, {64 - (SHARED_INSTANCES.bit_length() - 1)}
            mov r11d, {_PROBES}
        shared_probe:
            mov edi, eax; shl edi, {INSTANCE_BYTES.bit_length() - 1}; add rdi, rcx
            cmp [rdi], rdx; je shared_found
            {taken}
        shared_next:
            inc eax; and eax, {SHARED_INSTANCES - 1}
            dec r11d; jnz shared_probe
        shared_none:
            xor edx, edx; jmp no_instance
        shared_found:
            {cleared if handler.enters else ""}
            jmp instance_data
        """,
        copy=facts.data + COPY,
        shared=handler.instances,
    )


def emit_asked_tid(asm: Assembler, handler: HandlerFacts) -> None:
    """Emit: rax = the thread's id, which the kernel is asked for; 0 where no system calls may be made."""
    reading = handler.reading
    if not reading.system_calls:
        asm.code("xor eax, eax")
        return
    if reading.closed:
        asm.code("mov rax, closed; cmp dword [rax], 0; mov eax, 0; jne tid_told", closed=reading.closed)
    asm.code(f"""
        push rcx; push r11
        mov eax, {_GETTID}; syscall
        pop r11; pop rcx
    tid_told:
    """)


def saved_by(codes: Sequence[NativeCode], more: Sequence[str] = (), *, based: bool = False) -> tuple[str, ...]:
    """Return what has to be saved: what the handlers change, what filling in their words does, and some more.

    ``based``: rbp is needed to find the program's stack.
    """
    changed = {name for code in codes for name in code.clobbers if name in NUMBERS}.union(more)
    for each in (each for code in codes for each in code.inputs):
        if each.kind is InputKind.CONTEXT:
            changed |= _SCRATCH.get(each.name, set())
        elif each.kind is InputKind.INSTANCE:
            changed |= {"rcx", "rdx", "r11"}
    others = sorted(changed - set(_ALWAYS_SAVED) - {"rbp"}, key=NUMBERS.__getitem__)
    return (*_ALWAYS_SAVED, *others, *(("rbp",) if based or codes[0].vectors else ()))
