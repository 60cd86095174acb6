"""What timing probes cost the calls that they time: constants of generated code.

A call's probes take time before its beginning is read from the clock, between its beginning and its end, and after its
end. What lies between is *inside* the time that is measured of it; all of it is in that of its callers. Generated code
has each thread's clock stand still for as long as its probes have taken, so no time of any call has them in it.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from anyprobe.data.layouts.layout import COST_BITS

UNIT = 1 << COST_BITS
"""Parts of a tick."""
SLOWED, SLOWED_INSIDE = 1.8, 0.6
"""How much more a call's probes are slowed down than what a trial sees of them, in all and inside of the call: they are
jumped to and from, what they bring into caches and predictors drives out the program's own, and all that they write is
outside. Measured with small and large programs, on idle and busy machines: 1.4 to 2.4, and 0.3 to 1."""

DOUBT = 0.25
"""By what share of what was subtracted a program's time may be off: its caches and predictors hold more than without
probes, or what probes take goes by in the shadow of its own instructions. Measured with small programs (0 to 0.24), and
with those of hundreds of functions (0.04 to 0.11)."""
FEW_FUNCTIONS, FIRST_OF_FEW, FIRST_OF_MANY = 64, 10_000, 40_000
"""How many ticks the first call of a function may take longer than others: pages of its code and its record come into
being, and where there are many functions the program is stopped while callers are learned."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What probes take of a thread's time, in parts of a tick."""

    entered: int = 0
    """At an entry, once the beginning of the call has been read from the clock."""
    left: int = 0
    """At a return; and what the entry took before that, of which nothing tells it apart."""
    ended: int = 0
    """At a return until the end of the call is read from the clock."""
    jumped: int = 0
    """At a jump to another function."""
    came_back: int = 0
    """Where a call that has left by a jump ends: its caller goes on."""
    came: int = 0
    """The part of it until its end is read from the clock."""
    passed: int = 0
    """Where a caller goes on, and no such call ends."""
    pace: int = 0
    """What a trial took when all that was measured; 0: nothing is known."""
    doubt: float = 0.0
    """How far all this may be off in a program, as a share of it."""

    @property
    def inside(self) -> int:
        """What the probes of a call take inside of it, if it ends at a return."""
        return self.entered + self.ended

    @property
    def whole(self) -> int:
        """What they take in all."""
        return self.entered + self.left

    def at_pace(self, ticks: float) -> "Costs":
        """Return what the probes of calls cost where a trial takes so many ticks."""
        if not self.pace:
            return self
        slower = ticks * UNIT / self.pace - 1
        inside = SLOWED_INSIDE * slower * self.inside
        more = SLOWED * slower * self.whole - inside
        return dataclasses.replace(self, entered=round(self.entered + inside), left=round(self.left + more))

    def in_use(self, called: int, whole: int) -> "Costs":
        """Return the costs where so many functions were called, and ``whole`` parts of a tick were taken by all."""
        first = FIRST_OF_FEW if called <= FEW_FUNCTIONS else FIRST_OF_MANY
        return self.doubted(max(self.doubt, DOUBT) + (first * UNIT * called / whole if whole > 0 else 0.0))

    def doubted(self, doubt: float) -> "Costs":
        """Return the same costs, with another doubt."""
        return dataclasses.replace(self, doubt=doubt)

    def as_values(self) -> dict[str, float]:
        """Return what they are kept as."""
        return dataclasses.asdict(self)

    @classmethod
    def from_values(cls, values: Mapping[str, float]) -> "Costs":
        """Return what was kept."""
        whole = {name: int(value) for name, value in values.items() if name != "doubt"}
        return cls(**whole, doubt=float(values["doubt"]))


NO_COSTS = Costs()
