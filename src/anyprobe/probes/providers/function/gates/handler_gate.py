"""Where a program sets a handler for faults it waits a moment, until the controller has spliced the handler.

For programs that are started with probes: those that fault on purpose may do so at once. (``HandlerWatch`` sees
handlers when they are set; until they are spliced, they would be shown pcs in patches.) No thread waits where the
controller is gone: the kernel lets all go then. Where it does not look, it takes ``PATIENCE``.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from anyprobe.core.memory import MemoryFault
from anyprobe.probes.providers.function.handlers.callbacks import Callbacks, Hit, Wait
from anyprobe.splice.codegen.handlers.rendezvous import CALLS
from anyprobe.splice.userspace.sigaction_hook import FLAGS_AT, sets_watched_action

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.splice.userspace.signal_view import Place

PATIENCE = 5.0
"""Seconds that threads wait at most for one change: to plan ten thousand sites anew takes about one."""
_SPECIAL = 1
"""``SIG_DFL`` and ``SIG_IGN`` are 0 and 1."""


@dataclass(slots=True)
class _Coming:
    """A handler that is about to be set, by a thread that waits."""

    signal: int
    handler: int
    flags: int
    done: threading.Event = field(default_factory=threading.Event)


class HandlerGate:
    """The gate of one session."""

    def __init__(self, session: "ProbeHost", leave_out: Callable[[Hit], None]) -> None:
        """Nothing is placed yet; ``leave_out`` takes a thread's wait out of its times, before the thread goes on."""
        self._callbacks, self._splicing, self._leave_out = Callbacks(session), session.splicing, leave_out
        self._coming: SimpleQueue[_Coming] = SimpleQueue()
        self._ending = False
        self._began = 0.0
        """When the change began that is being made for a thread that waits; 0: there is none."""

    def place(self, setter: "Place | None") -> None:
        """Have threads wait that come to ``setter``, the function by which glibc sets actions.

        Not where threads have no slots, which waiting needs: handlers are spliced at the next look there.
        """
        if (
            setter is not None
            and self._splicing.planning.has_slots(setter[0])
            and not self._splicing.process.is_filtered(CALLS)
        ):
            self._callbacks.place_inside([Wait(setter, sets_watched_action())], self._ask, timeout=PATIENCE)

    def _ask(self, hit: Hit) -> None:
        """In the thread that serves: hand a handler over to the one that changes the program, until that is done."""
        self._see(hit)
        self._leave_out(hit)

    def _see(self, hit: Hit) -> None:
        """Have what a handler needs placed, and wait until that is done."""
        try:
            handler = int.from_bytes(hit.read(hit.regs.rsi, 8), "little")
            flags = int.from_bytes(hit.read(hit.regs.rsi + FLAGS_AT, 4), "little")
        except MemoryFault:  # the kernel will say so, too
            return
        coming = _Coming(hit.regs.rdi & 0xFFFFFFFF, handler, flags)
        # some set the same one again and again, around what may fault
        if handler > _SPECIAL and not self._splicing.view.expects(coming.signal, handler, flags):
            self._coming.put(coming)
            if not self._ending:  # else no thread may look any more
                began = self._began or time.monotonic()
                coming.done.wait(began + PATIENCE - time.monotonic())

    def look(self) -> None:
        """Splice handlers for which threads wait, and what would hide faults; let these go, whatever comes of it."""
        while True:
            try:
                coming = self._coming.get_nowait()
            except Empty:
                return
            self._began = time.monotonic()
            try:
                self._splicing.engine.change(self._splicing.view.coming(coming.signal, coming.handler, coming.flags))
                self._splicing.engine.change(self._splicing.view.planned_amiss())
            finally:
                self._began = 0.0
                coming.done.set()

    def end(self) -> None:
        """Let all threads go; none waits from here on."""
        self._ending = True
        while not self._coming.empty():
            self._coming.get_nowait().done.set()
        self._callbacks.end()
