"""What the code at a site may overwrite: liveness in the form that the code generator wants."""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.splice.plan.splices import Clobbers, Want, WantKind

if TYPE_CHECKING:
    from anyprobe.binary.liveness.entry import Scratch

    Entries = Callable[[CodeMap, FunctionCode], Scratch]
    Sites = Callable[[CodeMap, FunctionCode, int], Scratch]


def clobbers(code: CodeMap, function: FunctionCode, want: Want) -> Clobbers:
    """Return the dead registers and whether the flags are dead before the wanted instruction."""
    of_entry, of_site = _analyses()
    scratch = of_entry(code, function) if want.kind is WantKind.ENTRY else of_site(code, function, want.address)
    return _made(scratch.dead, scratch.flags_dead)


def flags_alone(code: CodeMap, function: FunctionCode, want: Want) -> Clobbers:
    """Return the same of the flags alone, which is decided near the instruction as a rule: no register is dead."""
    from anyprobe.binary.liveness.entry import EntryLiveness

    part = function if function.start <= want.address < function.end else code.containing(want.address)
    dead = part is not None and code.analyses.get(EntryLiveness).flags_dead_before(part, want.address)
    return _made((), dead)


@cache
def _made(registers: tuple[str, ...], flags: bool) -> Clobbers:
    """Return one of a few hundred at most."""
    return Clobbers(registers, flags)


@cache
def _analyses() -> "tuple[Entries, Sites]":
    """Load the two analyses when they are needed: for entries, and for single instructions."""
    from anyprobe.binary.liveness.entry import entry_scratch
    from anyprobe.binary.liveness.site import site_scratch

    return entry_scratch, site_scratch
