"""The status flags as programs know them, and as a handler's call keeps them."""

import pytest

from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import u64
from anyprobe.handlers.x86 import status_flags

SIGNS = {"<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "&": lambda a, b: a & b, "|": lambda a, b: a | b}


def value(expr):
    if isinstance(expr, ir.Const):
        return expr.value
    assert isinstance(expr, ir.Binary)
    return SIGNS[expr.symbol](value(expr.left), value(expr.right)) & (1 << 64) - 1


@pytest.mark.parametrize(
    ("flags", "kept"), [(0x202, 0x0000), (0x246, 0x4400), (0xAD7, 0xD501), (0xA02, 0x0001), (0x203, 0x0100)]
)
def test_they_come_and_go(flags, kept):
    assert value(status_flags.read(ir.Const(kept | 0x200, u64))) == flags
    assert value(status_flags.written(ir.Const(flags, u64))) == kept
