"""What the driver and its users say to each other: the structures of ``anyprobe.h``, and why a batch is refused."""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

ABI: Final = 6
MAX_LENGTH: Final = 32
"""Bytes of one write."""
MAX_WRITES: Final = 1024
"""Writes of one batch, for which all processors stand still once."""
MAX_TRIES: Final = 16
"""How often the driver looks at once whether a task is inside."""
NEAR_COUNTERS: Final = 256
"""Counters of each processor in reach of a ``gs:`` displacement of 32 bits."""
MAX_PERCPU: Final = 32 << 10
"""Bytes of one piece of memory of each processor."""

INFO: Final = struct.Struct("<IIQQQ")
REGION: Final = struct.Struct("<QQ")
MEMORY: Final = struct.Struct("<QQQ")
COUNTS: Final = struct.Struct("<QQQ")
CHANGES: Final = struct.Struct("<QII")
BATCH: Final = struct.Struct("<QQIIIIIIQQ")
WRITE: Final = struct.Struct(f"<QII{MAX_LENGTH}s{MAX_LENGTH}s")
_FIXUP: Final = struct.Struct("<QQ")

_IOC_WRITE, _IOC_READ = 1, 2


def _request(number: int, direction: int, layout: struct.Struct) -> int:
    """Return the number of an ioctl as ``_IOC`` makes it."""
    return direction << 30 | layout.size << 16 | ord("y") << 8 | number


GET_INFO: Final = _request(1, _IOC_READ, INFO)
RESERVE: Final = _request(2, _IOC_READ | _IOC_WRITE, REGION)
SHARE: Final = _request(3, _IOC_READ | _IOC_WRITE, MEMORY)
PERCPU: Final = _request(4, _IOC_READ | _IOC_WRITE, MEMORY)
READ_COUNTS: Final = _request(5, _IOC_WRITE, COUNTS)
APPLY: Final = _request(6, _IOC_READ | _IOC_WRITE, BATCH)
LIST: Final = _request(7, _IOC_READ | _IOC_WRITE, CHANGES)


class Verdict(IntEnum):
    """What the driver says of a batch."""

    DONE = 0
    BAD_WRITE = 1
    NOT_TEXT = 2
    NOT_BOUNDARY = 3
    CALL_INSIDE = 4
    OLD_BYTES = 5
    OVERLAP = 6
    BUSY = 7
    FORBIDDEN = 8
    STATIC_KEY = 9
    STATIC_CALL = 10
    FTRACE = 11
    ALTERNATIVE = 12
    KPROBE = 13
    BUG = 14
    FAULTS = 15
    BAD_FIXUP = 16
    STRAY = 17
    LANDING_PAD = 18


MEANINGS: Final = {
    Verdict.BAD_WRITE: "a write is empty, too long, or not after the one before it",
    Verdict.NOT_TEXT: "there is no code of the kernel or of a loaded module",
    Verdict.NOT_BOUNDARY: "what is written does not begin and end where instructions do",
    Verdict.CALL_INSIDE: "a call is displaced that is not the last instruction, so that it would return into a jump",
    Verdict.OLD_BYTES: "other bytes are there than expected",
    Verdict.OVERLAP: "another write is in force there",
    Verdict.BUSY: "a task is between the instructions that are to be replaced, or in a patch",
    Verdict.FORBIDDEN: "entry code, code without instrumentation, code that NMIs run, or what kprobes may not touch",
    Verdict.STATIC_KEY: "the kernel changes these bytes itself: a static key",
    Verdict.STATIC_CALL: "the kernel changes these bytes itself: a static call",
    Verdict.FTRACE: "the kernel changes these bytes itself: an ftrace site",
    Verdict.ALTERNATIVE: "the kernel changes these bytes itself: an alternative",
    Verdict.KPROBE: "a kprobe is there",
    Verdict.BUG: "the kernel finds a BUG or WARN by the address of this instruction",
    Verdict.FAULTS: "an instruction may fault there, and nothing says what its copy does then",
    Verdict.BAD_FIXUP: "a fix-up is of no copy in the client's patches, or of no instruction that has one",
    Verdict.STRAY: "what is written leads to no patch of this client",
    Verdict.LANDING_PAD: "indirect branches must land on this endbr64",
}


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes of text that replace others, whole instructions of which no task may be between two.

    ``boundaries``: where further instructions begin in the old bytes, as offsets from ``address``.
    """

    address: int
    old: bytes
    new: bytes
    boundaries: tuple[int, ...] = ()

    def packed(self) -> bytes:
        """Return the structure that the driver reads."""
        bits = sum(1 << offset for offset in self.boundaries)
        return WRITE.pack(self.address, len(self.old), bits, self.old, self.new)

    @classmethod
    def unpacked(cls, content: bytes) -> "Write":
        """Return a write as the driver tells it: its boundaries are not known."""
        address, length, _, old, new = WRITE.unpack(content)
        return cls(address, old[:length], new[:length])

    def undone(self) -> "Write":
        """Return the write that puts the old bytes back."""
        return Write(self.address, self.new, self.old)


@dataclass(frozen=True, slots=True)
class Fixup:
    """The copy of an instruction whose fault the kernel answers at the original."""

    copy: int
    original: int

    def packed(self) -> bytes:
        """Return the structure that the driver reads."""
        return _FIXUP.pack(self.copy, self.original)
