"""What is called before ``syscall`` and ``ioctl``: it sees a program register memory with a userfaultfd.

From then on, a thread of the program serves faults there. A handler in that thread, and not only there, would wait for
it for ever, so handlers look before they read at a word that this sets.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.data.guarded import ASKED, UNKNOWN
from anyprobe.isa.leaf import leaf

_REGISTER = 0xC020AA00
"""The request by which faults of a range are served."""


@cache
def _check(register: str) -> NativeCode:
    listing = f"""
        mov eax, [rdi]; mov rcx, [rdi+8]
        cmp eax, {_REGISTER - (1 << 32)}; jne short out
        inc dword [rcx+{ASKED}]
        mov dword [rcx], {UNKNOWN}
    out:
        ret
    """
    return leaf(listing, (Input(InputKind.REGISTER, register), Input(InputKind.STORAGE)), clobbers="rax rcx flags")


class UserfaultChecks:
    """The checks, by place."""

    functions: Mapping[str, bool] = MappingProxyType({"syscall": True, "ioctl": False})
    numbers: Sequence[int] = ()

    def at_function(self, *, numbered: bool) -> NativeCode:
        """Return the code for ``syscall(number, …)``, or for ``ioctl(descriptor, request, …)``."""
        return _check("rdx" if numbered else "rsi")

    def at_call(self, number: int, *, near: bytes | None, is_go: bool) -> NativeCode:
        """Return the code for a place that comes to a system call."""
        raise NotImplementedError
