"""What a session has counted, and what is to be said of it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from anyprobe.core.collection import collection_paused
from anyprobe.data.findings.refused import RefusedSite
from anyprobe.data.snapshots.last_results import disarmed, with_end_of
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.data.snapshots.taken import included
from anyprobe.probes.duties import locked
from anyprobe.probes.parts.arming import Arming
from anyprobe.probes.parts.decorators import Decorators
from anyprobe.probes.parts.installing import Installer
from anyprobe.probes.parts.modules import ModuleReconciler
from anyprobe.probes.parts.timing import Times
from anyprobe.probes.providers import provided
from anyprobe.probes.providers.function import reading
from anyprobe.probes.providers.function.reading import BankValues
from anyprobe.target.system.kernel_log import kernel_log

if TYPE_CHECKING:
    from anyprobe.data.findings.calltree import CallNode
    from anyprobe.probes.providers.function.host import ProbeHost

_CROWDED = "there are too many fork children to tell them all apart: what some have counted is the program's"

_NAMED = 4
"""How many values are named that may have been missing."""


class Results:
    """Snapshots of one session, the last of which is kept when it is over."""

    def __init__(
        self, host: "ProbeHost", times: Times, handlers: Decorators, installer: Installer, modules: ModuleReconciler,
        arming: Arming,
    ) -> None:  # fmt: skip
        """Have no results yet."""
        self._host, self.lock = host, host.lock
        self._times, self._handlers, self._installer, self._modules = times, handlers, installer, modules
        self._arming = arming
        self._last: Snapshot | None = None
        """What was counted, once it is over."""
        self._last_is_armed = False
        """Whether the results of an ended session still say what was armed until then."""

    @locked
    def snapshot(self) -> Snapshot:
        """Return what has been counted so far, as an immutable value.

        Does not disturb the target, unless that has set signal handlers since the last look: see ``follow_handlers``.
        """
        host = self._host
        if self._last is not None:
            if self._last_is_armed:  # seldom asked for after the results
                self._last, self._last_is_armed = disarmed(self._last), False
            return self._last if host.closed else with_end_of(host.target_info, self._last)
        self._times.measure()
        self._installer.note_losses()
        self._installer.follow_handlers()
        with collection_paused():
            found = self._modules.with_fork_children(self._read())
        self._last = found if host.detached else None
        return found

    def keep(self, last: Snapshot, *, armed: bool | None = None) -> None:
        """Keep the results of a session that is over; ``armed``: they say what was armed until then."""
        self._last = last
        self._last_is_armed = self._last_is_armed if armed is None else armed

    def _read(self) -> Snapshot:
        """Read everything that was counted; the program may run meanwhile.

        What ends is read before what begins: no function seems to have returned more often than it was entered since
        its probes were armed.
        """
        self._times.end_calls()
        host, ns_per_tick, aggregations = self._host, self._times.ns_per_tick, self._handlers.collected()
        duration, probes, children = self._times.duration(), host.probes, host.children
        dropped, missing = self.lost()
        target = host.target_info
        apart = None
        if host.options.by_thread:
            host.thread_names.look([host.pid, *(pid for pid, _ in children.alive())], again=True)
            apart = reading.calls_by_thread(probes, children, ns_per_tick)
        values = BankValues(self._times.now(), self._times.ran)
        functions = tuple(reading.timings(probes, values, ns_per_tick)) if apart is None else apart.functions()
        places = [place for probe in probes for place in probe.places]
        found = (*host.functions.read(places), *provided.read(probes))
        armed = reading.armed_once(places)
        told: tuple[str, ...] = ()
        if host.options.children != "count":
            ignored = host.options.children == "ignore"
            found, told = reading.without_children(children, found, armed, ignored=ignored)
        elif reading.are_crowded(armed):
            told = (_CROWDED,)
        counted = ((site, place) for site, place in zip(found, armed, strict=False) if site.hits)
        timings = apart.by_process() if apart else reading.timings_by_process(probes, children, ns_per_tick)
        processes = children.counts(
            target,
            [(site.key, [*place.earlier, place.hook], site.hits) for site, place in counted],
            BankValues().reader,
            listed=host.options.children == "count",
            timings=timings or {None: [each for each in functions if each.was_called]},
        )
        tree: tuple[CallNode, ...] = ()
        if host.options.call_tree:
            tree, processes = reading.call_trees(probes, children, ns_per_tick, processes)
        waited, stolen = self._times.waited()
        coverage = None
        if self._arming.covered:
            from anyprobe.probes.coverage.covering import read_coverage

            known = zip(found, armed, strict=False)
            since, gate = self._arming.covered_since, host.entry_gate
            coverage = read_coverage(self._arming.covered, known, since=since, gate=gate)
        if functions:
            from anyprobe.probes.providers.function.timing.other_time import other_time
        return Snapshot(
            target=target,
            waited=waited,
            stolen=stolen,
            on_processors=bool(functions) and self._times.choice.on_processors,
            processes=processes,
            threads=() if apart is None else apart.threads(processes, host.thread_names),
            duration_s=duration,
            pause_us=dict(host.splicing.access.pause_us),
            setup_s=dict(host.engine.seconds),
            to_place=0 if host.slices is None else host.slices.waiting,
            sites=found,
            coverage=coverage,
            functions=functions,
            refused=tuple(
                RefusedSite(spec, why.address, why.reason.value, why.detail, timed=probe.is_timing)
                for probe in probes
                for spec, why in reading.refusals([probe])
            ),
            warnings=(
                *host.warnings,
                *told,
                *([] if host.options.raw else included(functions)),
                *self._noticed(missing),
                *host.stops_explained,
                *map(str, self._modules.pending),
            ),
            pending=tuple(self._modules.pending),
            aggregations=aggregations,
            dropped=dropped,
            missing=missing,
            clock_step_ns=self._times.step_ns or self._handlers.step_ns,
            tree=tree,
            in_no_row=other_time(probes, BankValues().reader, functions, ns_per_tick) if functions else None,
        )

    def results(self) -> Snapshot:
        """Return the results of a session that is about to be closed."""
        return self.snapshot() if self._last is None else with_end_of(self._host.target_info, self._last)

    @property
    def noticed(self) -> Sequence[str]:
        """What is to be said of what has happened: the clock is forbidden, children have died, values were missing."""
        return self._noticed(self.lost()[1])

    def _noticed(self, missing: Mapping[str, int]) -> Sequence[str]:
        """Return what is to be said; ``missing``: what handlers could not do, by kind."""
        host = self._host
        said = self._times.clock_warnings()
        log = kernel_log()
        if host.children.killed() or (log is not None and log.faults()):
            from anyprobe.probes.providers.function.death import deaths_of_children

            said += deaths_of_children(host)
        if (handling := self._handlers.used) is not None:
            from anyprobe.core.code import Miss

            if ended := missing.get(Miss.ABANDONED, 0):
                said.append(_ended_by(handling.demanded, ended))
        return said

    def lost(self) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
        """Return what maps and records have lost, by name and cause, and what handlers could not do, by kind."""
        self._handlers.place_waiting()
        handling = self._handlers.used
        dropped = {} if handling is None else handling.dropped()
        missing = {} if handling is None else handling.misses()
        if self._handlers.used_callbacks is not None:
            missing = missing | self._handlers.used_callbacks.lost()
        return dropped, {kind: count for kind, count in missing.items() if count}


def _ended_by(demanded: Iterable[str], runs: int) -> str:
    """Return in words what was missing, or may have been, where handlers have ended for that."""
    names = list(demanded)
    some = "1 run of a handler" if runs == 1 else f"{runs:,} runs of handlers"
    if len(names) == 1:
        return f"{names[0]} was missing, which has ended {some}"
    more = f", or {len(names) - _NAMED} more" * (len(names) > _NAMED)
    return f"a missing value has ended {some}: {', or '.join(names[:_NAMED])}{more}"
