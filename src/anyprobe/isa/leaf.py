"""Small routines that are given as a listing: they call nothing, and are made into code like that of handlers."""

from anyprobe.core.code import Input, NativeCode
from anyprobe.isa.assemble import Assembler


def leaf(listing: str, inputs: tuple[Input, ...] = (), *, clobbers: str) -> NativeCode:
    """Return the code of a listing that calls nothing and keeps nothing on the stack; ``clobbers``: see there."""
    asm = Assembler()
    asm.code(listing)
    code = asm.finish(0)
    return NativeCode(code, inputs, frozenset(clobbers.split()), stack=8, steps=len(code))
