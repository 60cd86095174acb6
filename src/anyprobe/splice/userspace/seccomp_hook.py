"""What is called in front of ``prctl`` and ``syscall``: it sees a filter for system calls come, and says so in a word.

Handlers make system calls of their own, which such a filter may punish by death. They look at the word first.
"""

from functools import cache

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.isa.leaf import leaf

_SET_SECCOMP = 22
_PRCTL, _SECCOMP = 157, 317
_INPUTS = (
    Input(InputKind.PARAMETER, "u64", 0, place="rdi"),
    Input(InputKind.PARAMETER, "u64", 1, place="rsi"),
    Input(InputKind.STORAGE),
)


@cache
def filter_at_call() -> NativeCode:
    """Return the code for a place that comes to ``seccomp``: its storage is the word."""
    return leaf("mov rax, [rdi]; mov dword [rax], 1; ret", (Input(InputKind.STORAGE),), clobbers="rax flags")


@cache
def filter_option(register: str = "rdi") -> NativeCode:
    """Return the code for a place that comes to ``prctl``, where the option is in its register already."""
    listing = f"""
        mov eax, [rdi]; mov rcx, [rdi+8]
        cmp eax, {_SET_SECCOMP}; jne short out
        mov dword [rcx], 1
    out:
        ret
    """
    return leaf(listing, (Input(InputKind.REGISTER, register), Input(InputKind.STORAGE)), clobbers="rax rcx flags")


@cache
def filter_check(*, numbered: bool) -> NativeCode:
    """Return the code for ``prctl(option, …)``, or for ``syscall(number, option, …)``; its storage is the word."""
    by_number = f"""
        cmp eax, {_SECCOMP}; je short comes
        cmp eax, {_PRCTL}; jne short out
        mov eax, [rdi+8]
    """
    listing = f"""
        mov eax, [rdi]
        {by_number if numbered else ""}
        cmp eax, {_SET_SECCOMP}; jne short out
    comes:
        mov rax, [rdi+16]
        mov dword [rax], 1
    out:
        ret
    """
    return leaf(listing, _INPUTS, clobbers="rax flags")
