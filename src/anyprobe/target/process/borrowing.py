"""Stopping one thread only, to make system calls in it while the others run on.

A call needs a stack. Where no thread is on one that is known to be its own, as in Go and in programs of coroutines, all
are stopped for it.
"""

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anyprobe.core.errors import PermissionDenied, StopTimeout
from anyprobe.target.process import permission
from anyprobe.target.process.keeper import attach
from anyprobe.target.process.stopping import Stop, stopped
from anyprobe.target.process.tracee import Tracee
from anyprobe.target.remote import frame
from anyprobe.target.remote.calls import RemoteCalls, fitness
from anyprobe.target.remote.spare_stack import NO_STACK, SpareStacks
from anyprobe.target.remote.thread import Thread
from anyprobe.target.system import procfs, ptrace

_BORROW_CANDIDATES = 8
_BORROW_ONE = 0.05
_ENDED, _WORKER = "ended", "a kernel worker"
_NEVER = {_ENDED, _WORKER}
"""What makes no thread of the program's be fit later."""
_ON_OTHER_STACKS = 0.02
"""Seconds for which threads are looked at again that are all on other stacks: one may come back to its own."""
_VISIT = 1.0


class NoStack(StopTimeout):
    """No thread is on a stack known to be its own."""


def _fits(thread: Thread) -> str:  # noqa: ARG001 - any thread does
    return ""


@contextmanager
def borrowed(
    process: Tracee, timeout: float, *, own_stack: bool = False, room: int = frame.ROOM,
    fits: Callable[[Thread], str] = _fits, kind: type[RemoteCalls] = RemoteCalls,
) -> Iterator[RemoteCalls]:  # fmt: skip
    """Try threads until one is fit to make calls, with ``room`` for what these need.

    ``own_stack``: the others have to run on, so one has to be on a stack of its own; else ``NoStack``. ``fits`` says
    what else stands against a thread, ``kind`` is what makes the calls.
    """
    deadline = time.monotonic() + timeout
    process.borrowed_us = process.paused_us = 0
    patient_until = 0.0
    while True:
        reasons: dict[int, str | PermissionDenied] = {}
        for tid in _candidates(process):
            found = _try_borrow(process, tid, room, fits, kind)
            if not isinstance(found, RemoteCalls):
                reasons[tid] = found
                continue
            process.stopped_threads = [found.thread]
            begin = time.monotonic_ns()
            try:
                with found as calls:
                    yield calls
            finally:
                process.stopped_threads = []
                _let_go(process, found.thread)
                process.borrowed_us = (time.monotonic_ns() - begin) // 1000
            return
        if process.ended():
            raise process.gone()
        now = time.monotonic()
        stackless = set(reasons.values()) - _NEVER == {NO_STACK}
        patient_until = (patient_until or now + _ON_OTHER_STACKS) if stackless else 0.0
        if stackless and now > patient_until:
            if own_stack:
                raise NoStack(_complaint(process, reasons))
            break
        if now > deadline:
            for denial in reasons.values():
                if isinstance(denial, PermissionDenied):
                    raise denial
            raise StopTimeout(_complaint(process, reasons))
        deadline += process.give_way()
        time.sleep(0.002)
    stop: Stop | None = None
    try:
        with stopped(process, timeout) as stop, stop.remote() as calls:
            yield calls
    finally:
        if stop is not None:
            process.borrowed_us = process.paused_us = stop.pause_us


def _complaint(process: Tracee, reasons: dict[int, str | PermissionDenied]) -> str:
    why = "; ".join(f"{tid}: {reason}" for tid, reason in reasons.items()) or "no threads"
    return f"no thread of process {process.pid} can make a system call: {why}"


