"""Stopping everything that runs in an address space, and letting it go unharmed."""

import contextlib
import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from anyprobe.core.errors import StopTimeout
from anyprobe.target.process import permission
from anyprobe.target.process.keeper import attach
from anyprobe.target.process.tracee import Tracee
from anyprobe.target.process.urgency import urgent
from anyprobe.target.remote import frame
from anyprobe.target.remote.batch import WAIT_US
from anyprobe.target.remote.calls import RemoteCalls, fitness
from anyprobe.target.remote.thread import VFORK_CALLS, Thread, is_traced_here
from anyprobe.target.system import procfs, ptrace

_PATIENCE = 0.002
"""How long a thread may take before we ask what it is doing."""
_RELEASE_TIMEOUT = 10.0
_GIVING_WAY = 0.01
_REFUSALS = 5
"""How often attaching must fail without a tracer in sight to be a matter of permission."""
_PAUSE_BETWEEN_SCANS = 0.0005
_CLONE, _UNTIL_THREAD_ENDS = 56, 0x14000
"""The call with which a controller makes a helper thread, with CLONE_VFORK and CLONE_THREAD."""
_HELD_WAIT_US = 500_000
"""How long a program that has not begun waits after many calls: one that went on would run without its probes."""


@dataclass(frozen=True, slots=True)
class WaitingParent:
    """A thread that sleeps in vfork until its child, which is stopped, execs or ends."""

    pid: int
    tid: int
    pc: int
    stack: int


class Stop:
    """Everything that shares the target's memory is stopped while this exists."""

    def __init__(self, process: Tracee) -> None:
        """Start with nothing stopped."""
        self.process = process
        self.threads: list[Thread] = []
        """The stopped threads that run user code, those of relatives included."""
        self.waiting: list[WaitingParent] = []
        self.pause_us = 0
        """From the first interruption to the last release; valid after the scope."""

    @cached_property
    def mappings(self) -> list[procfs.Mapping]:
        """The memory map as it was when everything had stopped: what is mapped in the scope is not in it."""
        return self.process.mappings()

    def verify(self) -> None:
        """Check that this still is the process and the program that was opened."""
        self.process.verify()

    @contextmanager
    def remote(self, pid: int | None = None) -> Iterator[RemoteCalls]:
        """Make system calls in a suitable stopped thread; ``StopTimeout`` if no thread is suitable at this moment.

        ``pid`` limits the choice to one process: relatives share the memory and nothing else.
        """
        from anyprobe.target.remote.spare_stack import NO_STACK, SpareStacks

        process = self.process
        order = sorted(
            (thread for thread in self.threads if pid is None or thread.pid == pid),
            key=lambda t: (bool(t.pending_signal), t.restart_pending, t.tid != process.pid),
        )
        reasons = []
        for thread in order:
            with process.translated("choosing a thread of"):
                reason = fitness(thread, process)
            top = 0 if reason else SpareStacks(process, self.mappings).any(thread)
            if not top:
                reasons.append(f"{thread.tid}: {reason or NO_STACK}")
                continue
            wait = _HELD_WAIT_US if thread is process.held else WAIT_US
            with RemoteCalls(process, thread, top, spare_room=frame.ROOM, all_stopped=True, wait_us=wait) as calls:
                yield calls
            return
        if process.ended():
            raise process.gone()
        raise StopTimeout(f"no thread of process {process.pid} can make a system call now ({'; '.join(reasons[:5])})")


