"""Trivial handlers without LLVM: one update of a counter or a sum without a key, perhaps under one comparison.

The code is what LLVM would make of them, in fewer registers, and is there in no time.
"""

from typing import NamedTuple

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.data.aggregations import COUNT, SUM, CellLayout
from anyprobe.data.tables import ROW_HEAD_BYTES
from anyprobe.handlers import ir
from anyprobe.handlers.passes import bounds
from anyprobe.handlers.storages import Table
from anyprobe.handlers.types import IntegerType, PointerType
from anyprobe.isa.assemble import Assembler, i32

_CELLS = frozenset({(COUNT,), (COUNT, SUM)})
_UNLESS = {"==": "jne", "!=": "je", "<": "jge", "<=": "jg", ">": "jle", ">=": "jl"}
_SIGNED = {"jne": 0x75, "je": 0x74, "jge": 0x7D, "jg": 0x7F, "jle": 0x7E, "jl": 0x7C}
_UNSIGNED = {"jne": 0x75, "je": 0x74, "jge": 0x73, "jg": 0x77, "jle": 0x76, "jl": 0x72}
_TO_RAX = {
    (8, True): (b"\x48\x0f\xbe\xc0", "movsx rax, al"), (16, True): (b"\x48\x0f\xbf\xc0", "movsx rax, ax"),
    (32, True): (b"\x48\x63\xc0", "movsxd rax, eax"), (8, False): (b"\x0f\xb6\xc0", "movzx eax, al"),
    (16, False): (b"\x0f\xb7\xc0", "movzx eax, ax"), (32, False): (b"\x89\xc0", "mov eax, eax"),
}  # fmt: skip
_TO_RDI = {
    (8, True): (b"\x48\x0f\xbe\xff", "movsx rdi, dil"), (16, True): (b"\x48\x0f\xbf\xff", "movsx rdi, di"),
    (32, True): (b"\x48\x63\xff", "movsxd rdi, edi"), (8, False): (b"\x40\x0f\xb6\xff", "movzx edi, dil"),
    (16, False): (b"\x0f\xb7\xff", "movzx edi, di"), (32, False): (b"\x89\xff", "mov edi, edi"),
}  # fmt: skip


class _Number(NamedTuple):
    """A word of the context, converted step by step; in a register it is extended by its own signedness."""

    word: int
    steps: tuple[tuple[int, bool], ...] = ()
    signed: bool = False


def trivial_code(handler: ir.Function) -> NativeCode | None:
    """Return the code of a trivial handler, ``None`` for any other."""
    body, locals_ = list(handler.body), dict[str, _Number]()
    while body and isinstance(first := body[0], ir.Assign):
        del body[0]
        number = _number(first.value, locals_)
        if number is None or first.local.name in locals_:
            return None
        locals_[first.local.name] = number
    comparison: tuple[str, _Number, int] | None = None
    if len(body) == 1 and isinstance(only := body[0], ir.If) and not only.orelse:
        comparison = _comparison(only.condition, locals_)
        if comparison is None:
            return None
        body = list(only.then)
    if handler.result is not None or len(body) != 1 or not isinstance(update := body[0], ir.Update):
        return None
    table = handler.storages[update.storage]
    if update.operation != "add" or update.key or not isinstance(table, Table) or table.layout.rows == 1:
        return None
    cell = table.layout.aggregation.cell
    value = _number(update.values[0], locals_) if SUM in cell.fields else None
    if cell.fields not in _CELLS or cell.buckets or (value is None and SUM in cell.fields):
        return None
    return _Writer(handler, update.storage, table).run(comparison, value, cell)


def _number(expr: ir.Expr, locals_: dict[str, _Number]) -> _Number | None:
    match expr:
        case ir.Word(index):
            return _Number(index)
        case ir.Local(name, _):
            return locals_.get(name)
        case ir.Convert(operand, IntegerType(bits, signed)):
            inner = _number(operand, locals_)
            if inner is None:
                return None
            return _Number(inner.word, inner.steps if bits == 64 else (*inner.steps, (bits, signed)), signed)
        case ir.Convert(operand, PointerType()):
            return _number(operand, locals_)
        case _:
            return None


