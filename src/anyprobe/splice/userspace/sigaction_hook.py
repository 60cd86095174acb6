"""What is looked at before glibc's ``sigaction(signal, act, old)``: whether a handler for faults may be set."""

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.isa.leaf import leaf
from anyprobe.splice.userspace.signal_actions import FAULT_SIGNALS

_INPUTS = (
    Input(InputKind.PARAMETER, "u32", 0, place="rdi"),
    Input(InputKind.PARAMETER, "u64", 1, place="rsi"),
)


def sets_fault_action() -> NativeCode:
    """Return the condition: the signal is one of a fault, and there is an action."""
    listing = f"""
        mov ecx, [rdi]
        cmp ecx, 31; ja short other
        mov eax, {sum(1 << signal for signal in FAULT_SIGNALS)}
        bt eax, ecx; jnc short other
        mov rax, [rdi+8]; ret
    other:
        xor eax, eax; ret
    """
    return leaf(listing, _INPUTS, clobbers="rax rcx flags")
