"""What is where in the kernel's maps that handlers use, and what their programs are passed; nothing here needs LLVM."""

from collections.abc import Callable
from dataclasses import dataclass

from anyprobe.core.code import Input, InputKind
from anyprobe.data.tables import TableLayout
from anyprobe.handlers.types.storages import Stacks

MISSES_REFERENCE = -1
"""Stands for the counters of misses among the storages."""
DROPPED = 0
"""Of the regions of aggregations, maps and records: what found no room."""
HEAD_BYTES = 64
"""Before the one cell of an aggregation's region."""
CONTENDED, LAST_VERSION = 8, 64
"""Of the region of a map."""
MAP_BYTES = 128
VALUE_AT, VERSION_AGAIN_AT, ELEMENT_BYTES = 8, 16, 24
"""Of the elements of a map, which begin with their version."""
RECORDS_BYTES = 8
OPEN, CALLS_BYTES = 8, 16
"""Of the region of calls: whether both ends are in place, so that handlers run."""
CALL_KEY_BYTES, CALL_BYTES, CALLS = 16, 64, 16384
"""A call is known by its thread and its frame; its data has eight words; so many are under way at most."""
RING_BYTES = 4 << 20
STACKS = 8192
"""Stacks that are kept at most, of one side and depth."""
_SPARE, _MOST = 4, 127
"""Addresses that lead to a program and are no part of the kernel's stack; the kernel gives no more than so many."""
_DEPTH_SHIFT, _SIDE_SHIFT, PROCESS_SHIFT = 16, 24, 32
"""Of the number of a stack, which says where it is kept, and of which process it is."""


def region_bytes(layout: TableLayout) -> int:
    """Return the size of the region of an aggregation."""
    return HEAD_BYTES + layout.cell_bytes


def kept_addresses(store: Stacks) -> int:
    """Return how many addresses of each stack are kept."""
    return min(store.depth + (_SPARE if store.of_kernel else 0), _MOST)


def stack_head(store: Stacks) -> int:
    """Return what the numbers of all stacks of a storage have in common."""
    return store.depth << _DEPTH_SHIFT | store.of_kernel << _SIDE_SHIFT


def stack_parts(number: int) -> tuple[Stacks, int, int]:
    """Return where a stack is kept, its place there, and the process that it is of (0 for the kernel's)."""
    store = Stacks(bool(number >> _SIDE_SHIFT & 1), number >> _DEPTH_SHIFT & 0xFF)
    return store, (number & 0xFFFF) - 1, number >> PROCESS_SHIFT


@dataclass(frozen=True, slots=True)
class Passed:
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

    def identity(self, inputs: tuple[Input, ...]) -> str:
        """Return all that code which uses some inputs depends on, as text."""
        words = [self.word(each) for each in inputs]
        return repr((words, self.kernel_memory, self.at_function, sorted(self.pointers), self.frame, self.enters))


AT_TRACEPOINT = Passed(lambda found: found.index if found.kind is InputKind.PARAMETER else None)
