"""Sums of what two snapshots hold."""

from collections import Counter
from collections.abc import Mapping


def summed(one: tuple[tuple[str, int], ...], other: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Return the sum of counts by name, in the order of names."""
    return tuple(sorted((Counter(dict(one)) + Counter(dict(other))).items()))


def sums(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    """Return the sums of numbers by name."""
    return {name: left.get(name, 0) + right.get(name, 0) for name in {**left, **right}}


def both(left: int | None, right: int | None) -> int | None:
    """Return the sum of two numbers, of which either may be unknown."""
    return left if right is None else right if left is None else left + right


def longest(left: dict[str, float], right: dict[str, float]) -> dict[str, float]:
    """Return the larger of two numbers for each name."""
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in {**left, **right}}
