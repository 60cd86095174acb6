"""What the kernel has in ``/sys/kernel/debug/kprobes`` and ``/proc/sys/debug/kprobes-optimization``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyprobe.data.findings.leftover import kernels_line
from anyprobe.kprobes.lookup import Location
from anyprobe.kprobes.registration import Registration
from anyprobe.kprobes.registries import registry_of
from anyprobe.probes.scripts.current import current
from anyprobe.target.kernel.symbols import KERNEL

if TYPE_CHECKING:
    from anyprobe.kprobes.kernel.registration import KernelRegistration
    from anyprobe.probes.providers.kernel.session import KernelSession
    from anyprobe.probes.session import Session

    Sessions = Session | KernelSession


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


def listing(*, session: "Sessions | None" = None) -> list[Listed]:
    """Return the registered probes, in order of registration."""
    known = registry_of(session or current()).registrations
    found: list[Listed] = []
    for each in known:
        if isinstance(each, Registration):
            found += [_listed(each, place) for place in each.instances]
        else:
            found.append(_in_kernel(each))
    return found


def enabled(*, session: "Sessions | None" = None) -> bool:
    """Return whether probes are armed at all."""
    return registry_of(session or current()).enabled


def set_enabled(on: bool, *, session: "Sessions | None" = None) -> None:
    """Arm or disarm everything; each probe's own state stays what it is. Of the kernel: all kprobes, of any tool."""
    registry_of(session or current()).switch(on=on)


def optimization(*, session: "Sessions | None" = None) -> bool:
    """Return whether probes are reached by jumps where that is safe."""
    return registry_of(session or current()).optimization


def set_optimization(on: bool, *, session: "Sessions | None" = None) -> list[str]:
    """Have probes reached by jumps, or by traps where these are safe; return what stays as it is, and why."""
    return registry_of(session or current()).optimize(on=on)


def _in_kernel(each: "KernelRegistration") -> Listed:
    """Return the line of a probe of the kernel: a kprobe has the flags that the kernel's own list shows."""
    flags = ("DISABLED",) if each.disabled else each.states()
    site = each.site
    module = "" if site.module == KERNEL else site.module
    return Listed(site.address, each.kind, site.name, site.offset, module, flags)


def _listed(each: Registration, place: Location) -> Listed:
    states = (("GONE", each.gone), ("DISABLED", each.disabled), ("OPTIMIZED", each.optimized))
    flags = tuple(name for name, holds in states if holds)
    return Listed(place.address, each.kind, place.function, place.offset, place.module, flags)
