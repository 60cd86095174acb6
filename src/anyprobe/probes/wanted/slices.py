"""Placing piece by piece, for no longer than is wanted; functions in which the program is just now come first."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from os.path import basename
from typing import TYPE_CHECKING

from anyprobe.core.errors import Interrupted, TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.probe import Place, edits_for
from anyprobe.probes.providers.function.resolve import ResolvedSite
from anyprobe.splice.apply.outcomes import give_up

if TYPE_CHECKING:
    from anyprobe.probes.host import ProbeHost
    from anyprobe.splice.edits import FunctionState

_FIRST = 256
"""Functions in the first slice."""
_SLICE = 0.2
"""Seconds that one of the others is to take: how much later than wanted the last one ends, and Ctrl-C is obeyed."""
_SAMPLING, _SHARE, _HERTZ = 0.3, 0.4, 499
"""For how long the program is sampled before, at most, and in no more than this share of the time that is given."""


class Slices:
    """The places of one session, found and spliced slice by slice until the time for that is over."""

    def __init__(self, host: "ProbeHost", seconds: float) -> None:
        """``seconds``: what all steps may take together; half of it is for finding out where."""
        self._host, self._seconds = host, seconds
        self._has_placed = False
        self._not_found, self._begun = 0, 0.0

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
        done, size, why = 0, _FIRST, self._no_time
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
            if sum(self._host.engine.seconds.values()) >= self._seconds:
                break
        for edit in edits_for([place for function in waiting[done:] for place in function]):
            give_up(edit, Refusal(Reason.LEFT_OUT, edit.state.code.start + edit.module.bias, why))
        left, self._not_found = max(len(waiting) - done, 0) + self._not_found, 0
        if left:
            told.append(f"{left:,} of {left + min(done, len(waiting)):,} functions are left out: {why}")
        return told
