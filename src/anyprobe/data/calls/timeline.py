"""All calls of a recording, with their beginnings and ends, and the choice of some of them."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from anyprobe.core.arrays import unique
from anyprobe.data.calls.matching import UNKNOWN, Matcher
from anyprobe.data.calls.recorded import END_BITS, ENTRY, GAP, chosen_of
from anyprobe.data.calls.recording import Recording

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np

LOST = -2
"""The time by which a call had ended whose end may be among lost events."""
FAR = 1 << 62
"""A place after all events."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls, a column for each of what is known of them, in the order in which they begin."""

    threads: "NDArray[np.uint32]"
    functions: "NDArray[np.uint32]"
    begins: "NDArray[np.int64]"
    """When they began; ``UNKNOWN``: before the recording, or that event is lost."""
    ends: "NDArray[np.int64]"
    """When they returned; ``UNKNOWN``: they did not, or that event is lost."""
    gone: "NDArray[np.int64]"
    """By when those had ended of which there is no return; ``UNKNOWN``: they were open at the end; or ``LOST``."""
    depths: "NDArray[np.int32]"
    first: "NDArray[np.int64]"
    """The place of the beginning among all events, twice its number and one; of no event where that is even."""
    last: "NDArray[np.int64]"
    """The place of the end, in this way."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.threads)

    def part(self, chosen: "NDArray[Any]") -> "Calls":
        """Return some of them."""
        return Calls(*(getattr(self, each.name)[chosen] for each in fields(self)))

    @property
    def zero(self) -> int:
        """The time of the first event; 0 if there is none."""
        known = np.where(self.begins == UNKNOWN, self.ends, self.begins)
        return int(known.min()) if len(known) else 0

    @property
    def durations(self) -> "NDArray[np.int64]":
        """How long each took; ``UNKNOWN`` where an end is not known."""
        known = (self.begins != UNKNOWN) & (self.ends != UNKNOWN)
        return np.where(known, self.ends - self.begins, UNKNOWN)


def values_of(recording: Recording, calls: Calls) -> list[dict[str, Any]] | None:
    """Return the values that each call was recorded with, by label; None where none were asked for."""
    if not recording.has_values:
        return None
    found = []
    for first, last in zip(calls.first.tolist(), calls.last.tolist(), strict=True):
        values = recording.at_entry.at(first // 2) if first % 2 else {}
        found.append(values | recording.at_return.at(last // 2) if last % 2 else values)
    return found


class Gap(NamedTuple):
    """Events of a thread that are lost: before which time, and how many."""

    time: int
    thread: int
    events: int


def read(recording: Recording) -> tuple[Calls, list[Gap]]:
    """Return all calls of a recording, and where events are lost."""
    gaps: list[Gap] = []
    events = recording.whole()
    order = np.argsort(events.threads, kind="stable")
    bounds = np.flatnonzero(np.diff(events.threads[order])) + 1
    found = []
    for chosen in np.split(order, bounds) if len(order) else ():
        own = events.part(chosen)
        matcher = Matcher(recording.jumping)
        matched = matcher.match(own.times, own.what, own.frames)
        functions = own.what >> np.uint32(END_BITS)
        enters = own.what & np.uint32((1 << END_BITS) - 1) == ENTRY
        places = 2 * chosen + 1
        last, gone = np.full(len(own), FAR, np.int64), np.full(len(own), UNKNOWN, np.int64)
        ended = np.flatnonzero(enters & (matched.others != UNKNOWN))
        last[ended] = places[_returns(enters, matched.depths, ended)]
        is_gap = own.what & np.uint32((1 << END_BITS) - 1) == GAP
        for each in matched.gone:
            entry = each.call.entry
            last[entry] = places[each.event] - 1
            gone[entry] = LOST if is_gap[each.event] else own.times[each.event]
        is_call = (enters | (matched.others == UNKNOWN)) & ~is_gap  # returns of calls whose beginning is not known
        begins = np.where(enters, own.times, UNKNOWN)
        ends = np.where(enters, matched.others, own.times)
        first = np.where(enters, places, places - 1)
        last = np.where(enters, last, places)
        gaps += [
            Gap(int(own.times[at]), int(own.threads[at]), int(functions[at])) for at in np.flatnonzero(is_gap).tolist()
        ]
        columns = (own.threads, functions, begins, ends, gone, matched.depths, first, last)
        found.append(Calls(*(each[is_call] for each in columns)))
    if not found:
        empty = np.empty(0, np.int64)
        names, depths = empty.astype(np.uint32), empty.astype(np.int32)
        return Calls(names, names, empty, empty, empty, depths, empty, empty), []
    together = Calls(*(np.concatenate([getattr(part, each.name) for part in found]) for each in fields(Calls)))
    return together.part(np.argsort(together.first, kind="stable")), sorted(gaps)


def _returns(
    enters: "NDArray[np.bool_]", depths: "NDArray[np.int32]", ended: "NDArray[np.int64]"
) -> "NDArray[np.int64]":
    """Return the events by which calls have returned: of each the first return after it at its depth."""
    count = len(enters)
    keys = depths.astype(np.int64) * count + np.arange(count)
    returns = np.sort(keys[~enters])
    found: NDArray[np.int64] = returns[np.searchsorted(returns, keys[ended])] % count
    return found


def within(calls: Calls, functions: Collection[int]) -> "NDArray[np.bool_]":
    """Return which calls are those of some functions, or made by them on the same thread."""
    chosen = np.zeros(len(calls), np.bool_)
    own = chosen_of(calls.functions, functions)
    for thread in unique(calls.threads[own]).tolist():
        rows = np.flatnonzero(calls.threads == thread)
        outer = rows[own[rows]]
        until = np.maximum.accumulate(calls.last[outer])
        place = np.searchsorted(calls.first[outer], calls.first[rows], side="right") - 1
        chosen[rows] = (place >= 0) & (calls.first[rows] <= until[np.maximum(place, 0)])
    return chosen
