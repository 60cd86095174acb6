"""What the kernel has in ``/sys/kernel/debug/kprobes`` and ``/proc/sys/debug/kprobes-optimization``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyprobe.data.leftover import kernels_line
from anyprobe.kprobes.lookup import Location
from anyprobe.kprobes.registration import Registration, registry
from anyprobe.probes.scripts.current import current

if TYPE_CHECKING:
    from anyprobe.probes.session import Session


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of the kernel's list."""

    address: int
    kind: str
    symbol: str
    offset: int
    module: str
    flags: tuple[str, ...]

    def __str__(self) -> str:
        """Return the line as the kernel prints it."""
        return kernels_line(self.address, self.kind, f"{self.symbol}+{self.offset:#x}", self.module, self.flags)


def listing(*, session: "Session | None" = None) -> list[Listed]:
    """Return the registered probes, in order of registration."""
    known = registry(session or current()).registrations
    return [_listed(each, place) for each in known for place in each.instances]


def enabled(*, session: "Session | None" = None) -> bool:
    """Return whether probes are armed at all."""
    return registry(session or current()).enabled


def set_enabled(on: bool, *, session: "Session | None" = None) -> None:
    """Arm or disarm everything; each probe's own state stays what it is."""
    registry(session or current()).switch(on=on)


def optimization(*, session: "Session | None" = None) -> bool:
    """Return whether probes are reached by jumps where that is safe."""
    return registry(session or current()).optimization


def set_optimization(on: bool, *, session: "Session | None" = None) -> list[str]:
    """Have probes reached by jumps, or by traps where these are safe; return what stays as it is, and why."""
    return registry(session or current()).optimize(on=on)


def _listed(each: Registration, place: Location) -> Listed:
    states = (("GONE", each.gone), ("DISABLED", each.disabled), ("OPTIMIZED", each.optimized))
    flags = tuple(name for name, holds in states if holds)
    return Listed(place.address, each.kind, place.function, place.offset, place.module, flags)
