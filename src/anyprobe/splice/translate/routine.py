"""The generated routine at the entries of the program's signal handlers: it shows them the program's own pcs.

It is called as patches call routines, in front of a handler's first instruction: the stack is ``[rsp]`` return
address, ``[rsp+8]`` argument, and the handler's own stack pointer is ``rsp + 144``. Where it is the kernel that calls
(rdi is the signal, rsi the ``siginfo_t`` and rdx the ``ucontext_t``, which lie right above the stack pointer) and the
interrupted pc is one of ours, it follows the recipe for that pc, step by step, on the registers in the signal frame.
Everything of the handler is preserved, and no vector register is touched. The argument has a bit for each signal of
faults whose handler is not told what happened (no ``SA_SIGINFO``, so there is no ``siginfo_t``): those are taken for
faults.

A signal may interrupt this code as any other, and its handler sees the interrupted one's first instruction.
"""

import struct
from collections.abc import Callable

from anyprobe.core.address import PAGE
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.translate.progress import Progress, Stretch, stretches_of
from anyprobe.splice.translate.steps import Op

LARGEST_JUMPS = 0x10000
"""An index says of code which table describes it, or, if below this, how many bytes of jumps there are."""
HANDLER = 1
"""It says this of the first instruction of a handler."""
LAST_TRAP = 19
"""The highest number of a trap that a landing has an entry for."""
_PAGE_FAULT, _BELOW_STACK = 14, 1 << 16


def assemble_view(address: int, root: int) -> tuple[bytes, tuple[Stretch, ...], int, Callable[[], str]]:
    """Return the routine and its copy, what is to be done with threads in it, how far behind the copy is, the listing.

    The routine is at ``address``; ``root`` is where the address of the index is. The copy returns when a recipe is at
    its end, and gives nothing back: by it a handler's view finishes what another one's, that it interrupted, has begun.
    """
    asm, copy = (_assemble(root, copy=copy) for copy in (False, True))
    code, behind = asm.finish(address), copy.finish(address + len(asm))
    stretches = stretches_of(asm, address, len(code), _PROGRESS)

    def listing() -> str:
        return asm.listing(address) + "\n" + copy.listing(address + len(asm))

    return code + behind, stretches, len(code), listing


def _assemble(root: int, *, copy: bool) -> Assembler:
    asm = Assembler()
    _recognise(asm)
    _find_table(asm, root)
    _find_recipe(asm)
    _follow_recipe(asm)
    start = len(asm)
    ending = Assembler()
    _leave(ending)
    if copy:
        asm.label("done")
        asm.emit(b"\xc3" + b"\xcc" * (len(ending) - 1), "; ".join(["ret", *["int3"] * (len(ending) - 1)]))
        asm.label("out")
    else:
        _leave(asm)
    assert len(asm) == start + len(ending)
    _registers(asm)
    _ways_on(asm)
    _flags(asm)
    _counts(asm)
    _reservation(asm)
    _finish(asm)
    _finish_view(asm)
    _land(asm, copy=copy)
    _go_on_below(asm)
    _search(asm)
    return asm


_PROGRESS = {
    "view": Progress.BACK, "next": Progress.HALF, "done": Progress.BACK, Op.AGAIN.name: Progress.HALF,
    Op.LAND.name: Progress.BACK, "nested": Progress.BACK, "find": Progress.BACK, "block": Progress.BACK,
}  # fmt: skip
"""What a handler's entry does may be done again as long as the signal frame is as it was, or once it is put right."""


