"""The generated routine at the entries of the program's signal handlers: it shows them the program's own pcs.

It is called as patches call routines, before a handler's first instruction: the stack is ``[rsp]`` return
address, ``[rsp+8]`` argument, and the handler's own stack pointer is ``rsp + 144``. Where it is the kernel that calls
(rdi is the signal, rsi the ``siginfo_t`` and rdx the ``ucontext_t``, which lie right above the stack pointer) and the
interrupted pc is one of anyprobe's, it follows the recipe for that pc, step by step, on the registers in the signal
frame. Everything of the handler is preserved, and no vector register is touched. The argument has a bit for each signal
of faults whose handler is not told what happened (no ``SA_SIGINFO``, so there is no ``siginfo_t``): those are taken for
faults.

A signal may interrupt this code as any other, and its handler sees the interrupted one's first instruction.
"""

import signal
from collections.abc import Callable

from anyprobe.core.address import PAGE
from anyprobe.data.layouts import layout as at
from anyprobe.isa import signal_frame as uc
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
_JMP_REL32, _JMP_RIP = 0xE9, 0x25FF
_ENTRIES = 32
"""Where the entries of a table begin."""
_SLOT, _GATE, _SHARED = 0, 8, 16
"""Where a bank's entry in a table has what leads to its blocks."""
_SAVED_RDX = 40
"""Where this routine keeps the handler's own rdx."""


def assemble_view(address: int, root: int) -> tuple[bytes, tuple[Stretch, ...], int, Callable[[], str]]:
    """Return the routine and its copy, what is to be done with threads in it, how far on the copy is, the listing.

    The routine is at ``address``; ``root`` is where the address of the index is. The copy returns when a recipe is at
    its end, and gives nothing back: by it a handler's view finishes what another one's, that it interrupted, has begun.
    """
    asm, copy = (_assemble(root, copy=copy) for copy in (False, True))
    code, after = asm.finish(address), copy.finish(address + len(asm))
    stretches = stretches_of(asm, address, len(code), _PROGRESS)

    def listing() -> str:
        return asm.listing(address) + "\n" + copy.listing(address + len(asm))

    return code + after, stretches, len(code), listing


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
        asm.code("ret" + "; int3" * (len(ending) - 1))
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
    asm.code(f"""
    view:
        pushfq; push rax
        lea rax, [rsp+168]; cmp rax, rdx  # site rsp + 8
        jne out
        add rax, {uc.BYTES}; cmp rax, rsi; jne out
        push rcx; push rbx; push rbp; push rdi
        push rsi; push rdx
        push r8; push r9; push r10; push r11; push r12
        mov r9d, [rsp+112]  # argument
    frame:
        xor r12d, r12d; cmp edi, {signal.SIGSEGV}; ja step
        mov eax, 2480; bt eax, edi  # fault signals
        jnc step
        cmp edi, {signal.SIGTRAP}; jne no_step
        # a program that steps itself would come back to the site for ever
        test byte [rdx+{uc.EFLAGS + 1}], 1; jne done
    no_step:
        bt r9d, edi; jc fault
        cmp dword [rsi+{uc.SI_CODE}], 0; jle step
    fault:
        inc r12d
    """)


def _find_table(asm: Assembler, root: int) -> None:
    """Emit: rbx = table of the frame's pc; anyprobe's jumps are followed first."""
    asm.code(
        f"""
        step:
            mov rax, [rdx+{uc.RIP}]
            mov rcx, root
            mov r8, [rcx]; test r8, r8; jz done
            mov r9, [r8]; add r8, 16
            call find; jz done
            mov rbx, [r8+8]; mov rcx, rax
            sub rcx, [r8]; cmp rbx, {LARGEST_JUMPS}; jae table
            cmp rcx, rbx; jae done
            cmp rbx, {HANDLER}; je nested
            cmp byte [rax], {_JMP_REL32}; je near
            cmp word [rax], {_JMP_RIP}; jne done
            mov rax, [rax+6]; jmp followed
        near:
            movsxd rcx, dword [rax+1]; lea rax, [rax+rcx+5]
        followed:
            mov [rdx+{uc.RIP}], rax; jmp step
        """,
        root=root,
    )


