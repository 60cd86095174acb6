"""The intermediate language of handlers: structured statements over pure, total expressions.

It is structured, not a graph of blocks, because everything that has to be proved about a handler (that it ends, and
within how many steps) is a property of nested loops, and because LLVM makes its own graph anyway. Expressions have no
effects and cannot fail; whatever has effects or can end the handler is a statement, in the order of the source.

A ``Leave`` goes to the end of the enclosing ``Block`` or ``Loop`` of that label; a ``Loop`` begins again at its end.
All locals are 0 and all buffers are zeros when a handler starts.
"""

from dataclasses import dataclass

from anyprobe.core.code import Input, Miss
from anyprobe.handlers.types.annotations import FloatType, IntegerType, Type, boolean, u64
from anyprobe.handlers.types.storages import Storage

WORD = 8
"""Bytes of a word of the context, of a key, and of what buffers are a multiple of."""


@dataclass(frozen=True, slots=True)
class Const:
    """A number."""

    value: int | float
    type: Type


@dataclass(frozen=True, slots=True)
class Local:
    """The value of a local variable."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the context."""

    index: int

    @property
    def type(self) -> Type:
        """Words are unsigned."""
        return u64


@dataclass(frozen=True, slots=True)
class Unary:
    """``-`` and ``~`` of an integer, ``-`` of a float, ``not`` of a boolean."""

    symbol: str
    operand: "Expr"

    @property
    def type(self) -> Type:
        """That of the operand."""
        return self.operand.type


@dataclass(frozen=True, slots=True)
class Binary:
    """An operation on two values of one type, which is also the result's; the count of a shift is a ``u64``."""

    symbol: str
    left: "Expr"
    right: "Expr"

    @property
    def type(self) -> Type:
        """That of the left operand."""
        return self.left.type


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison of two values of one type."""

    symbol: str
    left: "Expr"
    right: "Expr"

    @property
    def type(self) -> Type:
        """A comparison is true or false."""
        return boolean


@dataclass(frozen=True, slots=True)
class Convert:
    """A value as another type."""

    operand: "Expr"
    type: Type


@dataclass(frozen=True, slots=True)
class Bits:
    """A word taken as the bits of a float, or of its lower half."""

    operand: "Expr"
    type: FloatType


@dataclass(frozen=True, slots=True)
class Select:
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


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes on the handler's stack, a multiple of eight."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Assign:
    """Give a local variable a value."""

    local: Local
    value: Expr


@dataclass(frozen=True, slots=True)
class If:
    """Run one of two lists of statements."""

    condition: Expr
    then: "Body"
    orelse: "Body" = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Run statements; a ``Leave`` with the label continues after them."""

    label: str
    body: "Body"


@dataclass(frozen=True, slots=True)
class Loop:
    """Run statements again and again until a ``Leave``, which is proved to come within ``bound`` rounds."""

    label: str
    bound: int
    body: "Body"


@dataclass(frozen=True, slots=True)
class Leave:
    """Continue after the enclosing statement of that label."""

    label: str


@dataclass(frozen=True, slots=True)
class Return:
    """End the handler with its value."""

    value: Expr


@dataclass(frozen=True, slots=True)
class CountMiss:
    """Count that something went wrong."""

    miss: Miss


@dataclass(frozen=True, slots=True)
class Read:
    """Read a value of the program's memory; ``present`` says whether the address could be read."""

    present: Local
    target: Local
    address: Expr


@dataclass(frozen=True, slots=True)
class ReadBytes:
    """Fill a buffer with zeros, then read ``size`` bytes, at most the buffer's; ``text``: up to the first NUL."""

    present: Local
    length: Local
    buffer: Buffer
    address: Expr
    size: Expr
    text: bool


@dataclass(frozen=True, slots=True)
class ReadComm:
    """Fill a buffer with the name of the thread."""

    present: Local
    length: Local
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class FillBuffer:
    """Fill a buffer with words; zeros follow."""

    buffer: Buffer
    words: "tuple[Expr, ...]"


@dataclass(frozen=True, slots=True)
class BufferByte:
    """Read one byte of a buffer; ``index`` is taken modulo its size, a power of two."""

    target: Local
    buffer: Buffer
    index: Expr


@dataclass(frozen=True, slots=True)
class BufferEquals:
    """Compare the beginning of a buffer with constant words."""

    target: Local
    buffer: Buffer
    words: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """Write a value to the program's memory."""

    address: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class SetWord:
    """Change a word of the context, which the program will see."""

    index: int
    value: Expr


@dataclass(frozen=True, slots=True)
class LoadInstance:
    """Read a word of the call's own data; ``present`` is false where the call has none."""

    present: Local
    target: Local
    instance: int
    offset: int


@dataclass(frozen=True, slots=True)
class StoreInstance:
    """Write a word of the call's own data, if it has any."""

    instance: int
    offset: int
    value: Expr


@dataclass(frozen=True, slots=True)
class Update:
    """Do something with a storage: ``operation`` and its operands; ``key`` is expressions and buffers."""

    storage: int
    operation: str
    values: tuple[Expr, ...] = ()
    key: "tuple[Expr | Buffer, ...]" = ()
    present: Local | None = None
    """Set to whether there was a value, for operations that yield one."""
    target: Local | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """Do nothing; what follows is of this place in the source. There only where that is asked for."""

    file: str
    line: int
    column: int
    source: str


Stmt = (
    Assign | If | Block | Loop | Leave | Return | CountMiss | Read | ReadBytes | ReadComm | FillBuffer | BufferByte
    | BufferEquals | Write | SetWord | LoadInstance | StoreInstance | Update | Mark
)  # fmt: skip
Body = tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """One handler."""

    name: str
    inputs: tuple[Input, ...]
    storages: tuple[Storage, ...]
    body: Body
    result: Type | None = None


def is_number(kind: Type) -> bool:
    """Return whether arithmetic is defined on a type."""
    return isinstance(kind, IntegerType | FloatType)