def _recognise(asm: Assembler) -> None:
    """Emit the beginning: leave unless the kernel is calling; then save registers, and r12 = whether it is a fault."""
    asm.label("view")
    asm.emit(b"\x9c\x50", "pushfq; push rax")
    asm.emit(b"\x48\x8d\x84\x24\xa8\x00\x00\x00\x48\x39\xd0", "lea rax, [site rsp + 8]; cmp rax, rdx")
    asm.jump(b"\x0f\x85", "out", "jne out")
    asm.emit(b"\x48\x05\x30\x01\x00\x00\x48\x39\xf0", "add rax, UCONTEXT_BYTES; cmp rax, rsi")
    asm.jump(b"\x0f\x85", "out", "jne out")
    asm.emit(b"\x51\x53\x55\x57", "push rcx; push rbx; push rbp; push rdi")
    asm.emit(b"\x56\x52", "push rsi; push rdx")
    asm.emit(b"\x41\x50\x41\x51\x41\x52\x41\x53\x41\x54", "push r8; push r9; push r10; push r11; push r12")
    asm.emit(b"\x44\x8b\x4c\x24\x70", "mov r9d, [argument]")
    asm.label("frame")
    asm.emit(b"\x45\x31\xe4\x83\xff\x0b", "xor r12d, r12d; cmp edi, SIGSEGV")
    asm.jump(b"\x0f\x87", "step", "ja step")
    asm.emit(b"\xb8\xb0\x09\x00\x00\x0f\xa3\xf8", "mov eax, fault signals; bt eax, edi")
    asm.jump(b"\x0f\x83", "step", "jnc step")
    asm.emit(b"\x83\xff\x05", "cmp edi, SIGTRAP")
    asm.jump(b"\x0f\x85", "no step", "jne no step")
    # a program that steps itself would come back to the site for ever
    asm.emit(b"\xf6\x82\xb1\x00\x00\x00\x01", "test byte [rdx+UC_EFLAGS+1], 1")
    asm.jump(b"\x0f\x85", "done", "jne done")
    asm.label("no step")
    asm.emit(b"\x41\x0f\xa3\xf9", "bt r9d, edi")
    asm.jump(b"\x0f\x82", "fault", "jc fault")
    asm.emit(b"\x83\x7e\x08\x00", "cmp dword [rsi+SI_CODE], 0")
    asm.jump(b"\x0f\x8e", "step", "jle step")
    asm.label("fault")
    asm.emit(b"\x41\xff\xc4", "inc r12d")


def _find_table(asm: Assembler, root: int) -> None:
    """Emit: rbx = table of the frame's pc; jumps of ours are followed first."""
    asm.label("step")
    asm.emit(b"\x48\x8b\x82\xa8\x00\x00\x00", "mov rax, [rdx+UC_RIP]")
    asm.emit(b"\x48\xb9" + struct.pack("<Q", root), "mov rcx, &root")
    asm.emit(b"\x4c\x8b\x01\x4d\x85\xc0", "mov r8, [rcx]; test r8, r8")
    asm.jump(b"\x0f\x84", "done", "jz done")
    asm.emit(b"\x4d\x8b\x08\x49\x83\xc0\x10", "mov r9, [r8]; add r8, 16")
    asm.jump(b"\xe8", "find", "call find")
    asm.jump(b"\x0f\x84", "done", "jz done")
    asm.emit(b"\x49\x8b\x58\x08\x48\x89\xc1", "mov rbx, [r8+8]; mov rcx, rax")
    asm.emit(b"\x49\x2b\x08\x48\x81\xfb\x00\x00\x01\x00", "sub rcx, [r8]; cmp rbx, LARGEST_JUMPS")
    asm.jump(b"\x0f\x83", "table", "jae table")
    asm.emit(b"\x48\x39\xd9", "cmp rcx, rbx")
    asm.jump(b"\x0f\x83", "done", "jae done")
    asm.emit(b"\x48\x83\xfb\x01", "cmp rbx, HANDLER")
    asm.jump(b"\x0f\x84", "nested", "je nested")
    asm.emit(b"\x80\x38\xe9", "cmp byte [rax], JMP_REL32")
    asm.jump(b"\x0f\x84", "near", "je near")
    asm.emit(b"\x66\x81\x38\xff\x25", "cmp word [rax], JMP_RIP")
    asm.jump(b"\x0f\x85", "done", "jne done")
    asm.emit(b"\x48\x8b\x40\x06", "mov rax, [rax+6]")
    asm.jump(b"\xe9", "followed", "jmp followed")
    asm.label("near")
    asm.emit(b"\x48\x63\x48\x01\x48\x8d\x44\x08\x05", "movsxd rcx, dword [rax+1]; lea rax, [rax+rcx+5]")
    asm.label("followed")
    asm.emit(b"\x48\x89\x82\xa8\x00\x00\x00", "mov [rdx+UC_RIP], rax")
    asm.jump(b"\xe9", "step", "jmp step")