def _find_recipe(asm: Assembler) -> None:
    """Emit: rbp = start of the code around the frame's pc, r11 = its site, r9 = the recipe."""
    asm.code(f"""
    table:
        cmp rcx, [rbx+8]; jae done
        mov r9, [rbx]; lea r8, [rbx+{_ENTRIES}]
        call find; jz done
        mov rbp, [r8]; mov rcx, rax
        sub rcx, rbp; cmp rcx, 0xffff; ja done
        mov r10d, [r8+8]; test r10d, r10d; jz done
        movsxd r11, dword [r8+12]; add r11, rbp
        lea r9, [rbx+r10]; movzx r10d, word [r9]
        add r9, 2
    scan:
        dec r10d; js done
        cmp cx, [r9]; je recipe
        add r9, 6; jmp scan
    recipe:
        mov r9d, [r9+2]; add r9, rbx
    """)


def _follow_recipe(asm: Assembler) -> None:
    """Emit the loop over a recipe's steps: ecx = a, rdi = b, r8d = c."""
    asm.code("""
    next:
        movzx eax, byte [r9]; movzx ecx, byte [r9+1]
        movzx r8d, word [r9+2]; movsxd rdi, dword [r9+4]
        add r9, 8
    """)
    for op in Op:
        asm.code("sub eax, 1; jb step", step=op.name if op is not Op.DONE else "done")


def _leave(asm: Assembler) -> None:
    """Emit the end: give the handler its registers, and let it begin."""
    asm.code("""
    done:
        pop r12; pop r11; pop r10; pop r9; pop r8
        pop rdx; pop rsi
        pop rdi; pop rbp; pop rbx; pop rcx
    out:
        pop rax; popfq; ret
    """)


def _land(asm: Assembler, *, copy: bool) -> None:
    """Emit the step by which a fault that a probe waits for never comes to the handler: it returns at once.

    Not in the frame of a handler that has yet to begin, which does that itself. A fault that may be the stack's own
    end is the program's: there is no room for anybody else.
    """
    if copy:  # of another handler's view, which lands when it begins once more
        landing = Assembler()
        _land(landing, copy=False)
        asm.code(f"""
        {Op.LAND.name}:
            jmp done
        """)
        rest = len(landing) - 5
        asm.code("int3\n" * rest)
        return
    asm.code(f"""
    {Op.LAND.name}:
        test r12d, r12d; jz next
        cmp rdx, [rsp+{_SAVED_RDX}]; jne done
        mov rax, [rdx+{uc.TRAPNO}]
        cmp rax, {LAST_TRAP}; ja next
        cmp eax, {_PAGE_FAULT}; jne landing
        mov rcx, [rdx+{uc.CR2}]
        sub rcx, [rdx+{uc.RSP}]
        add rcx, {_BELOW_STACK}
        cmp rcx, {_BELOW_STACK + PAGE}; jb next
    landing:
        shl eax, 4; add rax, rdi; add rax, rbp
        mov [rdx+{uc.RIP}], rax
        pop r12; pop r11; pop r10; pop r9; pop r8
        pop rdx; pop rsi; pop rdi; pop rbp
        pop rbx; pop rcx; pop rax; popfq
        lea rsp, [rsp+144]; ret  # handler's rsp
    """)


def _go_on_below(asm: Assembler) -> None:
    """Emit: where another handler was interrupted before it began, put right what that one has interrupted, too."""
    asm.code(f"""
    nested:
        mov rax, [rdx+{uc.RSP}]; add rax, 8
        cmp rax, [rdx+{uc.RDX}]; jne done
        add rax, {uc.BYTES}; cmp rax, [rdx+{uc.RSI}]; jne done
        mov edi, [rdx+{uc.RDI}]; mov rsi, rax
        mov rdx, [rdx+{uc.RDX}]; xor r9d, r9d; jmp frame
    """)


def _search(asm: Assembler) -> None:
    """Emit ``find``: r8 = the last of r9 entries at r8 that begins at or below rax; ZF: none. And ``block``."""
    asm.code(f"""
    find:
        xor ecx, ecx
    find_next:
        cmp rcx, r9; jae find_end
        lea r10, [rcx+r9]; shr r10, 1
        mov r11, r10; shl r11, 4
        cmp [r8+r11], rax; ja find_above
        lea rcx, [r10+1]; jmp find_next
    find_above:
        mov r9, r10; jmp find_next
    find_end:
        shl rcx, 4; lea r8, [r8+rcx-16]
        ret
    block:
        mov rcx, [rbx+rdi+{_SLOT}]; mov rcx, fs:[rcx]
        mov r10, [rbx+rdi+{_GATE}]; test [r10], rcx
        ret
    """)


