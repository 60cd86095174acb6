"""What the two machines that handlers run on do differently: where inputs come from, and how memory is read."""

from typing import Any, Protocol

from anyprobe.core.code import Input, InputKind, Miss
from anyprobe.handlers.ir import nodes as ir

Value = Any
"""A value of LLVM's; llvmlite has no types."""
Pair = tuple[Value, Value]
"""Whether there is a value, and the value."""


class Machine(Protocol):
    """The part of a code generator that depends on the machine."""

    floats: bool
    """Whether it can compute with floats."""

    def word(self, index: int) -> Value:
        """Return a word of the context."""

    def set_word(self, index: int, value: Value) -> None:
        """Change a word of the context."""

    def read(self, address: Value, target: Value, size: int) -> Value:
        """Read bytes of the program to an address of the stack; return whether that was possible."""

    def read_bytes(self, address: Value, target: Value, size: Value, limit: int, *, text: bool) -> tuple[Value, Value]:
        """Read up to ``size`` bytes, not above ``limit``; return whether that was possible, and how many they are.

        The bytes of the target are zeros. It has a word more than ``limit``.
        """

    def read_comm(self, target: Value) -> tuple[Value, Value]:
        """Write the thread's name to 16 bytes of the stack; return whether that was possible, and its length."""

    def read_cpu(self) -> tuple[Value, Value]:
        """Return whether it could be told how long the thread has been on processors, and the nanoseconds."""

    def write(self, address: Value, source: Value, size: int) -> Value:
        """Write bytes of the stack to the program; return whether that was possible."""

    def count_miss(self, miss: Miss) -> None:
        """Count that something went wrong."""

    def mark(self, place: ir.Mark) -> None:
        """Take note of which place in the source the code that follows is."""

    def instance(self, index: int) -> Value:
        """Return the address of the call's data as a number, 0 if there is none."""

    def update(self, storage: int, operation: ir.Update, values: list[Value], key: list[Value]) -> Pair | None:
        """Update a storage; return whether there was a value, and which, for operations that yield one.

        Parts of the key that are texts are lists of words.
        """


class Inputs:
    """The words of a context while code is generated, which may need more than the handler names."""

    def __init__(self, given: tuple[Input, ...]) -> None:
        """Begin with the handler's own."""
        self.all = list(given)

    def index(self, kind: InputKind, name: str = "", index: int = 0) -> int:
        """Return the index of an input, made if it is new."""
        for place, each in enumerate(self.all):
            if (each.kind, each.name, each.index) == (kind, name, index):
                return place
        self.all.append(Input(kind, name, index))
        return len(self.all) - 1


def flat(key: list[Value]) -> list[Value]:
    """Return the words of a key, those of texts one after the other."""
    return [word for part in key for word in (part if isinstance(part, list) else [part])]
