"""Placing piece by piece, for no longer than is wanted; functions in which the program is just now come first."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from os.path import basename
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.core.errors import Interrupted, TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.probe import Place, edits_for
from anyprobe.probes.providers.function.resolve import ResolvedSite
from anyprobe.splice.apply.outcomes import give_up

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.wanted.desired import Desired
    from anyprobe.splice.edits import FunctionState

_FIRST = 256
"""Functions in the first slice."""
_SLICE = 0.2
"""Seconds that one of the others is to take: how much later than wanted the last one ends, and Ctrl-C is obeyed."""
_SAMPLING, _SHARE, _HERTZ = 0.3, 0.4, 499
"""For how long the program is sampled before, at most, and in no more than this share of the time that is given."""


class Later(NamedTuple):
    """Sites of one spec that are placed while others count already."""

    desired: "Desired"
    sites: Sequence[ResolvedSite]


class Slices:
    """The places of one session, found and spliced slice by slice until the time for that is over."""

    def __init__(self, host: "ProbeHost", seconds: float | None, *, at_once: bool = False) -> None:
        """Have placed nothing yet.

        Args:
            host: The session.
            seconds: What all steps may take together; half of it is for finding out where. None: as long as it takes.
            at_once: Whether all but the first slice are placed while that counts already: by ``next_later``.

        """
        self._host, self._seconds = host, math.inf if seconds is None else seconds
        self._has_placed = False
        self._not_found, self._begun = 0, 0.0
        self._is_at_once = at_once
        self._later: list[Later] = []
        self._size = _FIRST

    def split(self, desired: "Desired", sites: Sequence[ResolvedSite]) -> Sequence[ResolvedSite]:
        """Return the sites that are placed now, and keep the others for later, if that is wanted."""
        if not self._is_at_once or len(sites) <= _FIRST or self._host.process.held is not None:
            return sites
        self._later.append(Later(desired, sites[_FIRST:]))
        return sites[:_FIRST]

    def next_later(self) -> Later | None:
        """Return what is to be placed next of what was kept for later; None where there is nothing, or no time."""
        if not self._later or self._is_over:
            return None
        desired, sites = self._later.pop(0)
        if len(sites) > self._size:
            self._later.insert(0, Later(desired, sites[self._size :]))
        return Later(desired, sites[: self._size])

    def give_back(self, later: Later) -> None:
        """Keep again what ``next_later`` has returned, and could not be placed."""
        self._later.insert(0, later)

    def took(self, seconds: float) -> None:
        """Choose how much is placed the next time, from what the last one took."""
        self._size = max(_FIRST, min(round(self._size * _SLICE / (seconds + 1e-9)), 2 * self._size))

    @property
    def waiting(self) -> int:
        """How many sites are still to be placed."""
        return sum(len(each.sites) for each in self._later)

    def left_out(self) -> tuple[list[Later], str]:
        """Return what is never placed any more, and why."""
        rest, self._later = self._later, []
        return rest, self._no_time if self._is_over else "the end came before it was placed"

    def hot_first(self, sites: Sequence[ResolvedSite]) -> Sequence[ResolvedSite]:
        """Return sites in which the program is found to be before the others, if it runs and may be sampled."""
        host, seconds = self._host, min(_SAMPLING, self._seconds * _SHARE)
        self._begun = time.monotonic()
        if len(sites) <= _FIRST or host.process.held is not None:
            return sites
        from anyprobe.probes.profiling.profiler import Profiler

        try:
            with Profiler((host.pid,), hz=_HERTZ) as profiler:
                until = profiler.began + seconds
                while (left := until - time.monotonic()) > 0:
                    time.sleep(min(left, profiler.interval))
                    profiler.look()
                stacks = profiler.result().stacks
        except TargetError:  # not permitted, say: then any order is as good
            return sites
        samples: Counter[tuple[str, str]] = Counter()
        for stack in stacks:
            for frame in set(stack.frames):
                samples[basename(frame.module), frame.function] += stack.count
        return sorted(sites, key=lambda site: samples[basename(site.object.path), site.name], reverse=True)

    def late_for(self, site: ResolvedSite, number: int) -> Refusal | None:
        """Return why a site is left out before what it needs is found out; it is the ``number``-th of those wanted."""
        if number < _FIRST or time.monotonic() - self._begun < self._seconds / 2:
            return None
        self._not_found += 1
        return Refusal(Reason.LEFT_OUT, site.function.start, self._no_time)

    @property
    def _is_over(self) -> bool:
        """Whether what there was time for has been placed."""
        return sum(self._host.engine.seconds.values()) >= self._seconds

    @property
    def _no_time(self) -> str:
        return f"there was no time for it in {self._seconds:g} s of placing"

    def attach(self, places: Sequence[Place], attach: Callable[[Sequence[Place]], Iterable[str]]) -> list[str]:
        """Splice places as long as there is time, and refuse the others; return what is to be told.

        Args:
            places: where; those of one function are spliced together.
            attach: splices some, and returns what is to be told.

        Raises:
            Interrupted: before anything was spliced; after that it only leaves out the rest.
        """
        functions: dict[FunctionState, list[Place]] = {}
        for place in places:
            functions.setdefault(place.state.root, []).append(place)
        waiting = list(functions.values())
        told: list[str] = []
        done, size, why = 0, self._size, self._no_time  # a slice of what was kept for later is one here, too
        while done < len(waiting):
            begin = time.monotonic()
            try:
                told += attach([place for function in waiting[done : done + size] for place in function])
            except Interrupted:
                if not self._has_placed:
                    raise
                why = "the end was asked for before it was placed"
                break
            self._has_placed = True
            done += size
            size = max(_FIRST, round(size * _SLICE / (time.monotonic() - begin + 1e-9)))
            if self._is_over:
                break
        for edit in edits_for([place for function in waiting[done:] for place in function]):
            give_up(edit, Refusal(Reason.LEFT_OUT, edit.state.code.start + edit.module.bias, why))
        left, self._not_found = max(len(waiting) - done, 0) + self._not_found, 0
        if left:
            told.append(f"{left:,} of {left + min(done, len(waiting)):,} functions are left out: {why}")
        return told
