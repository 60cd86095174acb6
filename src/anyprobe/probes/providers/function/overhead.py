"""What probes cost the program, estimated from their hits, and which of them cost too much together.

What is taken out is a unit: a function of a spec, so that a glob does not go as a whole for one hot function; of specs
that mean instructions each one; of handlers all at one function, since an end without its beginning means nothing.

The counts themselves are never estimated; only what one hit costs is assumed. The constants are what the benchmarks
measure on a processor of 2021, rounded up.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from anyprobe.probes.providers.function.probe import Place, Probe, Timed
from anyprobe.probes.providers.function.reading import BankValues
from anyprobe.probes.providers.function.resolve import ResolvedSite
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.plan.splices import Strategy
from anyprobe.splice.regions.code_region import GoroutineBank, NearBank

COUNT_NS = 1.0
"""One hit of a counter in the thread's own block."""
ATOMIC_COUNT_NS = 20.0
"""One hit of an atomic counter, whose cache line may be elsewhere."""
HANDLER_NS = 15.0
"""One run of a short compiled handler, with what is saved for it."""
TSC_TIMING_NS = 30.0
"""One call timed by the TSC, entry and exit."""
GO_TIMING_NS = 25.0
"""One call of a Go function, which is timed by its goroutine."""
VDSO_TIMING_NS = 75.0
"""One call timed by the vdso's clock."""
TRAP_NS = 3000.0
"""What a trap adds to a hit: an exception, a signal, and the return from it."""


_HANDLED = frozenset({ActionKind.HANDLER, ActionKind.HANDLE_RETURN, ActionKind.FAULT})
_SINGLE = frozenset({"insn", "block", "run", "call", "store", "taken", "undecided"})
"""Kinds of specs of which each instruction counts for itself."""
_NAMED = 5


@dataclass(eq=False, slots=True)
class Unit:
    """Places that go together, and what they have cost."""

    name: str
    probes: list[Probe] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    timed: Timed | None = None

    @property
    def armed(self) -> bool:
        """Whether at least one place is armed."""
        return any(place.hook.armed for place in self.places)


@dataclass(frozen=True, slots=True)
class Excess:
    """A unit that is to go, so that the rest stays below the limit."""

    unit: Unit
    percent: float
    """The share of one CPU, over the time since the last look."""

    def __str__(self) -> str:
        """Return what it is and what it cost."""
        return f"{self.unit.name} (about {self.percent:.3g} %)"


@dataclass
class OverheadWatch:
    """Compares what all probes have cost since the last look with the time that went by."""

    timing_ns: float = TSC_TIMING_NS
    total: float = 0.0
    """Percent of one CPU that all armed probes cost between the last two looks."""
    _since: float = field(default_factory=time.monotonic)
    _seen: dict[object, int] = field(default_factory=dict)
    """The hits of each counter at the last look: libraries that come and go take counters over."""

    def look(self, probes: Iterable[Probe], percent: float, now: float | None = None) -> Sequence[Excess]:
        """Return what has to go so that the rest costs no more than some percent of one CPU: the dearest first."""
        now = time.monotonic() if now is None else now
        elapsed, self._since = now - self._since, now
        values, found, seen = BankValues(), [], dict[object, int]()
        for unit in units_of(probes):
            spent = 0.0
            for counter, hits, price in self.costs(unit, values):
                spent += (hits - self._seen.get(counter, 0)) * price
                seen[counter] = hits
            share = spent / (elapsed * 1e9) * 100 if elapsed > 0 else 0.0
            if share > 0 and unit.armed:
                found.append(Excess(unit, share))
        self._seen |= seen
        found.sort(key=attrgetter("percent"), reverse=True)
        remaining = self.total = sum(each.percent for each in found)
        going = []
        for each in found:
            if remaining <= percent:
                break
            going.append(each)
            remaining -= each.percent
        return going

    def costs(self, unit: Unit, values: BankValues) -> Iterator[tuple[object, int, float]]:
        """Yield where a unit's hits are counted, how many there have been, and what one of them costs the program."""
        if unit.timed is not None:
            yield from self._costs_of_calls(unit.timed, values)
            return
        for place in unit.places:
            hook = place.hook
            if hook.bank is not None:
                yield (hook.bank, hook.offset), values.hits(hook), hit_ns(place)

    def _costs_of_calls(self, timed: Timed, values: BankValues) -> Iterator[tuple[object, int, float]]:
        bank, offset = timed.group.bank, timed.group.offset
        if bank is not None:
            record = values.reader(bank).record(offset)
            calls = record.count + record.tail + record.learning + record.missed
            price = GO_TIMING_NS if isinstance(bank, GoroutineBank) else self.timing_ns
            yield (bank, offset, "calls"), calls, price + sum(_trap_ns(place) for place in timed.places[:2])


