"""Probes that take themselves away: what only tells whether it is hit is taken out once it was.

The flags are read at growing intervals, and what was hit since the last look is taken out in one change. The other
splices of a function stay as they are. Some of them displace code that runs often although they have not been hit
themselves: those are taken out, too, in the end, and from then on it is not known whether they are hit.
"""

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from anyprobe.core.errors import TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.reading import clear_flag, flags_of
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Edit, FunctionState, Module, hook_of
from anyprobe.splice.regions.code_region import NearBank

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anyprobe.probes.host import ProbeHost
    from anyprobe.probes.probe import Place, Probe
    from anyprobe.splice.emitted import EmittedSplice
    from anyprobe.splice.plan.splices import PlannedSplice, Want

_FIRST, _GROWTH, _LONGEST = 0.1, 1.5, 10.0
"""Seconds to the first look, by how much each interval is longer than the one before, and how long it gets."""
_HEAT_LOOKS, _HOT = 2.0, 3
"""Seconds between looks at what is hit again, and at how many of them one after the other it is taken to run often."""
_PORTION = 1000
"""How many splices are taken out in one stop: what is written is read once more while the threads stand still."""
_WHY = "taken out unhit: its jump displaced code that runs often; whether it is hit from then on is not known"


class Retirement:
    """Takes out the flags of one session that are set."""

    def __init__(self, host: "ProbeHost") -> None:
        """Look after no flags yet."""
        self._host = host
        self.probes: list[Probe] = []
        """The probes whose flags are looked after; each may come to have more."""
        self._next, self._pause = time.monotonic() + _FIRST, _FIRST
        self._next_heat = time.monotonic() + _HEAT_LOOKS
        self._places: list[Place] = []
        self._banks: list[tuple[NearBank, NDArray[np.int64], NDArray[np.int64]]] = []
        """Each bank with the words of its flags, and which places these are of."""
        self._pending: NDArray[np.bool_] = np.zeros(0, bool)
        """Which places were not found hit yet."""
        self._touched: dict[FunctionState, _Touched] = {}
        """Functions in which something was hit."""
        self._heat: dict[PlannedSplice, int] = {}
        self.seconds = 0.0
        """Processor time that all looks have taken."""
        self.taken_out = self.longest_us = 0
        """How many splices were taken out, and for how long threads have stood still at most for that."""

    def look(self) -> None:
        """Read the flags and take out what was hit, if it is time for that."""
        now, host = time.monotonic(), self._host
        if now < self._next:
            return
        there = host.ended is None and not host.held and host.splicing.upkeep.is_installed
        if there and not host.process.exited() and host.became() is None:
            begin = time.process_time()
            with suppress(TargetError):  # what cannot be taken out now is tried again
                self._take_out(hot=now >= self._next_heat)
            self.seconds += time.process_time() - begin
        self._next, self._pause = time.monotonic() + self._pause, min(self._pause * _GROWTH, _LONGEST)

    def _take_out(self, *, hot: bool) -> None:
        states: dict[FunctionState, _Touched] = {}
        for place in self._newly_hit():
            state = place.state.root
            touched = states[state] = self._touched.setdefault(state, _Touched(place.module))
            touched.hit.add(place.want.address)
        if hot:
            self._next_heat = time.monotonic() + _HEAT_LOOKS
            states = self._touched
        edits = [edit for state, each in states.items() if (edit := self._edit(state, each, hot=hot)) is not None]
        for portion in _portions(edits):
            pauses = self._host.splicing.access.pause_us
            before = pauses["disarm"]
            self._host.engine.change(portion)
            self.longest_us = max(self.longest_us, pauses["disarm"] - before)
            self.taken_out += sum(len(edit.taken_out) for edit in portion if not edit.given_up)

    def _newly_hit(self) -> "list[Place]":
        """Return the places that were hit since the last look."""
        if sum(len(probe.places) for probe in self.probes) != len(self._places):
            self._list_places()
        found = np.zeros(len(self._places), bool)
        for bank, words, numbers in self._banks:
            found[numbers] = flags_of(bank)[words] != 0
        found &= self._pending
        self._pending &= ~found
        hit = [self._places[number] for number in np.flatnonzero(found).tolist()]
        for place in hit:
            place.hook.was_set = True
        return hit

    def _list_places(self) -> None:
        self._places = [place for probe in self.probes for place in probe.places]
        banks: dict[NearBank, list[tuple[int, int]]] = {}
        for number, place in enumerate(self._places):
            hook = place.hook
            if hook.kind is ActionKind.FLAG and isinstance(hook.bank, NearBank):
                banks.setdefault(hook.bank, []).append((hook.offset // 8, number))
        pairs = {bank: np.array(each, np.int64) for bank, each in banks.items()}
        self._banks = [(bank, each[:, 0], each[:, 1]) for bank, each in pairs.items()]
        self._pending = np.array([not place.hook.was_set for place in self._places], bool)
        self._pause = _FIRST

    def _edit(self, state: FunctionState, touched: "_Touched", *, hot: bool) -> Edit | None:
        """Return what takes out the splices of a function that have told all, or that cost too much; None: nothing."""
        leaving: list[EmittedSplice] = []
        removed: list[Want] = []
        starts = sorted(touched.hit.union(want.address for want in state.wants)) if hot else []
        for unit in units(state.splices):
            wants = [want for splice in unit if not splice.is_springboard for want in splice.planned.wants]
            hooks = [hook for want in wants if (hook := hook_of(want)) is not None and hook.kind is ActionKind.FLAG]
            if not hooks or len(hooks) < len(wants):
                continue  # it serves something else as well
            unhit = [hook for hook in hooks if not hook.was_set]
            if unhit and not (hot and self._is_hot(unit, touched, starts)):
                continue
            for hook in unhit:
                hook.refusal = Refusal(Reason.BESIDE_HOT_CODE, unit[0].address, _WHY)
            leaving += unit
            removed += wants
        return Edit(touched.module, state, removed=removed, taken_out=frozenset(leaving)) if leaving else None

    def _is_hot(self, unit: "Sequence[EmittedSplice]", touched: "_Touched", starts: Sequence[int]) -> bool:
        """Return whether code that runs often goes through patches of which some flags are not set.

        Flags that were found set are cleared, to see whether they are set again. ``starts``: where blocks begin.
        """
        again = False
        for planned in dict.fromkeys(splice.planned for splice in unit):
            for want in planned.wants:
                hook = hook_of(want)
                if hook is not None and hook.was_set and isinstance(hook.bank, NearBank):
                    again |= clear_flag(hook.bank, hook.offset)
            before = bisect_right(starts, planned.start) - 1
            if before >= 0 and not any(want.address == planned.start for want in planned.wants):
                again |= starts[before] in touched.hit  # no flag tells how often
        first = unit[0].planned
        self._heat[first] = self._heat.get(first, 0) + 1 if again else 0
        return self._heat[first] >= _HOT


@dataclass(slots=True)
class _Touched:
    """A function in which something was hit: its module, and the link-time addresses of what was."""

    module: Module
    hit: set[int] = field(default_factory=set)


def units(splices: "Iterable[EmittedSplice]") -> "Iterator[list[EmittedSplice]]":
    """Yield the splices that can only leave together, since one leans on the other."""
    parts: dict[PlannedSplice, list[EmittedSplice]] = {}
    for splice in splices:
        parts.setdefault(splice.planned, []).append(splice)
    roots: dict[PlannedSplice, PlannedSplice] = {}

    def root(planned: "PlannedSplice") -> "PlannedSplice":
        while (above := roots.get(planned, planned)) is not planned:
            planned = above
        return planned

    for planned in parts:
        for other in planned.leans_on:
            one, two = root(planned), root(other)
            if one is not two:
                roots[one] = two
    found: dict[PlannedSplice, list[EmittedSplice]] = {}
    for planned, each in parts.items():
        found.setdefault(root(planned), []).extend(each)
    yield from found.values()


def _portions(edits: Sequence[Edit]) -> Iterator[list[Edit]]:
    """Yield edits in portions that are made in one stop each; what is on the same pages comes together."""
    portion: list[Edit] = []
    size = 0
    for edit in sorted(edits, key=lambda edit: (edit.module.low, edit.state.code.start)):
        portion.append(edit)
        size += len(edit.taken_out)
        if size >= _PORTION:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion
