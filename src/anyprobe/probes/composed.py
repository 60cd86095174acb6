"""The parts of a session, put together: each is given those that it needs."""

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from anyprobe.binary.images.modules import LoadedObject
from anyprobe.core.refusal import Refusal
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.probes.options import SessionOptions
from anyprobe.probes.parts.arming import Arming
from anyprobe.probes.parts.children import ChildWatch, Gates
from anyprobe.probes.parts.decorators import Decorators
from anyprobe.probes.parts.installing import Installer
from anyprobe.probes.parts.lifecycle import Lifecycle
from anyprobe.probes.parts.loop import DutyLoop
from anyprobe.probes.parts.modules import ModuleReconciler
from anyprobe.probes.parts.results import Results
from anyprobe.probes.parts.timing import CallEnds, Times
from anyprobe.probes.providers.function import reading
from anyprobe.probes.providers.function.host import ProbeHost
from anyprobe.probes.providers.function.probe import Probe
from anyprobe.probes.providers.function.resolve import ResolvedSite
from anyprobe.probes.specs.parts import Spec
from anyprobe.target.base import RunningProcess

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import ObjectFiles
    from anyprobe.probes.following.fork_children import ForkChildren


class ComposedHost(ProbeHost):
    """One process with probes, and all that a session does with it."""

    def __init__(
        self, process: RunningProcess, options: SessionOptions, *, held: bool = False,
        files: "ObjectFiles | None" = None, session: object = None,
    ) -> None:  # fmt: skip
        """Put the parts together; nothing is done to the process. The arguments are those of ``ProbeHost``."""
        super().__init__(process, options, held=held, files=files, session=session)
        self.handlers = Decorators(self)
        self.times = Times(self)
        self.calls = CallEnds(self, self.times)
        self.installer = Installer(self, self.times, self.calls)
        self.modules = ModuleReconciler(self, self.times, self.handlers, self.installer, self._fork_children)
        self.gates = Gates(self, self.modules)
        self.child_watch = ChildWatch(self, self.handlers, self.calls, self.modules, self.gates)
        self.arming = Arming(self, self.times, self.handlers, self.calls, self.installer, self.modules, self.gates)
        self.loop = DutyLoop(
            self, self.times, self.handlers, self.calls, self.installer, self.modules, self.child_watch, self.arming
        )
        self.results = Results(self, self.times, self.handlers, self.installer, self.modules, self.arming)
        self.life = Lifecycle(
            self, self.times, self.handlers, self.installer, self.modules, self.gates, self.arming, self.results,
            self.loop,
        )  # fmt: skip

    def _fork_children(self) -> "ForkChildren":
        from anyprobe.probes.following.forked import Forked

        return Forked(self)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end of the target, as ``Lifecycle`` does."""
        return self.life.wait(timeout)

    def resolve(
        self, spec: Spec, within: Collection[LoadedObject] | None = None
    ) -> tuple[Sequence[ResolvedSite], list[tuple[str, Refusal]]]:
        """Resolve a spec, as ``ModuleReconciler`` does."""
        return self.modules.resolve(spec, within)

    def wanted_once(self, spec: Spec) -> Probe:
        """Return a probe, as ``ModuleReconciler`` does."""
        return self.modules.wanted_once(spec)

    def place_made(
        self, specs: Sequence[Spec], configure: Callable[[Probe], None], sites: Sequence[ResolvedSite | None] = (), *,
        follow: bool | None = None,
    ) -> list[Probe]:  # fmt: skip
        """Arm probes, as ``Arming`` does."""
        return self.arming.place_made(specs, configure, sites, follow=follow)

    @property
    def target_info(self) -> TargetInfo:
        """What is known of the target, and whether it has ended."""
        alive = not self.exited
        known = TargetInfo(self.pid, self.exe, self.exit_status, alive=alive, called=self.called)
        if not known.killed_by:
            return known
        from anyprobe.probes.providers.function.death import death_of

        death = death_of(self, self.exit_status)
        if death is None:
            return known
        return dataclasses.replace(known, died_at=death.pc, died_in=death.whose, died_place=death.place)

    @property
    def refused(self) -> list[tuple[str, Refusal]]:
        """Everything that was asked for and not placed: canonical spec and reason."""
        return reading.refusals(self.probes)

    def clock_refusal(self) -> Refusal | None:
        """Return why nothing can be timed, as ``Times`` knows it."""
        return self.times.known_refusal()
