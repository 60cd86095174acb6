"""Sessions on the processes of a selection, on those that appear later, too."""

import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.core.errors import AnyprobeError, NoSuchProcess, TargetError, TargetExited
from anyprobe.probes.following.followed import Followed, Prepare
from anyprobe.probes.following.selection import Selection
from anyprobe.probes.following.watches import Watch, best_watch
from anyprobe.probes.options import SessionOptions
from anyprobe.target.system import procfs

if TYPE_CHECKING:
    from anyprobe.probes.session import Session

_WAIT = 0.1
_ENDING = 10.0
_TAKERS = 4
"""Threads that probe: each waits for its process most of the time, while that stops, and where processors are busy."""


class Appearing(Followed):
    """Sessions on processes and, as they appear, on those of a selection: one thread notices them, others probe."""

    def __init__(
        self, sessions: "Sequence[Session]", options: SessionOptions, selection: Selection,
        prepare: Prepare | None = None, *, executes: bool = False, watch: Watch | None = None,
    ) -> None:  # fmt: skip
        """Watch from now on, and probe from ``begin`` on; ``executes``: what these processes execute, too."""
        super().__init__(sessions, options, prepare)
        self._selection, self._executes = selection, executes
        for each in () if executes else sessions:
            each.host.gates.follow(None)
        self._watch = watch or best_watch()
        self._unknown = self._armed = 0
        """How many processes had ended before it was seen what they were, and how many have been probed."""
        self.noticed = self.too_short = 0
        """How many processes of the selection have appeared, and how many had ended before their probes were there."""
        self._queue: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=act, name=f"anyprobe {act.__name__.strip('_')}", daemon=True)
            for act in (self._notice, *[self._take_all] * _TAKERS)
        ]

    def begin(self) -> None:
        """Probe what has appeared since the watch began, and what appears from now on."""
        for each in self._threads:
            each.start()

    @property
    def how(self) -> str:
        """How processes are noticed, in words."""
        return self._watch.how

    def _notice(self) -> None:
        """Look at who has executed a program while it is there; what is done with it can wait."""
        seen: set[int] = set()
        pids = self._selection.running()  # who came after the processes were chosen, before the watch
        while not self._ending:
            for pid in dict.fromkeys(pids):
                if self._selection.means(pid) and not (self._watch.misses and pid in seen):
                    seen.add(pid)
                    self._queue.put(pid)
                elif _has_ended(pid):
                    self._unknown += 1
            pids = self._watch.wait(_WAIT)

    def _take_all(self) -> None:
        while not self._ending:
            with suppress(queue.Empty):
                self._take(self._queue.get(timeout=_WAIT))

    def _take(self, pid: int) -> None:
        with self._guard:
            living = [each.session for each in self._members if each.pid == pid and each.session is not None]
            if pid in self._coming or any(not self._is_over(each) for each in living):
                return
            has_ended = _has_ended(pid)
            if has_ended and any(each.pid == pid for each in self._members):
                return
            self.noticed += 1
            if has_ended:
                self.too_short += 1
                return
            self._coming.append(pid)
        try:
            self._open(pid)
        except (NoSuchProcess, TargetExited):
            self._note_too_short()
        except (AnyprobeError, OSError) as error:
            if _has_ended(pid):
                self._note_too_short()
            else:
                self._leave(f"process {pid}", str(error).splitlines()[0])
        finally:
            with self._guard:
                self._coming.remove(pid)

    def _note_too_short(self) -> None:
        with self._guard:
            self.too_short += 1

    def _open(self, pid: int) -> None:
        from anyprobe.probes.opening import attach

        session = attach(pid, self._options)
        try:
            session.host.modules.permit_absent()
            session.host.gates.follow(self if self._executes else None)
            self._prepare(session)
            if session.exited and not any(probe.all_places for probe in session.probes):
                self._note_too_short()
            self._join(session)
            self._armed += 1
        except BaseException:
            with suppress(TargetError):
                session.close()
            raise

    def notes(self) -> list[str]:
        """Return what could not be followed, and how processes were noticed, in words."""
        lost, which = self._watch.lost(), str(self._selection)
        left = self.noticed - self._armed - self.too_short
        fate = f"{self._armed} probed, {left} refused, {self.too_short} had ended before their probes were in place"
        said = [f"{self.noticed} processes {which} appeared meanwhile, noticed by {self.how}: {fate}"]
        if self._unknown:
            said.append(f"{self._unknown} further processes had ended before it was seen whether they are {which}")
        if lost and self._watch.misses:
            said.append(f"{lost} processes or threads began and ended between two looks: those {which} were missed")
        elif lost:
            said.append(f"{lost} times the kernel had no room to tell: processes {which} may have been missed")
        return [*super().notes(), *said]

    def _end(self) -> None:
        super()._end()
        for each in self._threads:
            if each.is_alive() and each is not threading.current_thread():
                each.join(_ENDING)
        self._watch.close()


def _has_ended(pid: int) -> bool:
    """Return whether a process is gone, or a zombie."""
    try:
        return procfs.read_stat(pid).ended
    except OSError:
        return True
