"""What events have to know of the running kernel."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyprobe.kprobes.events.definition import Point
from anyprobe.kprobes.kernel.registration import KernelRegistration
from anyprobe.kprobes.structures import Registered, kprobe_of
from anyprobe.target.kernel import symbols

if TYPE_CHECKING:
    from anyprobe.probes.providers.kernel.session import KernelSession

_LONGEST = 15
"""Bytes of an instruction."""


class KernelPlaces:
    """The places of the kernel."""

    knows_caller = False
    """Programs of BPF see the return address in no way that all kernels have."""

    def __init__(self, session: "KernelSession") -> None:
        """Look up nothing yet."""
        self._session = session

    def address(self, name: str) -> int | None:
        """Return where a variable or function is, None if there is none, or are several."""
        module, _, symbol = name.rpartition(":")
        known = symbols.running()
        found = {each.address for each in known.named(symbol) if not module or each.module == module}
        if not found and not module:
            variable = known.data(symbol)
            found = set() if variable is None else {variable}
        return found.pop() if len(found) == 1 else None

    def in_file(self, point: Point) -> None:
        """Return nothing: no file is mapped there."""
        del point

    def name(self, address: int) -> str:
        """Return the function that an address is in, and how far."""
        return self._session.collection.shown("func", address)

    def hit(self, ip: int, probes: Sequence[Registered]) -> int:
        """Return where a hit was: the kernel has the processor after the probe's first byte, or its instruction."""
        places = [kp.addr for kp in map(kprobe_of, probes) if kp.addr is not None and 0 <= ip - kp.addr <= _LONGEST]
        return max(places, default=ip)

    def function_of(self, probe: Registered) -> str:
        """Return the function in which a probe is."""
        made = kprobe_of(probe).registration
        return made.site.name if isinstance(made, KernelRegistration) else "?"
