"""What the front end has built so far of one handler: statements, inputs, and what is known at the current place."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from anyprobe.core.code import Input, InputKind, Miss
from anyprobe.handlers.frontend.source import Source
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.ir import ranges
from anyprobe.handlers.types.annotations import Type, i64
from anyprobe.handlers.types.storages import Storage

BUFFER_LIMIT = 256
"""Bytes that all buffers of a handler may take: the program's stack is borrowed, and BPF has 512 bytes."""


@dataclass
class Flow:
    """What is known where the next statement stands."""

    known: ranges.Known = field(default_factory=dict)
    assigned: frozenset[str] = frozenset()
    """Variables of the source that have a value on every way that leads here."""
    reachable: bool = True

    def copy(self) -> "Flow":
        """Return a copy that can go its own way."""
        return Flow(dict(self.known), self.assigned, self.reachable)

    def become(self, ways: list["Flow"]) -> None:
        """Go on where several ways meet."""
        ways = [way for way in ways if way.reachable]
        self.reachable = bool(ways)
        if ways:
            self.known = ranges.joined(way.known for way in ways)
            self.assigned = frozenset.intersection(*(way.assigned for way in ways))


HANDLER_END = "end"
"""The label of the handler's end."""


class Emitter:
    """Collects the statements of one handler."""

    def __init__(self, *, marked: bool = False) -> None:
        """Start empty; ``marked``: statements say of which place in the source they are."""
        self._marked = marked
        self.flow = Flow()
        self.inputs: list[Input] = []
        self.storages: list[Storage] = []
        self.buffers: list[ir.Buffer] = []
        self._lists: list[list[ir.Stmt]] = [[]]
        self._ways: dict[str, list[Flow]] = {}
        self._numbers: dict[str, int] = {}
        self.demanded: dict[str, None] = {}
        """What is computed with and may be missing, as far as that ends the handler."""
        self.abandoned = HANDLER_END
        """The label where it goes on when a missing value is used."""

    def is_left(self, label: str) -> bool:
        """Return whether something leaves the block, which is still open."""
        return bool(self._ways.get(label))

    @property
    def here(self) -> list[ir.Stmt]:
        """The statements of the innermost list that is being built."""
        return self._lists[-1]

    @property
    def body(self) -> ir.Body:
        """The statements."""
        return tuple(self._lists[0])

    def fresh(self, prefix: str) -> str:
        """Return a name that nothing has yet."""
        number = self._numbers[prefix] = self._numbers.get(prefix, 0) + 1
        return f"{prefix}.{number}"

    def temporary(self, kind: Type) -> ir.Local:
        """Return a new local variable."""
        return ir.Local(self.fresh("t"), kind)

    def buffer(self, size: int) -> ir.Buffer:
        """Return a new buffer of at least ``size`` bytes."""
        made = ir.Buffer(self.fresh("b"), max(8, 1 << (size - 1).bit_length()))
        self.buffers.append(made)
        return made

    def word(self, kind: InputKind, name: str = "", index: int = 0, *, written: bool = False, place: str = "") -> int:
        """Return the index of the word of the context that holds an input."""
        for at, each in enumerate(self.inputs):
            if (each.kind, each.name, each.index) == (kind, name, index):
                if written and not each.written:
                    self.inputs[at] = replace(each, written=True)
                return at
        self.inputs.append(Input(kind, name, index, written, place))
        return len(self.inputs) - 1

    def storage(self, storage: Storage) -> int:
        """Return the index of a storage."""
        for place, each in enumerate(self.storages):
            if each is storage or each == storage:
                return place
        self.storages.append(storage)
        return len(self.storages) - 1

    def demand(self, present: ir.Expr, what: str) -> None:
        """End the handler where a value is missing, and count that; ``what`` it is, and where, is for the user."""
        if present == ir.TRUE:
            return
        with self.when(ir.Unary("not", present)):
            if self.abandoned == HANDLER_END:
                self.demanded[what] = None
                self.add(ir.CountMiss(Miss.ABANDONED))
            self.add(ir.Leave(self.abandoned))

    def add(self, statement: ir.Stmt) -> None:
        """Append a statement; what cannot be reached is left out."""
        if not self.flow.reachable:
            return
        self._lists[-1].append(statement)
        if isinstance(statement, ir.Assign):
            found = ranges.of(statement.value, self.flow.known)
            if found is not None:
                self.flow.known[statement.local.name] = found
        elif isinstance(statement, ir.Leave):
            self._ways.setdefault(statement.label, []).append(self.flow.copy())
            self.flow.reachable = False
        elif isinstance(statement, ir.Return):
            self.flow.reachable = False

    def mark(self, source: Source, node: ast.AST) -> None:
        """Note of which place in the source the statements are that follow."""
        if self._marked and self.flow.reachable:
            at = source.error(node, "")
            self._lists[-1].append(ir.Mark(at.file, at.line, at.column, at.source))

    def splice(self, statement: ir.Stmt) -> None:
        """Append a statement whose effect on what is known has been noted already."""
        self._lists[-1].append(statement)

    def keep(self, expr: ir.Expr) -> ir.Expr:
        """Return an expression that is cheap to use several times and does not change with later assignments."""
        if isinstance(expr, ir.Const):
            return expr
        local = self.temporary(expr.type)
        self.add(ir.Assign(local, expr))
        return local

    @contextmanager
    def collected(self) -> Iterator[list[ir.Stmt]]:
        """Collect the statements of the ``with`` block instead of appending them."""
        statements: list[ir.Stmt] = []
        self._lists.append(statements)
        try:
            yield statements
        finally:
            self._lists.pop()

    @contextmanager
    def when(self, condition: ir.Expr) -> Iterator[None]:
        """Run the statements of the ``with`` block only if a condition holds."""
        other = self.flow.copy()
        ranges.refine(condition, truth=True, known=self.flow.known)
        ranges.refine(condition, truth=False, known=other.known)
        with self.collected() as then:
            yield
        inner = self.flow
        self.flow = other.copy()
        if then:
            self.add(ir.If(condition, tuple(then)))
        self.flow.become([inner, other])

    @contextmanager
    def block(self, label: str) -> Iterator[None]:
        """Append a block that can be left by its label."""
        reachable = self.flow.reachable
        with self.collected() as inside:
            yield
        ways = [*self._ways.pop(label, ()), self.flow]
        self.flow = Flow(reachable=reachable)
        self.add(ir.Block(label, tuple(inside)))
        self.flow.become(ways)

    @contextmanager
    def loop(self, label: str, bound: int) -> Iterator[None]:
        """Append a loop that ends when it is left by its label."""
        reachable = self.flow.reachable
        with self.collected() as inside:
            yield
        self.flow = Flow(reachable=reachable)
        self.add(ir.Loop(label, bound, tuple(inside)))
        self.flow.become(self._ways.pop(label, []))

    def bound_last_loop(self, bound: int) -> None:
        """Give the loop that has just been appended the bound that its body has proved."""
        last = self._lists[-1][-1]
        assert isinstance(last, ir.Loop)
        self._lists[-1][-1] = ir.Loop(last.label, bound, last.body)

    def length(self) -> ir.Local:
        """Return a new local variable for the length of something."""
        return self.temporary(i64)