def _find_recipe(asm: Assembler) -> None:
    """Emit: rbp = start of the code around the frame's pc, r11 = its site, r9 = the recipe."""
    asm.label("table")
    asm.emit(b"\x48\x3b\x4b\x08", "cmp rcx, [rbx+8]")
    asm.jump(b"\x0f\x83", "done", "jae done")
    asm.emit(b"\x4c\x8b\x0b\x4c\x8d\x43\x20", "mov r9, [rbx]; lea r8, [rbx+ENTRIES]")
    asm.jump(b"\xe8", "find", "call find")
    asm.jump(b"\x0f\x84", "done", "jz done")
    asm.emit(b"\x49\x8b\x28\x48\x89\xc1", "mov rbp, [r8]; mov rcx, rax")
    asm.emit(b"\x48\x29\xe9\x48\x81\xf9\xff\xff\x00\x00", "sub rcx, rbp; cmp rcx, 0xffff")
    asm.jump(b"\x0f\x87", "done", "ja done")
    asm.emit(b"\x45\x8b\x50\x08\x45\x85\xd2", "mov r10d, [r8+8]; test r10d, r10d")
    asm.jump(b"\x0f\x84", "done", "jz done")
    asm.emit(b"\x4d\x63\x58\x0c\x49\x01\xeb", "movsxd r11, dword [r8+12]; add r11, rbp")
    asm.emit(b"\x4e\x8d\x0c\x13\x45\x0f\xb7\x11", "lea r9, [rbx+r10]; movzx r10d, word [r9]")
    asm.emit(b"\x49\x83\xc1\x02", "add r9, 2")
    asm.label("scan")
    asm.emit(b"\x41\xff\xca", "dec r10d")
    asm.jump(b"\x0f\x88", "done", "js done")
    asm.emit(b"\x66\x41\x3b\x09", "cmp cx, [r9]")
    asm.jump(b"\x0f\x84", "recipe", "je recipe")
    asm.emit(b"\x49\x83\xc1\x06", "add r9, 6")
    asm.jump(b"\xe9", "scan", "jmp scan")
    asm.label("recipe")
    asm.emit(b"\x45\x8b\x49\x02\x49\x01\xd9", "mov r9d, [r9+2]; add r9, rbx")


def _follow_recipe(asm: Assembler) -> None:
    """Emit the loop over a recipe's steps: ecx = a, rdi = b, r8d = c."""
    asm.label("next")
    asm.emit(b"\x41\x0f\xb6\x01\x41\x0f\xb6\x49\x01", "movzx eax, byte [r9]; movzx ecx, byte [r9+1]")
    asm.emit(b"\x45\x0f\xb7\x41\x02\x49\x63\x79\x04", "movzx r8d, word [r9+2]; movsxd rdi, dword [r9+4]")
    asm.emit(b"\x49\x83\xc1\x08", "add r9, 8")
    for op in Op:
        asm.emit(b"\x83\xe8\x01", "sub eax, 1")
        asm.jump(b"\x0f\x82", op.name if op is not Op.DONE else "done", f"jb {op.name.lower()}")


def _leave(asm: Assembler) -> None:
    """Emit the end: give the handler its registers, and let it begin."""
    asm.label("done")
    asm.emit(b"\x41\x5c\x41\x5b\x41\x5a\x41\x59\x41\x58", "pop r12; pop r11; pop r10; pop r9; pop r8")
    asm.emit(b"\x5a\x5e", "pop rdx; pop rsi")
    asm.emit(b"\x5f\x5d\x5b\x59", "pop rdi; pop rbp; pop rbx; pop rcx")
    asm.label("out")
    asm.emit(b"\x58\x9d\xc3", "pop rax; popfq; ret")


