"""Conditions on the values that were recorded with calls: ``size > 4096 and 'tmp' in path``.

A value that is missing makes a comparison neither true nor false; only what is true is chosen.
"""

import ast
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

from anyprobe.core.errors import UsageError

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.BitAnd: operator.and_, ast.BitOr: operator.or_,
    ast.Mod: lambda a, b: None if isinstance(a, str) else a % b,
}  # fmt: skip
_TOO_DEEP = "the condition has too many parts within each other"
Evaluate = Callable[[Mapping[str, Any]], Any]


def condition(text: str, labels: Collection[str]) -> Evaluate:
    """Return what tells of values by their labels whether a condition holds; None where it needs one that is missing.

    Raises:
        UsageError: it is no condition, or uses what was not recorded.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{text!r} is no condition: {getattr(error, 'msg', error)}") from None
    except (RecursionError, MemoryError):
        raise UsageError(_TOO_DEEP) from None
    known = {}
    for label in labels:
        try:
            known[ast.unparse(ast.parse(label, mode="eval"))] = label
        except (SyntaxError, ValueError):
            known[label] = label
    try:
        return _compiled(tree, known)
    except RecursionError:
        raise UsageError(_TOO_DEEP) from None


def _compiled(node: ast.expr, known: Mapping[str, str]) -> Evaluate:
    label = known.get(ast.unparse(node))
    if label is not None:
        return lambda values: values.get(label)
    match node:
        case ast.Constant(value) if isinstance(value, int | float | str):
            return lambda _: value
        case ast.UnaryOp(ast.USub(), inner):
            return _applied(operator.neg, _compiled(inner, known))
        case ast.UnaryOp(ast.Not(), inner):
            return _applied(operator.not_, _compiled(inner, known))
        case ast.BinOp(first, kind, second) if type(kind) in _OPERATIONS:
            return _applied(_OPERATIONS[type(kind)], _compiled(first, known), _compiled(second, known))
        case ast.BoolOp(joint, parts):
            return _joined([_compiled(each, known) for each in parts], ends_with=isinstance(joint, ast.Or))
        case ast.Compare(leftmost, kinds, rights) if all(type(each) in _COMPARISONS for each in kinds):
            sides = [_compiled(each, known) for each in (leftmost, *rights)]
            triples = zip(kinds, sides, sides[1:], strict=False)
            return _joined([_applied(_COMPARISONS[type(each)], *pair) for each, *pair in triples], ends_with=False)
        case ast.Name(name):
            kept = ", ".join(known.values()) or "none: anyprobe record --with EXPR,..."
            raise UsageError(f"{name} is no value of this recording; there are {kept}")
    can = "names of values, numbers, texts, comparisons, and, or, not"
    raise UsageError(f"{ast.unparse(node)} cannot be asked here; what can: {can}")


def _applied(function: Callable[..., Any], *parts: Evaluate) -> Evaluate:
    def evaluate(values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as the values
        given = [each(values) for each in parts]
        if any(each is None for each in given):
            return None
        try:
            return function(*given)
        except (TypeError, ArithmeticError, ValueError):  # a text beside a number is neither more nor less
            return None

    return evaluate


def _joined(parts: Collection[Evaluate], *, ends_with: bool) -> Evaluate:
    """Return ``or`` (it ends with what is true) or ``and`` of some conditions."""

    def evaluate(values: Mapping[str, Any]) -> bool | None:
        found = [each(values) for each in parts]
        if any(each is not None and bool(each) == ends_with for each in found):
            return ends_with
        return None if any(each is None for each in found) else not ends_with

    return evaluate
