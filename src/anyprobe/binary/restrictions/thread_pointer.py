"""Code that gives its thread another thread pointer for a while: emulators, runtimes with threads of their own.

Between two ``wrfsbase`` the word of the thread control block that would lead to a thread's counters is another's.
"""

from collections.abc import Sequence

import numpy as np

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.core.address import AddressRange

_OPCODE = (0x0F, 0xAE)
_MANDATORY = 0xF3


def moves_thread_pointer(elf: ElfFile, ranges: Sequence[AddressRange]) -> bool:
    """Return whether ``wrfsbase`` (f3 [rex] 0f ae /2, a register) stands anywhere in some code, or seems to."""
    for each in ranges:
        content = np.frombuffer(elf.read(each.start, len(each)), np.uint8)
        second = np.flatnonzero(content[1:-1] == _OPCODE[1]) + 1  # the rarer byte; all are looked for at once
        at = second[(content[second - 1] == _OPCODE[0]) & (content[second + 1] & 0xF8 == 0xD0)] - 1
        plain, rex = at[at >= 1], at[at >= 2]
        if np.any(content[plain - 1] == _MANDATORY):
            return True
        if np.any((content[rex - 1] & 0xF0 == 0x40) & (content[rex - 2] == _MANDATORY)):
            return True
    return False
