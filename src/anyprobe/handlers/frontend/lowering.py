"""The front end: from a Python function to the intermediate language."""

import ast
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from anyprobe.core.errors import HandlerError, InternalError
from anyprobe.handlers.frontend import operators
from anyprobe.handlers.frontend.calls import Calls
from anyprobe.handlers.frontend.collecting import Collecting
from anyprobe.handlers.frontend.context import ContextAccess, InstanceLayout
from anyprobe.handlers.frontend.emitter import Emitter
from anyprobe.handlers.frontend.expressions import Expressions
from anyprobe.handlers.frontend.frame import Frame, Notes, RetypeError, type_of_annotation
from anyprobe.handlers.frontend.parameters import nearest, parameters_of, receive
from anyprobe.handlers.frontend.source import Condition, Source, source_of
from anyprobe.handlers.frontend.statements import Statements
from anyprobe.handlers.frontend.values import Array, Context, Kind, Literal, Maybe, Scalar, Text, Value
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import AnyType, Layout, Type, boolean, i64
from anyprobe.handlers.types.calling_convention import KnownPrototype
from anyprobe.handlers.types.storages import Storages

if TYPE_CHECKING:
    from anyprobe.handlers.types.marker import MarkerAt

RESULT = "return"
"""The variable that holds what a function returns; no variable of Python can have this name."""


@dataclass(frozen=True)
class Setting:
    """What a handler is compiled for; handlers of one session share ``storages``, those of one call ``instance``."""

    storages: Storages = field(default_factory=dict)
    instance: InstanceLayout = field(default_factory=InstanceLayout)
    retval: AnyType | None = i64
    """The type of the probed function's result, ``None`` where there is none."""
    unsafe: bool = False
    ring_bytes: int = 1 << 20
    """Bytes of the ring that each thread has for each kind of record."""
    entry: bool = False
    """Whether the handler runs where a function is entered."""
    tail: bool = False
    """Whether the handler runs where the function ends in a jump to another one."""
    prototype: KnownPrototype | None = None
    """What debug information says of the probed function."""
    marker: "MarkerAt | None" = None
    """The USDT marker that the handler runs at."""
    kernel: frozenset[str] | None = None
    """The attributes of ``ctx`` that there are where the handler runs in the kernel; ``None``: it runs in a process."""
    marked: bool = False
    """Whether the intermediate language says of which place in the source each statement is."""


class Lowered(NamedTuple):
    """A handler in the intermediate language, and the types that were found on the way."""

    function: ir.Function
    notes: Notes


def lower(
    function: Callable[..., Any] | Condition, setting: Setting | None = None, when: Callable[..., Any] | None = None
) -> Lowered:
    """Translate a Python function; raise ``HandlerError`` for what is not possible.

    ``when`` is a condition: a function of the same parameters, or fewer. Where it is not true the handler does nothing.
    A ``Condition`` in the handler's stead leaves whether it is true.
    """
    source = source_of(function)
    when = function.function if isinstance(function, Condition) else when
    setting = setting or Setting()
    if setting.retval is not None and not isinstance(setting.retval, Type | Layout):
        raise HandlerError("retval= is a type, such as i32, ptr[u8] or f64", instead="cstr(ctx.retval) in the handler")
    kinds: dict[str, Kind] = {}
    while True:
        storages, fields = dict(setting.storages), dict(setting.instance.fields)
        layout = replace(setting.instance, fields=fields)
        try:
            attempt = replace(setting, storages=storages, instance=layout)
            lowered = _Handler(source, attempt, kinds).run(when)
        except RetypeError as better:
            if kinds.get(better.name) == better.kind:
                raise InternalError(f"the type of {better.name} is not settled") from None
            kinds[better.name] = better.kind
            continue
        # only a handler that compiles leaves traces
        setting.storages.update(storages)
        setting.instance.fields.update(fields)
        return lowered


