"""The validator: types, labels and indices of a handler in the intermediate language. Run after each pass in tests."""

from anyprobe.core.code import InputKind
from anyprobe.core.errors import InternalError
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.ir import show
from anyprobe.handlers.types.annotations import FloatType, IntegerType, PointerType, Type, boolean, i64, u64

ARITHMETIC = frozenset(["+", "-", "*"])
WHOLE = frozenset(["&", "|", "^", "<<", ">>", "//", "%"])
LOGIC = frozenset({"&", "|", "^"})
COMPARISONS = frozenset(["==", "!=", "<", "<=", ">", ">="])


def check(handler: ir.Function) -> None:
    """Raise ``InternalError`` if something in a handler contradicts itself."""
    _Checker(handler).body(handler.body, frozenset())


class _Checker:
    def __init__(self, handler: ir.Function) -> None:
        self._handler = handler
        self._locals: dict[str, Type] = {}
        self._buffers: dict[str, int] = {}
        self._loops: set[str] = set()

    def _require(self, condition: bool, what: str, where: ir.Stmt | ir.Expr) -> None:
        if not condition:
            simple = isinstance(where, ir.Expr)
            text = show.expression(where) if simple else show.statement(where)  # type: ignore[arg-type]
            raise InternalError(f"{self._handler.name}: {what}: {text}")

    def body(self, statements: ir.Body, labels: frozenset[str]) -> None:
        for each in statements:
            self._statement(each, labels)

    def _statement(self, each: ir.Stmt, labels: frozenset[str]) -> None:
        match each:
            case ir.If(condition, then, orelse):
                self._require(self.expression(condition) == boolean, "the condition is no boolean", each)
                self.body(then, labels)
                self.body(orelse, labels)
            case ir.Block(label, inner) | ir.Loop(label, _, inner):
                self._require(label not in self._loops, "a label is used twice", each)
                self._require(not isinstance(each, ir.Loop) or each.bound >= 0, "a negative bound", each)
                self._loops.add(label)
                self.body(inner, labels | {label})
            case ir.Leave(label):
                self._require(label in labels, "no such label", each)
            case ir.Return(value):
                self._require(self.expression(value) == self._handler.result, "not the result's type", each)
            case ir.Assign(local, value):
                self._require(self._local(local) == self.expression(value), "types differ", each)
            case ir.Read(present, target, address):
                self._require(self._local(present) == boolean, "present is no boolean", each)
                self._local(target)
                self._word(address, each)
            case _:
                self._effect(each)

    def _effect(self, each: ir.Stmt) -> None:
        match each:
            case ir.ReadBytes(present, length, buffer, address, size, _):
                fits = self._local(present) == boolean and self._local(length) == i64 and self._buffer(buffer)
                self._require(fits, "wrong types", each)
                self._word(address, each)
                self._word(size, each)
            case ir.ReadComm(present, length, buffer):
                fits = self._local(present) == boolean and self._local(length) == i64 and self._buffer(buffer)
                self._require(fits, "wrong types", each)
            case ir.ReadCpu(present, target):
                self._require(self._local(present) == boolean and self._local(target) == u64, "wrong types", each)
            case ir.FillBuffer(buffer, words):
                self._require(self._buffer(buffer) and len(words) * ir.WORD <= buffer.size, "wrong types", each)
                for word in words:
                    self._word(word, each)
            case ir.BufferByte(target, buffer, index):
                power = buffer.size & (buffer.size - 1) == 0
                self._require(self._local(target) == i64 and self._buffer(buffer) and power, "wrong types", each)
                self._word(index, each)
            case ir.BufferWord(target, buffer, number):
                fits = self._buffer(buffer) and 0 <= number < buffer.size // ir.WORD
                self._require(self._local(target) == u64 and fits, "wrong types", each)
            case ir.BufferEquals(target, buffer, words):
                fits = self._buffer(buffer) and len(words) * ir.WORD <= buffer.size
                self._require(self._local(target) == boolean and fits, "wrong types", each)
            case ir.Write(address, value):
                self._word(address, each)
                self.expression(value)
            case ir.SetWord(index, value):
                self._require(self._handler.inputs[index].written, "the word is not written", each)
                self._word(value, each)
            case ir.LoadInstance(present, target, instance, offset):
                fits = self._local(present) == boolean and self._local(target) == u64
                self._require(fits and self._is(instance, InputKind.INSTANCE) and offset >= 0, "wrong types", each)
            case ir.StoreInstance(instance, offset, value):
                self._require(self._is(instance, InputKind.INSTANCE) and offset >= 0, "no instance", each)
                self._word(value, each)
            case ir.Update(storage, _, values, key, present, target):
                self._require(0 <= storage < len(self._handler.storages), "no such storage", each)
                for value in values:
                    self.expression(value)
                for part in key:
                    if isinstance(part, ir.Buffer):
                        self._require(self._buffer(part), "wrong buffer", each)
                    else:
                        kind = self.expression(part)
                        emitted = isinstance(kind, FloatType) and each.operation == "emit"
                        self._require(kind == u64 or emitted, "no u64 in a key", each)
                if present is not None:
                    self._require(self._local(present) == boolean, "present is no boolean", each)
                if target is not None:
                    self._local(target)

    def _is(self, index: int, kind: InputKind) -> bool:
        return 0 <= index < len(self._handler.inputs) and self._handler.inputs[index].kind is kind

    def _local(self, local: ir.Local) -> Type:
        known = self._locals.setdefault(local.name, local.type)
        self._require(known == local.type, "a local has two types", local)
        return known

    def _buffer(self, buffer: ir.Buffer) -> bool:
        known = self._buffers.setdefault(buffer.name, buffer.size)
        return known == buffer.size and buffer.size % ir.WORD == 0 and buffer.size > 0

    def _word(self, expr: ir.Expr, where: ir.Stmt) -> None:
        self._require(self.expression(expr) == u64, "no u64", where)

    def expression(self, expr: ir.Expr) -> Type:
        """Return the type of an expression after checking its parts."""
        match expr:
            case ir.Const(value, kind):
                if isinstance(kind, IntegerType):
                    self._require(isinstance(value, int) and kind.wrap(value) == value, "out of range", expr)
            case ir.Local():
                self._local(expr)
            case ir.Word(index):
                self._require(0 <= index < len(self._handler.inputs), "no such word", expr)
            case ir.Unary(symbol, operand):
                kind = self.expression(operand)
                allowed = {"-": ir.is_number(kind), "~": isinstance(kind, IntegerType), "not": kind == boolean}
                allowed["abs"] = isinstance(kind, FloatType)
                self._require(allowed[symbol], "not defined on this type", expr)
            case ir.Binary(symbol, left, right):
                self._binary(expr, symbol, self.expression(left), self.expression(right))
            case ir.Compare(symbol, left, right):
                same = self.expression(left) == self.expression(right)
                self._require(same and symbol in COMPARISONS, "types differ", expr)
            case ir.Convert(operand, kind):
                source = self.expression(operand)
                fits = not (isinstance(kind, PointerType) and isinstance(source, FloatType))
                self._require(fits and kind != boolean, "no such conversion", expr)
            case ir.Bits(operand, kind):
                source = self.expression(operand)
                there, back = isinstance(kind, FloatType), isinstance(source, FloatType)
                self._require((there and source == u64) or (back and kind == u64), "no bits", expr)
            case ir.Select(condition, then, orelse):
                same = self.expression(then) == self.expression(orelse)
                self._require(same and self.expression(condition) == boolean, "types differ", expr)
        return expr.type

    def _binary(self, expr: ir.Expr, symbol: str, left: Type, right: Type) -> None:
        if isinstance(left, FloatType):
            defined = symbol in ARITHMETIC or symbol == "/"
        elif isinstance(left, IntegerType):
            defined = left.bits == 64 and (symbol in ARITHMETIC or symbol in WHOLE)
        else:
            defined = left == boolean and symbol in LOGIC
        same = right == u64 if symbol in {"<<", ">>"} else left == right
        self._require(defined and same, "not defined on these types", expr)
