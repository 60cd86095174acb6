"""Results as documents of JSON that hold everything, of which ``--json`` leaves some out; to be kept, and read again.

A dataclass is an object with the fields that are not as they are when nothing is said of them, so a field may be added.
A mapping whose keys are no texts is a list of pairs. Buckets are one list, each three numbers. Trees of calls are lists
of nodes with their depths, the callers first. Whatever is read is checked: documents may come from anywhere.
"""

import dataclasses
import json
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain
from typing import Any, Literal, NamedTuple

from anyprobe.core.errors import UsageError
from anyprobe.data.aggregates.results import AggregationResult, MapResult
from anyprobe.data.findings.calltree import CallNode
from anyprobe.data.findings.coverage import Coverage
from anyprobe.data.findings.pending import PendingSpec
from anyprobe.data.layouts.cells import CellValue
from anyprobe.data.layouts.keys import Place
from anyprobe.data.snapshots.cpu_time import CpuTime
from anyprobe.data.snapshots.interval import Interval
from anyprobe.data.snapshots.nested import NestedTiming
from anyprobe.data.snapshots.snapshot import FunctionTiming, Snapshot

FORMAT = "anyprobe-snapshot-2"
_NAMES: dict[str, Any] = {
    each.__name__: each
    for each in (
        AggregationResult, CallNode, CellValue, Coverage, CpuTime, FunctionTiming, Interval, MapResult, NestedTiming,
        PendingSpec,
    )
}  # fmt: skip
"""What annotations name that their own modules import for them alone."""
_PLAIN: dict[Any, tuple[type, ...]] = {int: (int,), float: (int, float), str: (str,), bool: (bool,)}
_DEEPEST = 100_000
"""Nodes on the way from a root of a tree."""


class _Code(NamedTuple):
    """How values of one type are written, and how they are read again."""

    write: Callable[[Any], Any]
    read: Callable[[Any, set[str]], Any]
    """Takes the set of names of fields that are not known here, to which it adds."""
    plain: frozenset[type] = frozenset()
    """Types of JSON whose values are read as they are: there are millions of them."""


def document_of(value: Any) -> Any:  # noqa: ANN401 - any dataclass of results
    """Return results as a document."""
    return _code(type(value)).write(value)


def value_of(kind: Any, document: Any, unknown: set[str] | None = None) -> Any:  # noqa: ANN401 - from a file
    """Return the results that a document has; raise ``ValueError``, ``KeyError`` or ``TypeError`` where it has none.

    Args:
        kind: the type of the results.
        document: what ``document_of`` has returned.
        unknown: a set to which the names of fields are added that are not known here, and were left out.
    """
    return _code(kind).read(document, set() if unknown is None else unknown)


def dump(snapshot: Snapshot) -> bytes:
    """Return a snapshot as bytes."""
    return json.dumps({"format": FORMAT, "snapshot": document_of(snapshot)}).encode()


def load(data: bytes) -> Snapshot:
    """Return the snapshot that ``dump`` has written."""
    try:
        document = json.loads(data)
        if document["format"] != FORMAT:
            raise UsageError(f"a snapshot of another format than {FORMAT}")
        found: Snapshot = value_of(Snapshot, document["snapshot"])
        return found
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"this is not a snapshot: {error}") from error


