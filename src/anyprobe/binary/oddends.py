"""Calls and system calls behind which control does not go on, as hand-written code has them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from iced_x86 import Code, Mnemonic, OpKind, Register

if TYPE_CHECKING:
    from iced_x86 import Instruction

_MOST_BYTES = 1 << 12
_NUMBERS = frozenset({Code.MOV_R32_IMM32, Code.MOV_RM32_IMM32, Code.MOV_RM64_IMM32})
_NEVER_BACK = frozenset({15, 60, 231})
"""``rt_sigreturn``, ``exit`` and ``exit_group``."""


def hops(call: "Instruction", instruction_at: "Callable[[int], Instruction | None]") -> bool:
    """Return whether a call pushes the address of data behind it: ``call 1f; .asciz "text"; 1: pop rdi``."""
    target = call.near_branch_target
    if not 0 < target - call.next_ip <= _MOST_BYTES:
        return False
    first = instruction_at(target)
    return first is not None and first.mnemonic == Mnemonic.POP


def is_last_call(above: "Instruction | None") -> bool:
    """Return whether a system call behind an instruction, which sets its number, never comes back."""
    sets = above is not None and above.code in _NUMBERS and above.op0_register in (Register.EAX, Register.RAX)
    return sets and above is not None and above.immediate(1) in _NEVER_BACK


def changes_return(first: "Instruction") -> bool:
    """Return whether a function that begins so goes elsewhere than behind its call, as retpolines do."""
    if first.op_count == 0:
        return False
    if first.op0_kind == OpKind.MEMORY:
        on_top = first.memory_base == Register.RSP and first.memory_index == Register.NONE
        return on_top and first.memory_displacement == 0 and first.mnemonic not in (Mnemonic.CMP, Mnemonic.TEST)
    return first.op0_kind == OpKind.REGISTER and (
        first.op0_register == Register.RSP and first.mnemonic in (Mnemonic.LEA, Mnemonic.ADD)
    )