def units_of(probes: Iterable[Probe]) -> Sequence[Unit]:
    """Return what probes can be taken apart into."""
    found: dict[object, Unit] = {}
    for probe in probes:
        for timed in probe.timed:
            found[id(timed)] = Unit(_name(timed.site), [probe], [*timed.places, *timed.points.values()], timed)
        for place in probe.places:
            single = place.site.kind in _SINGLE
            if place.hook.kind in _HANDLED:
                key: object = ("handlers", id(place.state.root))
            else:
                key = id(place) if single else (id(probe), id(place.site))
            unit = found.get(key)
            if unit is None:
                unit = found[key] = Unit(_name(place.site) + (f"+{place.offset:#x}" if single else ""))
            unit.places.append(place)
            if probe not in unit.probes:
                unit.probes.append(probe)
    units = list(found.values())
    _name_by_specs(units)
    return units


def _name_by_specs(units: Iterable[Unit]) -> None:
    """Name units as the user did, where all of a spec is one unit."""
    by_probe: dict[int, list[Unit]] = {}
    for unit in units:
        for probe in unit.probes:
            by_probe.setdefault(id(probe), []).append(unit)
    for unit, *others in by_probe.values():
        if not others:
            unit.name = unit.probes[0].spec


def _name(site: ResolvedSite) -> str:
    if site.kind == "usdt":
        return site.canonical
    return f"{site.object.name}:{site.name}" + ("" if site.kind == "entry" else f"%{site.kind}")


def disarmed(
    excess: Sequence[Excess], total: float, limit: float, disarm: Callable[[Sequence[Probe], Sequence[Place]], None]
) -> tuple[list[Probe], str]:
    """Disarm what has to go; return whose it was, and a sentence for the user: what was disarmed, and why."""
    if not excess:
        return [], ""
    disarm(_owners(excess), [place for each in excess for place in each.unit.places])
    removed = [each for each in excess if not each.unit.armed]  # for the others it is said why they stay
    if not removed:
        return [], ""
    for place in (place for each in removed for place in each.unit.places):
        place.note = f"removed by --max-overhead {limit:g}: it has counted until then"
    names = ", ".join(str(each) for each in removed[:_NAMED])
    more = f" and {len(removed) - _NAMED} more" if len(removed) > _NAMED else ""
    were = "was" if len(removed) == 1 else "were"
    why = f"all probes together cost about {total:.3g} % of one CPU, more than --max-overhead {limit:g}"
    return _owners(removed), f"{names}{more} {were} removed: {why}"


def _owners(excess: Sequence[Excess]) -> list[Probe]:
    return list(dict.fromkeys(probe for each in excess for probe in each.unit.probes))


def hit_ns(place: Place) -> float:
    """Return what one hit of a counted place costs."""
    if place.hook.kind in _HANDLED:
        return HANDLER_NS + _trap_ns(place)
    return (ATOMIC_COUNT_NS if isinstance(place.hook.bank, NearBank) else COUNT_NS) + _trap_ns(place)


def _trap_ns(place: Place) -> float:
    return TRAP_NS if place.hook.strategy == Strategy.TRAP else 0.0
