"""What handlers collect: calls of aggregations, maps, and records."""

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyprobe.core.errors import UsageError
from anyprobe.data.aggregates.aggregations import Aggregation
from anyprobe.data.layouts.keys import KeyKind, KeyPart, KeyShape
from anyprobe.data.readers.maps import Map, MapLayout
from anyprobe.data.readers.tables import TableLayout
from anyprobe.handlers import intrinsics
from anyprobe.handlers.frontend import operators, texts
from anyprobe.handlers.frontend.expressions import Expressions
from anyprobe.handlers.frontend.values import Items, Literal, Maybe, Member, Scalar, Text, Value, described
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import (
    FloatType,
    IntegerType,
    PointerType,
    ShownType,
    Type,
    boolean,
    func,
    gotype,
    i64,
    ptr,
    stack,
    u64,
)
from anyprobe.handlers.types.storages import MapTable, Ring, Storages, Table, is_signed, key_kind

if TYPE_CHECKING:
    from anyprobe.data.aggregates.records import Field

Key = tuple[tuple[ir.Expr | ir.Buffer, ...], tuple[KeyKind, ...]]
"""The parts of a key as words and buffers, and what those are that are numbers."""
_Keyed = TableLayout | MapLayout
_RECORD_PARTS_LIMIT = 32
_VALUES: dict[str, Type] = {"stack": stack, "func": func, "gotype": gotype, "address": ptr}
"""The types of what maps hold, by how they are shown."""
MARKS = "speculation"
"""The name of the records that are marks of speculations (``data.readers.speculations``)."""
MISSING = "missing"
"""The field of partial records whose bits say which of the fields before it are missing."""