class Stopper:
    """Collects the threads of one stop."""

    def __init__(self, process: Tracee, timeout: float) -> None:
        """Prepare; nothing is done to the target."""
        self._process = process
        self._deadline = time.monotonic() + timeout
        self._threads: dict[int, Thread] = {}
        self._workers: set[int] = set()
        self._asleep: set[int] = set()
        self._listed: dict[int, list[int]] = {}
        self._interrupted = 0
        self.stop = Stop(process)

    def collect(self) -> None:
        """Stop everything; on any failure the caller has to ``release``."""
        while True:
            groups = [self._process.pid, *self._process.relatives.find()]
            self._let_strangers_go(groups)
            fresh, unready = self._scan(groups)
            if fresh:
                self._take(fresh)
                continue
            if not self._all_listed():
                if time.monotonic() > self._deadline:
                    raise StopTimeout(
                        f"threads of process {self._process.pid} end all the time, so that no list of them was whole;"
                        f" nothing was changed, try again"
                    )
                continue
            if not unready:
                break
            if any(self._awaits_helper_thread(pid, tid) for pid, tid in unready):
                self._start_over()
                continue
            waiting = [parent for pid, tid in unready if (parent := self._waiting_parent(pid, tid))]
            if len(waiting) == len(unready) and self._children_are_stopped(waiting):
                self.stop.waiting = waiting
                break
            if time.monotonic() > self._deadline:
                self._give_up(unready)
            time.sleep(_PAUSE_BETWEEN_SCANS)
        self.stop.threads = [thread for thread in self._threads.values() if thread.stopped]
        for thread in self.stop.threads:
            if not thread.known:  # it seemed to be gone; nothing may be written under a thread that is anywhere
                thread.settle()
        if not all(thread.known for thread in self.stop.threads) or not self.stop.threads:
            raise self._process.gone()

    def lead_into_handlers(self) -> None:
        """Have all come to the handlers of the traps that they have met: before, calls cannot be made, see ``fitness``.

        To let them go and stop them again is no way: where traps come as often as every microsecond, each thread meets
        one between being seized and being interrupted, and stops there.
        """
        for thread in self.stop.threads:
            if not thread.come_to_handler(self._deadline):
                self._give_up([(thread.pid, thread.tid)])
            if thread.ended:
                raise self._process.gone()

    def release(self) -> None:
        """Let everything go."""
        held = self._process.held
        late = []
        threads = sorted(self._threads.values(), key=lambda thread: thread.tid == thread.pid)
        now = time.monotonic()
        with urgent() if any(thread is not held for thread in threads) else contextlib.nullcontext():
            for thread in threads:
                if thread is held:
                    thread.store_registers()
                elif not thread.release(now if thread.stopped else 0):
                    late.append(thread)
            end = time.monotonic_ns()  # here: after this block the released threads come first
        deadline = time.monotonic() + _RELEASE_TIMEOUT
        for thread in late:
            # one that waits for its child by vfork stops when that executes, which may wait to be followed meanwhile
            while not thread.release(min(deadline, time.monotonic() + _GIVING_WAY)):
                deadline += self._process.give_way()
                if time.monotonic() > deadline:
                    self._process.unreleased.append(thread)
                    break
            end = time.monotonic_ns()
        self.stop.pause_us = (end - self._interrupted) // 1000 if self._interrupted else 0
        if any(thread.ended for thread in threads):
            self._process.exited()

    def _start_over(self) -> None:
        """Let everything go on, so that a dead controller's helper thread can end."""
        if time.monotonic() > self._deadline:
            raise StopTimeout(
                f"a helper thread of a dead controller does not end in process {self._process.pid};"
                f" nothing was changed, try again"
            )
        self.release()
        self._threads = {tid: thread for tid, thread in self._threads.items() if thread is self._process.held}
        time.sleep(_PAUSE_BETWEEN_SCANS)

    def _let_strangers_go(self, groups: list[int]) -> None:
        """Release what shares the memory no more: a child that was asked to stop in execve stops in its new program."""
        for tid, thread in list(self._threads.items()):
            if thread.stopped and thread.pid not in groups and thread.release(self._deadline):
                del self._threads[tid]

    def _scan(self, groups: list[int]) -> tuple[list[Thread], list[tuple[int, int]]]:
        """Return the threads to stop next, and those which cannot be asked to stop at present."""
        fresh, unready = [], []
        self._listed = {pid: self._tasks(pid) for pid in groups}
        for pid, tids in self._listed.items():
            for tid in tids:
                known = self._threads.get(tid)
                if tid in self._workers or (known and (known.stopped or known.ended)):
                    continue
                if known:
                    unready.append((pid, tid))
                    continue
                try:
                    stat = procfs.read_stat(pid, tid)
                except OSError as error:
                    if error.errno not in procfs.GONE_ERRORS:
                        raise
                    continue
                if stat.worker or stat.ended:
                    self._workers.add(tid)
                elif stat.state == "D":
                    # Not seized: it could not be let go before it wakes, and in vfork that may be never.
                    unready.append((pid, tid))
                else:
                    fresh.append(Thread(pid, tid, child=self._process.child and tid == self._process.pid))
                    if stat.state == "S":
                        self._asleep.add(tid)
        return fresh, unready

    def _tasks(self, pid: int) -> list[int]:
        try:
            return procfs.read_tasks(pid)
        except OSError as error:
            if error.errno not in procfs.GONE_ERRORS:
                raise
            if pid == self._process.pid:
                raise self._process.gone() from error
            return []

    def _all_listed(self) -> bool:
        stopped = {tid for tid, thread in self._threads.items() if thread.stopped}
        try:
            return all(procfs.is_whole(pid, tids, stopped) for pid, tids in self._listed.items())
        except OSError as error:
            if error.errno not in procfs.GONE_ERRORS:
                raise
            return False

    def _take(self, fresh: list[Thread]) -> None:
        """Seize, interrupt and wait for threads."""
        held = self._process.held
        seized = []
        for thread in fresh:
            if held and thread.tid == held.tid:
                self._threads[thread.tid] = held
                held.load_registers()
            elif self._seize(thread):
                self._threads[thread.tid] = thread
                seized.append(thread)
        self._interrupted = self._interrupted or time.monotonic_ns()
        with urgent() if seized else contextlib.nullcontext():
            for thread in seized:
                with contextlib.suppress(ProcessLookupError):
                    ptrace.interrupt(thread.tid)
        for thread in seized:
            self._wait(thread)

    def _seize(self, thread: Thread) -> bool:
        """Attach to a thread, after a tracer that is attached for a moment; return ``False`` if the thread is gone."""
        refusals = 0
        while True:
            try:
                attach(self._process, thread, asleep=thread.tid in self._asleep, others=self._threads.values())
            except OSError as error:
                if error.errno == errno.ESRCH:
                    return False
                if error.errno != errno.EPERM:
                    raise
            else:
                return True
            try:
                if self._was_born_seized(thread.tid):
                    return True
                if procfs.read_stat(thread.pid, thread.tid).ended:
                    return False
                # Another controller may have let it go between its refusal and this look.
                refusals = 0 if permission.tracer_of(thread.tid) else refusals + 1
                if refusals > _REFUSALS or time.monotonic() > self._deadline:
                    raise permission.explain(thread.tid)
            except (FileNotFoundError, ProcessLookupError):
                return False
            time.sleep(_PAUSE_BETWEEN_SCANS)

    def _was_born_seized(self, tid: int) -> bool:
        """Return whether this stop traces the thread since its birth: ``clone`` with ``CLONE_PTRACE``.

        A dead controller's last call is made as soon as its thread runs, which may be when this stop has seized that.
        """
        unreleased = any(thread.tid == tid for thread in self._process.unreleased)
        return not unreleased and is_traced_here(tid)

    def _wait(self, thread: Thread) -> None:
        """Wait for one thread to stop; one that fell into vfork meanwhile is left for the next scan."""
        patience = time.monotonic() + _PATIENCE
        while not thread.wait(min(patience, self._deadline)):
            if thread.blocked_in_vfork():
                return
            if time.monotonic() > self._deadline:
                self._give_up([(thread.pid, thread.tid)])
            patience += _PATIENCE
        if thread.stopped:
            thread.settle()

    def _waiting_parent(self, pid: int, tid: int) -> WaitingParent | None:
        thread = self._threads.get(tid)
        if thread and thread.poll():
            thread.settle()
            return None
        call = procfs.read_blocked_call(pid, tid)
        if call is None or call.number not in VFORK_CALLS:
            return None
        return WaitingParent(pid, tid, call.pc, call.stack)

    def _awaits_helper_thread(self, pid: int, tid: int) -> bool:
        """Return whether a thread sleeps until another of its process ends, as one does that a controller borrowed."""
        call = procfs.read_blocked_call(pid, tid)
        return (
            call is not None and call.number == _CLONE and call.arguments[0] & _UNTIL_THREAD_ENDS == _UNTIL_THREAD_ENDS
        )

    def _children_are_stopped(self, waiting: list[WaitingParent]) -> bool:
        """Whether each waiting parent has a child of its own among the stopped."""
        others = {thread.pid for thread in self._threads.values() if thread.stopped}
        try:
            parents = [procfs.read_stat(pid).parent for pid in others]
        except OSError:
            return False
        needed = [parent.pid for parent in waiting]
        return all(parents.count(pid) >= needed.count(pid) for pid in needed)

    def _give_up(self, unready: list[tuple[int, int]]) -> None:
        pid, tid = unready[0]
        if self._process.ended():
            raise self._process.gone()
        try:
            stat = procfs.read_stat(pid, tid)
        except OSError as error:
            raise self._process.gone() from error  # the thread; perhaps the process
        call = procfs.read_blocked_call(pid, tid)
        doing = f", in system call {call.number}" if call else ""
        raise StopTimeout(
            f"thread {tid} ({stat.comm}) of process {pid} did not stop in time: state {stat.state}{doing};"
            f" nothing was changed, try again"
        )


@contextmanager
def stopped(process: Tracee, timeout: float) -> Iterator[Stop]:
    """Stop everything that shares the memory of ``process`` for a scope."""
    stopper = Stopper(process, timeout)
    try:
        with process.translated("stopping"):
            stopper.collect()
            if process.meets_traps and all(thread.awaits_trap() for thread in stopper.stop.threads):
                stopper.lead_into_handlers()
        process.stopped_threads = stopper.stop.threads
        held = all(thread is process.held for thread in stopper.stop.threads)  # it waits for longer than this
        with contextlib.nullcontext() if held else urgent():
            yield stopper.stop
    finally:
        process.stopped_threads = []
        with process.translated("releasing"):
            stopper.release()