def _land(asm: Assembler, *, copy: bool) -> None:
    """Emit the step by which a fault that a probe waits for never comes to the handler: it returns at once.

    Not in the frame of a handler that has yet to begin, which does that itself. A fault that may be the stack's own
    end is the program's: there is no room for anybody else.
    """
    if copy:  # of another handler's view, which lands when it begins once more
        landing = Assembler()
        _land(landing, copy=False)
        asm.label(Op.LAND.name)
        asm.jump(b"\xe9", "done", "jmp done")
        rest = len(landing) - 5
        asm.emit(b"\xcc" * rest, "; ".join(["int3"] * rest))
        return
    asm.label(Op.LAND.name)
    asm.emit(b"\x45\x85\xe4", "test r12d, r12d")
    asm.jump(b"\x0f\x84", "next", "jz next")
    asm.emit(b"\x48\x3b\x54\x24\x28", "cmp rdx, [rsp+SAVED_RDX]")
    asm.jump(b"\x0f\x85", "done", "jne done")
    asm.emit(b"\x48\x8b\x82\xc8\x00\x00\x00", "mov rax, [rdx+UC_TRAPNO]")
    asm.emit(b"\x48\x83\xf8" + bytes([LAST_TRAP]), "cmp rax, LAST_TRAP")
    asm.jump(b"\x0f\x87", "next", "ja next")
    asm.emit(b"\x83\xf8" + bytes([_PAGE_FAULT]), "cmp eax, PAGE_FAULT")
    asm.jump(b"\x0f\x85", "landing", "jne landing")
    asm.emit(b"\x48\x8b\x8a\xd8\x00\x00\x00", "mov rcx, [rdx+UC_CR2]")
    asm.emit(b"\x48\x2b\x8a\xa0\x00\x00\x00", "sub rcx, [rdx+UC_RSP]")
    asm.emit(b"\x48\x81\xc1" + struct.pack("<i", _BELOW_STACK), "add rcx, BELOW_STACK")
    asm.emit(b"\x48\x81\xf9" + struct.pack("<i", _BELOW_STACK + PAGE), "cmp rcx, BELOW_STACK + PAGE")
    asm.jump(b"\x0f\x82", "next", "jb next")
    asm.label("landing")
    asm.emit(b"\xc1\xe0\x04\x48\x01\xf8\x48\x01\xe8", "shl eax, 4; add rax, rdi; add rax, rbp")
    asm.emit(b"\x48\x89\x82\xa8\x00\x00\x00", "mov [rdx+UC_RIP], rax")
    asm.emit(b"\x41\x5c\x41\x5b\x41\x5a\x41\x59\x41\x58", "pop r12; pop r11; pop r10; pop r9; pop r8")
    asm.emit(b"\x5a\x5e\x5f\x5d", "pop rdx; pop rsi; pop rdi; pop rbp")
    asm.emit(b"\x5b\x59\x58\x9d", "pop rbx; pop rcx; pop rax; popfq")
    asm.emit(b"\x48\x8d\xa4\x24\x90\x00\x00\x00\xc3", "lea rsp, [handler's rsp]; ret")


def _go_on_below(asm: Assembler) -> None:
    """Emit: where another handler was interrupted before it began, put right what that one has interrupted, too."""
    asm.label("nested")
    asm.emit(b"\x48\x8b\x82\xa0\x00\x00\x00\x48\x83\xc0\x08", "mov rax, [rdx+UC_RSP]; add rax, 8")
    asm.emit(b"\x48\x3b\x82\x88\x00\x00\x00", "cmp rax, [rdx+UC_RDX]")
    asm.jump(b"\x0f\x85", "done", "jne done")
    asm.emit(b"\x48\x05\x30\x01\x00\x00\x48\x3b\x42\x70", "add rax, UCONTEXT_BYTES; cmp rax, [rdx+UC_RSI]")
    asm.jump(b"\x0f\x85", "done", "jne done")
    asm.emit(b"\x8b\x7a\x68\x48\x89\xc6", "mov edi, [rdx+UC_RDI]; mov rsi, rax")
    asm.emit(b"\x48\x8b\x92\x88\x00\x00\x00\x45\x31\xc9", "mov rdx, [rdx+UC_RDX]; xor r9d, r9d")
    asm.jump(b"\xe9", "frame", "jmp frame")


