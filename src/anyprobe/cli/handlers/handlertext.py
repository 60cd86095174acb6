"""Handlers that are made of expressions of the command line: a Python function as text, like any other handler.

Each expression stands on lines of its own, beginning in the first column, so that what the compiler says about it can
be said about the option that it came from.
"""

import itertools
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from anyprobe.cli.handlers.expressions import Expression
from anyprobe.core.errors import HandlerError

PARAMETERS = tuple(f"arg{index}" for index in range(10))
"""Names of parameters of which nothing is known but their position."""
CONTEXT = ("tid", "pid", "cpu", "ip", "caller", "comm", "now", "errno")
"""Attributes of ``ctx`` that have a name of their own in expressions."""
IN_KERNEL = ("uid", "gid", "cgroup")
"""Names that only handlers in the kernel have."""
AT_RETURN = "at_return"
OF_RETURNS = ("retval", "latency_ns", AT_RETURN)
"""What only returns know; ``at_return(…)`` is what its expression is worth there."""
FUNCTIONS = ("abs", "min", "max", "len", "bool", "float")
TYPES = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64", "ptr", "cstr", "buf", "func", "stack")
_numbers = itertools.count(1)


@dataclass
class HandlerText:
    """A function that is being written."""

    in_kernel: bool = False
    """Where no call ends by a jump to another function: it has ended when control is back at the caller."""
    lines: list[str] = field(default_factory=list)
    origins: dict[int, tuple[Expression, int]] = field(default_factory=dict)
    """What the lines of expressions are, by number: which expression, and which line of it."""
    left: Mapping[Expression, Expression] = field(default_factory=dict)
    """What of expressions is worked out here, where that is not all."""
    file: str = field(default_factory=lambda: f"<expressions {next(_numbers)}>")

    def add(self, *lines: str) -> None:
        """Append lines."""
        self.lines += lines

    def add_expression(self, before: str, expression: Expression, after: str) -> None:
        """Append an expression in brackets between two texts."""
        self.lines.append(f"{before}(")
        for number, line in enumerate(self.left.get(expression, expression).text.splitlines()):
            self.lines.append(line)
            self.origins[len(self.lines)] = (expression, number)
        self.lines.append(f"    ){after}")

    def add_condition(self, expression: Expression | None) -> None:
        """Append that a handler ends where an expression does not hold; nothing without one."""
        if expression is not None:
            self.add_expression("    if not ", expression, ":")
            self.add("        return")

    def add_condition_of_calls(self, expression: Expression | None, tails: str) -> None:
        """Append the same where results or times are wanted, of which a call has none that ends by a jump.

        ``tails`` is what is done there, before the handler ends: unless the condition can be told not to hold. Nothing
        if the handler has ended there already, for lack of a result.
        """
        if self.in_kernel or not tails:
            self.add_condition(expression)
            return
        of_returns = uses_returns([] if expression is None else [expression])
        if not of_returns:
            self.add_condition(expression)
        self.add("    if ctx.retval is None:", f"        {tails}", "        return")
        if of_returns:
            self.add_condition(expression)

    def function(self, name: str, things: Mapping[str, object] | None = None) -> Callable[..., Any]:
        """Return the function, with what its names mean."""
        import anyprobe

        text = "\n".join(self.lines) + "\n"
        # handlers are compiled from their source, which Python looks up here
        linecache.cache[self.file] = (len(text), None, text.splitlines(keepends=True), self.file)
        names: dict[str, Any] = {each: getattr(anyprobe, each) for each in TYPES} | dict(things or {})
        exec(compile(text, self.file, "exec", dont_inherit=True), names)  # noqa: S102 - defines one function
        made: Callable[..., Any] = names[name]
        return made

    @contextmanager
    def pointing(self) -> Iterator[None]:
        """Have what the compiler says about an expression point at the option that it came from."""
        try:
            yield
        except HandlerError as error:
            origin = self.origins.get(error.line) if error.file == self.file else None
            if error.file == self.file and origin is None:
                raise HandlerError(error.message, instead=error.instead) from None  # of all of it, which no user wrote
            if origin is None:
                raise
            expression, line = origin
            column = error.column - 1 + (expression.column if line == 0 else 0)
            raise expression.error(expression.line + line, column, error.message, error.instead) from None


def uses_returns(expressions: Iterable[Expression]) -> bool:
    """Return whether any expression needs what only returns know."""
    return any(each.uses(name) for each in expressions for name in OF_RETURNS)


def check_names(expressions: Iterable[Expression], known: Iterable[str] = (), reason: str = "") -> None:
    """Complain about the first name that means nothing; ``reason``: why there are no ``known`` parameters."""
    allowed = {*PARAMETERS, *CONTEXT, *IN_KERNEL, *OF_RETURNS, *FUNCTIONS, *TYPES, *known, "ctx"}
    expressions = list(expressions)
    for expression in expressions:
        for name, line, column in expression.names:
            if name not in allowed:
                import difflib

                near = difflib.get_close_matches(name, allowed, 3)
                instead = ", ".join(near) if near else "arg0, retval, latency_ns, tid, cstr(arg0, 64), ctx.regs.rdi"
                why = f" ({reason})" if reason else ""
                raise expression.error(line, column, f"{name} is not defined{why}", instead)


def context_lines(expressions: Iterable[Expression], parameters: Iterable[str] = ()) -> list[str]:
    """Return the lines that give attributes of ``ctx`` their names, where expressions use them and no parameter has."""
    expressions = list(expressions)
    used = {name for each in expressions for name, _, _ in each.names}
    used -= {*parameters, *(name for each in expressions for name in each.called)}
    return [f"    {name} = ctx.{name}" for name in (*CONTEXT, *IN_KERNEL) if name in used]
