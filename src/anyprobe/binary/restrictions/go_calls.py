"""Go code that makes chosen system calls: it loads the number of one, and calls a function that makes any of them.

Only in functions that see to it that there is stack: below their own there are 800 bytes then, for functions that do
not look (Go's ``StackLimit``). Those that make system calls take few of them, and a thread that waits some 500.
"""

import re
from collections.abc import Iterator, Sequence

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.functions import FunctionTable
from anyprobe.core.address import AddressRange
from anyprobe.isa.decode import Flow, decode_range

_MAKERS = frozenset({"Syscall", "Syscall6", "RawSyscall", "RawSyscall6", "RawSyscallNoError", "rawSyscallNoError"})
"""What functions are called, in whichever package, that make the call whose number is their first argument."""
_LOOKS_AT_STACK = re.compile(rb"[\x48\x49\x4c\x4d]\x3b[\x41\x61\x66]\x10")
"""``cmp`` of the stack pointer, or of what it will be, with the goroutine's ``stackguard0``."""
_PROLOGUE, _MOST_BYTES = 48, 96
_MOV_EAX = b"\xb8"


def go_call_sites(
    elf: ElfFile,
    ranges: Sequence[AddressRange],
    functions: FunctionTable,
    at_load: Sequence[int],
    at_call: Sequence[int],
) -> Iterator[tuple[int, int]]:
    """Yield where system calls are come to, and their numbers.

    For those ``at_load`` that is the instruction which loads the number; for those ``at_call`` the call, where the
    arguments are in their registers (``rbx``, ``rcx``, ``rdi``).
    """
    for each in ranges:
        content = elf.read(each.start, len(each))
        for number in (*at_load, *at_call):
            load = _MOV_EAX + number.to_bytes(4, "little")
            at = content.find(load)
            while at >= 0:
                place = each.start + at
                call = _call_after(content[at : at + _MOST_BYTES], place, functions)
                maker = functions.containing(place)
                if call and maker is not None and maker.start >= each.start:
                    first = content[maker.start - each.start :][:_PROLOGUE]
                    if _LOOKS_AT_STACK.search(first):
                        yield call if number in at_call else place, number
                at = content.find(load, at + 1)


def _call_after(content: bytes, address: int, functions: FunctionTable) -> int:
    """Return the call, straight on from an instruction, of a function that makes system calls; 0 if there is none."""
    for insn in decode_range(content, address)[1:]:
        if insn.flow is Flow.CALL and insn.target is not None:
            called = functions.containing(insn.target)
            return insn.address if called is not None and not _MAKERS.isdisjoint(called.name.split(".")) else 0
        if insn.flow is not Flow.NEXT:
            break
    return 0
