"""Single words of shared memory in LLVM's language: what each update is made of.

What only one thread changes is changed by one read-modify-write instruction: a signal handler that updates the same
word comes before or after it, never in the middle. LLVM promises this for atomic operations only, and for these it
always emits the ``lock`` prefix; so the instruction is given as such.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

I1, I64, I128 = ir.IntType(1), ir.IntType(64), ir.IntType(128)
VOID = ir.VoidType()
Value = Any
"""A value of LLVM's; llvmlite has no types."""


def constant(value: int) -> Value:
    """Return a 64-bit constant."""
    return ir.Constant(I64, value & (1 << 64) - 1)


def pointer(builder: ir.IRBuilder, address: Value, offset: int = 0, of: ir.Type = I64) -> Value:
    """Return an address as a pointer."""
    if offset:
        address = builder.add(address, constant(offset))
    return builder.inttoptr(address, of.as_pointer())


def load(builder: ir.IRBuilder, address: Value, offset: int = 0) -> Value:
    """Load a word that others change; what follows in the program is loaded after it."""
    return builder.load_atomic(pointer(builder, address, offset), "acquire", 8)


def store(builder: ir.IRBuilder, value: Value, address: Value, offset: int = 0) -> None:
    """Store a word that others read, after all that was stored before."""
    builder.store_atomic(value, pointer(builder, address, offset), "release", 8)


def increase(builder: ir.IRBuilder, address: Value, offset: int, amount: Value | None = None, *, atomic: bool) -> None:
    """Add to a word by one instruction: ``inc [address+offset]`` or ``add [address+offset], amount``."""
    lock = "lock " if atomic else ""
    if amount is None:
        kind = ir.FunctionType(VOID, [I64])
        builder.asm(kind, f"{lock}incq {offset}($0)", "r,~{memory},~{flags}", [address], True)
    else:
        kind = ir.FunctionType(VOID, [I64, I64])
        text = f"{lock}addq $1, {offset}($0)"
        builder.asm(kind, text, "r,er,~{memory},~{flags}", [address, amount], True)


def increase_twice(
    builder: ir.IRBuilder, address: Value, offset: int, low: Value, high: Value, *, atomic: bool
) -> None:
    """Add to a number of 128 bits by two instructions.

    A signal handler between them does its own addition in full, and ours goes on with our carry: both are exact.
    """
    lock = "lock " if atomic else ""
    kind = ir.FunctionType(VOID, [I64, I64, I64])
    text = f"{lock}addq $1, {offset}($0)\n\t{lock}adcq $2, {offset + 8}($0)"
    builder.asm(kind, text, "r,r,r,~{memory},~{flags}", [address, low, high], True)


def fetch_increase(builder: ir.IRBuilder, address: Value, offset: int) -> Value:
    """Add one to a word of this thread's own and return what it was, by one instruction (``xadd``)."""
    kind = ir.FunctionType(I64, [I64, I64])
    text = f"xaddq $0, {offset}($2)"
    return builder.asm(kind, text, "=r,0,r,~{memory},~{flags}", [constant(1), address], True)


def exchange_if(
    builder: ir.IRBuilder, address: Value, offset: int, expected: Value, value: Value
) -> tuple[Value, Value]:
    """Store if the word is as expected (``lock cmpxchg``); return whether it was, and what it was."""
    pair = builder.cmpxchg(pointer(builder, address, offset), expected, value, "seq_cst", "seq_cst")
    return builder.extract_value(pair, 1), builder.extract_value(pair, 0)


def raise_to(builder: ir.IRBuilder, address: Value, offset: int, value: Value) -> None:
    """Make a word the larger of itself and a value, both unsigned.

    Nothing is written in the common case; else by ``lock cmpxchg`` until the word is as large, so it may be anybody's.
    """
    larger = builder.icmp_unsigned(">", value, load(builder, address, offset))
    with builder.if_then(larger, likely=False):
        builder.atomic_rmw("umax", pointer(builder, address, offset), value, "monotonic")


def internal_function(builder: ir.IRBuilder, name: str, result: ir.Type, arguments: Sequence[ir.Type]) -> ir.Function:
    """Return a new function of the same module that only it calls, with the attributes of the one being built."""
    function = ir.Function(builder.module, ir.FunctionType(result, arguments), name)
    function.linkage = "internal"
    for attribute in set(builder.function.attributes) - {"alwaysinline", "noinline", "cold"}:
        function.attributes.add(attribute)
    function.attributes.add("nounwind")
    return function


class Local:
    """A local variable of the function being built, for loops; LLVM makes registers of them."""

    def __init__(self, builder: ir.IRBuilder, value: Value) -> None:
        """Make room in the entry block, and store the first value here."""
        self._builder = builder
        with builder.goto_entry_block():
            self._place = builder.alloca(value.type)
        self.set(value)

    def get(self) -> Value:
        """Return the value at this point."""
        return self._builder.load(self._place)

    def set(self, value: Value) -> None:
        """Store a value at this point."""
        self._builder.store(value, self._place)
