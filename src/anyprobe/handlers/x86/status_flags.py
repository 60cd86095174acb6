"""``ctx.regs.rflags``: the status flags as ``pushf`` has them, out of how a site keeps them.

That is what ``lahf`` and ``seto al`` make of them: SF, ZF, AF, PF and CF in bits 8 to 15, OF in bit 0.
"""

from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import u64

NAME = "rflags"
KEPT = "flags"
"""The register by which a handler's call finds them."""
_STATUS = 0xD5
"""SF, ZF, AF, PF, CF."""
_ALWAYS = 0x202
"""Interrupts are on in user mode, and bit 1 is 1."""
_OVERFLOW = 11


def read(kept: ir.Expr) -> ir.Expr:
    """Return the flags of a word as it is kept."""
    status = ir.Binary("&", ir.Binary(">>", kept, _number(8)), _number(_STATUS))
    overflow = ir.Binary("<<", ir.Binary("&", kept, _number(1)), _number(_OVERFLOW))
    return ir.Binary("|", ir.Binary("|", status, overflow), _number(_ALWAYS))


def written(flags: ir.Expr) -> ir.Expr:
    """Return the word to keep for some flags; other bits than those of the status mean nothing."""
    status = ir.Binary("<<", ir.Binary("&", flags, _number(_STATUS)), _number(8))
    overflow = ir.Binary("&", ir.Binary(">>", flags, _number(_OVERFLOW)), _number(1))
    return ir.Binary("|", status, overflow)


def _number(value: int) -> ir.Expr:
    return ir.Const(value, u64)
