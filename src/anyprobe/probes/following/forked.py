"""Fork children that load libraries themselves: each that does has a session of its own, a part of its parent's.

A child has inherited its parent's splices, and waits at one of them where it loads a library. In what has no splices
yet its own session places what its parent's wants in libraries that come later, and nothing elsewhere: two sessions
never change the same code. Its children inherit both.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

from anyprobe.binary.images.modules import LoadedObject
from anyprobe.core.errors import AnyprobeError, NoSuchProcess, TargetError, TargetExited
from anyprobe.core.memory import MemoryFault
from anyprobe.core.wording import times
from anyprobe.data.snapshots.kin import with_children
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.journal.installed import find_journals, processes_with_splices
from anyprobe.journal.records import FoundJournal, RecordKind
from anyprobe.probes.composed import ComposedHost
from anyprobe.probes.providers.function.forks.inherited_handlers import InheritedHandlers
from anyprobe.probes.providers.function.outside import registering
from anyprobe.probes.providers.function.probe import Probe
from anyprobe.probes.providers.function.wanted.desired import Desired, Policy
from anyprobe.probes.target_errors import typed
from anyprobe.target.process.process import Process

_INHERITED = "it has the probes of the process that this one was forked from"
_HANDLERS = "signal handlers of fork children see pcs of probes as they are in what these have loaded themselves"
_SLOT = 0xFFFFFFFF
_NOT_NUMBERED = 1 << 20
"""Threads with higher numbers share what handlers keep, by atomic operations."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One spec of the parent's that means something in libraries that come later."""

    probe: Probe
    taken: object
    """What specs that were placed together have in common."""
    policy: Policy
    returning: Counter[str]
    """The libraries in which it means something when they come again; with ``FOLLOW`` it does in any."""

    removed: frozenset[str]
    """The sites that are to be placed no more."""

    @classmethod
    def of(cls, desired: Desired) -> Self:
        """Return what is wanted in children."""
        returning, removed = desired.returning.copy(), frozenset(desired.removed)
        return cls(desired.probe, desired.taken, desired.policy, returning, removed)


class ForkedHost(ComposedHost):
    """What one fork child has loaded itself, and its probes there."""

    def __init__(self, parent: ComposedHost, process: Process, journals: Sequence[FoundJournal]) -> None:
        """Look at a child that waits; ``journals``: what it has inherited."""
        super().__init__(
            process, replace(parent.options, live=False), held=False, files=parent.objects.files_of(process)
        )
        self.has_gates = False
        self.modules.permit_absent()
        self._parts: dict[Probe, Probe] = {}
        self._taken_of: dict[int, dict[tuple[LoadedObject, int, str], str]] = {}
        self._inherited = frozenset(spliced_objects(self.objects.objects, process, journals))
        self.objects.leave(self._inherited, _INHERITED)
        holdings = self.splicing.holdings
        holdings.beside = frozenset(journal.owner.session for journal in journals)
        holdings.slots_beside = frozenset(
            record.extra & _SLOT for journal in journals for record in journal.of(RecordKind.BANK)
        )
        holdings.first_number = _NOT_NUMBERED
        self._parent, self._inherited_handlers = parent, InheritedHandlers(self, parent)
        self.children.begin()

    def warn(self, *texts: str) -> None:
        """Tell once that signal handlers, whose code is left alone, see no places of this session's."""
        told = dict.fromkeys(_HANDLERS if _INHERITED in text else text for text in texts)
        super().warn(*(each for each in told if each not in self.warnings))

    def place(self, wanted: Sequence[Wanted], let_go: Callable[[], object]) -> None:
        """Have in place what is wanted in what has been loaded by now; ``let_go`` is called once it is."""
        parent = self._parent
        with self.lock:
            self.times.use_those_of(parent.times)
            fresh = [each for each in wanted if each.probe not in self._parts]
            for each in fresh:
                part = self._parts[each.probe] = each.probe.unplaced()
                taken = None if each.taken is None else self._taken_of.setdefault(id(each.taken), {})
                if each.probe.equip is not None:
                    part.equip = partial(self._inherited_handlers.equip, each.probe.equip)
                self.probes.append(part)
                self.modules.desired.wanted.append(
                    Desired(
                        part, each.policy, seen=set(self._inherited), is_open=True, taken=taken,
                        returning=each.returning.copy(), removed=set(each.removed),
                    )
                )  # fmt: skip
            self.modules.place_fresh(None, let_go)
            if fresh:
                registering.enter(self, [self._parts[each.probe] for each in fresh])

    def parts_of(self, probes: Iterable[Probe]) -> list[Probe]:
        """Return what this session has of some probes of its parent's."""
        return [self._parts[each] for each in probes if each in self._parts]

    def found(self) -> set[str]:
        """Return the parent's specs that have meant something."""
        return {each.spec for each in self.probes if each.all_places or each.refused or each.exitless}

    @property
    def is_armed(self) -> bool:
        """Whether there is anything of it in the child."""
        return self.splicing.access.touched


