"""Code that gives its thread another thread pointer for a while: emulators, runtimes with threads of their own.

Between two ``wrfsbase`` the word of the thread control block that would lead to a thread's counters is another's.
"""

from collections.abc import Sequence

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.core.address import AddressRange

_OPCODE = b"\x0f\xae"
_MANDATORY = 0xF3


def moves_thread_pointer(elf: ElfFile, ranges: Sequence[AddressRange]) -> bool:
    """Return whether ``wrfsbase`` (f3 [rex] 0f ae /2, a register) stands anywhere in some code, or seems to."""
    for each in ranges:
        content = elf.read(each.start, len(each))
        at = content.find(_OPCODE)
        while at >= 0:
            is_rex = content[at - 1 : at] != b"" and content[at - 1] & 0xF0 == 0x40
            before = content[max(at - 1 - is_rex, 0) : at][:1]
            if content[at + 2 : at + 3] and content[at + 2] & 0xF8 == 0xD0 and before == bytes([_MANDATORY]):
                return True
            at = content.find(_OPCODE, at + 1)
    return False