def _code_of(kind: Any) -> _Code:  # noqa: ANN401 - an annotation
    """Return how values of a type are written and read."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind in _PLAIN:
        return _Code(_unchanged, _checked(*_PLAIN[kind]), frozenset(_PLAIN[kind]))
    if kind is Any:
        return _Code(_unchanged, lambda value, _: value)
    if kind == tuple[CallNode, ...]:
        return _Code(lambda nodes: list(_rows(nodes)), _tree)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments)
    if origin is Literal:
        return _Code(_unchanged, _checked(*{type(each) for each in arguments}))
    if origin is tuple:
        return _tuple(arguments)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(*arguments)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(kind)
    return _object(kind)


_code: Callable[[Any], _Code] = cache(_code_of)


def _unchanged(value: Any) -> Any:  # noqa: ANN401 - what JSON has, too
    return value


def _checked(*plain: type) -> Callable[[Any, set[str]], Any]:
    allowed = set(plain)  # a bool is an int by its type, and none here

    def read(value: Any, unknown: set[str]) -> Any:  # noqa: ANN401, ARG001
        if type(value) not in allowed:
            raise TypeError(f"{str(value)[:40]!r} is no {plain[-1].__name__}")
        return value

    return read


def _union(kinds: tuple[Any, ...]) -> _Code:
    """Return the code of what may be missing; parts of keys are numbers or texts, and numbers may have a text."""
    rest = [each for each in kinds if each is not type(None)]
    if len(rest) > 1:
        return _Code(_part, _read_part)
    inner = _code(rest[0])
    return _Code(
        lambda value: None if value is None else inner.write(value),
        lambda value, unknown: None if value is None else inner.read(value, unknown),
    )


def _part(value: Any) -> Any:  # noqa: ANN401
    return {"number": int(value), "text": value.text} if isinstance(value, Place) else value


def _read_part(value: Any, unknown: set[str]) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return Place(_read_int(value["number"], unknown), _read_text(value["text"], unknown))
    if value is not None and type(value) not in {int, str, float}:
        raise TypeError("this is no part of a key")
    return value


_read_int, _read_text = _checked(int), _checked(str)


def _listed(value: Any) -> list[Any]:  # noqa: ANN401
    if not isinstance(value, list):
        raise TypeError(f"{str(value)[:40]!r} is no list")
    return value


def _tuple(kinds: tuple[Any, ...]) -> _Code:
    if kinds[-1] is not Ellipsis:
        parts = [_code(kind) for kind in kinds]
        return _Code(
            lambda values: [part.write(value) for part, value in zip(parts, values, strict=True)],
            lambda values, unknown: tuple(
                part.read(value, unknown) for part, value in zip(parts, _listed(values), strict=True)
            ),
        )
    inner = typing.get_args(kinds[0]) if typing.get_origin(kinds[0]) is tuple else ()
    if inner and all(kind in _PLAIN for kind in inner):
        return _flat([set(_PLAIN[kind]) for kind in inner])
    each = _code(kinds[0])
    return _Code(
        lambda values: [each.write(value) for value in values],
        lambda values, unknown: tuple([each.read(value, unknown) for value in _listed(values)]),
    )


def _flat(kinds: list[set[type]]) -> _Code:
    """Return the code of what there are most of, the buckets of histograms: the parts of each after the other."""

    def read(values: Any, unknown: set[str]) -> Any:  # noqa: ANN401, ARG001
        columns = [_listed(values)[at::width] for at in range(width)]
        for column, allowed in zip(columns, kinds, strict=True):
            if not allowed.issuperset(map(type, column)):
                raise TypeError("a part of a list is none of its kind")
        return tuple(zip(*columns, strict=True))

    width = len(kinds)

    return _Code(lambda values: list(chain.from_iterable(values)), read)


def _mapping(of_keys: Any, of_values: Any) -> _Code:  # noqa: ANN401 - annotations
    keys, values = _code(of_keys), _code(of_values)
    if of_keys is str:
        return _Code(
            lambda found: {key: values.write(value) for key, value in found.items()},
            lambda found, unknown: {key: values.read(value, unknown) for key, value in _items(found)},
        )
    return _Code(
        lambda found: [[keys.write(key), values.write(value)] for key, value in found.items()],
        lambda found, unknown: {keys.read(key, unknown): values.read(value, unknown) for key, value in _listed(found)},
    )


def _items(found: Any) -> Any:  # noqa: ANN401
    if not isinstance(found, dict):
        raise TypeError(f"{str(found)[:40]!r} is no object")
    return found.items()


def _named_tuple(kind: Any) -> _Code:  # noqa: ANN401 - a class
    hints = typing.get_type_hints(kind, localns=_NAMES)
    parts = {name: _code(hints[name]) for name in kind._fields}
    return _Code(
        lambda value: {name: part.write(getattr(value, name)) for name, part in parts.items()},
        lambda found, unknown: kind(**_fields(kind, found, parts, unknown)),
    )


def _fields(kind: Any, found: Any, parts: Mapping[str, _Code], unknown: set[str]) -> dict[str, Any]:  # noqa: ANN401
    """Return the fields that a document has and that are known here."""
    values = {}
    for name, value in _items(found):
        if (part := parts.get(name)) is None:
            unknown.add(f"{kind.__name__}.{name}"[:80])
        else:
            values[name] = value if type(value) in part.plain else part.read(value, unknown)
    return values


def _object(kind: Any) -> _Code:  # noqa: ANN401 - a dataclass
    hints = typing.get_type_hints(kind, localns=_NAMES)
    fields = dataclasses.fields(kind)
    left_out = {"totals"} if kind is Interval else {"calls"} if kind is CallNode else set()  # said elsewhere
    parts = {each.name: _code(hints[each.name]) for each in fields if each.name not in left_out}
    defaults = {
        each.name: each.default_factory() if each.default_factory is not dataclasses.MISSING else each.default
        for each in fields
        if each.name in parts
    }

    def write(value: Any) -> Any:  # noqa: ANN401
        found = {}
        for name, part in parts.items():
            own = getattr(value, name)
            if own != defaults[name]:
                found[name] = part.write(own)
        return found

    return _Code(write, lambda found, unknown: kind(**_fields(kind, found, parts, unknown)))


def _rows(nodes: tuple[CallNode, ...]) -> Iterator[dict[str, Any]]:
    """Yield the nodes of trees with their depths, as a walk from the callers down meets them."""
    waiting = [(0, node) for node in reversed(nodes)]
    while waiting:  # trees of recursion are deeper than Python's own stack
        depth, node = waiting.pop()
        yield {"depth": depth, **_code(CallNode).write(node)}
        waiting += [(depth + 1, each) for each in reversed(node.calls)]


def _tree(rows: Any, unknown: set[str]) -> tuple[CallNode, ...]:  # noqa: ANN401
    """Return the trees whose nodes these are."""
    calls: list[list[CallNode]] = [[]]
    """The nodes that were read of each depth, and that have no caller yet."""
    for row in reversed(_listed(rows)):
        depth = row.pop("depth", None)
        if type(depth) is not int or not 0 <= depth < _DEEPEST:
            raise TypeError(f"{str(depth)[:40]!r} is no depth")
        calls += [[] for _ in range(depth + 2 - len(calls))]
        below = tuple(reversed(calls[depth + 1]))
        del calls[depth + 1 :]
        calls.append([])
        calls[depth].append(dataclasses.replace(_code(CallNode).read(row, unknown), calls=below))
    if any(calls[1:]):
        raise ValueError("a tree without a root")
    return tuple(reversed(calls[0]))
