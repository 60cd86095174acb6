"""What is wanted of a process, apart from what is installed: specs with policies, and where each was looked for."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

from anyprobe.binary.images.modules import DELETED, VDSO
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.probe import HandledCalls, Place, Probe, Timed
from anyprobe.probes.specs.spec import awaits_module
from anyprobe.splice.regions.banks import ONE_COUNTER

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.core.errors import SpecError
    from anyprobe.data.findings.pending import PendingSpec
    from anyprobe.probes.providers.function.resolve import ResolvedSite

_LOOKS = 5
"""How often functions are looked for again that the loader had not chosen (IFUNC): in lazily bound programs it may
never choose them."""

T = TypeVar("T", Place, Timed, HandledCalls)
Taken = dict[tuple["LoadedObject", int, str], str]
"""Specs, by the site that each has taken: object, address and kind."""


class Policy(Enum):
    """In which objects a spec means something."""

    PRESENT = "present"
    """In those that are loaded when it is asked for, and again if they are unloaded and loaded again; of a program that
    is held at its start, also in the libraries that it is linked with."""
    ONCE = "once"
    """In those that are loaded when it is asked for, as long as they are."""
    WAIT = "wait"
    """As ``PRESENT``; if it names a module that is not loaded, then in whatever is loaded later."""
    FOLLOW = "follow"
    """In whatever is loaded later, too."""

    @classmethod
    def of(cls, follow: bool | None, pending: str) -> "Policy":
        """Return what a call asks for by ``follow``, and if it does not say so, the session's option ``pending``."""
        if follow is None:
            return {"once": cls.ONCE, "never": cls.PRESENT, "modules": cls.WAIT, "always": cls.FOLLOW}[pending]
        return cls.FOLLOW if follow else cls.ONCE


