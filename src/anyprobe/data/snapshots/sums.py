"""Sums of what two snapshots hold."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Added(Protocol):
    """What can be added to another one of its kind."""

    def __add__(self, other: Any, /) -> Any:  # noqa: ANN401 - of its kind
        """Return the sum."""
        ...


Sum = TypeVar("Sum", bound=Added)


class Placed(Protocol):
    """What is known of one address, under one of its names."""

    @property
    def spec(self) -> str:
        """The spec, in full."""
        ...

    @property
    def module(self) -> str:
        """The module."""
        ...

    @property
    def address(self) -> int:
        """The address, 0 where there is none."""
        ...


def summed(counts: Iterable[tuple[tuple[str, int], ...]]) -> tuple[tuple[str, int], ...]:
    """Return the sum of counts by name, in the order of names."""
    total = Counter[str]()
    for each in filter(None, counts):
        total.update(dict(each))
    return tuple(sorted(total.items()))


def sums_by_name(values: Iterable[object], names: Sequence[str]) -> dict[str, Any]:
    """Return the sums of several attributes of values."""
    return dict(zip(names, map(sum, zip(*map(attrgetter(*names), values), strict=True)), strict=True))


def sums(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    """Return the sums of numbers by name."""
    return {name: left.get(name, 0) + right.get(name, 0) for name in {**left, **right}}


def sums_of(left: Mapping[str, dict[str, int]], right: Mapping[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return the sums of numbers by two names."""
    return {each: sums(left.get(each, {}), right.get(each, {})) for each in {**left, **right}}


def both(left: Sum | None, right: Sum | None) -> Sum | None:
    """Return the sum of two values, of which either may be unknown."""
    if left is None or right is None:
        return right if left is None else left
    added: Sum = left + right
    return added


def longest(left: dict[str, float], right: dict[str, float]) -> dict[str, float]:
    """Return the larger of two numbers for each name."""
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in {**left, **right}}


def union(left: tuple[T, ...], right: tuple[T, ...]) -> tuple[T, ...]:
    """Return what is on the left or on the right, each once."""
    return tuple(dict.fromkeys((*left, *right)))


def added(items: Iterable[T], key: Callable[[T], Hashable], add: Callable[[T, T], T]) -> tuple[T, ...]:
    """Return items, those with the same key added up."""
    found: dict[Hashable, T] = {}
    for item in items:
        name = key(item)
        found[name] = add(found[name], item) if name in found else item
    return tuple(found.values())


def once(items: Iterable[T], key: Callable[[T], Hashable]) -> tuple[T, ...]:
    """Return the first of the items with each key."""
    return added(items, key, lambda first, _: first)


def total(items: "Iterable[tuple[Placed, int]]") -> int:
    """Return the sum of numbers, of which those at the same address under several names (aliases, IFUNC) are one.

    The ends of functions, instructions and blocks that are counted at one address are not the same. Probes of one name
    that were placed there one after the other add up.
    """
    found: dict[Hashable, Counter[str]] = {}
    for item, number in items:
        kind = getattr(item, "kind", None), getattr(item, "exit_kind", None)
        found.setdefault((item.module, item.address or item.spec, kind), Counter())[item.spec] += number
    return sum(max(each.values()) for each in found.values())
