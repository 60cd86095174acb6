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


def _instruction(
    builder: ir.IRBuilder, text: str, words: Sequence[Value], values: Sequence[Value] = (), result: str = ""
) -> Value:
    """Emit an instruction on words in memory (the first operands after the result), at any address that x86 can form.

    Values are registers or constants. A ``result`` is the register of the first value afterwards.
    """
    kinds = [*(word.type for word in words), *(value.type for value in values)]
    constraints = [*(["=r"] if result else []), *["*m"] * len(words), *["0" if result else "er"] * len(values)]
    operation = ir.InlineAsm(
        ir.FunctionType(I64 if result else VOID, kinds),
        text,
        ",".join([*constraints, "~{memory}", "~{flags}"]),
        side_effect=True,
    )
    elements = dict.fromkeys(range(len(words)), ("elementtype",))
    return builder.call(operation, [*words, *values], result, arg_attrs=elements)


def increase(builder: ir.IRBuilder, address: Value, offset: int, amount: Value | None = None, *, atomic: bool) -> None:
    """Add to a word by one instruction: ``inc [address+offset]`` or ``add [address+offset], amount``."""
    lock, word = "lock " if atomic else "", pointer(builder, address, offset)
    if amount is None:
        _instruction(builder, f"{lock}incq $0", [word])
    else:
        _instruction(builder, f"{lock}addq $1, $0", [word], [amount])


def increase_square(
    builder: ir.IRBuilder, address: Value, offset: int, low: Value, high: Value, *, atomic: bool
) -> None:
    """Add a number of 128 bits to one of 192 by three instructions.

    A signal handler between them does its own addition in full, and the interrupted one keeps its carry: both are
    exact.
    """
    lock = "lock " if atomic else ""
    words = [pointer(builder, address, offset + 8 * at) for at in range(3)]
    text = f"{lock}addq $3, $0\n\t{lock}adcq $4, $1\n\t{lock}adcq $$0, $2"
    _instruction(builder, text, words, [low, high])


def increase_exactly(
    builder: ir.IRBuilder, address: Value, offset: int, wraps: int, amount: Value, *, signed: bool, atomic: bool
) -> None:
    """Add to a sum, and count where it leaves 64 bits: see ``data.layouts.cells.added_exactly``."""
    lock = "lock " if atomic else ""
    words = [pointer(builder, address, offset), pointer(builder, address, wraps)]
    if signed:
        text = f"{lock}addq $2, $0\n\tjno 7f\n\tjs 6f\n\t{lock}decq $1\n\tjmp 7f\n6:\n\t{lock}incq $1\n7:"
    else:
        text = f"{lock}addq $2, $0\n\t{lock}adcq $$0, $1"
    _instruction(builder, text, words, [amount])


def fetch_increase(builder: ir.IRBuilder, address: Value, offset: int) -> Value:
    """Add one to a word of this thread's own and return what it was, by one instruction (``xadd``)."""
    word = pointer(builder, address, offset)
    return _instruction(builder, "xaddq $0, $1", [word], [constant(1)], result="position")


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