class _Handler:
    def __init__(self, source: Source, setting: Setting, kinds: dict[str, Kind]) -> None:
        self._source, self._kinds = source, kinds
        self._emit, self._notes = Emitter(marked=setting.marked), Notes()
        self._prototype, self._marker = setting.prototype, setting.marker
        self._context = ContextAccess(
            setting.instance, setting.retval, setting.unsafe, setting.entry, setting.tail, setting.prototype,
            setting.kernel,
        )  # fmt: skip
        self._calls = Calls(self._inline, Collecting(setting.storages, setting.ring_bytes))
        self._active: list[types.FunctionType] = []

    def run(self, when: Callable[..., Any] | None) -> Lowered:
        emit = self._emit
        frame = Frame(self._source, "", "end", self._kinds)
        with emit.block("end"):
            if self._marker is not None:
                self._receive_marked(frame, self._marker)
            else:
                self._receive_all(frame)
            if when is not None:
                self._guard(frame, source_of(when))
            self._context.keep_result_place(emit, frame.fail_at(self._source.tree))
            self._body(frame)
        result = frame.kinds.get(RESULT)
        if result is not None:
            emit.flow.reachable = True
            emit.add(ir.Return(ir.Local(RESULT, result.type)))
        kind = result.type if result is not None else None
        made = ir.Function(
            self._source.name, tuple(emit.inputs), tuple(emit.storages), emit.body, kind, tuple(emit.demanded)
        )
        return Lowered(made, self._notes)

    def _receive_all(self, frame: Frame) -> None:
        """Give the parameters of the handler their values: ``ctx``, then those of the probed function."""
        for each in parameters_of(self._source, self._receive_context(frame), self._prototype):
            name, value = each.node.arg, receive(self._emit, each, frame.fail_at(each.node))
            if isinstance(value, Array):  # a variable would have its address alone
                frame.aliases[name] = (each.node, Array(self._emit.keep(value.expr), value.count))
                self._emit.flow.assigned |= {name}
                continue
            if isinstance(value, Scalar):
                frame.declare(name, Kind(value.type, demanded=True))
            frame.assign(self._emit, name, value, each.node)
            if isinstance(value, Scalar):
                frame.note(self._notes, each.node, frame.kinds[name])

    def _receive_marked(self, frame: Frame, marker: "MarkerAt") -> None:
        """Give the parameters their values: ``ctx``, then the marker's arguments, which may be missing."""
        from anyprobe.handlers.frontend.marker_parameters import marker_parameters
        from anyprobe.handlers.frontend.marker_parameters import receive as receive_argument

        expressions = Expressions(self._emit, frame, self._notes, self._context, self._calls)
        for each in marker_parameters(self._source, self._receive_context(frame), marker):
            name, value = each.node.arg, receive_argument(expressions, each)
            if isinstance(value, Scalar):
                frame.declare(name, Kind(value.type, demanded=True))
            elif isinstance(value, Maybe):
                frame.declare(name, Kind(value.value.type, missing=True, demanded=True))
            frame.assign(self._emit, name, value, each.node)
            if name in frame.kinds:
                frame.note(self._notes, each.node, frame.kinds[name])

    def _receive_context(self, frame: Frame) -> list[ast.arg]:
        """Give ``ctx`` its value, and return the other parameters."""
        parameters = _parameters(self._source, handler=True)
        if parameters and parameters[0].arg == "ctx":
            frame.aliases["ctx"] = (parameters[0], Context())
            self._emit.flow.assigned |= {"ctx"}
            parameters = parameters[1:]
        return parameters

    def _guard(self, handler: Frame, source: Source) -> None:
        """Leave the handler where its condition is not true; the condition's parameters are the handler's, by name."""
        tree, emit = source.tree, self._emit
        frame = Frame(source, "when.", "end", self._kinds)
        expressions = Expressions(emit, frame, self._notes, self._context, self._calls)
        wanted = _parameters(source)
        has_context = bool(wanted) and wanted[0].arg == "ctx"
        given = [parameter.arg for parameter in _parameters(self._source) if parameter.arg != "ctx"]
        values: list[Value] = [Context()] if has_context else []
        names = [parameter.arg for parameter in wanted[has_context:]]
        for parameter in wanted[has_context:]:
            if parameter.arg not in given:  # by position it would be compared with another value, without a word
                raise source.error(
                    parameter, f"{self._source.name} has no parameter {parameter.arg}", nearest(parameter.arg, given)
                )
        values += [_received(handler, name) for name in names]
        call = ast.copy_location(ast.Call(ast.Name(source.name, ast.Load()), [], []), tree)
        found = self._inline(expressions, call, source.function, values)
        holds = operators.truth(expressions.present(found, tree), frame.fail_at(tree))
        emit.mark(source, tree)
        with emit.when(ir.Unary("not", holds)):
            emit.add(ir.Leave("end"))

    def _body(self, frame: Frame) -> None:
        """Compile the statements of a function."""
        emit = self._emit

        def result(value: Value | None, node: ast.AST) -> None:
            if value is not None or returns:
                frame.assign(emit, RESULT, Literal(None) if value is None else _returned(frame, value, node), node)
                frame.note(self._notes, node, frame.kinds[RESULT])
            emit.add(ir.Leave(frame.end))

        tree = frame.source.tree
        frame.result = result
        expressions = Expressions(emit, frame, self._notes, self._context, self._calls)
        self._active.append(frame.source.function)
        returns = _returns_values(tree)
        emit.mark(frame.source, tree)
        if isinstance(tree, ast.Lambda):
            result(expressions.value(tree.body), tree.body)
        else:
            Statements(expressions).run(tree.body)
            if returns and emit.flow.reachable:
                result(None, tree)
        self._active.pop()

    def _inline(
        self, caller: Expressions, node: ast.Call, function: types.FunctionType, arguments: list[Value]
    ) -> Value:
        """Compile a call in place: a block with variables of its own."""
        if function in self._active:
            raise caller.error(node, f"{function.__name__} calls itself", "a loop")
        source = source_of(function)
        frame = Frame(source, self._emit.fresh(source.name) + ".", self._emit.fresh("return"), self._kinds)
        given = {parameter.arg: value for parameter, value in zip(_parameters(source), arguments, strict=False)}
        for keyword in node.keywords:
            if keyword.arg in given:
                raise caller.error(node, f"{keyword.arg} is given twice")
            given[str(keyword.arg)] = caller.value(keyword.value)
        wanted = [parameter.arg for parameter in _parameters(source)]
        if set(given) != set(wanted) or len(arguments) > len(wanted):
            raise caller.error(node, f"{source.name} takes {len(wanted)} arguments: {', '.join(wanted)}")
        with self._emit.block(frame.end):
            for parameter in _parameters(source):
                self._pass(caller, frame, parameter, given[parameter.arg], node)
            self._body(frame)
        kind = frame.kinds.get(RESULT)
        if kind is None:
            return Literal(None)
        local = ir.Local(frame.prefix + RESULT, kind.type)
        present = ir.Local(frame.prefix + RESULT + ".present", boolean)
        return Maybe(present, Scalar(local)) if kind.missing else Scalar(local)

    def _pass(self, caller: Expressions, frame: Frame, parameter: ast.arg, value: Value, node: ast.Call) -> None:
        """Give a parameter of a called function its value."""
        if not isinstance(value, Literal | Scalar | Maybe) or (
            isinstance(value, Literal) and not isinstance(value.value, int | float | None)
        ):
            frame.aliases[parameter.arg] = (parameter, value)
            self._emit.flow.assigned |= {frame.prefix + parameter.arg}
            return
        if parameter.annotation is not None:
            kind = type_of_annotation(frame.source, parameter.annotation)
            frame.declare(parameter.arg, Kind(kind, demanded=True))
            value = caller.present(value, node)
        frame.assign(self._emit, parameter.arg, value, parameter)
        frame.note(self._notes, parameter, frame.kinds[parameter.arg])


