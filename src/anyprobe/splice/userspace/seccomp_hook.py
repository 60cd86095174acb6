"""What is called before ``prctl`` and ``syscall``: it sees a filter for system calls come, and says so in a word.

Handlers make system calls of their own, which such a filter may punish by death. They look at the word first.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from anyprobe.binary.restrictions.raw_calls import FILTERING
from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.isa.leaf import leaf

_SET_SECCOMP = 22
_PRCTL, _SECCOMP = 157, 317
_LOADS_OPTION = b"\xbf\x16\x00\x00\x00"
"""``mov edi, PR_SET_SECCOMP``."""
_INPUTS = (
    Input(InputKind.PARAMETER, "u64", 0, place="rdi"),
    Input(InputKind.PARAMETER, "u64", 1, place="rsi"),
    Input(InputKind.STORAGE),
)


SETTERS: Mapping[str, bool] = MappingProxyType({"prctl": False, "__prctl": False, "syscall": True})
"""What makes these calls in the C library, and whether the call's number is its first parameter."""


class FilterChecks:
    """The checks for filters, by place."""

    functions = SETTERS
    numbers = FILTERING

    def at_function(self, *, numbered: bool) -> NativeCode:
        """Return the code for ``prctl(option, …)``, or for ``syscall(number, option, …)``."""
        return filter_check(numbered=numbered)

    def at_call(self, number: int, *, near: bytes | None, is_go: bool) -> NativeCode:
        """Return the code for a place that comes to a system call; ``near``: the bytes around, if they can be read."""
        sets = number == _SECCOMP or (not is_go and (near is None or _LOADS_OPTION in near))
        return filter_at_call() if sets else filter_option("rbx" if is_go else "rdi")


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
