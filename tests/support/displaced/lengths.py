"""How long displaced copies are."""

from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import Insn
from anyprobe.isa.relocate import displace


def displaced_length(insn: Insn) -> int | Refusal:
    """Return the length of the displaced copy, wherever it will lie."""
    copy = displace(insn, insn.address)
    return copy if isinstance(copy, Refusal) else len(copy)
