"""Calls and system calls after which control does not go on, or may not, as hand-written code has them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from iced_x86 import Code, Mnemonic, OpKind, Register

from anyprobe.binary.decoding.constants import Constants
from anyprobe.isa.decode import FLOWS, Flow

if TYPE_CHECKING:
    from iced_x86 import Instruction

    InstructionAt = Callable[[int], "Instruction | None"]

SYSTEM_CALLS = (b"\x0f\x05", b"\xcd\x80")
"""``syscall`` and ``int 0x80``."""
_MOST_BYTES = 1 << 12
_NEVER_BACK = frozenset({15, 60, 231})
"""``rt_sigreturn``, ``exit`` and ``exit_group``."""
_NEVER_BACK_32 = frozenset({1, 119, 173, 252})
"""``exit``, ``sigreturn``, ``rt_sigreturn`` and ``exit_group`` by ``int 0x80``."""
_ERRORS = frozenset(range(-4095, 1))
_MOST_ABOVE = 24
"""How many instructions above a system call may set its number."""


def is_system_call(one: "Instruction") -> bool:
    """Return whether an instruction asks something of the kernel that need not come back."""
    return one.code == Code.SYSCALL or (one.code == Code.INT_IMM8 and one.immediate8 == 0x80)


def system_call_line(
    call: int, instruction_above: "InstructionAt", is_aim: Callable[[int], bool]
) -> "list[Instruction]":
    """Return the straight line of instructions above a system call, which control comes to from its first one only.

    ``instruction_above`` returns what ends at an address.
    """
    line: list[Instruction] = []
    at = call
    while len(line) < _MOST_ABOVE and not is_aim(at):
        above = instruction_above(at)
        if above is None or FLOWS[above.code] is not Flow.NEXT:
            break
        line.insert(0, above)
        at = above.ip
    return line


def comes_back(call: "Instruction", line: "Sequence[Instruction]", after: "Instruction | None") -> bool | None:
    """Return whether a system call does; ``None`` where that is not known.

    ``line`` leads to it, and ``after`` stands after it. An unknown one does where its result is looked at.
    """
    number = Constants().follow(line).value_of(Register.RAX)
    if number is not None:
        return number & 0xFFFF_FFFF not in (_NEVER_BACK if call.code == Code.SYSCALL else _NEVER_BACK_32)
    return True if after is not None and _looks_at_result(after) else None


def _looks_at_result(one: "Instruction") -> bool:
    """Return whether an instruction compares ``rax`` with an error number, or with itself: no text looks like that."""
    if one.op_count != 2 or one.op0_kind != OpKind.REGISTER or one.op0_register not in (Register.RAX, Register.EAX):
        return False
    if one.mnemonic == Mnemonic.TEST:
        return one.op1_kind == OpKind.REGISTER and one.op1_register == one.op0_register
    if one.mnemonic != Mnemonic.CMP or one.op1_kind in (OpKind.REGISTER, OpKind.MEMORY):
        return False
    bits = 32 if one.op0_register == Register.EAX else 64
    return (one.immediate(1) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1) in _ERRORS


def hops(call: "Instruction", instruction_at: "InstructionAt") -> bool:
    """Return whether a call pushes the address of data after it: ``call 1f; .asciz "text"; 1: pop rdi``."""
    target = call.near_branch_target
    if not 0 < target - call.next_ip <= _MOST_BYTES:
        return False
    first = instruction_at(target)
    return first is not None and first.mnemonic == Mnemonic.POP


def changes_return(first: "Instruction") -> bool:
    """Return whether a function that begins so goes elsewhere than after its call, as retpolines do."""
    if first.op_count == 0:
        return False
    if first.op0_kind == OpKind.MEMORY:
        on_top = first.memory_base == Register.RSP and first.memory_index == Register.NONE
        return on_top and first.memory_displacement == 0 and first.mnemonic not in (Mnemonic.CMP, Mnemonic.TEST)
    return first.op0_kind == OpKind.REGISTER and (
        first.op0_register == Register.RSP and first.mnemonic in (Mnemonic.LEA, Mnemonic.ADD)
    )
