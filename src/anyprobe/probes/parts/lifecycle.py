"""How a session begins to run its program, ends, and gives everything back."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.core.collection import collect_what_was_made
from anyprobe.core.errors import TargetExited
from anyprobe.data.snapshots.last_results import armed_as
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.probes.duties import locked
from anyprobe.probes.parts.arming import Arming
from anyprobe.probes.parts.children import Gates
from anyprobe.probes.parts.decorators import Decorators
from anyprobe.probes.parts.installing import Installer
from anyprobe.probes.parts.loop import DutyLoop
from anyprobe.probes.parts.modules import ModuleReconciler
from anyprobe.probes.parts.results import Results
from anyprobe.probes.parts.timing import Times
from anyprobe.probes.providers import provided
from anyprobe.probes.providers.function import removal
from anyprobe.probes.target_errors import typed

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost


class Lifecycle:
    """The life of one session, from ``resume`` to ``close``."""

    def __init__(
        self, host: "ProbeHost", times: Times, handlers: Decorators, installer: Installer, modules: ModuleReconciler,
        gates: Gates, arming: Arming, results: Results, loop: DutyLoop,
    ) -> None:  # fmt: skip
        """Be attached."""
        self._host, self.lock = host, host.lock
        self._times, self._handlers, self._installer, self._modules = times, handlers, installer, modules
        self._gates, self._arming, self._results, self._loop = gates, arming, results, loop

    @locked
    def resume(self) -> None:
        """Let a program started by ``run`` go, with probes in its libraries in place before they run."""
        host = self._host
        if host.held:
            self._handlers.place_waiting()
            host.held = False
            follows = host.awaits_libraries and self._gates.follower is not None
            if self._modules.desired.wanted or host.once_mapped or follows:
                self._arming.arm_pending()
            self._gates.watch_execs()
            host.began = time.monotonic()
            host.process.resume()

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the target's end; return its wait status if it is our child and has ended.

        A program that was started by ``run`` and has not been let go yet is let go.

        Args:
            timeout: seconds after which this returns ``None``; without it, however long it takes.
        """
        if not self._host.process.exited():
            with suppress(TargetExited):
                self.resume()
        self._handlers.place_waiting()
        return self._host.process.wait(timeout)

    def detach(self) -> None:
        """Remove every splice, from fork children too, and unmap our memory. What was counted stays readable."""
        self._end()
        self._note_detached()

    def finish(self) -> Snapshot:
        """Remove everything, and return the results, in which what was armed until then is still armed."""
        host = self._host
        if host.detached:
            return self._results.snapshot()
        with host.lock:
            self._installer.note_losses()
            self._installer.follow_handlers()
            others = provided.read(host.probes)
        self._end()
        found = self._results.snapshot()
        self._results.keep(found, armed=True)
        self._note_detached()
        return armed_as(others, found)

    @locked
    def _note_detached(self) -> None:
        for place in (each for probe in self._host.probes for each in probe.all_places):
            place.hook.detached = place.hook.armed

    def _end(self) -> None:
        host = self._host
        if host.detached:
            return
        # these wait for threads, whose functions may use the session: without the lock
        self._loop.end_thread()
        self._gates.end()
        self._modules.leave_out_later()
        self._modules.end()
        self._handlers.end_callbacks()
        with host.lock:
            self._remove_all()
        self._handlers.end_listeners()

    def _remove_all(self) -> None:
        host = self._host
        host.handler_watch.end()
        host.warn(*provided.detach(host.probes))
        self._installer.note_losses()
        host.ended = host.ended or time.monotonic()
        self._times.end()
        if host.splicing.access.touched:
            with typed(host.process, "removing probes from"):
                host.warn(*removal.detach(host.process, host.splicing))
        host.detached = True

    def close(self) -> None:
        """Detach and give all memory back; what ``snapshot`` returns afterwards is of this moment."""
        host = self._host
        try:
            self.detach()
            self._modules.want_nothing()
            host.once_mapped.clear()  # what waits for libraries is not wanted any more
            self._gates.follow(None)
            if host.held:
                self.resume()
            self._results.keep(self._results.results())
            host.closed = True
            for end in host.endings:
                end()
        finally:
            with host.lock:  # which a thread may wait for that has not ended in time
                host.closed = True
                host.splicing.close()
                host.children.close()
                host.process.close()
            collect_what_was_made()  # in earlier sessions: only this frees what is bound together

    def hold_handlers(self) -> None:
        """Have a program that is not running yet wait where it sets handlers for faults, till ``follow_handlers``."""
        from anyprobe.probes.providers.function.gates.handler_gate import HandlerGate

        self._host.handler_watch.hold(HandlerGate(self._host, self._times.leave_out))