@dataclass(eq=False)
class Desired:
    """One spec that is wanted."""

    probe: Probe
    policy: Policy = Policy.PRESENT
    seen: "set[LoadedObject]" = field(default_factory=set)
    """The objects in which its sites have been looked for."""
    is_open: bool = False
    """Whether there may be more of it in objects that are not loaded yet."""
    unchosen: "dict[LoadedObject, int]" = field(default_factory=dict)
    """The objects with functions that the loader had not chosen yet (IFUNC), and how often to look there again."""
    nearest: tuple[str, ...] = ()
    """The names of modules that are most like the one that it waits for."""
    is_early: bool = False
    """Whether the libraries that its program is linked with are still to come."""
    returning: Counter[str] = field(default_factory=Counter)
    """The paths of libraries in which it has sites that may be unloaded and loaded again; how many copies."""
    is_removed: bool = False
    """Whether its probe was removed, and is to be placed nowhere until it is enabled again."""
    removed: set[str] = field(default_factory=set)
    """The sites, by their canonical specs, that are to be placed no more, in other lives of their libraries either."""
    taken: "Taken | None" = None
    """The sites of specs that are placed together, each of which is placed for one of them only."""

    def wait_for(self, error: "SpecError") -> bool:
        """Note that it means nothing in the objects of now; return whether it can wait for others."""
        if self.policy is Policy.WAIT and awaits_module(self.probe.wanted, error):
            self.policy, self.nearest = Policy.FOLLOW, error.nearest
        return self.policy is Policy.FOLLOW

    def takes(self, site: "ResolvedSite") -> bool:
        """Return whether this spec has a site: not removed, and no other one's of those that are placed together."""
        if site.canonical in self.removed:
            return False
        spec = self.probe.spec
        return self.taken is None or self.taken.setdefault((site.object, site.address, site.kind), spec) == spec

    @property
    def may_mean_nothing(self) -> bool:
        """Whether it is no mistake that nothing is found in the objects of now."""
        return self.policy is Policy.FOLLOW or self.probe.means_something

    def take_over(self, part: Probe) -> None:
        """Have what is about to be placed again count by the counters that it had before it was unloaded."""
        for fresh, before in _again(self.probe.places, part.places):
            fresh.take_over(before)
        for timed, earlier in _again(self.probe.timed, part.timed):
            timed.take_over(earlier)

    def add(self, part: Probe) -> None:
        """Take over what has been found in further objects.

        What was unloaded and is loaded again where it was counts on: it is one place.
        """
        probe = self.probe
        probe.places, probe.timed = _going_on(probe.places, part.places), _going_on(probe.timed, part.timed)
        probe.unentered = [each for each in (*probe.unentered, *part.unentered) if each.is_waiting]
        placed_now = set(probe.places)
        handled = _going_on(probe.handled, part.handled)
        probe.handled = [each for each in handled if not placed_now.isdisjoint(each.places) or _is_left(each)]
        found_again = {each.site.canonical for each in part.exitless}
        probe.exitless = [each for each in probe.exitless if each.site.canonical not in found_again] + part.exitless
        placed = {each.site.canonical for each in part.all_places}
        probe.refused = [each for each in probe.refused if not _is_unchosen(each[1]) or each[0] not in placed]
        self.add_refused(part)

    @property
    def is_lasting(self) -> bool:
        """Whether it is looked for in some of what is loaded later."""
        return self.policy is Policy.FOLLOW or bool(self.returning)

    def note_unloadable(self, part: Probe, is_permanent: "Callable[[LoadedObject], bool]") -> None:
        """Have it looked for again in the libraries where a part of it is, if they are unloaded and loaded again."""
        if self.policy in {Policy.FOLLOW, Policy.ONCE}:
            return
        fresh = {each.site.object for each in part.all_places} | {each.site.object for each in part.exitless}
        if all(map(is_permanent, fresh)):
            return
        objects = fresh | {each.site.object for each in self.probe.all_places}
        there = [each for each in objects if (each in fresh or each in self.seen) and not is_permanent(each)]
        self.returning |= Counter(map(lasting_path, there))

    def lacking(self, modules: "set[LoadedObject]") -> "set[LoadedObject]":
        """Return the objects in which there may be sites that have not been found yet."""
        self.seen &= modules  # what was unloaded may come again
        self.unchosen = {each: looks for each, looks in self.unchosen.items() if each in modules and looks > 0}
        fresh = modules - self.seen
        if self.policy is not Policy.FOLLOW and not self.is_early:
            gone = self.gone
            names = set(map(os.path.basename, gone))
            fresh = {each for each in fresh if os.path.basename(lasting_path(each)) in names} if gone else set()
            fresh = {each for each in fresh if lasting_path(each) in gone} or fresh
        return fresh | set(self.unchosen)

    @property
    def gone(self) -> Counter[str]:
        """The paths of libraries that it is looked for in again, and that were not loaded at the last look."""
        return self.returning and self.returning - Counter(map(lasting_path, self.seen))

    def within(self, modules: "set[LoadedObject]") -> "set[LoadedObject] | None":
        """Return the objects in which it is enough to look: those of a look; ``None`` where that may not be enough.

        Functions may have been chosen by now in objects that are looked at no more.
        """
        is_later = self.is_lasting and bool(self.seen)
        return modules if is_later and not any(_is_unchosen(each[1]) for each in self.probe.refused) else None

    def look_in(self, modules: "set[LoadedObject]") -> "Callable[[ResolvedSite], bool]":
        """Note that sites are looked for in some objects; return whether a site there has been dealt with already."""
        again = modules & self.seen
        self.seen |= modules
        for each in again & set(self.unchosen):
            self.unchosen[each] -= 1
        sites = [each.site for each in self.probe.all_places] if again else []
        known = {(each.object, each.canonical, each.address) for each in sites}  # not what another life of it had there
        return lambda site: site.object in again and (site.object, site.canonical, site.address) in known

    def note_unchosen(self, part: Probe, objects: "Sequence[LoadedObject]") -> None:
        """Have functions looked for again that the loader has not chosen; it may choose one of the vdso."""
        addresses = [refusal.address for _, refusal in part.refused if _is_unchosen(refusal)]
        for each in objects if addresses else ():
            if each.name == VDSO or any(address in each for address in addresses):
                self.unchosen.setdefault(each, _LOOKS)

    def note_chosen(self, part: Probe, looked_in: "Sequence[LoadedObject]") -> None:
        """Have no functions refused for want of a choice that a look finds chosen, even if their sites were known."""
        waiting = {spec for spec, _ in part.refused}
        self.probe.refused = [
            (spec, refusal)
            for spec, refusal in self.probe.refused
            if spec in waiting or not _is_unchosen(refusal) or not any(refusal.address in each for each in looked_in)
        ]

    def add_refused(self, part: Probe) -> None:
        """Take over what is refused there, once."""
        known = {spec for spec, _ in self.probe.refused}
        self.probe.refused += [each for each in part.refused if each[0] not in known]


class Finds:
    """What a look has found in further objects, to be added to what is wanted when it is placed."""

    def __init__(
        self, found: "Sequence[tuple[Desired, set[LoadedObject], Probe]]",
        is_permanent: "Callable[[LoadedObject], bool]",
    ) -> None:  # fmt: skip
        """Take parts of specs, each with the objects that were looked in for it, which is to be placed now."""
        self._found, self._is_permanent = found, is_permanent
        self._is_added = False

    @property
    def are_all(self) -> bool:
        """Whether there is no more to be done once their places are armed: all are counters, and none has a choice."""
        return not any(
            each.unchosen or part.equip or part.exitless or part.is_timing
            or any(place.hook.kind not in ONE_COUNTER or place.site.marker for place in part.all_places)
            for each, _, part in self._found
        )  # fmt: skip

    def add(self) -> None:
        """Add what is placed, once."""
        if self._is_added:
            return
        self._is_added = True
        for each, _, part in self._found:
            each.add(part)
            each.note_unloadable(part, self._is_permanent)

    def give_up(self) -> None:
        """Have the next look try again what could not be placed."""
        for each, fresh, part in () if self._is_added else self._found:
            if part.armed:
                each.add(part)
            else:
                each.seen -= fresh
                each.add_refused(part)


