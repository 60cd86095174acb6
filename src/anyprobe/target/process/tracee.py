"""A process as what works in it needs it: its identity, what the kernel tells of it, and who is stopped in it."""

import errno
import os
import select
import signal
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError, TargetExited, UnsupportedTarget
from anyprobe.target.process import emulators, permission
from anyprobe.target.process.called_name import called_name
from anyprobe.target.process.exclusion import exclusive
from anyprobe.target.process.relatives import Relatives
from anyprobe.target.remote import gadgets as gadget_search
from anyprobe.target.remote.thread import Thread
from anyprobe.target.system import gateway, pagemap, procfs
from anyprobe.target.system.kernel_log import kernel_log
from anyprobe.target.system.memory import TargetMemory
from anyprobe.target.system.procfs import Mapping

if TYPE_CHECKING:
    from anyprobe.target.process.keeper import Keeper

_EXEC_PATIENCE = 0.5
_TURN = 0.001
_PASSING = 2.0
"""Seconds that a stop is put off at most, for the sake of threads that execute."""
_ENDING = 5.0
"""Seconds in which a process that is about to end does so, on a busy machine."""
_KILLED = 1 << signal.SIGKILL - 1
_PF_EXITING = 4
_FILTERED = "2"
"""What the status of a task has where it filters its system calls, and is not in the strict mode."""
_NOT_SHOWN = 1
"""What /proc/PID/stat has for the start of the text where one may not look."""


class Endings:
    """Notes when processes end, in one thread for all: the thread that asks may be at other work for seconds."""

    def __init__(self) -> None:
        """Wait for nothing yet; fork children of this process begin anew."""
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._poll: select.epoll | None = None
        self._lock = threading.Lock()
        self._notes: dict[int, Callable[[float], None]] = {}

    def watch(self, pidfd: int, note: Callable[[float], None]) -> None:
        """Call ``note`` with the time by ``time.monotonic`` when the process of a descriptor ends, once.

        Nothing is noted where there are no more descriptors. Before the descriptor is closed ``forget`` it.
        """
        with self._lock, suppress(OSError):
            if self._poll is None:
                self._poll = select.epoll()
                threading.Thread(target=self._serve, args=(self._poll,), name="anyprobe ends", daemon=True).start()
            self._poll.register(pidfd, select.EPOLLIN)
            self._notes[pidfd] = note

    def forget(self, pidfd: int) -> None:
        """Wait no more for the end of a process."""
        with self._lock:
            if self._poll is not None and self._notes.pop(pidfd, None) is not None:
                self._poll.unregister(pidfd)

    def _serve(self, poll: select.epoll) -> None:
        while True:
            for pidfd, _ in poll.poll():
                now = time.monotonic()
                with self._lock:
                    # the descriptor may have been closed meanwhile, and another process's may have its number
                    note = self._notes.pop(pidfd) if pidfd in self._notes and readable(pidfd, 0) else None
                    if note is not None:
                        poll.unregister(pidfd)
                if note is not None:
                    note(now)


ENDINGS = Endings()


