"""Trivial handlers without LLVM: one update of a counter, sum or extreme without a key, perhaps under comparisons.

The code is what LLVM would make of them, in fewer registers, and is there in no time. Beside it stands what it does,
for patches that do it themselves (``splice.codegen.handlers.inline``).
"""

from anyprobe.core.code import Comparison, Input, InputKind, NativeCode, Number, Update
from anyprobe.data.layouts.cells import COUNT, MAX, NOT_MIN, SUM, WRAPS, CellLayout, added_exactly
from anyprobe.data.readers.tables import ROW_HEAD_BYTES
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.passes import bounds
from anyprobe.handlers.types.annotations import IntegerType, PointerType, boolean
from anyprobe.handlers.types.storages import Table
from anyprobe.isa.assemble import Assembler

_CELLS = frozenset({(COUNT,), (COUNT, SUM, WRAPS), (COUNT, NOT_MIN), (COUNT, MAX)})
_EXTREMES = {NOT_MIN: "min", MAX: "max"}
_INVERSE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", "<=": ">", ">": "<="}
CONDITIONS = _STEPS = 4
"""Comparisons, and conversions of one number: more are another compiler's."""
_SIGNED = {"<": "jge", "<=": "jg", ">": "jle", ">=": "jl"}
_UNSIGNED = {"<": "jae", "<=": "ja", ">": "jbe", ">=": "jb"}
_UNLESS = {"==": "jne", "!=": "je"}
TO_RAX = {
    (8, True): "movsx rax, al", (16, True): "movsx rax, ax", (32, True): "movsxd rax, eax",
    (8, False): "movzx eax, al", (16, False): "movzx eax, ax", (32, False): "mov eax, eax",
}  # fmt: skip
_TO_RDI = {
    (8, True): "movsx rdi, dil", (16, True): "movsx rdi, di", (32, True): "movsxd rdi, edi",
    (8, False): "movzx edi, dil", (16, False): "movzx edi, di", (32, False): "mov edi, edi",
}  # fmt: skip


def jump_unless(comparison: Comparison) -> str:
    """Return the jump that is taken where a comparison does not hold."""
    return (_UNLESS | (_SIGNED if comparison.number.signed else _UNSIGNED))[comparison.symbol]


def trivial_code(handler: ir.Function) -> NativeCode | None:
    """Return the code of a trivial handler, ``None`` for any other."""
    reader = Reader()
    update = reader.update_in(handler.body)
    if handler.result is not None or update is None or len(reader.conditions) > CONDITIONS:
        return None
    table = handler.storages[update.storage]
    if update.operation != "add" or update.key or not isinstance(table, Table) or table.layout.rows == 1:
        return None
    cell = table.layout.aggregation.cell
    value = reader.number(update.values[0]) if len(cell.fields) > 1 else None
    if cell.fields not in _CELLS or cell.buckets or (value is None and len(cell.fields) > 1):
        return None
    return _Writer(handler, update.storage, table).run(tuple(reader.conditions), value, cell)