def _search(asm: Assembler) -> None:
    """Emit ``find``: r8 = the last of r9 entries at r8 that begins at or below rax; ZF: none. And ``block``."""
    asm.label("find")
    asm.emit(b"\x31\xc9", "xor ecx, ecx")
    asm.label("find_next")
    asm.emit(b"\x4c\x39\xc9", "cmp rcx, r9")
    asm.jump(b"\x0f\x83", "find_end", "jae find_end")
    asm.emit(b"\x4e\x8d\x14\x09\x49\xd1\xea", "lea r10, [rcx+r9]; shr r10, 1")
    asm.emit(b"\x4d\x89\xd3\x49\xc1\xe3\x04", "mov r11, r10; shl r11, 4")
    asm.emit(b"\x4b\x39\x04\x18", "cmp [r8+r11], rax")
    asm.jump(b"\x0f\x87", "find_above", "ja find_above")
    asm.emit(b"\x49\x8d\x4a\x01", "lea rcx, [r10+1]")
    asm.jump(b"\xe9", "find_next", "jmp find_next")
    asm.label("find_above")
    asm.emit(b"\x4d\x89\xd1", "mov r9, r10")
    asm.jump(b"\xe9", "find_next", "jmp find_next")
    asm.label("find_end")
    asm.emit(b"\x48\xc1\xe1\x04\x4d\x8d\x44\x08\xf0", "shl rcx, 4; lea r8, [r8+rcx-16]")
    asm.emit(b"\xc3", "ret")
    asm.label("block")
    asm.emit(b"\x48\x8b\x0c\x3b\x64\x48\x8b\x09", "mov rcx, [rbx+rdi+SLOT]; mov rcx, fs:[rcx]")
    asm.emit(b"\x4c\x8b\x54\x3b\x08\x49\x85\x0a", "mov r10, [rbx+rdi+GATE]; test [r10], rcx")
    asm.emit(b"\xc3", "ret")


def _registers(asm: Assembler) -> None:
    """Emit the steps that bring registers, stack pointer and pc back."""
    asm.label(Op.AGAIN.name)
    asm.emit(b"\x45\x31\xe4", "xor r12d, r12d")
    asm.jump(b"\xe9", "step", "jmp step")
    asm.label(Op.MOVE.name)
    asm.emit(b"\x48\x8b\x44\xfa\x28", "mov rax, [rdx+UC_REGISTERS+rdi*8]")
    asm.emit(b"\x48\x89\x44\xca\x28", "mov [rdx+UC_REGISTERS+rcx*8], rax")
    asm.jump(b"\xe9", "next", "jmp next")
    asm.label(Op.LOAD.name)
    asm.emit(b"\x48\x8b\x82\xa0\x00\x00\x00\x48\x8b\x04\x38", "mov rax, [rdx+UC_RSP]; mov rax, [rax+rdi]")
    asm.emit(b"\x48\x89\x44\xca\x28", "mov [rdx+UC_REGISTERS+rcx*8], rax")
    asm.jump(b"\xe9", "next", "jmp next")
    asm.label(Op.STACK.name)
    asm.emit(b"\x48\x01\xba\xa0\x00\x00\x00", "add [rdx+UC_RSP], rdi")
    asm.jump(b"\xe9", "next", "jmp next")
    asm.label(Op.SITE.name)
    asm.emit(b"\x4c\x01\xdf\x48\x89\xba\xa8\x00\x00\x00", "add rdi, r11; mov [rdx+UC_RIP], rdi")
    asm.jump(b"\xe9", "next", "jmp next")