class Tracee:
    """A process whose identity a descriptor fixes; ``process.Process`` adds the scopes in which it is stopped."""

    def __init__(self, pid: int, pidfd: int, *, launched: bool = False) -> None:
        """Keep a process whose identity is fixed by ``pidfd``; use ``open`` or ``launch``."""
        self.pid = pid
        self.exit_status: int | None = None
        self.ended_at = 0.0
        """When it has ended, as it was first seen, by ``time.monotonic``; 0: it runs."""
        self.scheduled_at_end: dict[int, procfs.Scheduled] = {}
        """The wait status of its end, where that is known."""
        self._ending = threading.RLock()
        """Held by the thread that asks for it."""
        self.held: Thread | None = None
        """The thread of a launched program that has not been let go yet."""
        self.stopped_threads: list[Thread] = []
        self.unreleased: list[Thread] = []
        """Threads that would not stop, so could not be detached; the next stop tries again."""
        self.keeper: Keeper | None = None
        """What traces those that sleep and are filtered, in the present scope."""
        self.borrowed_us = 0
        """How long the thread that was borrowed last stood still."""
        self.paused_us = 0
        """How long all did because of it, 0 where the others ran on."""
        self.relatives = Relatives(pid)
        self._pidfd = pidfd
        self._launched = launched
        self._watches_end = False
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._permitted: dict[int, frozenset[int]] = {}
        """The system calls that filters permit, by how many filters there are."""
        self._awaited: list[object] = []
        """The threads of this process that wait to have it undisturbed."""
        self._gadgets: gadget_search.Gadgets | None = None
        stat = _settled_stat(pid)
        self.child = stat.parent == os.getpid()
        """Whether it was started by this process."""
        self._identity = (stat.start_time, stat.start_stack)
        self._name, self._last_name = stat.comm, stat.comm
        self.heap_start = stat.start_heap
        """Where the heap of ``brk`` begins or will begin; 0 where that is not known."""
        self.meets_traps = False
        """Whether traps of anyprobe are in its text, or have been."""
        self.parks = False
        """Whether its signal handlers may leave contexts for others: see ``splice.apply.suspended_contexts``."""
        self.exe = gateway.readlink(f"/proc/{procfs.voice(pid)}/exe")
        self.mem = TargetMemory(pid, self._any_stopped_thread)
        kernel_log()  # which tells of faults from now on

    @cached_property
    def called(self) -> str:
        """The name by which the program was started, where that leads to its file, else the file's."""
        return called_name(self.pid, self.exe)

    def end_keeper(self) -> None:
        """Let go of threads that sleep on, traced by the keeper as long as it is there."""
        keeper, self.keeper = self.keeper, None
        if keeper is not None:
            keeper.end()

    @property
    def root(self) -> str:
        """What to put before a path of its so that it is found from this process's mount namespace."""
        return _root_prefix(self.pid)

    def give_way(self) -> float:
        """Let another thread come first that waits for ``undisturbed``; return for how many seconds that was.

        For who has stopped nothing at this moment: what it waits for, a child by ``vfork``, may wait for the other.
        """
        if not self._awaited:
            return 0.0
        begin = time.monotonic()
        self._holder = None
        self._lock.release()
        try:
            while self._awaited:
                time.sleep(_TURN)
        finally:
            self._lock.acquire()
            self._holder = threading.get_native_id()
        return time.monotonic() - begin

    def let_pass(self) -> None:
        """Wait while others wait for ``undisturbed``, not for ever."""
        deadline = time.monotonic() + _PASSING
        while self._awaited and time.monotonic() < deadline:
            time.sleep(_TURN)

    def mappings(self) -> list[Mapping]:
        """Return the memory map as it is now."""
        with self.translated("reading the memory map"):
            found = procfs.read_mappings(self.pid)
        if not found:  # it has no memory left and does nothing more but end, when it has its turn
            raise self.gone(_ENDING)
        return found

    def auxv(self) -> dict[int, int]:
        """Return the auxiliary vector."""
        with self.translated("reading the auxiliary vector"):
            return procfs.read_auxv(self.pid)

    def threads(self) -> list[int]:
        """Return the ids of the tasks that the kernel lists, workers included; it leaves some out while others end."""
        with self.translated("listing threads"):
            return procfs.read_tasks(self.pid)

    def all_threads(self) -> list[int]:
        """Return the ids of all tasks, none left out; ``StopTimeout`` where no list of them was whole."""
        with self.translated("listing threads"):
            return procfs.read_all_tasks(self.pid)

    def thread_blocking(self, number: int, *, pending: bool = False) -> int:
        """Return a thread that blocks a signal at this moment, or has it ``pending``, 0 if there is none.

        Nothing is stopped for that. ``StopTimeout`` where no list of threads was whole.
        """
        sets = ("SigBlk", "SigPnd") if pending else ("SigBlk",)
        for tid in self.all_threads():
            try:
                status = procfs.parse_status(procfs.read_file(f"/proc/{self.pid}/task/{tid}/status"))
            except OSError as error:
                if error.errno not in procfs.GONE_ERRORS:
                    raise
                continue
            kernel_worker = status.get("Kthread", "0") != "0"
            if not kernel_worker and any(int(status.get(each, "0"), 16) >> number - 1 & 1 for each in sets):
                return tid
        if self.exited():
            raise TargetExited(self.pid, self.exit_status)
        return 0

    def handled_signals(self) -> int:
        """Return which signals the process handles, as a mask; raise ``OSError``."""
        return int(procfs.read_status_field(self.pid, "SigCgt") or "0", 16)

    def is_filtered(self, calls: frozenset[int] | None = None) -> bool:
        """Return whether a thread has filters that are not known to permit some system calls, all of generated code."""
        filters: dict[int, int] = {}
        for tid in procfs.read_all_tasks(self.pid):
            try:
                status = procfs.parse_status(procfs.read_file(f"/proc/{self.pid}/task/{tid}/status"))
            except OSError:
                continue  # it has ended
            mode = status.get("Seccomp", "0")
            if mode not in {"0", _FILTERED}:
                return True
            filters[int(status.get("Seccomp_filters", "-1")) if mode == _FILTERED else 0] = tid
        return bool(filters.keys() - {0}) and not (len(filters) == 1 and self._permits(*filters.popitem(), calls))

    @abstractmethod
    def _permits(self, filters: int, tid: int, calls: frozenset[int] | None) -> bool:
        """Return whether it is known that so many filters, which all threads have, permit some calls."""

    def inner_pid(self) -> int:
        """Return its id in its own namespace of ids, 0 where that is not told; raise ``OSError``."""
        return procfs.own_number(procfs.read_status(self.pid).get("NSpid", ""), 0)

    def stack_limit(self) -> int:
        """Return how far its main stack may grow, in bytes; raise ``OSError``."""
        return procfs.stack_limit(self.pid)

    def has_shadow_stacks(self) -> bool:
        """Return whether its first thread runs on a shadow stack; raise ``OSError``."""
        return "shstk" in procfs.read_status(procfs.voice(self.pid)).get("x86_Thread_features", "").split()

    def tracer(self) -> int:
        """Return the process that traces it, 0 if there is none."""
        return permission.tracer_of(self.pid)

    def descriptors(self, pid: int) -> Iterator[tuple[int, str, int]]:
        """Yield the descriptors of this process, or of another in its memory: number, path, inode."""
        pid = procfs.voice(pid)
        for name in gateway.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            with suppress(FileNotFoundError):
                yield int(name), gateway.readlink(path), gateway.stat(path).st_ino

    def page_map(self) -> AbstractContextManager[pagemap.PageMap]:
        """Open the page map for a scope; raise ``OSError``."""
        return pagemap.opened(self.pid)

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep other controllers from changing what is installed in it, for one transaction."""
        return exclusive(self)

    def exited(self) -> bool:
        """Whether it has ended; a child's status is then in ``exit_status``."""
        over = self._is_over()
        if over and not self.ended_at:
            self.ended_at = time.monotonic()
        return over

    def watch_end(self) -> None:
        """Have the time of its end noted when it ends, not when it is next asked for."""
        if self._watches_end or self._pidfd < 0:
            return
        self._watches_end, whose = True, weakref.ref(self)

        def note(ended_at: float) -> None:
            ended = whose()
            if ended is not None:
                ended.ended_at = min(ended.ended_at or ended_at, ended_at)

        ENDINGS.watch(self._pidfd, note)

    def _is_over(self) -> bool:
        if self.child and self.exit_status is None:
            with self._ending, suppress(OSError):  # the process that has reaped it has its status, no other one does
                if self.exit_status is not None:
                    return True
                if self._launched and gateway.wait_end(self.pid, reap=False) is not None:
                    self._last_name = procfs.read_stat(self.pid).comm  # until it is reaped
                    self.scheduled_at_end = procfs.scheduled(self.pid)
                self.exit_status = gateway.wait_end(self.pid, reap=self._launched)
        if self.exit_status is None and self._pidfd >= 0 and readable(self._pidfd, 0):
            self.exit_status = self._told_status()
            return True
        return self.exit_status is not None or self._pidfd < 0

    def _told_status(self) -> int | None:
        """Return the wait status of a process that is no child and has ended, where the kernel tells it.

        Until its parent has waited for it ``/proc`` has it, afterwards the descriptor (since Linux 6.15).
        """
        with suppress(OSError):
            stat = procfs.read_stat(self.pid)
            if stat.ended and stat.start_time == self._identity[0]:
                self.scheduled_at_end = procfs.scheduled(self.pid)
                return stat.exit_code
        with suppress(OSError):
            return gateway.pidfd_exit_code(self._pidfd)
        return None

    def ended(self) -> bool:
        """Whether it has ended, announced or not: the kernel may wait until its threads are reaped."""
        return self.exited() or all_ended(self.pid)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end; return the wait status where it is a child and has ended."""
        readable(self._pidfd, timeout)
        self.exited()
        return self.exit_status

    def send_signal(self, number: int) -> None:
        """Send a signal; the pid cannot have been given to another process."""
        with self.translated("signalling"):
            gateway.pidfd_send_signal(self._pidfd, number)

    def verify(self) -> None:
        """Raise unless this is the process, running the program, that was opened."""
        if self.exited():
            raise self.gone()
        with self.translated("checking"):
            stat = _with_memory(self.pid)
        if stat.start_time != self._identity[0]:
            raise TargetExited(self.pid, self.exit_status)
        if self._is_another(stat):
            raise TargetError(f"process {self.pid} has executed another program since anyprobe attached")

    def _is_another(self, stat: procfs.TaskStat) -> bool:
        return stat.start_stack != self._identity[1] or not self.mem.alive(stat.start_code)

    def became(self) -> str | None:
        """Return the program that it runs since an exec, None while it runs the one that was opened.

        Of a child that has ended there is only the name that its first thread had: of an exec, or one of its choice.
        """
        if self.exited():
            return self._last_name if self._last_name != self._name else None
        with suppress(OSError):
            stat = _with_memory(self.pid)
            if stat.start_time == self._identity[0] and stat.start_code and self._is_another(stat):
                return gateway.readlink(f"/proc/{procfs.voice(self.pid)}/exe")
        return None

    def emulator(self) -> str | None:
        """Return the name of what runs its program in the processor's place, if anything does."""
        image = f"/proc/{procfs.voice(self.pid)}/exe"
        with self.translated("looking at"):
            return emulators.emulator_of(gateway.readlink(image), self.mappings(), image)

    def gadgets(self) -> gadget_search.Gadgets:
        """Return the target's instructions that injected calls borrow."""
        if self._gadgets is None or not gadget_search.still_there(self.mem, self._gadgets):
            mappings = self.mappings()
            try:
                found = gadget_search.find(self.mem, mappings)
            except UnsupportedTarget:  # of a file that was patched when it was searched; look again
                gadget_search.forget(mappings)
                found = gadget_search.find(self.mem, mappings)
            if not gadget_search.still_there(self.mem, found):
                gadget_search.forget(mappings)
                found = gadget_search.find(self.mem, mappings)
            self._gadgets = found
        return self._gadgets

    def note_end(self, status: int | None) -> None:
        """Keep the wait status of a child's end, met while tracing it."""
        if self.child and status is not None:
            self.exit_status = status

    def gone(self, patience: float = 0.1) -> TargetError:
        """Return the error for a thread or process that vanished, which may take a process some seconds to do."""
        begin = time.monotonic()
        while not self.ended():
            if time.monotonic() > begin + (_ENDING if self._is_ending() else patience):
                break
            time.sleep(0.001)
        else:
            return TargetExited(self.pid, self.exit_status)
        return TargetError(f"a thread of process {self.pid} vanished while anyprobe worked on it; nothing was changed")

    def _is_ending(self) -> bool:
        """Return whether it has been killed, or ends by itself, and needs a processor to do so."""
        with suppress(OSError, ValueError):
            alive = procfs.voice(self.pid)
            killed = int(procfs.read_status_field(alive, "SigPnd"), 16) & _KILLED
            return bool(killed or procfs.read_stat(alive).flags & _PF_EXITING)
        return True

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """Turn an ``OSError`` of this scope into a ``TargetError``."""
        try:
            yield
        except OSError as error:
            if error.errno in procfs.GONE_ERRORS:
                raise self.gone() from error
            if error.errno in (errno.EPERM, errno.EACCES) and not self.exited():
                with suppress(OSError):
                    raise permission.explain(self.pid) from error
            raise TargetError(f"{doing} process {self.pid} failed: {error.strerror}") from error

    def _any_stopped_thread(self) -> int | None:
        return next((thread.tid for thread in self.stopped_threads if thread.stopped), None)


