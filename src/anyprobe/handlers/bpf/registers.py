"""Expressions of simple handlers in registers of the kernel's machine, and variables on its stack."""

from anyprobe.core.code import Input, InputKind
from anyprobe.handlers.bpf.assembly import FRAME, Assembly, fits
from anyprobe.handlers.bpf.layouts import SAVED_ARGUMENTS, Passed, RecordPlace, argument_of
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.ir import walk
from anyprobe.handlers.types.annotations import BoolType, FloatType, IntegerType, PointerType, Type, u64

CONTEXT, KEPT = 6, 7
"""Registers: the program's context, and an address that calls of the kernel's functions leave alone."""
_SCRATCH = (0, 1, 2, 3, 4, 5)
_STACK_BYTES = 512
_ASKED = {"now": 5, "cpu": 8, "tid": 14, "pid": 14, "uid": 15, "gid": 15, "cgroup": 80}
_UPPER, _LOWER = frozenset({"pid", "gid"}), frozenset({"tid", "uid"})
_FUNCTION, READ_KERNEL = 173, 113
_INVERSE = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", "<=": ">", ">": "<="}
COMM_BYTES = 16


class TooHard(Exception):  # noqa: N818 - another compiler's, not a mistake
    """A handler is not simple."""


def _is_power(value: float) -> bool:
    """Return whether a number is a power of two that can be part of an instruction."""
    return isinstance(value, int) and 0 < value < 1 << 31 and not value & value - 1