@dataclass
class Collecting:
    """Compiles what a handler collects into the storages of its session."""

    storages: Storages
    ring_bytes: int = 1 << 20
    """Bytes of the ring that each thread has for each kind of record."""

    # -- aggregations

    def call(self, expressions: Expressions, node: ast.Call, member: Member) -> Value:
        """Compile the call of a method."""
        match member:
            case Member(Aggregation() as aggregation, key, "add"):
                return self._add(expressions, node, aggregation, key)
            case Member(Map() as table, None, "get" | "set" | "delete" | "increase" as method):
                return self._map_call(expressions, node, table, method)
            case Member(storage, _, method):
                of_maps = ".get(key), .set(key, value), .increase(key), .delete(key)"
                methods = of_maps if isinstance(storage, Map) else ".add(…)"
                raise expressions.error(node, f"{type(storage).__name__} has no {method or 'call'}", methods)

    def _add(self, expressions: Expressions, node: ast.Call, aggregation: Aggregation, key: Value | None) -> Value:
        positional, named = list(node.args), {keyword.arg: keyword.value for keyword in node.keywords}
        value_node = positional.pop(0) if positional else named.pop("value", None)
        key_node = positional.pop(0) if positional else named.pop("key", None)
        if positional or named:
            raise expressions.error(node, "add takes a value and a key", "add(value, key=(…,))")
        if aggregation.needs_value and value_node is None:
            raise expressions.error(node, f"a {type(aggregation).__name__} adds a value", "add(value)")
        if not aggregation.needs_value and value_node is not None:
            raise expressions.error(node, f"a {type(aggregation).__name__} counts and has no value", "add()")
        if key is not None and key_node is not None:
            raise expressions.error(node, "a key in brackets and a key as argument", "one of them")
        given = None if value_node is None else expressions.value(value_node)
        key = key if key_node is None else expressions.value(key_node)
        value = None
        if given is not None and value_node is not None:
            value = _whole(expressions, expressions.present(given, value_node), value_node)
            known = self.storages.get(aggregation)
            if isinstance(given, Literal) and isinstance(known, Table):
                value = _like_others(value, known.layout.signed)
        parts, kinds = self._key(expressions, node, key, aggregation)
        if aggregation.by and len(parts) != len(aggregation.by):
            number, by = f"{len(aggregation.by)} part{'s' * (len(aggregation.by) > 1)}", ", ".join(aggregation.by)
            raise expressions.error(node, f"the key of {aggregation.name} has {number}: {by}")
        shape = _shape(expressions, node, parts, kinds)
        layout = TableLayout(aggregation, shape, value is None or is_signed(value.type))
        table = self.storages.setdefault(aggregation, Table(layout))
        assert isinstance(table, Table)
        self._same(expressions, node, aggregation.name, table.layout, layout)
        values = () if value is None else (value,)
        expressions.emit.add(ir.Update(expressions.emit.storage(table), "add", values, parts))
        return Literal(None)

    def _same(self, expressions: Expressions, node: ast.AST, name: str, old: _Keyed, new: _Keyed) -> None:
        """Refuse another use of what is used already."""
        if not old.shape.serves(new.shape):
            raise expressions.error(node, f"{name} has had another kind of key", "one for each kind")
        if old.signed != new.signed:
            raise expressions.error(node, f"{name} is given signed and unsigned values", "i64(…) or u64(…)")

    # -- maps

    def _map_call(self, expressions: Expressions, node: ast.Call, table: Map, method: str) -> Value:
        wanted = 2 if method == "set" else 1
        if node.keywords or len(node.args) not in ({1, 2} if method in {"get", "increase"} else {wanted}):
            raise expressions.error(node, f"{method} takes {'a key and a value' if method == 'set' else 'a key'}")
        key = expressions.value(node.args[0])
        if method == "increase":
            return self._increase(expressions, node, table, key)
        if method == "set":
            value = expressions.operand(node.args[1])
            self.set_item(expressions, node, table, key, value)
            return Literal(None)
        found = self._lookup(expressions, node, table, key, method)
        if len(node.args) == 1:
            return found
        default = expressions.operand(node.args[1])
        assert isinstance(found, Maybe)
        first, second = operators.common(found.value, default, expressions.frame.fail_at(node))
        return Scalar(ir.Select(found.present, first, second))

    def get_item(self, expressions: Expressions, node: ast.AST, table: Map, key: Value) -> Value:
        """Compile ``table[key]``, which may be missing."""
        return self._lookup(expressions, node, table, key, "get")

    def _lookup(self, expressions: Expressions, node: ast.AST, table: Map, key: Value, method: str) -> Value:
        emit = expressions.emit
        parts, kinds = self._key(expressions, node, key, table)
        known = self.storages.get(table)
        # what is first looked up and never set is missing, whatever its type
        of_known = known.layout.signed if isinstance(known, MapTable) else table.signed
        storage = self._map(expressions, node, table, (parts, kinds), signed_value=of_known)
        present, target = emit.temporary(boolean), emit.temporary(i64 if storage.layout.signed else u64)
        emit.add(ir.Update(emit.storage(storage), method, (), parts, present, target))
        typed = _VALUES.get(table.value)
        return Maybe(present, Scalar(target if typed is None else operators.convert(target, typed)))

    def _increase(self, expressions: Expressions, node: ast.Call, table: Map, key: Value) -> Value:
        """Compile ``table.increase(key, by)``: the sum, missing where there is no room for the key."""
        by = expressions.operand(node.args[1]) if len(node.args) == 2 else Literal(1)
        storage, parts, expr = self._changed(expressions, node, table, key, by)
        emit = expressions.emit
        present, target = emit.temporary(boolean), emit.temporary(i64 if storage.layout.signed else u64)
        emit.add(ir.Update(emit.storage(storage), "increase", (expr,), parts, present, target))
        return Maybe(present, Scalar(target))

    def set_item(self, expressions: Expressions, node: ast.AST, table: Map, key: Value, value: Value) -> None:
        """Compile ``table[key] = value``."""
        storage, parts, expr = self._changed(expressions, node, table, key, value)
        expressions.emit.add(ir.Update(expressions.emit.storage(storage), "set", (expr,), parts))

    def _changed(
        self, expressions: Expressions, node: ast.AST, table: Map, key: Value, value: Value
    ) -> tuple[MapTable, tuple[ir.Expr | ir.Buffer, ...], ir.Expr]:
        """Return a map that is given a value under a key, the key's parts, and the value."""
        expr = _whole(expressions, expressions.present(value, node), node)
        if isinstance(value, Literal):
            known = self.storages.get(table)
            expr = _like_others(expr, known.layout.signed if isinstance(known, MapTable) else table.signed)
        kind = expressions.as_number(expressions.present(value, node), node).type
        if not table.value and isinstance(kind, ShownType) and table not in self.storages:
            table.value = kind.label  # what is shown by name is, where it is looked up, too
        parts, kinds = self._key(expressions, node, key, table)
        storage = self._map(expressions, node, table, (parts, kinds), signed_value=is_signed(expr.type))
        return storage, parts, expr

    def _map(self, expressions: Expressions, node: ast.AST, table: Map, key: Key, *, signed_value: bool) -> MapTable:
        try:
            layout = MapLayout(table, _shape(expressions, node, *key), signed_value)
        except UsageError as error:
            raise expressions.error(node, str(error)) from None
        storage = self.storages.setdefault(table, MapTable(layout))
        assert isinstance(storage, MapTable)
        self._same(expressions, node, table.name, storage.layout, layout)
        return storage

    def _key(self, expressions: Expressions, node: ast.AST, key: Value | None, table: Aggregation | Map) -> Key:
        if key is None:
            return (), ()
        items = key.items if isinstance(key, Items) else (key,)
        parts: list[ir.Expr | ir.Buffer] = []
        kinds: list[KeyKind] = []
        known = self.storages.get(table)
        others = [part.kind for part in known.layout.shape.parts] if isinstance(known, Table | MapTable) else []
        for number, item in enumerate(texts.shown(expressions, node, each) for each in items):
            present = expressions.present(item, _key_part(node, number)) if isinstance(item, Maybe | Text) else item
            if isinstance(present, Text):
                parts.append(present.buffer)
                kinds.append("string")
                continue
            expr = expressions.as_number(present, node)
            if isinstance(expr.type, FloatType):
                raise expressions.error(node, "a float in a key", "i64(x * 1000)")
            wide = operators.widened(expr)
            parts.append(operators.convert(wide, u64))
            # what is narrower than u64 is the same number either way
            kind = key_kind(expr.type if isinstance(expr.type, PointerType) else wide.type)
            if isinstance(item, Literal) and number < len(others) and others[number] == "unsigned":
                kind = "unsigned" if isinstance(wide, ir.Const) and wide.value >= 0 else kind
            kinds.append(kind)
        return tuple(parts), tuple(kinds)

    # -- records

    def record(self, expressions: Expressions, node: ast.Call, function: object) -> Value:
        """Compile ``emit`` and ``printf``."""
        if function is intrinsics.printf:
            name, shown, given = self._formatted(expressions, node)
        else:
            name, shown, given = self._named(expressions, node, partial=function is intrinsics.emit_partial)
            if name == MARKS:
                raise expressions.error(
                    node, f"records of the name {MARKS} are those of ctx.speculate()", "another name"
                )
        if function is intrinsics.emit_partial:
            given = _with_missing(expressions, given)
        self._emit(expressions, node, name, shown, given)
        return Literal(None)

    def mark(self, expressions: Expressions, node: ast.Call, what: int) -> None:
        """Compile a mark of a speculation."""
        fail = expressions.frame.fail_at(node)
        stack = expressions.context.read(expressions.emit, "regs", "rsp", fail)
        thread = expressions.context.read(expressions.emit, "", "tid", fail)
        self._emit(expressions, node, MARKS, "", [("what", Literal(what)), ("sp", stack), ("tid", thread)])

    def _emit(
        self, expressions: Expressions, node: ast.Call, name: str, shown: str, given: list[tuple[str, Value]]
    ) -> None:
        from anyprobe.data.aggregates.records import RecordType
        from anyprobe.data.readers.rings import RingLayout

        fields: list[Field] = []
        values: list[ir.Expr | ir.Buffer] = []
        for label, part in given:
            kind, value = self._field(expressions, node, label, part)
            fields.append(kind)
            values.append(value)
        try:
            layout = RingLayout.of_size(RecordType(name, tuple(fields)), self.ring_bytes)
        except UsageError as error:
            raise expressions.error(node, str(error)) from None
        ring = self.storages.setdefault(name, Ring(layout, shown))
        if ring != Ring(layout, shown):
            raise expressions.error(node, f"the record {name} has other fields elsewhere", f'emit("{name}2", …)')
        # the values of a record are kept where an aggregation has its key
        expressions.emit.add(ir.Update(expressions.emit.storage(ring), "emit", (), tuple(values)))

    def _named(
        self, expressions: Expressions, node: ast.Call, *, partial: bool
    ) -> tuple[str, str, list[tuple[str, Value]]]:
        name = expressions.frame.source.name
        if node.args:
            first = expressions.value(node.args[0])
            if len(node.args) > 1 or not isinstance(first, Literal) or not isinstance(first.value, str):
                raise expressions.error(node, "emit takes the record's name and named fields", 'emit("read", fd=fd)')
            name = first.value
        given = []
        for keyword in node.keywords:
            if keyword.arg is None:
                raise expressions.error(node, "** is not possible in a handler")
            value = _part(expressions, keyword.value) if partial else _operand(expressions, keyword.value)
            given.append((keyword.arg, value))
        return name, "", given

    def _formatted(self, expressions: Expressions, node: ast.Call) -> tuple[str, str, list[tuple[str, Value]]]:
        """Take an f-string apart: its constant text, that of places for constant texts, and a field for each other."""
        text = node.args[0] if len(node.args) == 1 and not node.keywords else None
        parts = text.values if isinstance(text, ast.JoinedStr) else [text] if isinstance(text, ast.Constant) else None
        if parts is None or len(parts) > _RECORD_PARTS_LIMIT:
            raise expressions.error(node, "printf takes one f-string", 'printf(f"read {fd} {n}")')
        shown, name = "", f"{expressions.frame.source.name}:{node.lineno}"
        given: list[tuple[str, Value]] = []
        for part in parts:
            if isinstance(part, ast.Constant):
                shown += _literally(str(part.value))
                continue
            assert isinstance(part, ast.FormattedValue)
            label = part.value.id if isinstance(part.value, ast.Name) else f"field{len(given)}"
            label = label if label not in dict(given) else f"field{len(given)}"
            form = ast.unparse(part.format_spec)[2:-1] if part.format_spec is not None else ""
            if "{" in form or part.conversion != -1:
                raise expressions.error(part.value, "the form of a place has to be constant", "{x:>8}")
            value = _operand(expressions, part.value)
            if isinstance(value, Literal) and isinstance(value.value, str):
                # another probe's handler from the same line may have another text here
                shown, name = shown + _literally(format(value.value, form)), f"{name}:{value.value}"
                continue
            shown += "{" + label + (":" + form if form else "") + "}"
            given.append((label, value))
        return name, shown, given

    def _field(
        self, expressions: Expressions, node: ast.AST, label: str, value: Value
    ) -> "tuple[Field, ir.Expr | ir.Buffer]":
        from anyprobe.data.aggregates.records import Field

        if isinstance(value, Text):
            return Field(label, "text", value.buffer.size), value.buffer
        if not isinstance(value, Scalar | Literal):
            raise expressions.error(node, f"{described(value)} cannot be a field of a record")
        expr = expressions.as_number(value, node)
        if isinstance(expr.type, FloatType):
            return Field(label, str(expr.type)), expr
        if isinstance(expr.type, ShownType):
            return Field(label, expr.type.label), operators.convert(expr, u64)
        kind: Type = u64 if isinstance(expr.type, PointerType) else expr.type
        return Field(label, "bool" if kind == boolean else str(kind)), operators.convert(operators.widened(expr), u64)