def _received(frame: Frame, name: str) -> Value:
    """Return what a parameter of the handler holds."""
    if name in frame.aliases:
        return frame.aliases[name][1]
    kind = frame.kinds[name]
    value = Scalar(ir.Local(name, kind.type))
    return Maybe(ir.Local(name + ".present", boolean), value) if kind.missing else value


def _parameters(source: Source, *, handler: bool = False) -> list[ast.arg]:
    arguments = source.tree.args
    for other in (arguments.vararg, arguments.kwarg, *arguments.kwonlyargs, *arguments.defaults):
        if other is not None:
            raise source.error(other, "only plain parameters are possible in a handler")
    found = [*arguments.posonlyargs, *arguments.args]
    for parameter in found[1:] if handler else ():
        if parameter.arg == "ctx":
            raise source.error(parameter, "ctx has to be the first parameter", "def handler(ctx, …)")
    return found


def _returns_values(tree: ast.FunctionDef | ast.Lambda) -> bool:
    return any(
        isinstance(node, ast.Return)
        and node.value is not None
        and not (isinstance(node.value, ast.Constant) and node.value.value is None)
        for node in ast.walk(tree)
    )


def _returned(frame: Frame, value: Value, node: ast.AST) -> Value:
    if isinstance(value, Text):
        raise frame.source.error(node, "text cannot be returned", "its use in the same function")
    return value