class Forked:
    """The sessions on fork children of one session, and what those counted that have ended."""

    def __init__(self, parent: ComposedHost) -> None:
        """Know no child."""
        self._parent = parent
        self._guard = threading.RLock()
        self._sessions: list[ForkedHost] = []
        self._results: list[Snapshot] = []
        self._found: set[str] = set()
        """The specs that have meant something in a child."""
        self._failed: dict[str, int] = {}
        self._ending = False

    def loads(self, pid: int, wanted: Sequence[Desired], let_go: Callable[[], object]) -> None:
        """Place what is wanted in a child that waits where it has loaded something."""
        try:
            session = self._session_on(pid)
            if session is not None:
                session.place([Wanted.of(each) for each in wanted], let_go)
        except (NoSuchProcess, TargetExited):
            pass
        except (AnyprobeError, MemoryFault, OSError) as error:
            why = str(error).splitlines()[0].replace(str(pid), "PID")
            self._failed[why] = self._failed.get(why, 0) + 1

    def _session_on(self, pid: int) -> ForkedHost | None:
        with self._guard:
            if self._ending:
                return None
            for session in self._sessions:
                if session.pid == pid and not _is_over(session):
                    return session
        process = Process.open(pid)
        try:
            with typed(process, "looking at what it has loaded,"):
                session = ForkedHost(self._parent, process, self._inherited(process))
        except BaseException:
            process.close()
            raise
        with self._guard:
            if not self._ending:
                self._sessions.append(session)
                return session
        session.life.close()
        return None

    def _inherited(self, process: Process) -> list[FoundJournal]:
        """Return the journals of this session, and of those on its children, that a process has."""
        with self._guard:
            own = {self._parent.splicing.holdings.owner.session}
            own |= {each.splicing.holdings.owner.session for each in self._sessions}
        return [each for each in find_journals(process.mem, process.mappings()) if each.owner.session in own]

    # -- results

    def with_theirs(self, own: Snapshot) -> Snapshot:
        """Return what the session has counted, and its children in what they have loaded themselves."""
        with self._guard:
            ended = [_disarmed(each) for each in self._results] if self._ending else self._results
            found = [*ended, *(each.results.snapshot() for each in self._sessions if each.is_armed)]
            specs = self._found.union(*(each.found() for each in self._sessions))
        return with_children(own, found, specs) if found else own

    def notes(self) -> list[str]:
        """Return what could not be placed, in words."""
        return [
            f"fork children have loaded libraries {times(count)} without probes there: {why}"
            for why, count in self._failed.items()
        ]

    # -- life

    def look(self) -> None:
        """Learn which processes count, and end the sessions on children of which nothing is left."""
        with self._guard:
            sessions = list(self._sessions)
        for session in sessions:
            session.child_watch.look()
            session.installer.follow_handlers(often=True)
            session.calls.learn()
            if not _is_over(session):
                continue
            holdings = session.splicing.holdings
            if session.is_armed and processes_with_splices(holdings.inodes(), holdings.owner.start_time):
                continue
            holdings.is_nowhere = True
            self._end(session)

    def _end(self, session: ForkedHost) -> None:
        result: Snapshot | None = None
        with suppress(TargetError):
            result = session.life.finish()
        with self._guard:
            if session.is_armed:
                self._results.append(result or session.results.snapshot())
                self._found |= session.found()
            self._sessions.remove(session)
        with suppress(TargetError):
            session.life.close()

    def change(self, probes: Sequence[Probe], *, armed: bool) -> None:
        """Arm or disarm what children have of some probes."""
        with self._guard:
            sessions = list(self._sessions)
        for session in sessions:
            parts = [each for each in session.parts_of(probes) if each.all_places]
            if parts and not _is_over(session):
                with suppress(TargetError):
                    (session.arming.enable if armed else session.arming.remove)(*parts)

    def end(self) -> None:
        """Remove all probes from the children; what was counted stays."""
        with self._guard:
            self._ending = True
            sessions = list(self._sessions)
        for session in reversed(sessions):  # of a child's children first
            self._end(session)


def _disarmed(result: Snapshot) -> Snapshot:
    return replace(result, sites=tuple(replace(each, armed=False) for each in result.sites))


def spliced_objects(
    objects: Iterable[LoadedObject], process: Process, journals: Iterable[FoundJournal]
) -> "Iterator[LoadedObject]":
    """Yield the objects that have a splice of some journals in their code."""
    splices = sorted(
        (record.address, record.new) for journal in journals for record in journal.of(RecordKind.SPLICE)
    )  # fmt: skip
    for each in objects:
        if any(_is_spliced(process, splices, mapping.start, mapping.end) for mapping in each.mappings):
            yield each


def _is_spliced(process: Process, splices: Sequence[tuple[int, bytes]], start: int, end: int) -> bool:
    """Return whether a splice that is listed is in place: a journal may list some in a library that is gone."""
    for address, new in splices[bisect_left(splices, (start, b"")) :]:
        if address >= end:
            return False
        with suppress(MemoryFault):
            if process.mem.read(address, len(new)) == new:
                return True
    return False


def _is_over(session: ForkedHost) -> bool:
    return session.exited or session.became() is not None
