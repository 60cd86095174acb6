"""Code that makes chosen system calls itself: where the number of one is loaded that the code comes to."""

from collections.abc import Iterator, Sequence

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.restrictions.raw_clones import loads, reaches_syscall
from anyprobe.core.address import AddressRange

EXECUTING = (59, 322)
"""``execve`` and ``execveat``."""
PRCTL, SECCOMP = 157, 317
FILTERING = (PRCTL, SECCOMP)
OWN_CALLS = (*EXECUTING, *FILTERING)
"""What has to be known of: what executes a program, and what filters system calls."""
_MOV_EAX, _MOV_RAX = b"\xb8", b"\x48\xc7\xc0"
_POP_RAX = b"\x58"
_IMMEDIATE = 4
_PUSH_POP = 3


def system_call_sites(
    elf: ElfFile, ranges: Sequence[AddressRange], numbers: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield the instructions that load the numbers of some system calls, which follow, and these numbers.

    Where the number is pushed and popped, it is the push.
    """
    for each in ranges:
        content = elf.read(each.start, len(each))
        for number in numbers:
            for at in loads(content, number, (_MOV_EAX, _MOV_RAX), _POP_RAX):
                if reaches_syscall(content, at):
                    yield each.start + _begin(content, at), number


def _begin(content: bytes, end: int) -> int:
    """Return where an instruction begins that loads a number and ends at an offset."""
    if content.endswith(_MOV_RAX, 0, end - _IMMEDIATE):
        return end - _IMMEDIATE - len(_MOV_RAX)
    if content.endswith(_MOV_EAX, 0, end - _IMMEDIATE):
        return end - _IMMEDIATE - len(_MOV_EAX)
    return end - _PUSH_POP