@contextmanager
def visited(process: Tracee, tid: int) -> Iterator[Thread | None]:
    """Stop one thread for a scope, just to look at it; ``None`` if it has ended.

    Raises ``StopTimeout`` where it cannot be stopped now.
    """
    with process.translated("visiting a thread of"):
        stat = _stat_of(process, tid)
        if stat is None or stat.worker or stat.ended:
            yield None
            return
        if stat.state == "D":
            raise StopTimeout(f"thread {tid} of process {process.pid} cannot be stopped now")
        thread = Thread(process.pid, tid, child=process.child and tid == process.pid)
        try:
            attach(process, thread, asleep=stat.state == "S")
        except (ProcessLookupError, PermissionError) as error:
            stat = _stat_of(process, tid)
            if stat is not None and not stat.ended:  # it is about to end, or another controller's for a moment
                raise StopTimeout(f"thread {tid} of process {process.pid} cannot be stopped now") from error
            yield None
            return
    try:
        with process.translated("visiting a thread of"):
            ptrace.interrupt(tid)
            if not thread.wait(time.monotonic() + _VISIT) or not (thread.stopped or thread.ended):
                raise StopTimeout(f"thread {tid} of process {process.pid} does not stop")
            if thread.stopped:
                thread.settle()
        yield None if thread.ended else thread
    finally:
        _let_go(process, thread)


def _stat_of(process: Tracee, tid: int) -> procfs.TaskStat | None:
    try:
        return procfs.read_stat(process.pid, tid)
    except OSError as error:
        if error.errno in procfs.GONE_ERRORS:
            return None
        raise


def _candidates(process: Tracee) -> list[int]:
    if process.held:
        return [process.held.tid]
    tids = process.threads()
    tids.sort(key=lambda tid: tid != process.pid)
    if len(tids) > _BORROW_CANDIDATES:  # others each time
        turn = time.monotonic_ns() % (len(tids) - 1)
        tids = tids[:1] + (tids[1 + turn :] + tids[1 : 1 + turn])[: _BORROW_CANDIDATES - 1]
    return sorted(tids, key=lambda tid: not _sleeps(process, tid))  # these lose least, and come at once


def _sleeps(process: Tracee, tid: int) -> bool:
    try:
        return procfs.read_stat(process.pid, tid).state == "S"
    except OSError:
        return False


def _try_borrow(
    process: Tracee, tid: int, room: int, fits: Callable[[Thread], str], kind: type[RemoteCalls]
) -> RemoteCalls | str | PermissionDenied:
    """Stop one thread; return what makes calls in it, or why it is of no use."""
    with process.translated("borrowing a thread of"):
        if process.held:
            process.held.load_registers()
            return _calls_in(process, process.held, room, fits, kind)
        thread = Thread(process.pid, tid, child=process.child and tid == process.pid)
        try:
            stat = procfs.read_stat(process.pid, tid)
            if stat.worker or stat.ended or stat.state == "D":
                return _ENDED if stat.ended else _WORKER if stat.worker else "cannot be stopped now"
            attach(process, thread, asleep=stat.state == "S")
        except OSError as error:
            if error.errno in procfs.GONE_ERRORS:
                return _ENDED
            if error.errno == errno.EPERM:
                return permission.explain(tid)  # perhaps only another controller's moment
            raise
        found: RemoteCalls | str = "did not stop"
        try:
            ptrace.interrupt(tid)
            if thread.wait(time.monotonic() + _BORROW_ONE) and thread.stopped:
                thread.settle()
                found = _calls_in(process, thread, room, fits, kind)
        except BaseException:
            _let_go(process, thread)
            raise
        if isinstance(found, str):
            _let_go(process, thread)
            process.end_keeper()  # it traces a thread that sleeps on, which could not be tried again
        return found


def _calls_in(
    process: Tracee, thread: Thread, room: int, fits: Callable[[Thread], str], kind: type[RemoteCalls]
) -> RemoteCalls | str:
    reason = fitness(thread, process) or fits(thread)
    top = 0 if reason else SpareStacks(process, process.mappings(), room).own(thread)
    return kind(process, thread, top, spare_room=room) if top else reason or NO_STACK


def _let_go(process: Tracee, thread: Thread) -> None:
    if thread is process.held:
        with process.translated("restoring"):
            thread.store_registers()
        return
    if not thread.release(time.monotonic() + 10):
        process.unreleased.append(thread)
    if thread.ended:
        process.exited()
