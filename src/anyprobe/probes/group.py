"""Several processes probed together: one session each, one result."""

import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Unpack

from anyprobe.core.closing import Closing
from anyprobe.core.errors import UsageError
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.probes.duties import PLACING_LOOKS, Duties, duties_of
from anyprobe.probes.options import OptionNames, SessionOptions
from anyprobe.probes.specs.spec import Spec, parsed

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.probe import Probe
    from anyprobe.probes.session import Session

Handler = Callable[..., Any]


def merged(snapshots: Sequence[Snapshot]) -> Snapshot:
    """Return the sum of what several processes have counted; see ``Snapshot.merge``.

    What one of them has loaded the others do not wait for: specs are pending that have meant nothing in any.
    """
    if not snapshots:
        raise UsageError("a group without a process has counted nothing")
    both = reduce(Snapshot.merge, snapshots)
    probed = [each.pending for each in snapshots if each.sites or each.functions or each.refused]
    found = [each for each in both.pending if any(each not in pending for pending in probed)]
    return replace(
        both,
        pending=tuple(each for each in both.pending if each not in found),
        warnings=tuple(each for each in both.warnings if each not in map(str, found)),
    )


class SessionGroup(Closing):
    """Sessions on several processes, in their order. A context manager: leaving it removes all probes from all of them.

    ``with SessionGroup.attach(pids) as group: group.count("libc:malloc"); group.pump(5); print(group.snapshot())``
    """

    def __init__(self, sessions: "Sequence[Session]") -> None:
        """Take sessions together; each stays usable by itself."""
        self.sessions = tuple(sessions)

    @classmethod
    def attach(
        cls, pids: Sequence[int], options: SessionOptions | None = None, **changes: Unpack[OptionNames]
    ) -> "SessionGroup":
        """Open a session on each process; where one cannot be had, none is.

        Raises what ``anyprobe.attach`` raises.

        Args:
            pids: the processes; one that is named twice counts once.
            options: how to probe, see ``SessionOptions``.
            changes: the same options one by one.
        """
        from anyprobe.binary.images.modules import images_shared
        from anyprobe.probes.opening import attach

        with ExitStack() as opened, images_shared():
            sessions = []
            for pid in dict.fromkeys(pids):
                sessions.append(attach(pid, options, **changes))
                opened.callback(sessions[-1].close)
            opened.pop_all()
        return cls(sessions)

    def __len__(self) -> int:
        """Return the number of processes, those that have ended too."""
        return len(self.sessions)

    def __iter__(self) -> "Iterator[Session]":
        """Iterate over the sessions."""
        return iter(self.sessions)

    def __getitem__(self, pid: int) -> "Session":
        """Return the session on a process."""
        for session in self.sessions:
            if session.pid == pid:
                return session
        raise KeyError(pid)

    # -- probes

    def count(self, *specs: str | Spec) -> "list[Probe]":
        """Count hits in all processes; return the probes of all. Where one raises, the others' probes are removed.

        Args:
            specs: as for ``Session.count``.
        """
        wanted = parsed(specs)
        return self._together(lambda session: session.count(*wanted))

    def time(self, *specs: str | Spec) -> "list[Probe]":
        """Measure in all processes how long functions take; return the probes of all.

        Args:
            specs: as for ``Session.time``.
        """
        wanted = parsed(specs)
        return self._together(lambda session: session.time(*wanted))

    def entry(self, *specs: str | Spec, **settings: Any) -> Callable[[Handler], Handler]:  # noqa: ANN401 - as ``Session.entry``
        """Place a handler at the entries of functions, in all processes.

        Args:
            specs: as for ``Session.entry``.
            settings: the same keywords.

        Returns:
            A decorator that gives the function back.
        """
        return self._in_all("entry", parsed(specs), settings)

    def ret(self, *specs: str | Spec, **settings: Any) -> Callable[[Handler], Handler]:  # noqa: ANN401 - as ``Session.ret``
        """Place a handler where functions return, in all processes.

        Args:
            specs: as for ``Session.ret``.
            settings: the same keywords.

        Returns:
            A decorator that gives the function back.
        """
        return self._in_all("ret", parsed(specs), settings)

    def _in_all(self, name: str, specs: tuple[Spec, ...], settings: dict[str, Any]) -> Callable[[Handler], Handler]:
        def place(function: Handler) -> Handler:
            def one(session: "Session") -> "list[Probe]":
                getattr(session, name)(*specs, **settings)(function)
                return session.probes_of(function)

            self._together(one)
            return function

        return place

    def _together(self, arm: "Callable[[Session], list[Probe]]") -> "list[Probe]":
        made: list[tuple[Session, list[Probe]]] = []
        try:
            for session in self.sessions:
                probes = arm(session)
                made.append((session, probes))
        except BaseException:
            for session, probes in made:
                session.remove(*probes)
            raise
        return [probe for _, probes in made for probe in probes]

    # -- results

    def snapshot(self) -> Snapshot:
        """Return what all processes have counted together: probes of one spec at the same place are one."""
        return merged([each.distinct() for each in self.snapshots()])

    def snapshots(self) -> list[Snapshot]:
        """Return what each process has counted, in the order of the sessions."""
        return [session.snapshot() for session in self.sessions]

    @property
    def exited(self) -> bool:
        """Whether all processes are gone."""
        return all(session.exited for session in self.sessions)

    # -- life

    def duties(self) -> Duties:
        """Return a table of what is due in the sessions while their programs run, for callers that wait themselves."""
        duties = duties_of([each.host.loop for each in self.sessions])
        for each in self.sessions:
            if each.host.slices is not None:
                duties.every(PLACING_LOOKS, each.host.loop.place_later)
        return duties

    def pump(self, timeout: float = 0.0) -> bool:
        """Do everything that is due in all sessions; see ``Session.pump``.

        Returns:
            Whether any of the programs still runs with its probes. Where none does, this returns at once.
        """
        deadline = time.monotonic() + timeout
        while True:
            running = [session for session in self.sessions if session.pump()]
            left = deadline - time.monotonic()
            if left <= 0 or not running:
                return bool(running)
            moments = [session.duties.next_moment() for session in running]
            due = min((each for each in moments if each is not None), default=deadline)
            _wait_for_an_end([session.pid for session in running], min(deadline, due) - time.monotonic())

    def detach(self) -> None:
        """Remove all probes from all processes. What was counted stays readable."""
        self._each("detach")

    def close(self) -> None:
        """Detach from all processes and give all memory back."""
        self._each("close")

    def _each(self, name: str) -> None:
        with ExitStack() as stack:  # each is done, whatever the others raise
            for session in reversed(self.sessions):
                stack.callback(getattr(session, name))

    def __repr__(self) -> str:
        """Return the processes."""
        return f"<SessionGroup of {', '.join(str(session.pid) for session in self.sessions) or 'no process'}>"


def _wait_for_an_end(pids: Sequence[int], seconds: float) -> None:
    """Wait until one of some processes ends, and no longer than so many seconds."""
    with ExitStack() as stack:
        poll = select.poll()
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                return
            stack.callback(os.close, descriptor)
            poll.register(descriptor, select.POLLIN)
        poll.poll(max(1000 * seconds, 0))
