"""Whether each thread has memory of its own that generated code finds by its thread pointer, and for how long.

A program that calls ``clone`` may do so as glibc does, or not at all, or make tasks whose thread pointer is not their
own. So in such a program probes use that memory until the first such task is made: see ``CloneGate``.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from anyprobe.core.errors import TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.probe import Place, Probe
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Edit, FunctionState, Module, hook_of
from anyprobe.splice.plan.splices import Want
from anyprobe.splice.regions.banks import ONE_COUNTER, Hook, needs_slots
from anyprobe.splice.regions.code_region import GoroutineBank, SlotBank

if TYPE_CHECKING:
    from threading import RLock

    from anyprobe.probes.providers.function.gates.clone_gate import CloneGate
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.splice.userspace.signal_view import Place as Function

_WHY = (
    "the program was about to make a task that has no thread pointer of its own (clone): the probe was taken out, and "
    "has counted until then"
)
ENDED = (
    "the program has made a task that has no thread pointer of its own (clone): what times calls, and handlers, were "
    "taken out before, and have counted until then"
)
_LOOK = 0.005
"""Seconds after which it is seen whether the session, whose lock another thread has, is about to end."""
Disarm = Callable[[Sequence[Probe], Sequence[Place]], None]


class ThreadSlots:
    """Decides it for one session."""

    def __init__(
        self, session: "ProbeHost", function_at: "Callable[[int], Function | Refusal]", disarm: Disarm
    ) -> None:
        """Begin with what the session's planning has been told."""
        self._session, self._function_at, self._disarm = session, function_at, disarm
        self._gate: CloneGate | None = None
        self._is_watched = self._ended = False

    def begin(self, *, needed: bool) -> None:
        """See it anew, as the C library is there by now; ``needed``: something is wanted that needs such memory."""
        on = not self._ended and self._session.objects.has_thread_slots(watched=self._is_watched)
        self._session.splicing.planning.use_slots(on=on)
        self.look(needed=needed)

    def look(self, *, needed: bool) -> None:
        """Have such memory used from now on where it is ``needed`` and calls of ``clone`` can be watched."""
        planning, objects = self._session.splicing.planning, self._session.objects
        if not needed or planning.slots or self._ended or self._gate is not None:
            return
        if not objects.has_thread_slots(watched=True) or objects.has_thread_slots():
            return
        from anyprobe.probes.providers.function.gates.clone_gate import CloneGate

        self._gate = CloneGate(self._session, self._function_at, self._end)
        with suppress(TargetError):
            self._is_watched = not self._gate.place()
            planning.use_slots(on=self._is_watched)

    def _end(self) -> None:
        """Take out what uses such memory: called in the thread that serves, while the one waits that makes a task."""
        session, lock = self._session, cast("RLock", self._session.lock)
        while not lock.acquire(timeout=_LOOK):
            if self._gate is None or self._gate.is_ending:  # everything has been removed, by the one that has the lock
                return
        try:
            if self._ended or session.detached:
                return
            session.splicing.planning.use_slots(on=False)
            places = [place for probe in session.probes for place in probe.all_places if _uses_slot(place.hook)]
            probes = [probe for probe in session.probes if not set(places).isdisjoint(probe.all_places)]
            self._disarm(probes, places)
            for place in places:
                if not place.hook.armed:
                    place.hook.refusal = Refusal(Reason.NO_THREAD_SLOT, place.address, _WHY)
            self._take_out_others()
            self._ended = True  # not before: what fails is tried again when the next one is made
            session.warn(ENDED)
            if self._gate is not None:
                self._gate.lift()
        finally:
            lock.release()

    def _take_out_others(self) -> None:
        """Take out what the session itself has placed, and place anew what needs no memory of a thread's own."""
        out: list[Edit] = []
        again: list[Edit] = []
        for module, state, wants in self._left():
            out.append(Edit(module, state, removed=wants))
            again.append(Edit(module, state, added=[want for want in wants if _goes_without(want)]))
        engine = self._session.splicing.engine
        engine.change(out)
        for edit in again:
            for want in edit.added:
                hook = hook_of(want)
                assert hook is not None
                hook.bank, hook.offset = None, 0
        engine.change([edit for edit in again if edit.added])

    def _left(self) -> "Iterator[tuple[Module, FunctionState, list[Want]]]":
        for module in self._session.splicing.engine.modules:
            for state in {id(each.root): each.root for each in module.functions.values()}.values():
                wants = [want for want in state.wants if (hook := hook_of(want)) is not None and _uses_slot(hook)]
                if wants:
                    yield module, state, wants

    def close(self) -> None:
        """Have no thread wait any more; the caller does not hold the session's lock.

        While something needs it threads wait on, until that has been removed: one may come to its call just now.
        """
        if self._gate is not None:
            self._session.warn(*self._gate.notes())
            self._session.endings.append(self._gate.end)
            if self._ended:
                self._gate.end()
            else:
                self._session.splicing.waits_for_removal.append(self._gate.end)


def _goes_without(want: Want) -> bool:
    """Return whether what a want is for can be had without a thread's own memory, too."""
    hook = hook_of(want)
    return hook is not None and hook.kind in {*ONE_COUNTER, ActionKind.HANDLER} and not needs_slots(hook)


def _uses_slot(hook: Hook) -> bool:
    return hook.armed and isinstance(hook.bank, SlotBank) and not isinstance(hook.bank, GoroutineBank)
