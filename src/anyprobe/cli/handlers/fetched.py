"""Fetch arguments of ``kprobe_events`` lines as expressions: ``p:opens libc:open path=+0(%di):string``."""

import ast
import re
from typing import TYPE_CHECKING

from anyprobe.cli.handlers.expressions import Expression

if TYPE_CHECKING:
    from anyprobe.kprobes.events.fetch import Fetch, FetchArgument, ValueType

TEXT_BYTES = 64
_LINE = re.compile(r"\s*[pr]\d*(?::\S*)?\s+\S+\s+\S")
_SHORT = frozenset({"ax", "bx", "cx", "dx", "si", "di", "bp", "sp"})
_OTHER = {"ip": "u64(ctx.ip)", "flags": "ctx.regs.rflags"}


def fetched(spec: str) -> tuple[Expression, ...]:
    """Return the fetch arguments of a spec that is such a line; nothing of any other."""
    if not _LINE.match(spec):
        return ()
    from anyprobe.kprobes.events.definition import parse_definition

    return tuple(each for argument in parse_definition(spec.strip()).arguments for each in _expressions(spec, argument))


def _expressions(spec: str, argument: "FetchArgument") -> list[Expression]:
    from anyprobe.kprobes.events.fetch import Comm, Dereference

    kind, fetch = argument.type, argument.fetch
    position = max(spec.find(argument.text), 0)
    if isinstance(fetch, Comm):
        return [_expression(spec, argument.name, "comm", position)]
    found = []
    for element in range(kind.count or 1):
        label = f"{argument.name}[{element}]" if kind.count else argument.name
        step = 8 if kind.is_text else kind.bits // 8
        moved = fetch
        if element and isinstance(fetch, Dereference):
            moved = Dereference(fetch.offset + element * step, fetch.inner)
        found.append(_expression(spec, label, _typed(moved, kind), position))
    return found


def _expression(spec: str, label: str, text: str, position: int) -> Expression:
    tree = ast.parse(text, mode="eval")
    names = tuple((each.id, 0, position) for each in ast.walk(tree) if isinstance(each, ast.Name))
    return Expression("SPEC", spec, text, label, 0, position, names)


def _typed(fetch: "Fetch", kind: "ValueType") -> str:
    """Return the expression of a value by its type."""
    from anyprobe.kprobes.events.fetch import Dereference

    if kind.is_text:
        # an array has pointers to texts; otherwise the text is where the value would be
        inner = _value(fetch, 64) if kind.count or not isinstance(fetch, Dereference) else _address(fetch)
        return f"cstr(ptr({inner}), {TEXT_BYTES})"
    if kind.width:
        return f"{_value(fetch, kind.bits)} >> {kind.shift} & {(1 << kind.width) - 1:#x}"
    sign = "i" if kind.name[0] == "s" and kind.name != "symbol" else "u"
    if isinstance(fetch, Dereference):
        # read by its type: a conversion of what is missing would end the handler
        return f"ptr[{sign}{kind.bits}]({_address(fetch)})[0]"
    return f"{sign}{kind.bits}({_value(fetch, kind.bits)})"


def _value(fetch: "Fetch", bits: int) -> str:
    """Return the expression of a fetch, as a number without a sign."""
    from anyprobe.kprobes.events import fetch as kinds

    match fetch:
        case kinds.Register(name):
            return _OTHER.get(name) or f"ctx.regs.{'r' + name if name in _SHORT else name}"
        case kinds.Argument(number):
            return f"arg{number - 1}"
        case kinds.ReturnValue():
            return "u64(retval)"
        case kinds.StackPointer():
            return "ctx.regs.rsp"
        case kinds.StackWord(number):
            return f"ptr[u64](ctx.regs.rsp)[{number}]"
        case kinds.Immediate(int(value)):
            return f"u64({value})"
        case kinds.Dereference():
            return f"ptr[u{bits}]({_address(fetch)})[0]"
        case _:
            from anyprobe.core.errors import UsageError

            raise UsageError(f"trace does not show {fetch}; anyprobe.kprobes.events does")


def _address(fetch: "Fetch") -> str:
    from anyprobe.kprobes.events.fetch import Dereference

    assert isinstance(fetch, Dereference)
    inner = _value(fetch.inner, 64)
    if not fetch.offset:
        return f"({inner})"
    return f"({inner} {'-' if fetch.offset < 0 else '+'} {abs(fetch.offset)})"
