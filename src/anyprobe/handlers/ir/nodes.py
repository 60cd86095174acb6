"""The intermediate language of handlers: structured statements over pure, total expressions.

It is structured, not a graph of blocks, because everything that has to be proved about a handler (that it ends, and
within how many steps) is a property of nested loops, and because LLVM makes its own graph anyway. Expressions have no
effects and cannot fail; whatever has effects or can end the handler is a statement, in the order of the source.

A ``Leave`` goes to the end of the enclosing ``Block`` or ``Loop`` of that label; a ``Loop`` begins again at its end.
All locals are 0 and all buffers are zeros when a handler starts.
"""

from dataclasses import dataclass
from typing import NamedTuple

from anyprobe.core.code import Input, Miss
from anyprobe.handlers.types.annotations import FloatType, IntegerType, Type, boolean, u64
from anyprobe.handlers.types.storages import Storage

WORD = 8
"""Bytes of a word of the context, of a key, and of what buffers are a multiple of."""


class Const(NamedTuple):
    """A number."""

    value: int | float
    type: Type


class Local(NamedTuple):
    """The value of a local variable."""

    name: str
    type: Type


class Word(NamedTuple):
    """A word of the context."""

    number: int

    @property
    def type(self) -> Type:
        """Words are unsigned."""
        return u64


class Unary(NamedTuple):
    """``-`` and ``~`` of an integer, ``-`` of a float, ``not`` of a boolean."""

    symbol: str
    operand: "Expr"

    @property
    def type(self) -> Type:
        """That of the operand."""
        return self.operand.type


class Binary(NamedTuple):
    """An operation on two values of one type, which is also the result's; the count of a shift is a ``u64``."""

    symbol: str
    left: "Expr"
    right: "Expr"

    @property
    def type(self) -> Type:
        """That of the left operand."""
        return self.left.type


class Compare(NamedTuple):
    """A comparison of two values of one type."""

    symbol: str
    left: "Expr"
    right: "Expr"

    @property
    def type(self) -> Type:
        """A comparison is true or false."""
        return boolean


class Convert(NamedTuple):
    """A value as another type."""

    operand: "Expr"
    type: Type


@dataclass(frozen=True, slots=True)
class Bits:
    """A word taken as the bits of a float, or of its lower half; or the other way, a float's bits as a word.

    A dataclass, since as a tuple it would be equal to the ``Convert`` of the same word to the same type.
    """

    operand: "Expr"
    type: FloatType | IntegerType


class Select(NamedTuple):
    """One of two values of one type; both are computed."""

    condition: "Expr"
    then: "Expr"
    orelse: "Expr"

    @property
    def type(self) -> Type:
        """That of both values."""
        return self.then.type


Expr = Const | Local | Word | Unary | Binary | Compare | Convert | Bits | Select

TRUE, FALSE = Const(1, boolean), Const(0, boolean)


class Buffer(NamedTuple):
    """Bytes on the handler's stack, a multiple of eight."""

    name: str
    size: int


class Assign(NamedTuple):
    """Give a local variable a value."""

    local: Local
    value: Expr


class If(NamedTuple):
    """Run one of two lists of statements."""

    condition: Expr
    then: "Body"
    orelse: "Body" = ()


class Block(NamedTuple):
    """Run statements; a ``Leave`` with the label continues after them."""

    label: str
    body: "Body"


class Loop(NamedTuple):
    """Run statements again and again until a ``Leave``, which is proved to come within ``bound`` rounds."""

    label: str
    bound: int
    body: "Body"


class Leave(NamedTuple):
    """Continue after the enclosing statement of that label."""

    label: str


class Return(NamedTuple):
    """End the handler with its value."""

    value: Expr


class CountMiss(NamedTuple):
    """Count that something went wrong."""

    miss: Miss


class Read(NamedTuple):
    """Read a value of the program's memory; ``present`` says whether the address could be read."""

    present: Local
    target: Local
    address: Expr


class ReadBytes(NamedTuple):
    """Fill a buffer with zeros, then read ``size`` bytes, at most the buffer's; ``text``: up to the first NUL."""

    present: Local
    length: Local
    buffer: Buffer
    address: Expr
    size: Expr
    text: bool


class ReadComm(NamedTuple):
    """Fill a buffer with the name of the thread."""

    present: Local
    length: Local
    buffer: Buffer


class ReadCpu(NamedTuple):
    """Read how long the thread has been on processors, in nanoseconds."""

    present: Local
    target: Local


class FillBuffer(NamedTuple):
    """Fill a buffer with words; zeros follow."""

    buffer: Buffer
    words: "tuple[Expr, ...]"


class BufferByte(NamedTuple):
    """Read one byte of a buffer; ``position`` is taken modulo its size, a power of two."""

    target: Local
    buffer: Buffer
    position: Expr


class BufferWord(NamedTuple):
    """Read one word of a buffer, by its number."""

    target: Local
    buffer: Buffer
    number: int


class BufferEquals(NamedTuple):
    """Compare the beginning of a buffer with constant words."""

    target: Local
    buffer: Buffer
    words: tuple[int, ...]


class Write(NamedTuple):
    """Write a value to the program's memory."""

    address: Expr
    value: Expr


class SetWord(NamedTuple):
    """Change a word of the context, which the program will see."""

    number: int
    value: Expr


class LoadInstance(NamedTuple):
    """Read a word of the call's own data; ``present`` is false where the call has none."""

    present: Local
    target: Local
    instance: int
    offset: int


class StoreInstance(NamedTuple):
    """Write a word of the call's own data, if it has any."""

    instance: int
    offset: int
    value: Expr


class Update(NamedTuple):
    """Do something with a storage: ``operation`` and its operands; ``key`` is expressions and buffers."""

    storage: int
    operation: str
    values: tuple[Expr, ...] = ()
    key: "tuple[Expr | Buffer, ...]" = ()
    present: Local | None = None
    """Set to whether there was a value, for operations that yield one."""
    target: Local | None = None


class Mark(NamedTuple):
    """Do nothing; what follows is of this place in the source. There only where that is asked for."""

    file: str
    line: int
    column: int
    source: str


Stmt = (
    Assign | If | Block | Loop | Leave | Return | CountMiss | Read | ReadBytes | ReadComm | ReadCpu | FillBuffer
    | BufferByte | BufferWord | BufferEquals | Write | SetWord | LoadInstance | StoreInstance | Update | Mark
)  # fmt: skip
Body = tuple[Stmt, ...]


class Function(NamedTuple):
    """One handler."""

    name: str
    inputs: tuple[Input, ...]
    storages: tuple[Storage, ...]
    body: Body
    result: Type | None = None
    demanded: tuple[str, ...] = ()
    """What may be missing and then ends it, for the user."""


def is_number(kind: Type) -> bool:
    """Return whether arithmetic is defined on a type."""
    return isinstance(kind, IntegerType | FloatType)
