"""What is emitted: patches, the splices that lead to them, and what changes in a function, as values.

What becomes of them is kept by those who see to it: the transaction has the refusals of the changes that it makes,
``SpliceRecords`` the journals' records, the function's state the splices that are in place.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from anyprobe.core.bulk import bulk_dataclass
from anyprobe.splice.plan.splices import PlannedSplice, Strategy

ENTRY_BYTES = 16
"""Bytes of a landing for each number of a trap."""


@dataclass(frozen=True, slots=True)
class Landing:
    """Where a thread goes whose displaced instruction, or read of a guard, has faulted; all by address."""

    copy: int
    """The displaced copy that a probe waits for to fault, or the read."""
    entries: int
    """``ENTRY_BYTES`` for each number of a trap."""
    again: int = 0
    """The copy that runs if no handler has handled the fault: what it raises is the program's. 0: a guard has none."""


@dataclass(frozen=True, slots=True, eq=False)
class PatchParts:
    """Which bytes of a patch are not the same in each patch that does the same; all by offset."""

    arguments: tuple[int, ...]
    """Four bytes that say what is counted."""
    outward: tuple[tuple[int, int], ...]
    """(place, absolute target) of displacements of four bytes."""
    copies: tuple[tuple[int, int, int], ...]
    """(the instruction's number, start, end) of displaced copies."""
    is_shared: bool = False
    """Whether all patches that have this very object differ in nothing but arguments and where they lie."""


@bulk_dataclass(frozen=True, slots=True)
class EmittedPatch:
    """A finished patch and where each displaced instruction went."""

    address: int
    code: bytes
    starts: Sequence[tuple[int, int]]
    """(original address, address in the patch before its actions) of each displaced instruction."""
    copies: Sequence[tuple[int, int]]
    """(original address, address of its displaced copy); the last pair is the jump back."""
    after: int
    """Where a branch back to a loop head enters: after the entry actions of the first instruction."""
    front: Hashable = field(default=None, compare=False)
    """Patches of one code region with equal fronts, if any, do the same before their first displaced copy."""
    landings: tuple[Landing, ...] = ()
    parts: PatchParts | None = field(default=None, compare=False)
    """What tells what it does from where it lies, if it does nothing but count and time."""

    @property
    def end(self) -> int:
        """End of the patch."""
        return self.address + len(self.code)


BODY = object()
"""The front of copies of functions (``codegen.bodies``)."""


def original_of(patch: EmittedPatch, pc: int) -> int | None:
    """Return the instruction of the original for which a place of a function's copy stands, if it does for one."""
    return next((original for original, copy in reversed(patch.copies) if copy == pc), None)


@bulk_dataclass(frozen=True, slots=True, eq=False)
class EmittedSplice:
    """A splice as it is written: its bytes and its patch, at run-time addresses."""

    planned: PlannedSplice
    bias: int
    address: int
    old: bytes
    new: bytes
    patch: EmittedPatch | None
    springboard: int = 0
    borrowed: bytes = b""
    """What must follow the written bytes: a punned jump's displacement depends on it."""
    is_springboard: bool = False
    """Not a site: the dead bytes that a short jump leads to."""
    whole: bytes = b""
    """The whole instructions, some of whose bytes are written; what is displaced was made from these."""

    @property
    def whole_at(self) -> int:
        """Where the whole instructions begin."""
        return self.planned.start + self.bias

    @property
    def extent(self) -> tuple[int, int]:
        """The range of all bytes that have to be as planned before it is written."""
        start, whole = self.address, self.whole
        end = start + len(self.old) + len(self.borrowed)
        if whole:
            start, end = min(start, self.whole_at), max(end, self.whole_at + len(whole))
        return start, end

    @property
    def interior(self) -> tuple[int, int] | None:
        """The instruction boundaries that no thread may come back to, if any.

        These are the overwritten ones (the JTPR), and those before what others have put into the displaced bytes.
        """
        planned, end = self.planned, self.address + len(self.old)
        if planned.hosts_until:
            end = max(end, planned.hosts_until + self.bias)
        if self.is_springboard or end <= planned.first_end + self.bias:
            return None
        # who skips an instruction that is made to fault comes back after it
        return self.address + (not planned.begins_with_trap), end

    @property
    def displaced(self) -> tuple[int, int]:
        """The range of the displaced instructions."""
        if self.is_springboard:
            return self.address, self.address
        planned, bias = self.planned, self.bias
        if planned.strategy is Strategy.TRAP:  # all but one byte stays as it is: no thread has to move
            return self.address, self.address + 1
        return planned.start + bias, planned.end + bias


@bulk_dataclass(frozen=True, slots=True, eq=False)
class FunctionChange:
    """What changes in one function: splices to take out and splices to put in, together or not at all."""

    address: int
    removed: tuple[EmittedSplice, ...] = ()
    added: tuple[EmittedSplice, ...] = ()

    @property
    def traps(self) -> bool:
        """Whether a trap is among what is put in."""
        return any(splice.planned.strategy is Strategy.TRAP for splice in self.added)

    @property
    def shows_pcs(self) -> bool:
        """Whether a signal handler of the program's is among what is changed."""
        return any(splice.planned.shows_pcs for splice in self.added)


def landings_of(splice: EmittedSplice) -> tuple[Landing, ...]:
    """Return where threads go whose fault in the patch of a splice is not the program's."""
    return splice.patch.landings if splice.patch is not None else ()