def _ways_on(asm: Assembler) -> None:
    """Emit the steps that lead on, and those that depend on what has happened."""
    asm.label(Op.FOLLOW.name)
    asm.emit(b"\x48\x8b\x82\xa8\x00\x00\x00\x48\x01\xf8", "mov rax, [rdx+UC_RIP]; add rax, rdi")
    asm.emit(b"\x48\x63\x48\x01\x48\x8d\x44\x08\x05", "movsxd rcx, dword [rax+1]; lea rax, [rax+rcx+5]")
    asm.emit(b"\x48\x89\x82\xa8\x00\x00\x00", "mov [rdx+UC_RIP], rax")
    asm.jump(b"\xe9", "next", "jmp next")
    asm.label(Op.CALLER.name)
    asm.emit(b"\x48\x8b\x82\xa0\x00\x00\x00\x48\x03\x38", "mov rax, [rdx+UC_RSP]; add rdi, [rax]")
    asm.emit(b"\x48\x89\xba\xa8\x00\x00\x00\x48\x83\xc0\x08", "mov [rdx+UC_RIP], rdi; add rax, 8")
    asm.emit(b"\x48\x89\x82\xa0\x00\x00\x00", "mov [rdx+UC_RSP], rax")
    asm.jump(b"\xe9", "next", "jmp next")
    asm.label(Op.RETURN.name)
    asm.emit(b"\x48\x8b\x82\xa0\x00\x00\x00\x48\x8b\x08", "mov rax, [rdx+UC_RSP]; mov rcx, [rax]")
    asm.emit(b"\x48\x89\x8a\xa8\x00\x00\x00\x48\x8d\x44\x38\x08", "mov [rdx+UC_RIP], rcx; lea rax, [rax+rdi+8]")
    asm.emit(b"\x48\x89\x82\xa0\x00\x00\x00", "mov [rdx+UC_RSP], rax")
    asm.jump(b"\xe9", "next", "jmp next")
    asm.label(Op.IF_SYNCHRONOUS.name)
    asm.emit(b"\x45\x85\xe4", "test r12d, r12d")
    asm.jump(b"\x0f\x84", "next", "jz next")
    asm.emit(b"\x49\x01\xf9", "add r9, rdi")
    asm.jump(b"\xe9", "next", "jmp next")
    asm.label(Op.IF_INTERRUPTED.name)
    asm.emit(b"\x45\x85\xe4", "test r12d, r12d")
    asm.jump(b"\x0f\x84", "done", "jz done")
    asm.jump(b"\xe9", "next", "jmp next")


def _flags(asm: Assembler) -> None:
    """Emit the steps that bring the flags back."""
    asm.label(Op.FLAGS_AT.name)
    asm.emit(b"\x48\x8b\x82\xa0\x00\x00\x00\x48\x8b\x04\x38", "mov rax, [rdx+UC_RSP]; mov rax, [rax+rdi]")
    asm.jump(b"\xe9", "flags", "jmp flags")
    asm.label(Op.FLAGS_IN.name)
    asm.emit(b"\x48\x8b\x44\xca\x28", "mov rax, [rdx+UC_REGISTERS+rcx*8]")
    asm.label("flags")
    asm.emit(b"\x8b\x8a\xb0\x00\x00\x00\x81\xe1\x2a\xf7\xff\xff", "mov ecx, [rdx+UC_EFLAGS]; and ecx, ~STATUS_FLAGS")
    asm.emit(b"\x0f\xb6\xf8\x83\xe7\x01", "movzx edi, al; and edi, 1")
    asm.emit(b"\xc1\xe7\x0b\x09\xf9", "shl edi, 11; or ecx, edi")
    asm.jump(b"\xe9", "high_flags", "jmp high_flags")
    asm.label(Op.HIGH_FLAGS_IN.name)
    asm.emit(b"\x48\x8b\x44\xca\x28", "mov rax, [rdx+UC_REGISTERS+rcx*8]")
    asm.emit(b"\x8b\x8a\xb0\x00\x00\x00", "mov ecx, [rdx+UC_EFLAGS]")
    asm.emit(b"\x81\xe1\x2a\xff\xff\xff", "and ecx, ~(STATUS_FLAGS & 0xff)")
    asm.label("high_flags")
    asm.emit(b"\x0f\xb6\xfc\x81\xe7\xd5\x00\x00\x00", "movzx edi, ah; and edi, STATUS_FLAGS & 0xff")
    asm.emit(b"\x09\xf9\x48\x89\x8a\xb0\x00\x00\x00", "or ecx, edi; mov [rdx+UC_EFLAGS], rcx")
    asm.jump(b"\xe9", "next", "jmp next")
    asm.label(Op.FLAGS_IMAGE.name)
    asm.emit(b"\x48\x8b\x82\xa0\x00\x00\x00\x48\x8b\x04\x38", "mov rax, [rdx+UC_RSP]; mov rax, [rax+rdi]")
    asm.emit(b"\x48\x89\x82\xb0\x00\x00\x00", "mov [rdx+UC_EFLAGS], rax")
    asm.jump(b"\xe9", "next", "jmp next")


