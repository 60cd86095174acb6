"""What is looked at before glibc's ``sigaction(signal, act, old)``: whether the handler needs care at once.

That is one for faults, and one on an alternate stack, whose address and size this does not look at.
"""

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.isa.leaf import leaf
from anyprobe.splice.userspace.signal_actions import FAULT_SIGNALS
from anyprobe.splice.userspace.trap_handler import SA_ONSTACK

FLAGS_AT = 136
"""``sa_flags`` in glibc's ``struct sigaction`` (``bits/sigaction.h``); ``sa_handler`` is at 0."""

_INPUTS = (
    Input(InputKind.PARAMETER, "u32", 0, place="rdi"),
    Input(InputKind.PARAMETER, "u64", 1, place="rsi"),
)


def sets_watched_action() -> NativeCode:
    """Return the condition: there is a handler, for the signal of a fault or on an alternate stack."""
    # a number that is no signal's is refused before the action is looked at, wherever that is; SIG_DFL and SIG_IGN
    # are 0 and 1
    listing = f"""
        mov ecx, [rdi]
        dec ecx; cmp ecx, 63; ja short other
        mov rax, [rdi+8]
        test rax, rax; jz short other
        cmp qword [rax], 1; jbe short other
        test dword [rax+{FLAGS_AT}], {SA_ONSTACK}; jnz short wanted
        cmp ecx, 30; ja short other
        mov eax, {sum(1 << signal - 1 for signal in FAULT_SIGNALS)}
        bt eax, ecx; jnc short other
    wanted:
        ret
    other:
        xor eax, eax; ret
    """
    return leaf(listing, _INPUTS, clobbers="rax rcx flags")
