"""What probes have taken of the times of a function as they were measured, and how far the rest may be off."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Protocol

from anyprobe.data.snapshots.costs import UNIT

if TYPE_CHECKING:
    from anyprobe.data.layouts.layout import BankLayout
    from anyprobe.data.readers.reader import BankReader, RecordValues
    from anyprobe.data.snapshots.costs import Costs
    from anyprobe.data.snapshots.nested import NestedTiming

_NAMED = 3
EDGE_NS = 12.0
"""By how much the end of a call may be seen too early: processors begin with what follows before all is done."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken, and errors of what is left; of the sum, of the time in the function itself, of the outermost."""

    sum_ns: float = 0.0
    error_ns: float = 0.0
    self_ns: float = 0.0
    self_error_ns: float = 0.0
    outermost_ns: float = 0.0
    outermost_error_ns: float = 0.0

    @classmethod
    def of(cls, record: "RecordValues", costs: "Costs", ns_per_tick: float) -> "Taken":
        """Return what a timing record says."""
        part = ns_per_tick / UNIT
        total, outermost = record.cost * part, (record.cost - record.inner_cost) * part
        own = (record.count * costs.inside + record.made * (costs.whole - costs.inside)) * part
        return cls(
            total, EDGE_NS * record.count + costs.doubt * total,
            own, EDGE_NS * (record.count + record.made) + costs.doubt * own,
            outermost, EDGE_NS * (record.count - record.inner_count) + costs.doubt * outermost,
        )  # fmt: skip

    def plus(self, other: "Taken", sign: int = 1) -> "Taken":
        """Return the sum with another one, or what is more than that (-1)."""
        return Taken(*(one + sign * more for one, more in zip(astuple(self), astuple(other), strict=True)))


class _Timed(Protocol):
    """What is asked of a function here."""

    @property
    def function(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def taken(self) -> Taken | None: ...


def settled(sum_ns: float, taken: Taken | None) -> tuple[float, Taken | None]:
    """Return a sum of times, not below zero, and what was taken of it: of short calls no more than was measured."""
    if sum_ns >= 0 or taken is None:
        return max(sum_ns, 0.0), taken
    return 0.0, replace(taken, sum_ns=taken.sum_ns + sum_ns)


def costs_in(reader: "BankReader", layout: "BankLayout", costs: "Costs") -> "Costs":
    """Return what probes have cost in a bank as it was read: at its threads' pace, and how far that may be off."""
    pace, cost = reader.pace_and_cost()
    called = sum(map(reader.is_written, layout.records_there))
    return (costs if pace is None else costs.at_pace(pace)).in_use(called, cost)


def all_taken(parts: "Iterable[Taken | None]") -> Taken | None:
    """Return the sum of parts; None if any is not known."""
    known = list(parts)
    found = [each for each in known if each is not None]
    return reduce(lambda one, other: one.plus(other), found) if found and len(found) == len(known) else None


def share_taken(functions: "Iterable[tuple[Taken | None, float, NestedTiming | None]]") -> float | None:
    """Return what share of the time that was measured probes have taken (0 to 1); None if that is not known.

    Each function has what was taken of it, its sum, and its self time where that is known.
    """
    known = [(taken, sum_ns, nested) for taken, sum_ns, nested in functions if taken is not None]
    own = all(nested for *_, nested in known)
    taken = sum(each.self_ns if own else each.sum_ns for each, *_ in known)
    left = sum(nested.self_ns if own and nested else sum_ns for _, sum_ns, nested in known)
    return round(taken / (taken + max(left, 0.0)), 4) if taken else None


def included(functions: "Iterable[_Timed]") -> list[str]:
    """Return what is to be said of functions in whose times there is what probes took, as it is not known."""
    names = [each.label or each.function for each in functions if each.count and each.taken is None]
    some = ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
    return [f"what probes take is in the times of {some}: it is not known there"] if names else []
