"""The moment of a change that is made as a whole: when it suits, and what stands against it."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anyprobe.core.errors import SiteRefused, ThreadInside
from anyprobe.core.refusal import Refusal
from anyprobe.probes.providers.function.probe import Probe

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.objects import ObjectTable
    from anyprobe.probes.providers.function.replacing.quiet import Functions, Inside
    from anyprobe.probes.stacks.symbols import Symbols
    from anyprobe.splice.edits import Edit
    from anyprobe.target.base import ProcessQuiescence

_PAUSE, _LONGEST_PAUSE = 0.001, 0.02


class Moment:
    """Has all places of some probes armed at one moment, or none of them."""

    def __init__(self, symbols: "Symbols[ObjectTable]") -> None:
        """Be any moment; ``symbols`` names what a thread is in."""
        self._symbols = symbols
        self._functions: Functions | None = None
        self._timeout = self._deadline = 0.0
        self._pause = _PAUSE
        self.probes: list[Probe] = []
        """The probes: all of them as soon as the change is planned."""

    def wait_for(self, functions: "Functions", timeout: float) -> None:
        """Be only a moment without a thread inside of some functions, waited for so many seconds from now on."""
        self._functions, self._timeout, self._deadline = functions, timeout, time.monotonic() + timeout

    def check(self, edits: "Sequence[Edit]", refusal_of: "Callable[[Edit], Refusal | None]") -> None:
        """Raise ``SiteRefused`` if one of the places cannot be armed."""
        self.check_planned()
        hooks = {id(place.hook): place.site.canonical for probe in self.probes for place in probe.places}
        for edit in edits:
            why = refusal_of(edit)
            names = [hooks[id(want.tag)] for want in edit.added if id(want.tag) in hooks]
            if why is not None and names:
                raise _refused(names[0], why)

    def check_planned(self) -> None:
        """Raise ``SiteRefused`` if it is known by now that one of the places cannot be armed."""
        for probe in self.probes:
            for name, why in probe.refused:
                raise _refused(name, why)
            for place in probe.places:
                if place.hook.refusal is not None:
                    raise _refused(place.site.canonical, place.hook.refusal)

    def suits(self, stop: "ProcessQuiescence") -> bool:
        """Return whether no thread is inside; raise ``ThreadInside`` where that takes too long."""
        inside = None if self._functions is None else self._functions.inside(stop)
        if inside is not None and time.monotonic() > self._deadline:
            raise ThreadInside(inside.tid, self._said(inside), inside.function)
        return inside is None

    def wait(self) -> None:
        """Let the program run for a while."""
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def _said(self, inside: "Inside") -> str:
        who = f"in {self._timeout:g} s there was no moment without a thread inside: thread {inside.tid}"
        if inside.function:
            return f"{who} is inside of {inside.function}; nothing was changed"
        beyond = f" beyond {self._symbols.name(inside.pc)}" if inside.pc else ""
        return f"{who} has a stack that is not known{beyond}; nothing was changed"


def _refused(name: str, why: Refusal) -> SiteRefused:
    return SiteRefused(Refusal(why.reason, why.address, f"{name}: {why.detail}; nothing was replaced"))
