"""Events of one thread become calls: which return ends which call, and which calls have ended without one.

A return belongs to the innermost open call of its function with its stack pointer. What is open within that one was
left otherwise: by an exception, by ``longjmp``. It is also seen to be gone where another call begins at or above its
place on the stack. All that is known of when is that it was by then. A return without its call is said to be one.

Where each return belongs to the last open call, which is the rule, this is done for all events at once.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.data.calls.recorded import END_BITS, ENTRY, GAP, chosen_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np

UNKNOWN = -1
"""The time of an end, or of a beginning, that is not among the events."""
_NEAR = 8 << 20
"""Bytes: what is further apart is on different stacks."""
_FRAME = 4096
"""Bytes that a call at the bottom of what was recorded is above another one by, which is gone then."""


class Open(NamedTuple):
    """A call that has not ended."""

    function: int
    frame: int
    began: int
    entry: int
    """The event by which it began; negative: one of those before these."""


class Gone(NamedTuple):
    """A call that has ended, or may have, without a return."""

    event: int
    """The event by which that was seen; where events are lost, the gap."""
    call: Open
    depth: int


@dataclass(slots=True)
class Matched:
    """What events are the ends of."""

    depths: "NDArray[np.int32]"
    """In how many open calls each call is."""
    others: "NDArray[np.int64]"
    """The time of the other end of the call; ``UNKNOWN``: of an entry, it has not ended among these events by a return;
    of a return, its call was not seen to begin."""
    gone: list[Gone] = field(default_factory=list)


@dataclass(slots=True)
class Matcher:
    """Matches the events of one thread, part by part."""

    jumping: Collection[int] = ()
    """The functions that may end by a jump to another one, which then has their place on the stack."""
    calls: list[Open] = field(default_factory=list)
    """The calls that are open."""

    def match(self, times: "NDArray[np.int64]", what: "NDArray[np.uint32]", frames: "NDArray[np.uint32]") -> Matched:
        """Return what some events are, which follow those of the call before."""
        self.calls = [each._replace(entry=at - len(self.calls)) for at, each in enumerate(self.calls)]
        gaps = np.flatnonzero(what & np.uint32((1 << END_BITS) - 1) == GAP).tolist()
        parts, first = list[Matched](), 0
        for gap in (*gaps, len(times)):
            parts.append(self._between_gaps(first, times[first:gap], what[first:gap], frames[first:gap]))
            if gap < len(times):
                # what was open may have ended among what is lost, and begun again
                gone = [Gone(gap, each, depth) for depth, each in enumerate(self.calls)]
                parts.append(Matched(np.zeros(1, np.int32), np.full(1, UNKNOWN, np.int64), gone[::-1]))
                self.calls = []
            first = gap + 1
        if len(parts) == 1:
            return parts[0]
        depths = np.concatenate([each.depths for each in parts])
        others = np.concatenate([each.others for each in parts])
        return Matched(depths, others, [gone for each in parts for gone in each.gone])

    def _between_gaps(
        self, first: int, times: "NDArray[np.int64]", what: "NDArray[np.uint32]", frames: "NDArray[np.uint32]"
    ) -> Matched:
        """Match events of which none is lost; ``first`` is the number of the first."""
        if not len(times):
            return Matched(np.empty(0, np.int32), np.empty(0, np.int64))
        return self._at_once(first, times, what, frames) or self._one_by_one(first, times, what, frames)

    def _at_once(
        self, number: int, times: "NDArray[np.int64]", what: "NDArray[np.uint32]", frames: "NDArray[np.uint32]"
    ) -> Matched | None:
        """Match where each return ends the last open call, and calls are below their callers on the stack."""
        before = len(self.calls)
        if before:
            times = np.concatenate([np.array([each.began for each in self.calls], np.int64), times])
            what = np.concatenate([np.array([each.function << END_BITS for each in self.calls], np.uint32), what])
            frames = np.concatenate([np.array([each.frame for each in self.calls], np.uint32), frames])
        enters = what & np.uint32((1 << END_BITS) - 1) == ENTRY
        depths = np.cumsum(np.where(enters, 1, -1), dtype=np.int32)
        if int(depths.min()) < 0:
            return None
        depths -= enters
        order = np.argsort(depths.astype(np.uint16) if int(depths.max()) < 1 << 16 else depths, kind="stable")
        entered = enters[order]
        pairs = np.flatnonzero(entered[:-1] & ~entered[1:])  # what follows an entry at its depth is its return
        begins, ends = order[pairs], order[pairs + 1]
        apart = frames[ends] - frames[begins]
        same = what[begins] >> END_BITS == what[ends] >> END_BITS
        if not (same & ((apart == 0) | (apart == 8))).all() or not self._nested(enters, order, depths, what, frames):
            return None
        others = np.full(len(times), UNKNOWN, np.int64)
        others[begins], others[ends] = times[ends], times[begins]
        left = np.flatnonzero(enters & (others == UNKNOWN)).tolist()
        self.calls = [
            self.calls[at]
            if at < before
            else Open(int(what[at]) >> END_BITS, int(frames[at]), int(times[at]), at - before + number)
            for at in left
        ]
        return Matched(depths[before:], others[before:])

    def _nested(
        self, enters: "NDArray[np.bool_]", order: "NDArray[np.int64]", depths: "NDArray[np.int32]",
        what: "NDArray[np.uint32]", frames: "NDArray[np.uint32]",
    ) -> bool:  # fmt: skip
        """Return whether each call is below its caller on the stack, or in its place after a jump."""
        entries = order[enters[order]]  # by depth, then time
        inner = entries[depths[entries] > 0]
        if not len(inner):
            return True
        # the first call in another one comes directly after its entry; the next ones have the same caller
        is_first = enters[inner - 1]
        at = np.maximum.accumulate(np.where(is_first, np.arange(len(inner)), 0))
        callers = inner[at] - 1
        below = (frames[callers] - frames[inner]).astype(np.int32)
        jumped = (below == 0) & (what[callers] != what[inner]) & chosen_of(what[callers] >> END_BITS, self.jumping)
        return bool(((below > 0) | jumped).all())

    def _one_by_one(
        self, number: int, times: "NDArray[np.int64]", what: "NDArray[np.uint32]", frames: "NDArray[np.uint32]"
    ) -> Matched:
        calls = self.calls
        depths, others, gone = [0] * len(times), [UNKNOWN] * len(times), list[Gone]()
        for at, (now, each, frame) in enumerate(zip(times.tolist(), what.tolist(), frames.tolist(), strict=True)):
            function = each >> END_BITS
            if each & (1 << END_BITS) - 1 == ENTRY:
                while calls and _is_gone(calls, function, frame, self.jumping):
                    gone.append(Gone(at + number, calls.pop(), len(calls)))
                depths[at] = len(calls)
                calls.append(Open(function, frame, now, at + number))
                continue
            place = _called(calls, function, frame)
            if place is None:
                depths[at] = len(calls)
                continue
            while len(calls) > place + 1:
                gone.append(Gone(at + number, calls.pop(), len(calls)))
            ended = calls.pop()
            depths[at], others[at] = place, ended.began
            if ended.entry >= number:
                others[ended.entry - number] = now
        return Matched(np.array(depths, np.int32), np.array(others, np.int64), gone)


def _apart(above: int, below: int) -> int:
    """Return the signed difference of two numbers of 32 bits."""
    return (above - below + (1 << 31) & 0xFFFFFFFF) - (1 << 31)


def _is_gone(calls: list[Open], function: int, frame: int, jumping: Collection[int]) -> bool:
    """Return whether the last open call cannot be open any more where a function is entered."""
    last = calls[-1]
    above = _apart(frame, last.frame)
    if above == 0:
        return last.function == function or last.function not in jumping
    if not 0 < above < _NEAR:
        return False
    top = last
    for caller in reversed(calls[:-1]):
        room = _apart(caller.frame, last.frame)
        if not 0 <= room < _NEAR:  # on another stack
            break
        if above <= room:
            return True
        top = caller
    return _apart(frame, top.frame) < _FRAME


def _called(calls: list[Open], function: int, frame: int) -> int | None:
    """Return which of the open calls a return ends; in the caller the stack pointer is a word higher."""
    for place in range(len(calls) - 1, -1, -1):
        if calls[place].function == function and calls[place].frame == frame:
            return place
    for place in range(len(calls) - 1, -1, -1):
        if calls[place].function == function and calls[place].frame == frame - 8 & 0xFFFFFFFF:
            return place
    return None
