"""What is where in the kernel's maps that handlers use, and what their programs are passed; nothing here needs LLVM."""

import re
from collections.abc import Callable
from typing import NamedTuple

from anyprobe.core.code import Input, InputKind
from anyprobe.data.readers.tables import TableLayout
from anyprobe.handlers.types.storages import Stacks

MISSES_REFERENCE = -1
"""Stands for the counters of misses among the storages."""
DROPPED = 0
"""Offset of the count of what found no room, in regions of aggregations, maps and records."""
HEAD_BYTES = 64
"""Before the one cell of an aggregation's region."""
CONTENDED, LAST_VERSION = 8, 64
"""Offsets in a map's region: lookups that met a change, the last version."""
MAP_BYTES = 128
VALUE_AT, VERSION_AGAIN_AT, ELEMENT_BYTES = 8, 16, 24
"""Offsets in an element of a map, which begins with its version; its bytes without key and value."""
RECORDS_BYTES = 8
OPEN, CALLS_BYTES = 8, 16
"""Offset in the region of calls of whether both ends are in place, so that handlers run; bytes of these words."""
CALL_KEY_BYTES, CALL_BYTES, CALLS = 16, 200, 16384
"""A call is known by its thread and its frame; its data has 24 words, and one that says which of them were stored. So
many are under way at most."""
CALLS_REGION_BYTES = CALLS_BYTES + CALL_BYTES
"""Bytes of the region of calls: these words, and the data of a call that just begins, all zeros."""
RING_BYTES = 4 << 20
_STACKS, _MORE_STACKS, _STACK_WORDS = 8192, 32_768, 1 << 19
"""Stacks that are kept at most, of one side and depth, and of short ones; addresses in all of them together."""
_SPARE, _MOST = 4, 127
"""Addresses that lead to a program and are no part of the kernel's stack; the kernel gives no more than so many."""
_DEPTH_SHIFT, _SIDE_SHIFT, PROCESS_SHIFT = 16, 24, 32
"""Where the parts of a stack's number begin, which says where it is kept, and of which process it is."""


SAVED_ARGUMENTS = tuple(8 * word for word in (14, 13, 12, 7, 9, 8))
"""Where the saved registers have the parameters of a system call."""
_PLACE = r"record(?P<how>[+@*])(?P<offset>\d+)(/(?P<size>\d)(?P<signed>s?))?"


class RecordPlace(NamedTuple):
    """Where in the record of a tracepoint a parameter is: as text, the place of an input."""

    offset: int
    size: int = 0
    """Bytes of a number; 0 for an array, whose address is the parameter."""
    signed: bool = False
    dynamic: bool = False
    """Whether a word says where the array is."""

    def __str__(self) -> str:
        """Return the text."""
        if self.size:
            return f"record+{self.offset}/{self.size}{'s' * self.signed}"
        return f"record{'*' if self.dynamic else '@'}{self.offset}"

    @classmethod
    def of(cls, text: str) -> "RecordPlace | None":
        """Return what a text says, None if it is about no record."""
        found = re.fullmatch(_PLACE, text) if text.startswith("record") else None
        if found is None:
            return None
        return cls(int(found["offset"]), int(found["size"] or 0), found["signed"] == "s", found["how"] == "*")


def argument_place(index: int) -> str:
    """Return the place of a parameter of a system call, as an input has it."""
    return f"argument{index}"


def argument_of(text: str) -> int | None:
    """Return which parameter of a system call a place is, None if it is none."""
    return int(text[len("argument") :]) if text.startswith("argument") else None


def region_bytes(layout: TableLayout) -> int:
    """Return the size of the region of an aggregation."""
    return HEAD_BYTES + layout.cell_bytes


def kept_addresses(store: Stacks) -> int:
    """Return how many addresses of each stack are kept."""
    return min(store.depth + (_SPARE if store.of_kernel else 0), _MOST)


def kept_stacks(store: Stacks) -> int:
    """Return how many stacks are kept: two that fall on the same place are one lost, so most of it stays empty."""
    return min(_MORE_STACKS, max(_STACKS, _STACK_WORDS // kept_addresses(store)))


def stack_head(store: Stacks) -> int:
    """Return what the numbers of all stacks of a storage have in common."""
    return store.depth << _DEPTH_SHIFT | store.of_kernel << _SIDE_SHIFT


def stack_parts(number: int) -> tuple[Stacks, int, int]:
    """Return where a stack is kept, its place there, and the process that it is of (0 for the kernel's)."""
    store = Stacks(bool(number >> _SIDE_SHIFT & 1), number >> _DEPTH_SHIFT & 0xFF)
    return store, (number & 0xFFFF) - 1, number >> PROCESS_SHIFT


class Passed(NamedTuple):
    """What a program in the kernel is passed: at which word of its context an input is, None where it is not there."""

    word: Callable[[Input], int | None]
    kernel_memory: bool = False
    """Whether addresses in the upper half are the kernel's; else all are the program's."""
    at_function: bool = False
    """Whether it is at a function, of which the kernel tells the address."""
    pointers: frozenset[int] = frozenset()
    """Words that the verifier takes for pointers: it permits hardly any arithmetic with them."""

    frame: int | None = None
    """The word that points at the return address of the call; None: the context itself is where the frame is."""
    enters: bool = True
    """Whether a call begins here; else it ends, and the address is a word further on."""

    saved: int | None = None
    """The word that points at the saved registers of a system call, which have its parameters."""
    result: int = 0
    """What the program returns."""

    def identity(self, inputs: tuple[Input, ...]) -> str:
        """Return all that code which uses some inputs depends on, as text."""
        words = [self.word(each) for each in inputs]
        return repr(
            (
                words,
                self.kernel_memory,
                self.at_function,
                sorted(self.pointers),
                self.frame,
                self.enters,
                self.saved,
                self.result,
            )
        )


AT_TRACEPOINT = Passed(lambda found: found.index if found.kind is InputKind.PARAMETER else None)