class Reader:
    """Finds the one update of a handler, and under which comparisons, all of which have to hold, it is made."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.conditions: list[Comparison] = []
        self._numbers: dict[str, Number] = {}
        self._truths: dict[str, ir.Expr] = {}

    def update_in(self, body: ir.Body, end: str = "") -> ir.Update | None:
        """Return the update that statements come to, ``None`` where they do something else; ``end``: how they end."""
        for number, each in enumerate(body, 1):
            last = number == len(body)
            match each:
                case ir.Assign(local, value):
                    if not self._assign(local, value):
                        return None
                case ir.If(condition, (ir.Leave(label),), ()) if label == end:
                    if not self._require(condition, holds=False):
                        return None
                case ir.If(condition, then, ()) if last:
                    return self.update_in(then, end) if self._require(condition, holds=True) else None
                case ir.Block(label, inner) if last:
                    return self.update_in(inner, label)
                case ir.Update() if last:
                    return each
                case _ if not self.passes(each, end):
                    return None
        return None

    def passes(self, each: ir.Stmt, end: str) -> bool:  # noqa: ARG002 - for others
        """Return whether a statement is one that others know of."""
        return False

    def _assign(self, local: ir.Local, value: ir.Expr) -> bool:
        number = self.number(value)
        if local.name in self._numbers or local.name in self._truths:
            return False
        if number is not None:
            self._numbers[local.name] = number
        elif local.type == boolean:
            self._truths[local.name] = value
        return number is not None or local.type == boolean

    def _require(self, expr: ir.Expr, *, holds: bool) -> bool:
        """Take note that an expression has to hold, or must not; return whether that is a matter of comparisons."""
        match expr:
            case ir.Local(name, _) if name in self._truths:
                return self._require(self._truths[name], holds=holds)
            case ir.Unary("not", operand):
                return self._require(operand, holds=not holds)
            case ir.Binary("&" | "|" as symbol, left, right) if (symbol == "&") is holds and expr.type == boolean:
                return self._require(left, holds=holds) and self._require(right, holds=holds)
            case ir.Compare():
                found = self._comparison(expr, holds=holds)
                self.conditions += [found] if found is not None else []
                return found is not None
            case _:
                return False

    def number(self, expr: ir.Expr) -> Number | None:
        """Return an expression that is a word of the context, converted."""
        match expr:
            case ir.Word(index):
                return Number(index)
            case ir.Local(name, _):
                return self._numbers.get(name)
            case ir.Convert(operand, IntegerType(bits, signed)):
                inner = self.number(operand)
                if inner is None or len(inner.steps) == _STEPS:
                    return None
                steps = inner.steps if bits == 64 else (*inner.steps, (bits, signed))
                return inner._replace(steps=steps, signed=signed)
            case ir.Convert(operand, PointerType()):
                return self.number(operand)
            case _:
                return None

    def _comparison(self, expr: ir.Compare, *, holds: bool) -> Comparison | None:
        """Return a comparison of a number with a constant that fits an instruction."""
        match expr:
            case ir.Compare(symbol, left, ir.Const(int() as constant, IntegerType())):
                number = self.number(left)
                fits = -(1 << 31) <= constant < 1 << 31
                if number is None or not fits or not isinstance(left.type, IntegerType):
                    return None
                shown = symbol if holds else _INVERSE[symbol]
                return Comparison(shown, number._replace(signed=left.type.signed), constant)
            case _:
                return None


class _Writer:
    """Writes the code of one update."""

    def __init__(self, handler: ir.Function, storage: int, table: Table) -> None:
        self._handler, self._storage, self._layout = handler, storage, table.layout
        self._asm = Assembler()
        self._words = len(handler.inputs)
        self._inputs = (*handler.inputs, Input(InputKind.STORAGE, index=storage), Input(InputKind.THREAD))

    def run(self, comparisons: tuple[Comparison, ...], value: Number | None, cell: CellLayout) -> NativeCode:
        asm, layout, storage = self._asm, self._layout, 8 * self._words
        count = layout.rows_offset + ROW_HEAD_BYTES + cell.offset(COUNT)
        total = count - cell.offset(COUNT) + cell.offset(cell.fields[1]) if value is not None else 0
        extreme = _EXTREMES.get(cell.fields[-1], "")
        for each in comparisons:
            self._leave_unless(each)
        # a thread without a number of its own is 0, which wraps to the largest
        asm.code(
            """
                mov rax, [rdi+storage+8]; dec rax
                cmp rax, last; jae short shared
                imul rax, rax, stride; add rax, [rdi+storage]
                inc qword [rax+count]
            """,
            storage=storage,
            last=layout.rows - 1,
            stride=layout.stride,
            count=count + layout.stride,
        )
        if value is not None:
            self._load(value, _TO_RDI, "rdi")
            if extreme:
                self._raise(extreme, total + layout.stride, "", "own")
            else:
                self._add(total + layout.stride, cell, "", "own")
        asm.code(
            """
            out:
                ret
            shared:
                mov rax, [rdi+storage]; lock inc qword [rax+count]
            """,
            storage=storage,
            count=count,
        )
        if value is not None:
            self._load(value, _TO_RDI, "rdi")
            if extreme:
                self._raise(extreme, total, "lock ", "theirs")
            else:
                self._add(total, cell, "lock ", "theirs")
        asm.code("ret")
        changed = {"rax", "flags"} | ({"rdi"} if value is not None else set()) | ({"rsi"} if extreme else set())
        wraps = total + cell.offset(WRAPS) - cell.offset(SUM) if WRAPS in cell.fields else 0
        update = Update(
            self._storage, layout.rows, layout.stride, count, total, value, extreme, layout.signed, only_if=comparisons,
            wraps=wraps,
        )  # fmt: skip
        return NativeCode(
            asm.finish(0), self._inputs, frozenset(changed), 8, bounds.steps(self._handler), update=update
        )

    def _add(self, total: int, cell: CellLayout, lock: str, label: str) -> None:
        """Append: rdi is added to a sum."""
        listing = added_exactly(label, "[rax+total]", "[rax+wraps]", "rdi", signed=self._layout.signed, lock=lock)
        self._asm.code(listing, total=total, wraps=total + cell.offset(WRAPS) - cell.offset(SUM))

    def _raise(self, extreme: str, offset: int, lock: str, again: str) -> None:
        """Append: the word becomes the larger of itself and the code of rdi."""
        asm = self._asm
        if self._layout.signed:
            asm.code("btc rdi, 63")
        if extreme == "min":
            asm.code("not rdi")
        asm.code(
            f"""
                lea rsi, [rax+offset]; mov rax, [rsi]
            {again}:
                cmp rdi, rax; jbe short {again}_out
                {lock}cmpxchg [rsi], rdi; jne short {again}
            {again}_out:
            """,
            offset=offset,
        )

    def _leave_unless(self, comparison: Comparison) -> None:
        self._load(comparison.number, TO_RAX, "rax")
        self._asm.code(f"cmp rax, constant; {jump_unless(comparison)} out", constant=comparison.constant)

    def _load(self, number: Number, conversions: dict[tuple[int, bool], str], register: str) -> None:
        self._asm.code(f"mov {register}, [rdi+word]", word=8 * number.word)
        for step in number.steps:
            self._asm.code(conversions[step])