def _comparison(expr: ir.Expr, locals_: dict[str, _Number]) -> tuple[str, _Number, int] | None:
    """Return a comparison of a number with a constant that fits an instruction."""
    match expr:
        case ir.Compare(symbol, left, ir.Const(int() as constant, IntegerType())):
            number = _number(left, locals_)
            fits = -(1 << 31) <= constant < 1 << 31
            if number is None or not fits or not isinstance(left.type, IntegerType):
                return None
            return symbol, number._replace(signed=left.type.signed), constant
        case _:
            return None


class _Writer:
    """Writes the code of one update."""

    def __init__(self, handler: ir.Function, storage: int, table: Table) -> None:
        self._handler, self._layout = handler, table.layout
        self._asm = Assembler()
        self._words = len(handler.inputs)
        self._inputs = (*handler.inputs, Input(InputKind.STORAGE, index=storage), Input(InputKind.THREAD))

    def run(self, comparison: tuple[str, _Number, int] | None, value: _Number | None, cell: CellLayout) -> NativeCode:
        asm, layout, storage = self._asm, self._layout, 8 * self._words
        count = layout.rows_offset + ROW_HEAD_BYTES + cell.offset(COUNT)
        total = layout.rows_offset + ROW_HEAD_BYTES + cell.offset(SUM) if value is not None else 0
        if comparison is not None:
            self._leave_unless(*comparison)
        # a thread without a number of its own is 0, which wraps to the largest
        asm.emit(b"\x48\x8b\x87" + i32(storage + 8) + b"\x48\xff\xc8", "mov rax, [rdi+THREAD]; dec rax")
        asm.emit(b"\x48\x3d" + i32(layout.rows - 1), "cmp rax, rows-1")
        asm.jump(b"\x73", "shared", "jae shared")
        asm.emit(b"\x48\x69\xc0" + i32(layout.stride), "imul rax, rax, stride")
        asm.emit(b"\x48\x03\x87" + i32(storage), "add rax, [rdi+STORAGE]")
        asm.emit(b"\x48\xff\x80" + i32(count + layout.stride), "inc qword [rax+stride+COUNT]")
        if value is not None:
            self._load(value, _TO_RDI, b"\x48\x8b\xbf", "rdi")
            asm.emit(b"\x48\x01\xb8" + i32(total + layout.stride), "add [rax+stride+SUM], rdi")
        asm.label("out")
        asm.emit(b"\xc3", "ret")
        asm.label("shared")
        asm.emit(b"\x48\x8b\x87" + i32(storage), "mov rax, [rdi+STORAGE]")
        asm.emit(b"\xf0\x48\xff\x80" + i32(count), "lock inc qword [rax+COUNT]")
        if value is not None:
            self._load(value, _TO_RDI, b"\x48\x8b\xbf", "rdi")
            asm.emit(b"\xf0\x48\x01\xb8" + i32(total), "lock add [rax+SUM], rdi")
        asm.emit(b"\xc3", "ret")
        changed = frozenset({"rax", "flags"} | ({"rdi"} if value is not None else set()))
        return NativeCode(asm.finish(0), self._inputs, changed, 8, bounds.steps(self._handler))

    def _leave_unless(self, symbol: str, number: _Number, constant: int) -> None:
        self._load(number, _TO_RAX, b"\x48\x8b\x87", "rax")
        self._asm.emit(b"\x48\x3d" + i32(constant), f"cmp rax, {constant}")
        jump = _UNLESS[symbol]
        opcode = (_SIGNED if number.signed else _UNSIGNED)[jump]
        self._asm.jump(bytes([opcode]), "out", f"{jump} out")

    def _load(
        self, number: _Number, conversions: dict[tuple[int, bool], tuple[bytes, str]], load: bytes, register: str
    ) -> None:
        self._asm.emit(load + i32(8 * number.word), f"mov {register}, [rdi+{8 * number.word}]")
        for step in number.steps:
            self._asm.emit(*conversions[step])