def _registers(asm: Assembler) -> None:
    """Emit the steps that bring registers, stack pointer and pc back."""
    asm.code(f"""
    {Op.AGAIN.name}:
        xor r12d, r12d; jmp step
    {Op.MOVE.name}:
        mov rax, [rdx+rdi*8+{uc.REGISTERS}]
        mov [rdx+rcx*8+{uc.REGISTERS}], rax; jmp next
    {Op.LOAD.name}:
        mov rax, [rdx+{uc.RSP}]; mov rax, [rax+rdi]
        mov [rdx+rcx*8+{uc.REGISTERS}], rax; jmp next
    {Op.STACK.name}:
        add [rdx+{uc.RSP}], rdi; jmp next
    {Op.RAISE.name}:
        add [rdx+rcx*8+{uc.REGISTERS}], rdi; jmp next
    {Op.HELD.name}:
        mov rax, [rdx+rcx*8+{uc.REGISTERS}]
        mov [rdx+{uc.RIP}], rax; jmp next
    {Op.SITE.name}:
        add rdi, r11; mov [rdx+{uc.RIP}], rdi; jmp next
    """)


def _ways_on(asm: Assembler) -> None:
    """Emit the steps that lead on, and those that depend on what has happened."""
    asm.code(f"""
    {Op.FOLLOW.name}:
        mov rax, [rdx+{uc.RIP}]; add rax, rdi
        movsxd rcx, dword [rax+1]; lea rax, [rax+rcx+5]
        mov [rdx+{uc.RIP}], rax; jmp next
    {Op.CALLER.name}:
        mov rax, [rdx+{uc.RSP}]; add rdi, [rax]
        mov [rdx+{uc.RIP}], rdi; add rax, 8
        mov [rdx+{uc.RSP}], rax; jmp next
    {Op.RETURN.name}:
        mov rax, [rdx+{uc.RSP}]; mov rcx, [rax]
        mov [rdx+{uc.RIP}], rcx; lea rax, [rax+rdi+8]
        mov [rdx+{uc.RSP}], rax; jmp next
    {Op.IF_SYNCHRONOUS.name}:
        test r12d, r12d; jz next
        add r9, rdi; jmp next
    {Op.IF_INTERRUPTED.name}:
        test r12d, r12d; jz done
        jmp next
    """)


def _flags(asm: Assembler) -> None:
    """Emit the steps that bring the flags back."""
    asm.code(f"""
    {Op.FLAGS_AT.name}:
        mov rax, [rdx+{uc.RSP}]; mov rax, [rax+rdi]; jmp flags
    {Op.FLAGS_IN.name}:
        mov rax, [rdx+rcx*8+{uc.REGISTERS}]
    flags:
        mov ecx, [rdx+{uc.EFLAGS}]; and ecx, {~uc.STATUS_FLAGS}
        movzx edi, al; and edi, 1
        shl edi, 11; or ecx, edi; jmp high_flags
    {Op.HIGH_FLAGS_IN.name}:
        mov rax, [rdx+rcx*8+{uc.REGISTERS}]
        mov ecx, [rdx+{uc.EFLAGS}]
        and ecx, {~(uc.STATUS_FLAGS & 0xFF)}
    high_flags:
        movzx edi, ah; and edi, {uc.STATUS_FLAGS & 0xFF}
        or ecx, edi; mov [rdx+{uc.EFLAGS}], rcx; jmp next
    {Op.FLAGS_IMAGE.name}:
        mov rax, [rdx+{uc.RSP}]; mov rax, [rax+rdi]
        mov [rdx+{uc.EFLAGS}], rax; jmp next
    """)


