"""What the kernel saves on a stack when it calls a signal handler, recognised among the words of the stack.

In ``struct sigcontext`` (``arch/x86/include/uapi/asm/sigcontext.h``) rsp and rip are followed by eflags and selectors.
"""

import re
import struct
from collections.abc import Iterator

_SELECTORS = re.compile(rb"\x33\0\0\0\0\0")
"""cs of 64-bit code, gs and fs, which the kernel saves as 0."""
_SAVED = struct.Struct("<3Q")
"""rsp, rip, eflags."""
_TRAP_NUMBER, _SIGINFO = 40, 144
"""After rsp: ``trapno``, and the ``siginfo`` that follows the ``ucontext`` (``struct rt_sigframe``)."""
_BREAKPOINT, _SIGTRAP, _SI_KERNEL = 3, 5, 0x80
_EFLAGS_ALWAYS, _EFLAGS_LIMIT = 0x2, 1 << 22


def frames_in(content: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield where something like a signal frame is, the stack pointer that it saved, and the pc.

    They are few, and everybody waits: the first use of a vector library would cost more.
    """
    for match in _SELECTORS.finditer(content):
        start = match.start() - _SAVED.size
        if start % 8 == 0 and start >= 0:
            pointer, pc, flags = _SAVED.unpack_from(content, start)
            if flags < _EFLAGS_LIMIT and flags & _EFLAGS_ALWAYS:
                yield start, pointer, pc


def is_of_breakpoint(content: bytes, start: int) -> bool:
    """Return whether a frame that ``frames_in`` has found was made for an ``int3``, as far as its content is there."""
    if start + _SIGINFO + 12 > len(content):
        return False
    (number,) = struct.unpack_from("<Q", content, start + _TRAP_NUMBER)
    signal, _, code = struct.unpack_from("<3i", content, start + _SIGINFO)
    return (number, signal, code) == (_BREAKPOINT, _SIGTRAP, _SI_KERNEL)