def _counts(asm: Assembler) -> None:
    """Emit the steps that take back what a pass has counted; each changes a shared word by one instruction.

    A thread that was in the middle of the line when it was armed has not been counted: what is taken back too
    much comes again when it passes the site. It has neither entered nor missed: then nothing is taken back.
    """
    asm.label(Op.UNCOUNT.name)
    asm.emit(b"\x4a\x63\x44\x05\x00", "movsxd rax, dword [rbp+r8]")
    asm.jump(b"\xe8", "block", "call block")
    asm.jump(b"\x0f\x84", "uncount_shared", "jz uncount_shared")
    asm.emit(b"\x48\xff\x0c\x01", "dec qword [rcx+rax]")
    asm.jump(b"\xe9", "next", "jmp next")
    asm.label("uncount_shared")
    asm.emit(b"\x48\x8b\x4c\x3b\x10\xf0\x48\xff\x0c\x01", "mov rcx, [rbx+rdi+SHARED]; lock dec qword [rcx+rax]")
    asm.jump(b"\xe9", "next", "jmp next")
    asm.label(Op.UNCOUNT_NEAR.name)
    asm.emit(b"\x4a\x8d\x4c\x05\x00\x48\x63\x01", "lea rcx, [rbp+r8]; movsxd rax, dword [rcx]")
    asm.emit(b"\xf0\x48\xff\x4c\x01\x04", "lock dec qword [rcx+rax+4]")
    asm.jump(b"\xe9", "next", "jmp next")
    asm.label(Op.UNENTER.name)
    asm.emit(b"\x4a\x63\x44\x05\x00", "movsxd rax, dword [rbp+r8]")
    asm.jump(b"\xe8", "block", "call block")
    asm.jump(b"\x0f\x84", "unmiss_shared", "jz unmiss_shared")
    asm.emit(b"\x4c\x8b\x41\x08\x49\x83\xe8\x01", "mov r8, [rcx+BLOCK_TOP]; sub r8, 1")
    asm.jump(b"\x0f\x88", "unmiss", "js unmiss")
    asm.emit(b"\x49\xc1\xe0\x05\x4c\x8b\x92\xa0\x00\x00\x00", "shl r8, 5; mov r10, [rdx+UC_RSP]")
    asm.emit(b"\x4e\x39\x54\x01\x40", "cmp [rcx+r8+INSTANCE_SP], r10")
    asm.jump(b"\x0f\x85", "unmiss", "jne unmiss")
    asm.emit(b"\x4a\x39\x44\x01\x50", "cmp [rcx+r8+INSTANCE_RECORD], rax")
    asm.jump(b"\x0f\x85", "unmiss", "jne unmiss")
    asm.emit(b"\x4a\xc7\x44\x01\x40\x00\x00\x00\x00", "mov qword [rcx+r8+INSTANCE_SP], 0")
    asm.emit(b"\x48\xff\x49\x08", "dec qword [rcx+BLOCK_TOP]")
    asm.jump(b"\xe9", "next", "jmp next")
    asm.label("unmiss")
    asm.emit(b"\x48\x83\x7c\x01\x30\x00", "cmp qword [rcx+rax+RECORD_MISSED], 0")
    asm.jump(b"\x0f\x84", "next", "je next")
    asm.emit(b"\x48\xff\x4c\x01\x30", "dec qword [rcx+rax+RECORD_MISSED]")
    asm.jump(b"\xe9", "next", "jmp next")
    asm.label("unmiss_shared")
    asm.emit(b"\x48\x8b\x4c\x3b\x10", "mov rcx, [rbx+rdi+SHARED]")
    asm.emit(b"\x48\x83\x7c\x01\x30\x00", "cmp qword [rcx+rax+RECORD_MISSED], 0")
    asm.jump(b"\x0f\x84", "next", "je next")
    asm.emit(b"\xf0\x48\xff\x4c\x01\x30", "lock dec qword [rcx+rax+RECORD_MISSED]")
    asm.jump(b"\xe9", "next", "jmp next")


def _reservation(asm: Assembler) -> None:
    """Emit the step that gives an instance back."""
    asm.label(Op.UNRESERVE.name)
    asm.jump(b"\xe8", "block", "call block")
    asm.jump(b"\x0f\x84", "next", "jz next")
    asm.emit(b"\x48\xff\x49\x08", "dec qword [rcx+BLOCK_TOP]")
    asm.jump(b"\xe9", "next", "jmp next")


