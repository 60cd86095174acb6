"""What the code at a site may overwrite: liveness in the form that the code generator wants."""

from collections.abc import Callable
from functools import cache

from anyprobe.binary.cfg import CodeMap
from anyprobe.binary.function import FunctionCode
from anyprobe.binary.liveness import Scratch
from anyprobe.splice.patchcode import Clobbers
from anyprobe.splice.planned import Want, WantKind

_known: dict[Scratch, Clobbers] = {}
"""A few hundred at most."""


def clobbers(code: CodeMap, function: FunctionCode, want: Want) -> Clobbers:
    """Return the dead registers and whether the flags are dead before the wanted instruction."""
    of_entry, of_site = _analyses()
    scratch = of_entry(code, function) if want.kind is WantKind.ENTRY else of_site(code, function, want.address)
    found = _known.get(scratch)
    if found is None:
        found = _known[scratch] = Clobbers(scratch.dead, scratch.flags_dead)
    return found


@cache
def _analyses() -> tuple[Callable[[CodeMap, FunctionCode], Scratch], Callable[[CodeMap, FunctionCode, int], Scratch]]:
    """Load the two analyses when they are needed: for entries, and for single instructions."""
    from anyprobe.binary.liveness import entry_scratch
    from anyprobe.binary.siteliveness import site_scratch

    return entry_scratch, site_scratch
