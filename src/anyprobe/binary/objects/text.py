"""What the code analysis needs to know of one object, in link-time virtual addresses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyprobe.core.address import AddressRange
from anyprobe.core.areas import Areas
from anyprobe.core.cachedproperty import cached_property
from anyprobe.core.memory import Memory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from anyprobe.binary.objects.go_functions import GoFunctions
    from anyprobe.binary.objects.goroutines import ParkingPlaces
    from anyprobe.binary.objects.table_store import TableStore


@dataclass(frozen=True, eq=False)
class ModuleText:
    """The code of one object (executable or shared library) and every fact about who may enter it where.

    All addresses are link-time virtual addresses of the object (file addresses before the load bias).
    """

    name: str
    """File name of the object, for messages."""
    ranges: tuple[AddressRange, ...]
    """The executable ranges."""
    memory: Memory
    """Pristine bytes of all loaded segments (text, rodata, data as in the file)."""
    function_starts: "NDArray[np.int64]"
    """Starts of known functions (symbols, unwind tables and what is called reconciled), ascending and unique."""
    function_ends: "NDArray[np.int64]"
    """The end of each of them, never beyond the next start."""
    entries: "NDArray[np.int64]"
    """Ascending and unique: every address that something other than a branch in this code may enter. Symbols, unwind
    table starts, program entry, init and fini arrays, IFUNC resolvers, exception landing pads, relocation addends and
    absolute pointers into code (address-taken), restartable-sequence abort and post-commit addresses."""
    forbidden: tuple[tuple[AddressRange, str], ...]
    """Ranges that must never be displaced, each with the value of a ``core.refusal.Reason``: restartable sequences,
    cancellation ranges, signal-return trampolines."""
    noreturn: frozenset[int]
    """Starts of functions and PLT stubs known never to return (abort, exit, __stack_chk_fail, ...)."""
    own_stubs: Mapping[int, int]
    """The object's own function that each PLT stub leads to, as long as no other object stands in for it."""
    is_go: bool
    """Whether the Go toolchain made the object (no several-instruction jumps where goroutines may be parked)."""
    is_pie: bool
    """Whether the object is position independent (else absolute 32-bit code addresses may hide in immediates)."""
    store: "TableStore | None" = None
    """Where what is found out about all of the code is kept for later sessions."""
    parking: "ParkingPlaces | None" = None
    """Where goroutines may be parked; ``None`` where that is not known, or for objects that are not Go's."""
    go_functions: "GoFunctions | None" = None
    """What is known of Go's functions and goroutines; ``None`` as above."""
    unlisted: frozenset[int] = frozenset()
    """The starts of functions that neither a symbol nor an unwind entry tells of."""
    called: frozenset[int] = frozenset()
    """The starts that calls lead to, rather than a pointer or a jump only."""
    named: frozenset[int] = frozenset()
    """The entries that nothing but a symbol without a type tells of, of a label or of data."""
    pointed: frozenset[int] = frozenset()
    """The entries that nothing but data that points there tells of, or a symbol without a type: labels, or data."""
    outer: frozenset[int] = frozenset()
    """The entries that data points to, or that other objects can see: no parts of functions begin there."""
    framed: frozenset[int] = frozenset()
    """The starts of what is entered with more on the stack than a return address, as unwind entries say, and that no
    other object can see: parts of functions."""
    undescribed: frozenset[int] = frozenset()
    """The starts of functions that no unwind entry tells of, nor Go's tables: hand-written, or without such."""
    resumed: frozenset[int] = frozenset()
    """Where functions go on when they have been given another stack, as ``-fsplit-stack`` has it: after a ``ret``."""
    has_jump_tables: bool = True
    """Whether indirect jumps may stay in their functions; what is compiled for retpolines has tail calls only."""
    calls_labels: bool = True
    """Whether a label whose address is taken may be called; kernels only take note of where they are."""
    is_swift: bool = False
    """Whether there is code of Swift's compiler, whose functions have up to four registers of results."""

    @cached_property
    def forbidden_areas(self) -> Areas:
        """What is forbidden, for looking up addresses."""
        return Areas(self.forbidden)