def _finish(asm: Assembler) -> None:
    """Emit the step that has the copy of a routine go on where the routine was interrupted."""
    asm.label(Op.FINISH.name)
    asm.emit(b"\x4c\x8b\x92\xa8\x00\x00\x00\x49\x01\xfa", "mov r10, [rdx+UC_RIP]; add r10, rdi")
    asm.emit(b"\x56\x52", "push rsi; push rdx")
    asm.emit(b"\xff\xb2\xb0\x00\x00\x00", "push qword [rdx+UC_EFLAGS]")
    asm.emit(b"\x81\x24\x24\xd5\x08\x00\x00", "and dword [rsp], STATUS_FLAGS")
    asm.emit(b"\x48\x8b\x7a\x68\x48\x8b\x72\x70", "mov rdi, [rdx+UC_RDI]; mov rsi, [rdx+UC_RSI]")
    asm.emit(b"\x48\x8b\x8a\x98\x00\x00\x00", "mov rcx, [rdx+UC_RCX]")
    asm.emit(b"\x48\x8b\x82\x90\x00\x00\x00", "mov rax, [rdx+UC_RAX]")
    asm.emit(b"\x48\x8b\x92\x88\x00\x00\x00\x9d", "mov rdx, [rdx+UC_RDX]; popfq")
    asm.emit(b"\x41\xff\xd2\x5a\x5e", "call r10; pop rdx; pop rsi")
    asm.jump(b"\xe9", "next", "jmp next")


def _finish_view(asm: Assembler) -> None:
    """Emit the step that has this routine's copy go on where another handler's view was interrupted."""
    asm.label(Op.FINISH_VIEW.name)
    asm.emit(b"\x48\x03\xba\xa8\x00\x00\x00", "add rdi, [rdx+UC_RIP]")
    asm.emit(b"\x53", "push rbx")
    asm.emit(b"\x55", "push rbp")
    asm.emit(b"\x41\x51", "push r9")
    asm.emit(b"\x41\x53", "push r11")
    asm.emit(b"\x41\x54", "push r12")
    asm.emit(b"\x56\x52\x57", "push rsi; push rdx; push rdi")
    asm.emit(b"\xff\xb2\xb0\x00\x00\x00", "push qword [rdx+UC_EFLAGS]")
    asm.emit(b"\x81\x24\x24\xd5\x08\x00\x00", "and dword [rsp], STATUS_FLAGS")
    asm.emit(b"\x4c\x8b\x42\x28\x4c\x8b\x4a\x30", "mov r8, [rdx+UC_R8]; mov r9, [rdx+UC_R9]")
    asm.emit(b"\x4c\x8b\x52\x38\x4c\x8b\x5a\x40", "mov r10, [rdx+UC_R10]; mov r11, [rdx+UC_R11]")
    asm.emit(b"\x4c\x8b\x62\x48\x48\x8b\x7a\x68", "mov r12, [rdx+UC_R12]; mov rdi, [rdx+UC_RDI]")
    asm.emit(b"\x48\x8b\x72\x70\x48\x8b\x6a\x78", "mov rsi, [rdx+UC_RSI]; mov rbp, [rdx+UC_RBP]")
    asm.emit(b"\x48\x8b\x9a\x80\x00\x00\x00", "mov rbx, [rdx+UC_RBX]")
    asm.emit(b"\x48\x8b\x8a\x98\x00\x00\x00", "mov rcx, [rdx+UC_RCX]")
    asm.emit(b"\x48\x8b\x82\x90\x00\x00\x00", "mov rax, [rdx+UC_RAX]")
    asm.emit(b"\x48\x8b\x92\x88\x00\x00\x00", "mov rdx, [rdx+UC_RDX]")
    asm.emit(b"\x9d\xff\x14\x24", "popfq; call [rsp]")
    asm.emit(b"\x48\x8d\x64\x24\x08", "lea rsp, [rsp+8]")
    asm.emit(b"\x5a", "pop rdx")
    asm.emit(b"\x5e", "pop rsi")
    asm.emit(b"\x41\x5c", "pop r12")
    asm.emit(b"\x41\x5b", "pop r11")
    asm.emit(b"\x41\x59", "pop r9")
    asm.emit(b"\x5d\x5b", "pop rbp; pop rbx")
    asm.jump(b"\xe9", "next", "jmp next")
