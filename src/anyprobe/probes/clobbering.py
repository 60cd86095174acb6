"""What the code at a site may overwrite: liveness in the form that the code generator wants."""

from anyprobe.binary.cfg import CodeMap
from anyprobe.binary.function import FunctionCode
from anyprobe.splice.patchcode import Clobbers
from anyprobe.splice.planned import Want, WantKind

_NOTHING = Clobbers()


def clobbers(code: CodeMap, function: FunctionCode, want: Want) -> Clobbers:
    """Return the dead registers and whether the flags are dead before the wanted instruction."""
    from anyprobe.binary.liveness import entry_scratch

    if want.kind is not WantKind.ENTRY:
        return _NOTHING
    scratch = entry_scratch(code, function)
    return Clobbers(scratch.dead, scratch.flags_dead)
