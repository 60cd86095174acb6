"""What probes cost the program, estimated from their hits, and taking out those that cost too much.

The counts themselves are never estimated; only what one hit costs is assumed. The constants are what the benchmarks
measure on a processor of 2021, rounded up.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from anyprobe.probes.probe import Place, Probe, Timed
from anyprobe.probes.reading import BankValues
from anyprobe.splice.neighbourhood import NearBank
from anyprobe.splice.planned import Strategy

COUNT_NS = 1.0
"""One hit of a counter in the thread's own block."""
ATOMIC_COUNT_NS = 20.0
"""One hit of an atomic counter, whose cache line may be elsewhere."""
TSC_TIMING_NS = 30.0
"""One call timed by the TSC, entry and exit."""
VDSO_TIMING_NS = 75.0
"""One call timed by the vdso's clock."""
TRAP_NS = 3000.0
"""What a trap adds to a hit: an exception, a signal, and the return from it."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A probe that costs too much."""

    probe: Probe
    percent: float
    """Of one CPU, over the time since the last look."""

    def __str__(self) -> str:
        """Return a sentence for the user."""
        return f"{self.probe.spec} was removed: it cost about {self.percent:.3g} % of one CPU (--max-overhead)"


@dataclass
class OverheadWatch:
    """Compares what each probe has cost since the last look with the time that went by."""

    timing_ns: float = TSC_TIMING_NS
    _since: float = field(default_factory=time.monotonic)
    _spent: dict[Probe, float] = field(default_factory=dict)

    def look(self, probes: Iterable[Probe], percent: float, now: float | None = None) -> Sequence[Excess]:
        """Return the armed probes that cost more than some percent of one CPU since the last look."""
        now = time.monotonic() if now is None else now
        elapsed, self._since = now - self._since, now
        values = BankValues()
        found = []
        for probe in probes:
            spent = self.spent_ns(probe, values)
            fresh, self._spent[probe] = spent - self._spent.get(probe, 0.0), spent
            share = fresh / (elapsed * 1e9) * 100 if elapsed > 0 else 0.0
            if share > percent and probe.armed:
                found.append(Excess(probe, share))
        return found

    def spent_ns(self, probe: Probe, values: BankValues) -> float:
        """Return what a probe has cost the program so far."""
        counted = sum(values.hits(place.hook) * hit_ns(place) for place in probe.places if place.hook.bank is not None)
        return counted + sum(self._timed_ns(timed, values) for timed in probe.timed)

    def _timed_ns(self, timed: Timed, values: BankValues) -> float:
        bank = timed.group.bank
        if bank is None or timed.refusal is not None:
            return 0.0
        record = values.reader(bank).record(timed.group.offset)
        calls = record.count + record.tail + record.missed
        return calls * (self.timing_ns + sum(_trap_ns(place) for place in timed.places[:2]))


def hit_ns(place: Place) -> float:
    """Return what one hit of a counted place costs."""
    return (ATOMIC_COUNT_NS if isinstance(place.hook.bank, NearBank) else COUNT_NS) + _trap_ns(place)


def _trap_ns(place: Place) -> float:
    return TRAP_NS if place.hook.strategy == Strategy.TRAP else 0.0
