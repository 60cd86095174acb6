"""Conditions that are comparisons with constants: patches make these before they call the code that waits.

What is compared is a word of the context, or a number in memory that one leads to. Whether a patch may read that is
known at each site alone (``splice.codegen.handlers.guards``); elsewhere the code itself does, by the kernel.
"""

from anyprobe.core.code import Comparison, Number
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import IntegerType, PointerType, boolean
from anyprobe.handlers.x86.trivial import CONDITIONS, Reader

_LONGEST_PATH = 4
"""Reads that lead to one number, each by the pointer that the one before has found."""
_FURTHEST = 1 << 20


def comparisons_of(handler: ir.Function) -> tuple[Comparison, ...]:
    """Return the comparisons that are all that a condition is about; none of one that is about something else."""
    reader = _ConditionReader()
    is_whole = handler.result == boolean and reader.read(handler.body)
    return tuple(reader.conditions) if is_whole and len(reader.conditions) <= CONDITIONS else ()


class _ConditionReader(Reader):
    """Reads a function that is true where some comparisons hold, and does nothing else but read memory for them."""

    def __init__(self) -> None:
        super().__init__()
        self._presents: set[str] = set()
        """Locals that say whether something could be read."""

    def read(self, body: ir.Body) -> bool:
        """Return whether a body is that."""
        match body:
            case (
                ir.Block(label, (*_, ir.Assign(ir.Local(name, _), ir.Const(1))) as inner),
                ir.Return(ir.Local(result)),
            ):
                return name == result and self._read_block(inner, label)
            case _:
                return False

    def _read_block(self, body: ir.Body, label: str) -> bool:
        return all(self._read_statement(each, label) for each in body)

    def _read_statement(self, each: ir.Stmt, label: str) -> bool:
        match each:
            case ir.Assign(local, value):
                return self._assign(local, value)
            case ir.Read(present, target, address):
                return self._note_read(present, target, address)
            case ir.If(ir.Unary("not", ir.Local(name, _)), (ir.CountMiss(), ir.Leave(left)), ()):
                return name in self._presents and left == label
            case ir.If(ir.Local(name, _), inner, ()) if name in self._presents:
                return self._read_block(inner, label)
            case ir.If(ir.Local() as condition, inner, ()):
                return self._read_if(condition, inner, label)
            case ir.If(condition, (ir.Leave(left),), ()) if left == label:
                return self._require(condition, holds=False)
            case ir.Block(other, inner):
                return self._read_block(inner, other)
            case _:
                return False

    def _read_if(self, condition: ir.Local, body: ir.Body, label: str) -> bool:
        """Read what is done only if a truth holds: other truths come to hold there that else do not."""
        for each in body:
            match each:
                case ir.Assign(ir.Local(name, kind), value) if self._truths.get(name) == ir.FALSE and kind == boolean:
                    self._truths[name] = ir.Binary("&", condition, value)
                case _ if not self._read_statement(each, label):
                    return False
        return True

    def _note_read(self, present: ir.Local, target: ir.Local, address: ir.Expr) -> bool:
        place = self._place(address)
        if place is None or not isinstance(target.type, IntegerType | PointerType) or target.name in self._numbers:
            return False
        base, displacement = place
        if base.steps or base.read[0] != 64 or len(base.path) == _LONGEST_PATH or abs(displacement) > _FURTHEST:
            return False
        bits, signed = (target.type.bits, target.type.signed) if isinstance(target.type, IntegerType) else (64, False)
        self._truths.pop(present.name, None)
        self._presents.add(present.name)
        path = (*base.path, displacement)
        self._numbers[target.name] = Number(base.word, signed=signed, path=path, read=(bits, signed))
        return True

    def _place(self, address: ir.Expr) -> tuple[Number, int] | None:
        """Return the pointer that an address begins with, and what is added to it."""
        match address:
            case ir.Binary("+", left, ir.Const(int() as added)):
                found = self._place(left)
                return None if found is None else (found[0], found[1] + added)
            case ir.Convert(operand, IntegerType(64) | PointerType()):
                return self._place(operand)
            case _:
                number = self.number(address)
                return None if number is None else (number, 0)
