"""Compiled handlers as values: the interface between the compiler and the code that places them.

Compiled code has one argument, a pointer to an array of 64-bit *words*, one for each input, in the order of ``inputs``.
The code that places it fills them in. The code knows nothing of the site that calls it, so one compilation serves all.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class InputKind(StrEnum):
    """What a word of the context holds."""

    PARAMETER = "parameter"
    """The parameter ``index`` of the probed function; ``name`` is its type's. Bits above its width may be anything."""
    CONTEXT = "context"
    """An attribute of ``ctx`` by name: retval, ip, func, caller, tid, pid, cpu, now, errno."""
    REGISTER = "register"
    """A general purpose register by name; ``rip`` is only written: where the thread goes on, 0 for after the site."""
    STORAGE = "storage"
    """Address of the storage ``index`` of the handler."""
    THREAD = "thread"
    """A number that no other living thread of the process has, counted from 1; 0 for a thread that has none."""
    INSTANCE = "instance"
    """Address of the call's own data (``ctx.data``), or 0 where the call has none."""
    ROUTINE = "routine"
    """Address of a routine by name."""
    UNWINDING = "unwinding"
    """Address of the tables by which stacks are gone up, see ``data.layouts.unwinding``; with the name ``PYTHON``
    where Python's frames are to be found, too."""
    MISSES = "misses"
    """Address of the counters of what went wrong, one word for each ``Miss``."""


PYTHON = "python"
SKIP = "skip"
"""The routine that does nothing but return: where a function goes on that is skipped."""


class Miss(StrEnum):
    """What a handler counts when something went wrong; the position is that of its counter."""

    FAULT = "fault"
    """A read of the target's memory at a bad address."""
    ABANDONED = "abandoned"
    """The handler ended early, since it used a value that was missing."""
    DIVISION = "division"
    """A division by zero."""


MISSES = tuple(Miss)


@dataclass(frozen=True, slots=True)
class Input:
    """One word of the context; ``written``: the handler changes it, and the change is meant for the program."""

    kind: InputKind
    name: str = ""
    index: int = 0
    written: bool = False
    place: str = ""
    """Where a parameter is when the function is entered: a register, or ``stack+8``, above its return address."""


class Destination(NamedTuple):
    """Where a handler may send the thread: an address, or a distance from the probed instruction."""

    relative: bool
    value: int


class Number(NamedTuple):
    """A word of the context, converted step by step; in a register it is extended by its own signedness."""

    word: int
    steps: tuple[tuple[int, bool], ...] = ()
    """Width and signedness of each conversion."""
    signed: bool = False
    path: tuple[int, ...] = ()
    """Where it is a number in memory: what is added to the word, and then to each pointer that is read on the way."""
    read: tuple[int, bool] = (64, False)
    """Width and signedness of that number."""


class Comparison(NamedTuple):
    """A word of the context compared with a constant that fits an instruction."""

    symbol: str
    number: Number
    constant: int


@dataclass(frozen=True, slots=True)
class Update:
    """All that a trivial handler does: a word of the thread's own row goes up by one, another perhaps by or to a value.

    A patch may do this in its stead for threads whose number is from 1 to ``rows - 1``. Each change is one
    instruction on a word that no other thread changes, so it may be interrupted by another, and interrupt one.
    """

    storage: int
    """Which storage of the handler the rows are in."""
    rows: int
    stride: int
    """Bytes of a row, a power of two; a thread's number times this is where its own begins, from row 0 on."""
    count: int
    """Offset of row 0's counter in the storage."""
    total: int = 0
    """Offset of its sum."""
    value: Number | None = None
    """What is added to the sum, if there is one."""
    extreme: str = ""
    """``min`` or ``max``: the value is not added, but ``total`` is where the largest of its codes is kept."""
    signed: bool = False
    """Whether values are signed: then the code of an extreme is the value with its sign inverted, complemented for
    ``min``."""
    only_if: tuple[Comparison, ...] = ()
    """Comparisons that all have to hold."""
    wraps: int = 0
    """Offset of the word that counts where the sum leaves 64 bits."""


@dataclass(frozen=True, slots=True)
class RecordedEnd:
    """All that a recorder of calls does: write a word into the thread's own ring, as ``data.readers.call_rings`` says.

    A patch may do this in its stead for threads that have a ring with room, and whose number is from 1 to ``rows - 1``.
    """

    storage: int
    """Which storage of the handler the rings are in."""
    rows: int
    words: int
    """Words of a ring, a power of two."""
    end: int
    """Which end of the call it is."""
    numbers: dict[int, int] = field(default_factory=dict, compare=False)
    """The numbers of functions by their addresses, which grow with each patch."""


class NativeCode(NamedTuple):
    """Position-independent x86-64 code, entered at its first byte by a call with ``rdi`` pointing at the words.

    ``rsp`` is 8 below a multiple of 16 at its first instruction, as after any call; the direction flag is clear if
    ``df`` is among the clobbers. All registers but those of ``clobbers`` are preserved, the upper parts of vector
    registers and MXCSR included.
    """

    code: bytes
    inputs: tuple[Input, ...]
    clobbers: frozenset[str]
    """Registers that it leaves changed, ``flags``, and ``df`` if it relies on the direction flag."""
    stack: int
    """Bytes of stack that it uses at most, its return address included."""
    steps: int
    """Operations of the intermediate language that one run executes at most."""
    returns: bool = False
    """A value is left in ``rax``."""
    vectors: bool = False
    """It computes with floats, so it uses (and preserves) vector registers."""
    destinations: tuple[Destination, ...] = ()
    """Where it may send the thread, as far as that is known beforehand."""
    update: Update | RecordedEnd | None = None
    """All that it does, where that is so little that it needs no call."""
    only_if: tuple[Comparison, ...] = ()
    """It does nothing, and leaves 0 if a value, where one of these does not hold: then it need not be called."""


@dataclass(frozen=True, slots=True)
class StorageReference:
    """The instruction at ``index`` loads the address of a storage; the loader fills in map and offset.

    With ``table`` it loads the kernel's map itself that the storage keeps its keys, or its stacks, in.
    """

    index: int
    storage: int
    table: bool = False


class BpfProgram(NamedTuple):
    """Instructions for the kernel's machine; the words are the program's own context."""

    code: bytes
    inputs: tuple[Input, ...]
    references: tuple[StorageReference, ...]
    steps: int
