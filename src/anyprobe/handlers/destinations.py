"""Where a handler may send the thread, as far as its text says so: no splice may overwrite what begins there."""

from anyprobe.core.code import Destination, InputKind
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.ir import walk

_WORD = (1 << 64) - 1


def destinations(handler: ir.Function) -> tuple[Destination, ...]:
    """Return the constant addresses, and those at a constant distance of the probed instruction, that ``ip`` gets."""
    finder = _Finder(handler)
    found: dict[Destination, None] = {}
    for each in walk.statements(handler.body):
        if isinstance(each, ir.SetWord) and handler.inputs[each.number].name == "rip":
            found.update(dict.fromkeys(finder.of(each.value)))
    return tuple(found)


class _Finder:
    """Follows expressions of one handler."""

    def __init__(self, handler: ir.Function) -> None:
        self._inputs = handler.inputs
        self._values: dict[str, list[ir.Expr]] = {}
        for each in walk.statements(handler.body):
            if isinstance(each, ir.Assign):
                self._values.setdefault(each.local.name, []).append(each.value)
        self._following: set[str] = set()

    def of(self, expr: ir.Expr) -> list[Destination]:
        """Return what an expression may be, what is not known left out."""
        match expr:
            case ir.Const(int() as value, _):
                return [Destination(relative=False, value=value & _WORD)]
            case ir.Word(index):
                each = self._inputs[index]
                at_site = each.kind is InputKind.CONTEXT and each.name == "ip"
                return [Destination(relative=True, value=0)] if at_site else []
            case ir.Convert(operand, _):
                return self.of(operand)
            case ir.Select(_, then, orelse):
                return self.of(then) + self.of(orelse)
            case ir.Binary("+" | "-" as symbol, left, right):
                pairs = ((one, other) for one in self.of(left) for other in self.of(right))
                return [found for one, other in pairs for found in _sum(symbol, one, other)]
            case ir.Local(name, _):
                return self._local(name)
            case _:
                return []

    def _local(self, name: str) -> list[Destination]:
        if name in self._following:
            return []
        self._following.add(name)
        found = [each for value in self._values.get(name, ()) for each in self.of(value)]
        self._following.discard(name)
        return found


def _sum(symbol: str, one: Destination, other: Destination) -> list[Destination]:
    if other.relative and (one.relative or symbol == "-"):
        return []
    value = one.value + other.value if symbol == "+" else one.value - other.value
    return [Destination(relative=one.relative or other.relative, value=value & _WORD)]