class Registers:
    """Expressions in registers; what the kernel has to be asked for is on the stack before."""

    def __init__(self, handler: ir.Function, passed: Passed | None) -> None:
        """Begin a program."""
        self.handler, self.passed, self.asm = handler, passed, Assembly()
        self._used = 0
        self._places: dict[str, int] = {}
        self._asked: dict[int, int] = {}

    # -- the stack

    def room(self, name: str, size: int = 8) -> int:
        """Return where on the stack something is, from the end of the stack."""
        if name not in self._places:
            self._used += size
            if self._used > _STACK_BYTES:
                raise TooHard
            self._places[name] = -self._used
        return self._places[name]

    def place_of(self, local: ir.Local) -> int:
        """Return where a variable is."""
        if isinstance(local.type, FloatType):
            raise TooHard
        return self.room(f"local {local.name}")

    def buffer(self, buffer: ir.Buffer) -> int:
        """Return where a buffer is."""
        return self.room(f"buffer {buffer.name}", buffer.size + ir.WORD)

    # -- expressions

    def number(self, expr: ir.Expr, target: int, free: tuple[int, ...] = _SCRATCH) -> None:
        """Compute an expression into a register, with the help of others."""
        self._ask(expr)
        self._compute(expr, target, tuple(each for each in free if each != target))

    def keep(self, expr: ir.Expr, place: int) -> None:
        """Compute an expression into a word of the stack."""
        if isinstance(expr, ir.Const) and not isinstance(expr.type, FloatType) and fits(int(expr.value)):
            self.asm.store_number(FRAME, place, int(expr.value))
            return
        self.number(expr, 1)
        self.asm.store(FRAME, place, 1)

    def _ask(self, expr: ir.Expr) -> None:
        """Ask the kernel for all that an expression needs of it, which changes the scratch registers."""
        self._asked.clear()
        for index in sorted({each.number for each in walk.within(expr) if isinstance(each, ir.Word)}):
            given = self.handler.inputs[index]
            if self._word(index, given) is not None or RecordPlace.of(given.place) is not None:
                continue
            argument = argument_of(given.place)
            if argument is not None and self.passed is not None and self.passed.saved is not None:
                self._saved(self.passed.saved, SAVED_ARGUMENTS[argument], index)
                continue
            place = self._asked[index] = self.room(f"word {index}")
            if self.passed is not None and self.passed.at_function and given.name in {"ip", "func"}:
                self.asm.copy(1, CONTEXT)
                self.asm.call(_FUNCTION)
            elif given.kind is InputKind.CONTEXT and given.name in _ASKED:
                self.asm.call(_ASKED[given.name])
            else:
                raise TooHard
            if given.name in _LOWER:
                self.asm.cut(0, 32, signed=False)
            elif given.name in _UPPER:
                self.asm.compute_number(">>", 0, 32)
            self.asm.store(FRAME, place, 0)

    def _saved(self, word: int, offset: int, index: int) -> None:
        """Read one of the registers that a system call has saved."""
        asm, place = self.asm, self.room(f"word {index}")
        self._asked[index] = place
        asm.load(3, CONTEXT, ir.WORD * word)
        self.plain(3)
        asm.compute_number("+", 3, offset)
        asm.store_number(FRAME, place, 0)
        asm.copy(1, FRAME)
        asm.compute_number("+", 1, place)
        asm.put(2, ir.WORD)
        asm.call(READ_KERNEL)

    def _field(self, place: RecordPlace, target: int) -> None:
        """Load a field of a tracepoint's record."""
        if not place.size:
            asm = self.asm
            if place.dynamic:
                asm.load(target, CONTEXT, place.offset, 4)
                asm.compute_number("&", target, (1 << 16) - 1)
                asm.store(FRAME, self.room("dynamic"), target)
            asm.copy(target, CONTEXT)
            self.plain(target)
            if place.dynamic:
                asm.atomic_add(FRAME, self.room("dynamic"), target)
                asm.load(target, FRAME, self.room("dynamic"))
            else:
                asm.compute_number("+", target, place.offset)
            return
        self.asm.load(target, CONTEXT, place.offset, place.size)
        if place.signed and place.size < ir.WORD:
            self.asm.cut(target, 8 * place.size, signed=True)

    def _word(self, index: int, given: Input) -> int | None:
        """Return at which word of the context an input is."""
        return index if self.passed is None else self.passed.word(given)

    def _compute(self, expr: ir.Expr, target: int, free: tuple[int, ...]) -> None:
        asm = self.asm
        if isinstance(expr.type, FloatType):
            raise TooHard
        match expr:
            case ir.Const(value, _):
                asm.put(target, int(value))
            case ir.Local():
                asm.load(target, FRAME, self.place_of(expr))
            case ir.Word(index):
                self._load_word(index, target)
            case ir.Convert(operand, kind):
                self._compute(operand, target, free)
                self._cut(target, operand.type, kind)
            case ir.Unary("not", operand):
                self._compute(operand, target, free)
                asm.compute_number("^", target, 1)
            case ir.Unary("-" | "~" as symbol, operand) if expr.type.size == ir.WORD:
                self._compute(operand, target, free)
                if symbol == "-":
                    asm.negate(target)
                else:
                    asm.compute_number("^", target, -1)
            case ir.Binary():
                self._binary(expr, target, free)
            case ir.Compare():
                yes = asm.fresh()
                self._jump(expr, yes, target, free)
                self._either(target, yes)
            case ir.Select(condition, then, orelse):
                no, after = asm.fresh(), asm.fresh()
                self._compute(condition, target, free)
                asm.go_if_number("==", target, 0, no)
                self._compute(then, target, free)
                asm.go(after)
                asm.here(no)
                self._compute(orelse, target, free)
                asm.here(after)
            case _:
                raise TooHard

    def _either(self, target: int, yes: str) -> None:
        """Make a register 1 where the code comes by a label, else 0."""
        after = self.asm.fresh()
        self.asm.put(target, 0)
        self.asm.go(after)
        self.asm.here(yes)
        self.asm.put(target, 1)
        self.asm.here(after)

    def _load_word(self, index: int, target: int) -> None:
        place = RecordPlace.of(self.handler.inputs[index].place)
        if place is not None:
            self._field(place, target)
            return
        at = self._word(index, self.handler.inputs[index])
        if at is None:
            self.asm.load(target, FRAME, self._asked[index])
            return
        self.asm.load(target, CONTEXT, ir.WORD * at)
        if self.passed is None:
            return
        if self.handler.inputs[index].name == "ip":
            self.asm.compute_number("-", target, 1)
        if at in self.passed.pointers:
            self.plain(target)

    def plain(self, register: int) -> None:
        """Make a number of a pointer: what an addition to memory has left there is none to the verifier."""
        place = self.room("plain")
        self.asm.store_number(FRAME, place, 0)
        self.asm.atomic_add(FRAME, place, register)
        self.asm.load(register, FRAME, place)

    def _cut(self, target: int, given: Type, kind: Type) -> None:
        if (
            isinstance(kind, FloatType)
            or isinstance(given, FloatType)
            or (isinstance(kind, BoolType) is not isinstance(given, BoolType) and isinstance(kind, BoolType))
        ):
            raise TooHard
        if isinstance(kind, IntegerType) and kind.bits < 64:
            self.asm.cut(target, kind.bits, signed=kind.signed)

    def _binary(self, expr: ir.Binary, target: int, free: tuple[int, ...]) -> None:
        symbol, kind, right = expr.symbol, expr.type, expr.right
        is_word = isinstance(kind, PointerType) or (isinstance(kind, IntegerType) and kind.bits == 64)
        if not is_word and not (isinstance(kind, BoolType) and symbol in {"&", "|", "^"}):
            raise TooHard
        if symbol in {"//", "%"} and isinstance(right, ir.Const) and _is_power(right.value):
            # rounded down, as in Python
            bits = int(right.value).bit_length() - 1
            symbol, right = (
                (">>", ir.Const(bits, u64)) if symbol == "//" else ("&", ir.Const(int(right.value) - 1, u64))
            )
        elif symbol in {"<<", ">>", "//", "%"} and not self._is_simple(expr):
            raise TooHard
        if symbol == ">>" and isinstance(kind, IntegerType) and kind.signed:
            symbol = "s>>"
        self._compute(expr.left, target, free)
        if isinstance(right, ir.Const) and fits(int(right.value)):
            self.asm.compute_number(symbol, target, int(right.value))
            return
        if not free:
            raise TooHard
        self._compute(right, free[0], free[1:])
        self.asm.compute(symbol, target, free[0])

    @staticmethod
    def _is_simple(expr: ir.Binary) -> bool:
        """Return whether a shift or quotient means the same to the machine: by a constant that is not beyond it."""
        if not isinstance(expr.right, ir.Const) or not isinstance(expr.right.value, int):
            return False
        if expr.symbol in {"<<", ">>"}:
            return 0 <= expr.right.value < 64
        return expr.type == u64 and 0 < expr.right.value < 1 << 31

    # -- conditions

    def _jump(self, expr: ir.Compare, label: str, target: int, free: tuple[int, ...], *, holds: bool = True) -> None:
        """Jump where a comparison holds, or where it does not."""
        kind, right = expr.left.type, expr.right
        if isinstance(kind, FloatType) or isinstance(right.type, FloatType):
            raise TooHard
        symbol = expr.symbol if holds else _INVERSE[expr.symbol]
        if isinstance(kind, IntegerType) and kind.signed and symbol not in {"==", "!="}:
            symbol = "s" + symbol
        self._compute(expr.left, target, free)
        if isinstance(right, ir.Const) and fits(int(right.value)) and (symbol.startswith("s") or right.value >= 0):
            self.asm.go_if_number(symbol, target, int(right.value), label)
            return
        if not free:
            raise TooHard
        self._compute(right, free[0], free[1:])
        self.asm.go_if(symbol, target, free[0], label)

    def unless(self, expr: ir.Expr, label: str) -> None:
        """Jump where a condition does not hold."""
        match expr:
            case ir.Binary("&", left, right) if isinstance(expr.type, BoolType):
                self.unless(left, label)
                self.unless(right, label)
            case ir.Unary("not", ir.Compare() as inner):
                self._ask(inner)
                self._jump(inner, label, 1, (2, 3, 4, 5, 0))
            case ir.Compare():
                self._ask(expr)
                self._jump(expr, label, 1, (2, 3, 4, 5, 0), holds=False)
            case _:
                self.number(expr, 1)
                self.asm.go_if_number("==", 1, 0, label)

    def point(self, table: int, key: int, storage: int, place: int) -> None:
        """Load a table and the address of a key on the stack."""
        self.asm.address(table, storage, table=True)
        self.asm.copy(key, FRAME)
        self.asm.compute_number("+", key, place)

    def count(self, storage: int, offset: int) -> None:
        """Add one to a word of a region."""
        self.asm.address(1, storage, offset)
        self.asm.put(2, 1)
        self.asm.atomic_add(1, 0, 2)
