"""Why loops end: the number of rounds that a ``while`` makes at most, read from its condition and its counter.

Accepted is a counter that is compared with a bound in the condition and moved towards it by a constant, once in each
round: as a statement of the loop's body itself, with no ``continue`` before it.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from anyprobe.handlers.ir import ranges
from anyprobe.handlers.types.annotations import IntegerType, Type

ROUNDS_LIMIT = 1 << 20
"""Rounds above which a bound is none."""


class Step(NamedTuple):
    """How the counter changes in each round: ``counter = counter symbol amount``."""

    name: str
    symbol: str
    amount: int


def stored_names(body: list[ast.stmt]) -> frozenset[str]:
    """Return the variables that statements assign to."""
    found = set()
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
    return frozenset(found)


def steps(body: list[ast.stmt]) -> Iterator[Step]:
    """Yield the variables that change in each round in one known way and in no other."""
    for index, statement in enumerate(body):
        step = _step(statement)
        if step is not None and step.name not in stored_names([*body[:index], *body[index + 1 :]]):
            yield step
        if any(isinstance(node, ast.Continue) for node in ast.walk(statement)):
            return


def _step(statement: ast.stmt) -> Step | None:
    match statement:
        case ast.AugAssign(ast.Name(name), symbol, ast.Constant(int() as amount)):
            found = _SYMBOLS.get(type(symbol))
        case ast.Assign([ast.Name(name)], ast.BinOp(ast.Name(same), symbol, ast.Constant(int() as amount))) if (
            name == same
        ):
            found = _SYMBOLS.get(type(symbol))
        case ast.AugAssign(
            ast.Name(name), ast.BitAnd(), ast.BinOp(ast.Name(same), ast.Sub(), ast.Constant(1 as amount))
        ) if name == same:
            found = "clear lowest bit"
        case _:
            return None
    return Step(name, found, amount) if found is not None and isinstance(amount, int) else None


_SYMBOLS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.RShift: ">>", ast.FloorDiv: "//"}


def rounds(step: Step, start: ranges.Range, kind: Type, inside: ranges.Range) -> int | None:
    """Return how many rounds a loop makes at most, ``None`` if that is not known.

    ``start`` is the range of the counter before the loop, ``inside`` what the condition says of it in the body.
    """
    if not isinstance(kind, IntegerType):
        return None
    match step.symbol:
        case "+" if step.amount > 0 and inside[1] + step.amount <= kind.high:
            return max(0, (inside[1] - start[0]) // step.amount + 1)
        case "-" if step.amount > 0 and inside[0] - step.amount >= kind.low:
            return max(0, (start[1] - inside[0]) // step.amount + 1)
        case ">>" if step.amount > 0 and start[0] >= 0 and inside[0] > 0:
            return start[1].bit_length() // step.amount + 1
        case "//" if step.amount > 1 and start[0] >= 0 and inside[0] > 0:
            return start[1].bit_length() + 1
        case "clear lowest bit" if start[0] >= 0 and inside[0] > 0:
            return start[1].bit_length()
    return None


def range_rounds(start: ranges.Range, stop: ranges.Range, step: int, kind: IntegerType) -> int | None:
    """Return how many rounds ``for … in range(start, stop, step)`` makes at most, ``None`` if that is too many."""
    if step > 0:
        distance, fits = stop[1] - start[0], stop[1] + step <= kind.high
    else:
        distance, fits = start[1] - stop[0], stop[0] + step >= kind.low
    found = max(0, -(-distance // abs(step)))
    return found if fits and found <= ROUNDS_LIMIT else None
