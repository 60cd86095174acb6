"""The program's signal handlers, as a session follows them: where they are, and whether there are others by now."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from anyprobe.core.errors import TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.reading import hits_alone
from anyprobe.splice.edits import Module
from anyprobe.splice.userspace.signal_view import FAULT_BITS, Place

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.probes.providers.function.objects import ObjectTable
    from anyprobe.splice.processes import ProcessSplicing

_SETTERS = ("__libc_sigaction", "__sigaction", "sigaction")
"""What sets actions in glibc, the innermost first: it may be called by others of the library directly."""
_ASKING = 5
"""How often it is asked in vain which handlers there are until that is said."""
_REST = 0.5
"""Seconds between two changes for the sake of handlers, of a session that looks often."""


class Gate(Protocol):
    """Where threads wait that set handlers for faults, until these are spliced: see ``handler_gate``."""

    def place(self, setter: Place | None) -> None:
        """Have threads wait that come to the function by which glibc sets actions."""
        ...

    def look(self) -> None:
        """Splice handlers for which threads wait, and let these go."""
        ...

    def end(self) -> None:
        """Let all threads go; none waits from here on."""
        ...


class HandlerWatch:
    """Finds functions for the engine's signal view, and sees when the program has set handlers since."""

    def __init__(
        self, splicing: "ProcessSplicing", objects: "ObjectTable", module: "Callable[[LoadedObject], Module]"
    ) -> None:
        """Serve an engine; ``module`` returns its module of an object."""
        self._splicing, self._objects, self._module = splicing, objects, module
        self._known = (splicing.view.look(), 0)
        """The signals that were handled, and how often actions had been set, at the last look."""
        splicing.view.find_by(self.function_at, self.setter)
        self._rests_until, self._in_vain = 0.0, 0
        self._gate: Gate | None = None

    def function_at(self, address: int) -> Place | Refusal:
        """Return the function that begins at a run-time address."""
        loaded = self._objects.at(address)
        if loaded is None:
            self._objects.refresh()
            loaded = self._objects.at(address)
        if loaded is None:
            return Refusal(Reason.FILELESS_TEXT, address, "not in the text of any loaded object")
        try:
            refusal, module = self._objects.refusal(loaded), self._module(loaded)
        except TargetError as error:
            return Refusal(Reason.FILELESS_TEXT, address, str(error))
        code = module.code.function_at(address - module.bias)
        return refusal or (code if isinstance(code, Refusal) else (module, code))

    def setter(self) -> Place | None:
        """Return the function by which glibc sets actions."""
        libc = self._objects.libc()
        if libc is None:
            return None
        for name in _SETTERS:
            for function in libc.image.functions.lookup(name):
                found = self.function_at(function.start + libc.bias)
                if not isinstance(found, Refusal):
                    return found
        return None

    def hold(self, gate: "Gate") -> None:
        """Have the program wait at a gate where it sets handlers for faults, until the next look."""
        self._gate = gate

    def place_gate(self) -> None:
        """Place the gate that ``hold`` was given."""
        if self._gate is not None:
            self._gate.place(self.setter())

    def end(self) -> None:
        """Hold no thread any more."""
        if self._gate is not None:
            self._gate.end()

    def follow(self, *, often: bool = False) -> list[str]:
        """Splice handlers that were set since the last look, if there are any; return what is to be said of them.

        Who looks ``often`` asks programs that set handlers all the time, as shells do, for those of faults at once, and
        for others now and then: a thread is borrowed for that.
        """
        view = self._splicing.view
        if self._gate is not None:
            self._gate.look()
        now = view.look(), hits_alone(view.settings) if view.settings is not None else 0
        of_faults = now[0] & ~self._known[0] & FAULT_BITS
        wanted = now != self._known or not view.could_ask
        if wanted and (not often or of_faults or time.monotonic() >= self._rests_until):
            self._splicing.engine.change(view.since_set())
            self._splicing.engine.change(view.planned_amiss())  # which may take long where there are many sites
            self._known, self._rests_until = now, time.monotonic() + _REST
            self._in_vain = 0 if view.could_ask else self._in_vain + 1
        return view.complaints(of_asking=self._in_vain >= _ASKING)
