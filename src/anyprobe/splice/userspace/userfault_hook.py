"""What is called before ``syscall``, ``ioctl`` and ``mount``: it sees a program get memory that it may serve itself.

That is memory registered with a userfaultfd, and files of a file system of its own. A handler in the thread that serves
it, and not only there, would wait for it for ever, so handlers look before they read at a word that this sets.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.core.errors import InternalError
from anyprobe.data.layouts.guarded import ASKED, UNKNOWN
from anyprobe.isa.leaf import leaf

_REGISTER = 0xC020AA00
"""The request by which faults of a range are served."""
_MOUNT, _FSMOUNT = 165, 432
_SAYS = f"""
    inc dword [rcx+{ASKED}]
    mov dword [rcx], {UNKNOWN}
"""


@cache
def _check(*, numbered: bool) -> NativeCode:
    """Return the code for ``ioctl(descriptor, request, …)``, or for ``syscall(number, …)``."""
    by_number = f"""
        mov rcx, [rdi+16]; mov eax, [rdi]
        cmp eax, {_MOUNT}; je short says
        cmp eax, {_FSMOUNT}; je short says
        mov eax, [rdi+8]
    """
    listing = f"""
        {by_number if numbered else "mov rcx, [rdi+8]; mov eax, [rdi]"}
        cmp eax, {_REGISTER - (1 << 32)}; jne short out
    says:
        {_SAYS}
    out:
        ret
    """
    registers = ("rdi", "rdx") if numbered else ("rsi",)
    inputs = tuple(Input(InputKind.REGISTER, register) for register in registers)
    return leaf(listing, (*inputs, Input(InputKind.STORAGE)), clobbers="rax rcx flags")


@cache
def _mounts() -> NativeCode:
    """Return the code for what mounts a file system, whichever it is."""
    return leaf(f"mov rcx, [rdi]; {_SAYS}; ret", (Input(InputKind.STORAGE),), clobbers="rcx flags")


class _AtFunctionsAlone:
    """Checks of what programs do by functions of the C library: no code is looked for that makes a call itself."""

    numbers: Sequence[int] = ()

    def at_call(self, number: int, *, near: bytes | None, is_go: bool) -> NativeCode:
        """Raise ``InternalError``: there is no such place."""
        del near, is_go
        raise InternalError(f"no code that makes system call {number} itself is checked")


class UserfaultChecks(_AtFunctionsAlone):
    """The checks, by place."""

    functions: Mapping[str, bool] = MappingProxyType({"syscall": True, "ioctl": False})

    def at_function(self, *, numbered: bool) -> NativeCode:
        """Return the code for ``syscall(number, …)``, or for ``ioctl(descriptor, request, …)``."""
        return _check(numbered=numbered)


class MountChecks(_AtFunctionsAlone):
    """The checks of what is mounted, by place."""

    functions: Mapping[str, bool] = MappingProxyType({"mount": False, "fsmount": False})

    def at_function(self, *, numbered: bool) -> NativeCode:
        """Return the code for ``mount`` and ``fsmount``."""
        del numbered
        return _mounts()
