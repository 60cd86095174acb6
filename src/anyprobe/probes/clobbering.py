"""What the code at a site may overwrite: liveness in the form that the code generator wants."""

from anyprobe.binary.cfg import CodeMap
from anyprobe.binary.function import FunctionCode
from anyprobe.binary.liveness import Scratch
from anyprobe.splice.patchcode import Clobbers
from anyprobe.splice.planned import Want, WantKind

_known: dict[Scratch, Clobbers] = {}
"""A few hundred at most."""


def clobbers(code: CodeMap, function: FunctionCode, want: Want) -> Clobbers:
    """Return the dead registers and whether the flags are dead before the wanted instruction."""
    from anyprobe.binary.liveness import entry_scratch
    from anyprobe.binary.siteliveness import site_scratch

    plain = want.kind is WantKind.ENTRY
    scratch = entry_scratch(code, function) if plain else site_scratch(code, function, want.address)
    found = _known.get(scratch)
    if found is None:
        found = _known[scratch] = Clobbers(scratch.dead, scratch.flags_dead)
    return found