def _literally(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _operand(expressions: Expressions, node: ast.expr) -> Value:
    """Compile what is shown: an array of characters is its text; where it is missing, the handler ends."""
    return expressions.present(texts.shown(expressions, node, expressions.value(node)), node)


def _part(expressions: Expressions, node: ast.expr) -> Value:
    """Compile a field of a partial record: where it uses what is missing it is missing, and the handler goes on."""
    emit = expressions.emit
    there, label = emit.temporary(boolean), emit.fresh("part")
    emit.add(ir.Assign(there, ir.FALSE))
    outer, emit.abandoned = emit.abandoned, label
    with emit.block(label):
        value = texts.shown(expressions, node, expressions.value(node))
        is_left = emit.is_left(label)
        if is_left and isinstance(value, Scalar | Maybe):
            given = value.value if isinstance(value, Maybe) else value
            present = value.present if isinstance(value, Maybe) else ir.TRUE
            value = Maybe(there, Scalar(emit.keep(given.expr)))
            emit.add(ir.Assign(there, present))
        elif is_left and isinstance(value, Text):
            emit.add(ir.Assign(there, value.present))
            value = value._replace(present=there)
    emit.abandoned = outer
    return value


def _with_missing(expressions: Expressions, given: list[tuple[str, Value]]) -> list[tuple[str, Value]]:
    """Return fields with zeros where they are missing (texts are, then), and one that says which these are."""
    found: list[tuple[str, Value]] = []
    missing: ir.Expr = ir.Const(0, u64)
    for index, (label, value) in enumerate(given):
        if isinstance(value, Maybe | Text):
            bit = ir.Select(value.present, ir.Const(0, u64), ir.Const(1 << index, u64))
            missing = expressions.emit.keep(ir.Binary("|", missing, bit))
        found.append((label, _or_zero(expressions, value) if isinstance(value, Maybe) else value))
    return [*found, (MISSING, Scalar(missing))]


def _or_zero(expressions: Expressions, value: Maybe) -> Value:
    expr = expressions.emit.keep(value.value.expr)
    return Scalar(ir.Select(value.present, expr, ir.Const(0, expr.type)))


def _like_others(constant: ir.Expr, signed: bool) -> ir.Expr:
    """Return a constant with the sign that other values have, unless it is negative."""
    unsigned = not signed and isinstance(constant, ir.Const) and constant.value >= 0
    return operators.convert(constant, u64) if unsigned else constant


def _whole(expressions: Expressions, value: Value, node: ast.AST) -> ir.Expr:
    expr = operators.widened(expressions.as_number(value, node))
    if isinstance(expr.type, IntegerType):
        return expr
    raise expressions.error(node, "only whole numbers are aggregated", "i64(x * 1000)")


def _shape(
    expressions: Expressions, node: ast.AST, parts: tuple[ir.Expr | ir.Buffer, ...], kinds: tuple[KeyKind, ...]
) -> KeyShape:
    """Return the shape of a key; ``kinds`` says what each part is that is a number."""
    try:
        return KeyShape(
            tuple(
                KeyPart("string", part.size // ir.WORD) if isinstance(part, ir.Buffer) else KeyPart(kind)
                for part, kind in zip(parts, kinds, strict=True)
            )
        )
    except UsageError as error:
        raise expressions.error(node, str(error)) from None


def _key_part(node: ast.AST, number: int) -> ast.AST:
    """Return where a part of a key is written: ``table[a, b]``, ``table[a, b].add()``, ``table.add(x, key=(a, b))``."""
    key = node
    if isinstance(key, ast.Call):
        inner = key.func.value if isinstance(key.func, ast.Attribute) else key
        key = next((each.value for each in key.keywords if each.arg == "key"), inner)
    if isinstance(key, ast.Subscript):
        key = key.slice
    return key.elts[number] if isinstance(key, ast.Tuple) and number < len(key.elts) else key