def _settled_stat(pid: int) -> procfs.TaskStat:
    """Return the state of a process, outside of an exec that is under way.

    Its parent may be told so (``vfork`` returns, descriptors are closed) while the kernel still lays the new
    program out: first there is neither text nor stack, then a stack that is moved once more.
    """
    deadline = time.monotonic() + _EXEC_PATIENCE
    stat = _with_memory(pid)
    while time.monotonic() < deadline:
        before, stat = stat, _with_memory(pid)
        laid_out = stat.start_code and (stat.start_stack or stat.start_code == _NOT_SHOWN)
        same = (before.start_code, before.start_stack) == (stat.start_code, stat.start_stack)
        if stat.ended or (laid_out and same):
            break
        if not laid_out:
            time.sleep(0.0005)
    return stat


def _with_memory(pid: int) -> procfs.TaskStat:
    """Return the state of a process, of whose memory the first thread may know no more, once it has ended."""
    stat = procfs.read_stat(pid)
    if not stat.ended:
        return stat
    return procfs.read_stat(pid, procfs.voice(pid))._replace(start_time=stat.start_time, parent=stat.parent)


def all_ended(pid: int) -> bool:
    """Return whether every thread of a process has ended, reaped or not."""
    try:
        if not procfs.read_stat(pid).ended:
            return False
        tids = procfs.read_tasks(pid)
        return all(procfs.read_stat(pid, tid).ended for tid in tids) and procfs.is_whole(pid, tids)
    except OSError as error:
        return error.errno in procfs.GONE_ERRORS


def _root_prefix(pid: int) -> str:
    """Return what to put before a path of the target, so that it is found from this process's mount namespace."""
    pid = procfs.voice(pid)
    prefix = f"/proc/{pid}/root"
    try:
        same = gateway.readlink(f"/proc/{pid}/ns/mnt") == gateway.readlink("/proc/self/ns/mnt")
        return "" if same and gateway.readlink(prefix) == "/" else prefix
    except OSError:
        return prefix


def readable(fd: int, timeout: float | None) -> bool:
    """Wait for something to be read from a descriptor, as of a process that ends; return whether there is."""
    if fd < 0:
        return True
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    # a moment that is over already is none to wait for; to the kernel, less than nothing means for ever
    return bool(poll.poll(None if timeout is None else max(timeout, 0) * 1000))
