"""The generated code at a signal handler's first instruction: whether the kernel calls it, out of anyprobe's code.

As long as neither is so, nothing is written: the stack may be an alternate one that ends right below, or that another
thread has made read-only meanwhile, which does a handler no harm that only returns. Where it is the kernel that calls,
all registers but ``rdi``, ``rsi``, ``rdx`` and ``rsp`` are free: the signal frame has them, and it lies right above the
stack pointer. So what is overwritten is loaded from there. Of a register that the kernel clears, ``rax``, the word is
taken that it clears in each frame.
"""

from anyprobe.isa import signal_frame as uc
from anyprobe.isa.assemble import Assembler
from anyprobe.isa.registers import NUMBERS
from anyprobe.splice.translate.abstract_state import ORIGINAL, RAX, REGISTERS, RSP, State
from anyprobe.splice.translate.progress import Progress, Stretch, stretches_of
from anyprobe.splice.translate.routine import LARGEST_JUMPS
from anyprobe.splice.translate.steps import frame_index

FRAME = 8
"""Where the ``ucontext`` is, from the stack pointer at a handler's first instruction on: above its return address."""
VIEW_NEEDS = 640
"""Bytes below that stack pointer that the view's routine takes at most."""
_CLEARED = FRAME + uc.LINK
_FREE = ("rcx", "r8", "r9", "r10", "r11")
_PROGRESS = {"check": Progress.BACK}


def place_of(register: int) -> int:
    """Return where a word is that a register held when the handler began, from that stack pointer on."""
    return _CLEARED if register == RAX else FRAME + uc.REGISTERS + 8 * frame_index(register)


def with_frame(state: State) -> State:
    """Return the state of a handler that the kernel has called: its registers lie in the frame, too."""
    words = dict(state.stack)
    words.update((place_of(number), (ORIGINAL, number)) for number in range(REGISTERS) if number != RSP)
    return state._replace(stack=tuple(sorted(words.items())))


def restored(name: str) -> str:
    """Return the instruction that gives a register back, where the stack pointer is as at first."""
    return f"mov {name}, [rsp+{place_of(NUMBERS[name])}]"


def assemble_check(address: int, root: int) -> tuple[bytes, tuple[Stretch, ...]]:
    """Return the routine and what is to be done with threads in it; ``root`` is where the address of the index is.

    It is jumped to with ``r13`` = where it goes on, and says with ZF that nothing is to be done: the interrupted pc is
    none of anyprobe's, or the alternate stack has no room for the view.
    """
    asm = Assembler()
    asm.code(
        f"""
        check:
            mov rax, [rdx+{uc.RIP}]
            mov rcx, root; mov r8, [rcx]; test r8, r8; jz check_over
            mov r9, [r8]; add r8, 16
            # the last of r9 entries at r8 that begins at or below rax
            xor ecx, ecx
        check_next:
            cmp rcx, r9; jae check_end
            lea r10, [rcx+r9]; shr r10, 1
            mov r11, r10; shl r11, 4
            cmp [r8+r11], rax; ja check_above
            lea rcx, [r10+1]; jmp check_next
        check_above:
            mov r9, r10; jmp check_next
        check_end:
            shl rcx, 4; jz check_over
            lea r8, [r8+rcx-16]; sub rax, [r8]
            mov r9, [r8+8]; cmp r9, {LARGEST_JUMPS}; jb check_size
            mov r9, [r9+8]  # a table: how much code it describes
        check_size:
            cmp rax, r9; jae check_not
            # as much as the view takes, if this is the alternate stack
            mov rcx, rsp; sub rcx, [rdx+{uc.STACK}]
            cmp rcx, [rdx+{uc.STACK_SIZE}]; jae check_ours
            cmp rcx, {VIEW_NEEDS}; jb check_not
        check_ours:
            or ecx, -1; jmp check_over
        check_not:
            xor ecx, ecx
        check_over:
            {"; ".join(map(restored, (*_FREE, "rax")))}
            jmp r13
        """,
        root=root,
    )
    code = asm.finish(address)
    return code, stretches_of(asm, address, len(code), _PROGRESS)