def _counts(asm: Assembler) -> None:
    """Emit the steps that take back what a pass has counted; each changes a shared word by one instruction.

    A thread that was in the middle of the line when it was armed has not been counted: what is taken back too
    much comes again when it passes the site. It has neither entered nor missed: then nothing is taken back.
    """
    asm.code(f"""
    {Op.UNCOUNT.name}:
        movsxd rax, dword [rbp+r8]
        call block; jz uncount_shared
        dec qword [rcx+rax]; jmp next
    uncount_shared:
        mov rcx, [rbx+rdi+{_SHARED}]; lock dec qword [rcx+rax]; jmp next
    {Op.UNCOUNT_NEAR.name}:
        lea rcx, [rbp+r8]; movsxd rax, dword [rcx]
        lock dec qword [rcx+rax+4]; jmp next
    {Op.UNENTER.name}:
        movsxd rax, dword [rbp+r8]
        call block; jz unmiss_shared
        mov r8, [rcx+{at.BLOCK_TOP}]; sub r8, 1; js unmiss
        shl r8, 6; mov r10, [rdx+{uc.RSP}]
        cmp [rcx+r8+{at.BLOCK_HEAD_BYTES + at.INSTANCE_SP}], r10; jne unmiss
        cmp [rcx+r8+{at.BLOCK_HEAD_BYTES + at.INSTANCE_RECORD}], rax; jne unmiss
        mov qword [rcx+r8+{at.BLOCK_HEAD_BYTES + at.INSTANCE_SP}], 0
        dec qword [rcx+{at.BLOCK_TOP}]; jmp next
    unmiss:
        cmp qword [rcx+rax+{at.RECORD_MISSED}], 0; je next
        dec qword [rcx+rax+{at.RECORD_MISSED}]; jmp next
    unmiss_shared:
        mov rcx, [rbx+rdi+{_SHARED}]
        cmp qword [rcx+rax+{at.RECORD_MISSED}], 0; je next
        lock dec qword [rcx+rax+{at.RECORD_MISSED}]; jmp next
    """)


def _reservation(asm: Assembler) -> None:
    """Emit the step that gives an instance back."""
    asm.code(f"""
    {Op.UNRESERVE.name}:
        call block; jz next
        dec qword [rcx+{at.BLOCK_TOP}]; jmp next
    """)


def _finish(asm: Assembler) -> None:
    """Emit the step that has the copy of a routine go on where the routine was interrupted."""
    asm.code(f"""
    {Op.FINISH.name}:
        mov r10, [rdx+{uc.RIP}]; add r10, rdi
        push rsi; push rdx
        push r8; push r9; push r11; push r10
        push qword [rdx+{uc.EFLAGS}]
        and dword [rsp], {uc.STATUS_FLAGS}
        mov r8, [rdx+{uc.R8}]; mov r9, [rdx+{uc.R9}]
        mov r10, [rdx+{uc.R10}]; mov r11, [rdx+{uc.R11}]
        mov rdi, [rdx+{uc.RDI}]; mov rsi, [rdx+{uc.RSI}]
        mov rcx, [rdx+{uc.RCX}]
        mov rax, [rdx+{uc.RAX}]
        mov rdx, [rdx+{uc.RDX}]; popfq
        call qword [rsp]; lea rsp, [rsp+8]; pop r11; pop r9; pop r8; pop rdx; pop rsi; jmp next
    """)


def _finish_view(asm: Assembler) -> None:
    """Emit the step that has this routine's copy go on where another handler's view was interrupted."""
    asm.code(f"""
    {Op.FINISH_VIEW.name}:
        add rdi, [rdx+{uc.RIP}]
        push rbx
        push rbp
        push r9
        push r11
        push r12
        push rsi; push rdx; push rdi
        push qword [rdx+{uc.EFLAGS}]
        and dword [rsp], {uc.STATUS_FLAGS}
        mov r8, [rdx+{uc.R8}]; mov r9, [rdx+{uc.R9}]
        mov r10, [rdx+{uc.R10}]; mov r11, [rdx+{uc.R11}]
        mov r12, [rdx+{uc.R12}]; mov rdi, [rdx+{uc.RDI}]
        mov rsi, [rdx+{uc.RSI}]; mov rbp, [rdx+{uc.RBP}]
        mov rbx, [rdx+{uc.RBX}]
        mov rcx, [rdx+{uc.RCX}]
        mov rax, [rdx+{uc.RAX}]
        mov rdx, [rdx+{uc.RDX}]
        popfq; call qword [rsp]
        lea rsp, [rsp+8]
        pop rdx
        pop rsi
        pop r12
        pop r11
        pop r9
        pop rbp; pop rbx; jmp next
    """)
