"""Probes that were taken out for what they cost, and when they are tried again.

A probe comes back when the others cost no more than half of what they may, one at a time, after ten seconds; each time
that it has to go again soon it stays out for twice as long, ten minutes at the most. So what is always too dear is in
for half a second now and then, and what was dear for a while counts again.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from anyprobe.probes.providers.function.probe import Probe

FIRST, LONGEST = 10.0, 600.0
"""Seconds that a probe stays out for at first, and at the most."""
SHARE = 0.5
"""What others may cost, of the limit, when a probe is tried again."""
SOON = 10
"""Times as long as it was out: a probe that has been in for longer begins with the first wait again."""


@dataclass(slots=True)
class Budget:
    """The probes that are out, and what is told of them."""

    removals: int = 0
    """How often a probe, or some places of one, was taken out."""
    out: dict[Probe, float] = field(default_factory=dict)
    """Since when each is out, by the monotonic clock."""
    _seconds: float = 0.0
    _waits: dict[Probe, float] = field(default_factory=dict)
    _back: dict[Probe, float] = field(default_factory=dict)

    def note_removed(self, probes: Collection[Probe], now: float) -> None:
        """Note that probes are out from now on."""
        for each in probes:
            self.removals += 1
            if each in self.out:  # it loses more of its places: it waits already
                continue
            wait = self._waits.get(each, 0.0)
            soon = wait and now - self._back.get(each, now) <= SOON * wait
            self._waits[each] = min(2 * wait, LONGEST) if soon else FIRST
            self.out[each] = now

    def due(self, cost: float, limit: float, now: float) -> Probe | None:
        """Return a probe that is to be tried again, if there is one and room for it."""
        if cost > SHARE * limit:
            return None
        waiting = {each: since + self._waits[each] for each, since in self.out.items()}
        first = min(waiting, key=waiting.__getitem__, default=None)
        return first if first is not None and waiting[first] <= now else None

    def note_back(self, probe: Probe, now: float) -> None:
        """Note that a probe is in again."""
        self.forget([probe], now)
        self._back[probe] = now

    def forget(self, probes: Collection[Probe], now: float) -> None:
        """Try probes no more that are out: the user has removed them, or has put them back."""
        for each in probes:
            self._seconds += now - self.out.pop(each, now)

    def seconds(self, now: float) -> float:
        """Return for how long probes were out, all added up."""
        return self._seconds + sum(now - since for since in self.out.values())
