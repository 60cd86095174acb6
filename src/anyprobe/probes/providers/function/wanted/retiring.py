"""Probes that take themselves away: what only tells whether it is hit is taken out once it was.

The flags are read at growing intervals, and what was hit since the last look is taken out in one change. The other
splices of a function stay as they are. Some of them displace code that runs often although they have not been hit
themselves: those are taken out, too, in the end, and from then on it is not known whether they are hit.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from anyprobe.core.collection import collection_paused
from anyprobe.core.errors import TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.reading import flags_of
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Edit, FunctionState, Module, hook_of
from anyprobe.splice.regions.banks import Hook
from anyprobe.splice.regions.code_region import NearBank

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.probe import Place, Probe
    from anyprobe.splice.emitted import EmittedSplice
    from anyprobe.splice.plan.splices import PlannedSplice

_FIRST, _GROWTH, _LONGEST = 0.1, 1.5, 10.0
"""Seconds to the first look, by how much each interval is longer than the one before, and how long it gets."""
_HEAT_LOOKS, _HOT = 0.5, 3
"""Seconds between looks at what is hit again, and at how many of them it must be to be taken to run often."""
_AT_ONCE = 0.0001
"""Seconds within which something that runs often is hit again: a patch that is hit less often costs next to nothing."""
_PORTION = 500
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
        self._numbers: dict[Hook, int] = {}
        """The numbers of the places by their hooks."""
        self._mixed = _Mixed((), {})
        self._mixed_of: tuple[int, ...] = ()
        """After how many changes, and with how many places not hit, these were found: most looks find nothing new."""
        self.seconds = 0.0
        """Processor time that all looks have taken."""
        self.taken_out = self.longest_us = 0
        """How many splices were taken out, and for how long threads have stood still at most for that."""

    def look(self) -> None:
        """Read the flags and take out what was hit, if it is time for that."""
        now, host = time.monotonic(), self._host
        if now < min(self._next, self._next_heat):
            return
        there = host.ended is None and not host.held and host.splicing.upkeep.is_installed
        if there and not host.process.exited() and host.became() is None:
            begin = time.process_time()
            # what cannot be taken out now is tried again; a collection would walk all that is known of the places
            with suppress(TargetError), collection_paused():
                if sum(len(probe.places) for probe in self.probes) != len(self._places):
                    self._list_places()
                if now >= self._next:
                    self._take_out(self._told_by_flags())
                else:
                    self._take_out(self._too_dear())
            self.seconds += time.process_time() - begin
        if now >= self._next:
            self._next, self._pause = time.monotonic() + self._pause, min(self._pause * _GROWTH, _LONGEST)
        else:
            self._next_heat = time.monotonic() + _HEAT_LOOKS

    def _told_by_flags(self) -> list[Edit]:
        """Return what takes out the splices all of whose flags are set by now."""
        states: dict[FunctionState, _Touched] = {}
        fresh = self._newly_hit()
        again = self._hit_again(fresh)
        for number, is_hot in zip(fresh.tolist(), again.tolist(), strict=True):
            place = self._places[number]
            state = place.state.root
            touched = states[state] = self._touched.setdefault(state, _Touched(place.module))
            touched.hit[place.want.address] = is_hot
        return [edit for state, each in states.items() if (edit := self._told_all(state, each)) is not None]

    def _take_out(self, edits: Sequence[Edit]) -> None:
        pauses = self._host.splicing.access.pause_us
        for portion in _portions(edits):
            before = pauses["disarm"]
            self._host.engine.change(portion)
            self.longest_us = max(self.longest_us, pauses["disarm"] - before)
            self.taken_out += sum(len(edit.taken_out) for edit in portion if not edit.given_up)

    def _newly_hit(self) -> "NDArray[np.int64]":
        """Return the numbers of the places that were hit since the last look."""
        found = self._set() & self._pending
        self._pending &= ~found
        hit = np.flatnonzero(found)
        for number in hit.tolist():
            self._places[number].hook.was_set = True
        return hit

    def _set(self) -> "NDArray[np.bool_]":
        """Return of which places the flags are set."""
        found = np.zeros(len(self._places), bool)
        for bank, words, numbers in self._banks:
            found[numbers] = flags_of(bank)[words] != 0
        return found

    def _hit_again(self, numbers: "NDArray[np.int64]") -> "NDArray[np.bool_]":
        """Clear the flags of places that were hit, and return which are set again at once."""
        found = np.zeros(len(self._places), bool)
        if not len(numbers):
            return found[numbers]
        chosen = found.copy()
        chosen[numbers] = True
        cleared = [(flags_of(bank), words[chosen[own]], own[chosen[own]]) for bank, words, own in self._banks]
        for flags, words, _ in cleared:
            flags[words] = 0
        time.sleep(_AT_ONCE)
        for flags, words, own in cleared:
            found[own] = flags[words] != 0
        return found[numbers]

    def _list_places(self) -> None:
        if not self._places:
            self._pause = _FIRST
        self._mixed_of = ()
        self._places = [place for probe in self.probes for place in probe.places]
        hooks = [place.hook for place in self._places]
        self._numbers = dict(zip(hooks, range(len(hooks)), strict=True))
        numbers: dict[NearBank, list[int]] = {}
        for number, hook in enumerate(hooks):
            bank = hook.bank
            if hook.kind is ActionKind.FLAG and isinstance(bank, NearBank):
                if bank not in numbers:
                    numbers[bank] = []
                numbers[bank].append(number)
        self._banks = [
            (bank, np.fromiter((hooks[number].offset // 8 for number in own), np.int64, len(own)), np.array(own))
            for bank, own in numbers.items()
        ]
        self._pending = ~np.fromiter((hook.was_set for hook in hooks), bool, len(hooks))

    def _told_all(self, state: FunctionState, touched: "_Touched") -> Edit | None:
        """Return what takes out the splices of a function of which all flags were found set; None: there are none."""
        leaving = [unit for unit in touched.units_of(state) if all(hook.was_set for hook in unit.hooks)]
        return _taking_out(state, touched, leaving) if leaving else None

    def _too_dear(self) -> list[Edit]:
        """Return what takes out splices of which some flags are not set, and through whose patches much goes."""
        touched = self._touched.items()
        modules = dict.fromkeys(each.module for _, each in touched)
        now = (*(module.changes for module in modules), len(touched), int(self._pending.sum()))
        if now != self._mixed_of:
            found = [(state, each, unit, is_hot) for state, each in touched for unit, is_hot in each.mixed(state)]
            self._mixed, self._mixed_of = _Mixed(found, self._numbers), now
        leaving: dict[FunctionState, tuple[_Touched, list[_Unit]]] = {}
        for state, each, unit in self._mixed.hot(self._hit_again):
            unit.heat += 1
            if unit.heat >= _HOT:
                leaving.setdefault(state, (each, []))[1].append(unit)
                for hook in unit.hooks:
                    if not hook.was_set:
                        hook.refusal = Refusal(Reason.BESIDE_HOT_CODE, unit.splices[0].address, _WHY)
        return [_taking_out(state, each, units) for state, (each, units) in leaving.items()]


class _Mixed:
    """The units that displace code that was hit and have flags that are not set, in columns."""

    def __init__(
        self, found: "Sequence[tuple[FunctionState, _Touched, _Unit, bool]]", numbers: "Mapping[Hook, int]"
    ) -> None:
        """Take the units, with whether they were hot before; ``numbers``: those of the places, by their hooks."""
        self._units = [(state, touched, unit) for state, touched, unit, _ in found]
        self._are_hot = np.array([is_hot for *_, is_hot in found], bool)
        flags = [
            (numbers[hook], index)
            for index, (_, _, unit) in enumerate(self._units)
            for hook in unit.hooks
            if hook.was_set
        ]
        self._flags, self._units_of = np.array(flags, np.int64).reshape(-1, 2).T

    def hot(
        self, hit_again: "Callable[[NDArray[np.int64]], NDArray[np.bool_]]"
    ) -> "Iterator[tuple[FunctionState, _Touched, _Unit]]":
        """Yield the units through which much goes at this look; ``hit_again`` tells which of some flags are hit now."""
        hot = self._are_hot.copy()
        hot[self._units_of[hit_again(self._flags)]] = True
        return (self._units[index] for index in np.flatnonzero(hot).tolist())


@dataclass(eq=False, slots=True)
class _Unit:
    """Splices that can only leave together, and serve nothing but flags."""

    splices: "list[EmittedSplice]"
    hooks: list[Hook]
    elsewhere: list[int]
    """Where the displaced instructions begin that no flag of their own comes before, by link-time addresses."""
    heat: int = 0
    """At how many looks much was seen to go through it."""


@dataclass(slots=True)
class _Touched:
    """A function in which something was hit."""

    module: Module
    hit: dict[int, bool] = field(default_factory=dict)
    """The link-time addresses of what was, and whether it was again at once."""
    _units: "dict[EmittedSplice, _Unit]" = field(default_factory=dict)
    """What may be taken out, by the first splice of each."""
    _known: "Sequence[EmittedSplice]" = ()
    """The function's splices as these were found."""
    _mixed: "Sequence[tuple[_Unit, bool]]" = ()
    _mixed_of: "Sequence[EmittedSplice]" = ()
    _found_after: int = -1
    """What ``mixed`` has found, of which splices and after how many hits: looks are many, and most find nothing new."""

    def units_of(self, state: FunctionState) -> "Iterable[_Unit]":
        """Return what may be taken out of the function, as it is now."""
        if self._known is not state.splices:
            found = (unit for each in units(state.splices) if (unit := _unit(each)) is not None)
            self._units = {unit.splices[0]: self._units.get(unit.splices[0], unit) for unit in found}
            self._known = state.splices
        return self._units.values()

    def mixed(self, state: FunctionState) -> "Sequence[tuple[_Unit, bool]]":
        """Return what displaces code that was hit and has flags that are not set, and whether the former is hot.

        Where a flag of its own tells that, it does not.
        """
        if self._mixed_of is not state.splices or self._found_after != len(self.hit):
            self._mixed, self._mixed_of = list(self._find_mixed(state)), state.splices
            self._found_after = len(self.hit)
        return self._mixed

    def _find_mixed(self, state: FunctionState) -> Iterator[tuple[_Unit, bool]]:
        starts: list[int] = []
        for unit in self.units_of(state):
            sets = [hook.was_set for hook in unit.hooks]
            is_hit, is_hot = any(sets), False
            for address in unit.elsewhere:
                starts = starts or sorted({*self.hit, *(want.address for want in state.wants)})
                block = starts[max(bisect_right(starts, address) - 1, 0)]
                is_hit, is_hot = is_hit or block in self.hit, is_hot or self.hit.get(block, False)
            if is_hit and not all(sets):
                yield unit, is_hot


def _unit(splices: "list[EmittedSplice]") -> _Unit | None:
    """Return splices with what they serve, if that is nothing but flags."""
    if len(splices) == 1:  # as nearly all are
        planned: Sequence[PlannedSplice] = (splices[0].planned,)
        wants = planned[0].wants
    else:
        planned = [*dict.fromkeys(splice.planned for splice in splices)]
        wants = [want for each in planned for want in each.wants]
    hooks = [hook for want in wants if (hook := hook_of(want)) is not None and hook.kind is ActionKind.FLAG]
    if not hooks or len(hooks) < len(wants):
        return None
    own = {want.address for want in wants}
    return _Unit(splices, hooks, [start for each in planned if (start := each.start) not in own])


def _taking_out(state: FunctionState, touched: _Touched, leaving: "Iterable[_Unit]") -> Edit:
    splices = [splice for unit in leaving for splice in unit.splices]
    wants = [want for each in dict.fromkeys(splice.planned for splice in splices) for want in each.wants]
    return Edit(touched.module, state, removed=wants, taken_out=frozenset(splices))


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