@dataclass
class DesiredState:
    """Everything that is wanted of one process."""

    wanted: list[Desired] = field(default_factory=list)

    def lacking(self, modules: "Sequence[LoadedObject]") -> "Iterator[tuple[Desired, set[LoadedObject]]]":
        """Yield what has not been looked for in all the objects that are loaded, and in which of them."""
        for each in self.wanted:
            fresh = each.lacking(set(modules))
            if each.is_open and fresh and not each.is_removed:
                yield each, fresh

    def look_again(self, loaded: "LoadedObject") -> None:
        """Have functions looked for once more that were not chosen in an object."""
        for each in self.wanted:
            if loaded in each.seen:
                each.unchosen[loaded] = max(each.unchosen.get(loaded, 0), 1)

    @property
    def awaits_choice(self) -> bool:
        """Whether functions are wanted that the loader has not chosen yet."""
        return any(each.unchosen for each in self.wanted)

    @property
    def pending(self) -> "list[PendingSpec]":
        """The specs that have meant nothing yet, and may in what is loaded later."""
        waiting = [each for each in self.wanted if each.policy is Policy.FOLLOW]
        nothing = [
            each for each in waiting
            if not each.probe.means_something and not each.probe.exitless
        ]  # fmt: skip
        if not nothing:
            return []
        from anyprobe.data.findings.pending import PendingSpec

        other_ends = {each.probe.wanted.end("return") for each in nothing if each.probe.wanted.name == "entry"}
        return [
            PendingSpec(each.probe.spec, each.probe.wanted.awaited.text, each.nearest)
            for each in nothing
            if each.probe.wanted not in other_ends  # of a call that waits at its entry, too
        ]

    def has_lost(self, modules: "Sequence[LoadedObject]") -> bool:
        """Return whether an object in which something was wanted has been unloaded."""
        there = set(modules)
        return any(not each.seen <= there for each in self.wanted)

    def note_removed(self, probes: "Collection[Probe]", places: "Iterable[Place]") -> None:
        """Place some probes nowhere until they are enabled again, and some places of others no more."""
        sites = {id(each) for each in places}
        for each in self.wanted:
            each.is_removed |= each.probe in probes
            each.removed |= {place.site.canonical for place in each.probe.all_places if id(place) in sites}

    def note_enabled(self, probes: "Collection[Probe]") -> None:
        """Place probes again wherever they mean something."""
        for each in self.wanted:
            if each.probe in probes:
                each.is_removed, each.removed = False, set()

    def settle(self) -> None:
        """Want no more of what was only wanted in the objects of now."""
        self.wanted = [each for each in self.wanted if each.is_lasting]
        for each in self.wanted:
            each.is_early = False

    @property
    def follows(self) -> bool:
        """Whether anything is wanted in objects that are loaded later, be it for the second time."""
        return any(each.is_lasting for each in self.wanted)

    @property
    def following(self) -> "list[Desired]":
        """What is wanted in objects that have not been loaded before."""
        return [each for each in self.wanted if each.policy is Policy.FOLLOW and not each.is_removed]

    @property
    def may_return(self) -> bool:
        """Whether there are, or were, sites in libraries that may be loaded again."""
        return any(each.returning and not each.is_removed for each in self.wanted)

    @property
    def awaits_others(self) -> bool:
        """Whether anything is wanted in objects that have not been loaded before."""
        return any(each.policy is Policy.FOLLOW for each in self.wanted)

    @property
    def gone(self) -> set[str]:
        """The names of libraries with sites that were unloaded, as of the last look, and may be loaded again."""
        return {os.path.basename(path) for each in self.wanted for path in each.gone}


def unchosen_in(part: Probe, objects: "Collection[LoadedObject]") -> list[int]:
    """Return the addresses of functions (IFUNC) in some objects that have yet to choose what a part of a spec means."""
    addresses = [refusal.address for _, refusal in part.refused if _is_unchosen(refusal)]
    return [address for address in addresses if any(address in each for each in objects)]


def lasting_path(loaded: "LoadedObject") -> str:
    """Return the path by which a library is known when it is loaded again, were its file deleted or not."""
    return loaded.path.removesuffix(DELETED)


def _is_unchosen(refusal: Refusal) -> bool:
    return refusal.reason is Reason.IFUNC_UNRESOLVED


def _is_left(handled: HandledCalls) -> bool:
    """Return whether there are still places where its calls ended, which are to be removed with the probe."""
    return any(place.armed for place in handled.points.values())


def _again(known: list[T], fresh: list[T]) -> list[tuple[T, T]]:
    """Return what is fresh and what was at the same place and is gone, each with the other."""
    gone = {each.identity: each for each in known if not each.armed}
    return [(each, gone[each.identity]) for each in fresh if each.identity in gone] if gone else []


def _going_on(known: list[T], fresh: list[T]) -> list[T]:
    """Return both, each fresh one with what was at the same place and is gone, and without that beside it."""
    if all(each.armed for each in known):
        return known + fresh
    for each, before in _again(known, fresh):
        each.go_on_from(before)
    again = {each.identity for each in fresh}
    return [each for each in known if each.armed or each.identity not in again] + fresh
