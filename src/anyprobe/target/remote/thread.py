"""One seized thread: its stop, its registers, its release."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator

from anyprobe.target.remote import restarting
from anyprobe.target.system import gateway, procfs, ptrace, wait_status
from anyprobe.target.system.ptrace import Registers
from anyprobe.target.system.wait_status import Kind

_SPINS = 40
_SHORTEST_SLEEP, _LONGEST_SLEEP = 20e-6, 1e-3
_NO_ORIG_RAX = 1 << 63
_COMING_TO_CALL, _FALLING_ASLEEP = 10.0, 0.005
"""Seconds in which a thread is back in its sleep, if that is not over."""


def looks(deadline: float) -> Iterator[None]:
    """Yield whenever it is time to look again whether a thread has come to somewhere: often at first.

    The last look is after the deadline. Between the looks others may run; soon this thread sleeps for that, since
    ``sched_yield`` lets go of the processor for those of its own priority only, and whom it waits for may have a lower
    one (see ``urgent``) or share it.
    """
    for _ in range(_SPINS):
        yield
        os.sched_yield()
    pause = _SHORTEST_SLEEP
    while time.monotonic() < deadline:
        yield
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_SLEEP)
    yield


class Thread:
    """A thread that is traced by this controller. Only the OS thread that seized it may use it."""

    __slots__ = (
        "_child", "_looks", "_stored", "ended", "filtered", "in_group_stop", "kept", "kind", "options",
        "pending_signal", "pid", "registers", "sleeps_on", "status", "stopped", "tid",
    )  # fmt: skip

    def __init__(self, pid: int, tid: int, *, child: bool = False) -> None:
        """Name a thread; nothing is done to it. The end of a ``child`` is left for the code that started it."""
        self._child = child
        self.pid, self.tid = pid, tid
        self.registers = Registers()
        self._stored: bytes | None = None
        self._looks = 0
        """How often there was nothing to wait for since its last stop."""
        self.pending_signal = 0
        """The signal that it was about to be given when it stopped."""
        self.stopped = False
        self.kind = Kind.TRAPPED
        """What its last stop was."""
        self.in_group_stop = False
        """Whether that was job control's."""
        self.ended = False
        self.filtered: bool | None = None
        """Whether filters may forbid how the kernel takes up a sleep, as far as that has been looked at."""
        self.kept = False
        """Whether a keeper traces it, with filters suspended, so that it can sleep on."""
        self.sleeps_on = False
        """Whether its sleep is to go on where it was interrupted, though its registers say that it begins anew."""
        self.options = ptrace.OPTION_SYSGOOD
        self.status: int | None = None
        """The wait status of its end, where the kernel told us."""

    @property
    def in_syscall(self) -> bool:
        """Whether the stop interrupted a system call that the kernel is going to take up again."""
        return self.registers.orig_rax < _NO_ORIG_RAX and self.registers.rax in restarting.INTERRUPTED_CODES

    @property
    def restart_pending(self) -> bool:
        """Whether that call goes on from inside the kernel (a sleep with a remaining time), not from its start."""
        return self.in_syscall and (
            self.sleeps_on
            or self.registers.rax == restarting.ERESTART_RESTARTBLOCK
            or self.registers.orig_rax == restarting.SYS_RESTART_SYSCALL
        )

    def awaits_trap(self) -> bool:
        """Whether it has met an ``int3`` and the signal for it is still to come; the pc stands after the ``int3``."""
        return self.awaits(signal.SIGTRAP)

    def awaits(self, *signals: int) -> bool:
        """Return whether it is about to be given one of these signals."""
        if self.pending_signal in signals:
            return True
        try:
            status = procfs.parse_status(procfs.read_file(f"/proc/{self.pid}/task/{self.tid}/status"))
        except OSError as error:
            if error.errno in procfs.GONE_ERRORS:
                return False
            raise
        waiting = int(status.get("SigPnd", "0"), 16) & ~int(status.get("SigBlk", "0"), 16)
        return any(waiting >> each - 1 & 1 for each in signals)

    def blocks(self, number: int) -> bool:
        """Return whether it blocks a signal now, or will when a call that swaps masks returns; raise ``OSError``."""
        try:
            later = ptrace.get_signal_mask(self.tid)
            status = procfs.parse_status(procfs.read_file(f"/proc/{self.pid}/task/{self.tid}/status"))
        except OSError as error:
            if error.errno in procfs.GONE_ERRORS:
                return False
            raise
        return bool((int(status.get("SigBlk", "0"), 16) | later) >> number - 1 & 1)

    def come_to_handler(self, deadline: float) -> bool:
        """Let it come to the first instruction of the handler of a trap that it awaits; return whether it did in time.

        None of the program's instructions runs: the kernel gives one signal after the other, and stops at each.
        """
        while not self.ended and self.awaits_trap():
            if self.pending_signal:
                ptrace.interrupt(self.tid)  # before it runs: then it stops as soon as the handler's frame is there
            self.resume_with(ptrace.resume)
            if not self.wait(deadline):
                return False
            self.settle()
        return True

    @property
    def dirty(self) -> bool:
        """Whether the registers here differ from the thread's."""
        return bool(self._stored) and bytes(self.registers) != self._stored

    @property
    def known(self) -> bool:
        """Whether its registers have been read since it stopped."""
        return self._stored is not None

    def load_registers(self) -> None:
        """Read the registers."""
        self._stored = None
        ptrace.get_registers(self.tid, self.registers)
        self._stored = bytes(self.registers)

    def store_registers(self) -> None:
        """Write the registers back if they were changed."""
        if self.dirty:
            ptrace.set_registers(self.tid, self.registers)
            self._stored = bytes(self.registers)

    def poll(self) -> bool:
        """Take note of a stop or of the end; return whether there was one."""
        try:
            status = self._poll_child() if self._child else gateway.wait_thread(self.tid)
        except ChildProcessError:  # no longer traced by us: an exec of another thread swallowed it
            self.ended = True
            return True
        except OSError:  # then it is not known; the waiting code asks again
            return False
        if status is None:
            self._looks += 1
            status = self._waited_for_elsewhere() if self._looks > _SPINS and not self.stopped else None
            if status is None:
                return False
        self._looks = 0
        self.kind, detail = wait_status.decode(status)
        if self.kind is Kind.ENDED:
            self.ended, self.status = True, status
            return True
        self.stopped = True
        self.pending_signal = detail if self.kind is Kind.SIGNAL else 0
        self.in_group_stop = self.kind is Kind.TRAPPED and detail != signal.SIGTRAP
        return True

    def _waited_for_elsewhere(self) -> int | None:
        """Return the status of a stop that another thread of this program has taken: ``Popen.wait`` of a child does."""
        try:
            return ptrace.stop_status(self.tid)
        except OSError:
            return None

    def _poll_child(self) -> int | None:
        status = gateway.wait_stop(self.tid)
        return gateway.wait_end(self.tid, reap=False) if status is None else status

    def wait(self, deadline: float) -> bool:
        """Wait until it has stopped or ended; return whether it has."""
        return any(self.poll() for _ in looks(deadline))

    def settle(self) -> None:
        """Read the registers of a thread that has just stopped, and see that the stop does not show as EINTR.

        At once, so that it also holds if we die before the release. The moment between the stop and this remains: a
        thread that is let go there, by our death, returns EINTR.
        """
        with contextlib.suppress(ProcessLookupError):
            self.load_registers()
            registers = self.registers
            if registers.rax == restarting.EINTR:
                registers.rax = restarting.cured(registers.orig_rax, registers.rax)
                self.store_registers()
            elif registers.rax == restarting.ERESTART_RESTARTBLOCK and self._is_filtered():
                self.sleeps_on = True
                if registers.orig_rax != restarting.SYS_RESTART_SYSCALL:
                    registers.rax = restarting.ERESTARTNOHAND
                    self.store_registers()

    def _is_filtered(self) -> bool:
        if self.filtered is None:
            with contextlib.suppress(OSError):
                self.filtered = procfs.is_filtered(self.pid, self.tid)
        return bool(self.filtered)

    def abandon_registers(self) -> None:
        """Leave the registers to the signal frame that an injected call has put up; they are not written any more."""
        self._stored = b""

    def resume_with(self, request: Callable[[int, int], None]) -> None:
        """Let it run on by ``request``, with the signal that it stopped at."""
        request(self.tid, self.pending_signal)
        self.stopped, self.pending_signal = False, 0

    def release(self, deadline: float) -> bool:
        """Let it go as if it had never been stopped; return ``False`` where it would not stop, so could not be let go.

        A thread that is not stopped cannot be detached, so this waits for a stop that is still under way. A thread that
        was killed has to be waited for here: its parent does not hear of it before its tracer does. One that has
        executed a program goes on, traced as before, under the number of the first thread.
        """
        pause = _SHORTEST_SLEEP
        while True:
            if self.stopped and self._try_release():
                return True
            if self.poll():
                if self.ended:
                    return self._release_successor(deadline)
            elif time.monotonic() > deadline:
                return False
            else:
                with contextlib.suppress(OSError):
                    if not self._interrupt():
                        return True
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_SLEEP)

    def _interrupt(self) -> bool:
        """Ask it to stop, which may never have been done; return whether it is there and traced by this thread."""
        try:
            ptrace.interrupt(self.tid)
        except ProcessLookupError:  # another thread that was not traced has executed a program and has its number now
            self.ended = not is_traced_here(self.tid)
        return not self.ended

    def _release_successor(self, deadline: float) -> bool:
        """Let go what it has become by executing a program, if it is that; return whether nothing stays traced."""
        if self.status is not None or self.tid == self.pid or not is_traced_here(self.pid):
            return True
        child = procfs.read_stat(self.pid).parent == os.getpid()
        return Thread(self.pid, self.pid, child=child).release(deadline)

    def _try_release(self) -> bool:
        try:
            if self._stored is None:
                self.settle()
            if self.kept and self.sleeps_on and not self.in_group_stop:
                return self._sleep_on()
            self.store_registers()
            ptrace.detach(self.tid, self.pending_signal)
        except OSError:  # killed, if nothing else; otherwise the caller tries again
            return False
        self.stopped = False
        return True

    def _sleep_on(self) -> bool:
        """Have it take up its sleep again while its filters are suspended; return whether it sleeps.

        Its tracer's end lets go of it then. It does not sleep where a signal came, or there was nothing left to sleep.
        """
        registers = self.registers
        if registers.rax == restarting.ERESTARTNOHAND:
            registers.rax = restarting.ERESTART_RESTARTBLOCK
        ptrace.set_registers(self.tid, registers)
        self.sleeps_on, self._stored = False, None
        self.resume_with(ptrace.resume_to_syscall)  # on the way to it, nothing may stop it but a signal
        if not self.wait(time.monotonic() + _COMING_TO_CALL) or self.ended or self.kind is not Kind.SYSCALL:
            return self.ended
        self.resume_with(ptrace.resume)
        for _ in looks(time.monotonic() + _FALLING_ASLEEP):
            if self.poll():
                return self.ended
            if self._is_blocked("S", {restarting.SYS_RESTART_SYSCALL}):  # past its filters
                return True
        return False

    def blocked_in_vfork(self) -> bool:
        """Whether it waits, unstoppable, for a child that borrows its memory."""
        return self._is_blocked("D", VFORK_CALLS)

    def _is_blocked(self, state: str, calls: Collection[int]) -> bool:
        """Whether it sleeps, interruptibly (``S``) or not (``D``), in one of some system calls."""
        try:
            # First its state: until a processor has it run on, the kernel says of one that is woken, too, that it is
            # blocked in the call at whose entry it stopped (``task_current_syscall`` takes TASK_WAKING for a sleep).
            if procfs.read_stat(self.pid, self.tid).state != state:
                return False
        except OSError:
            return False
        call = procfs.read_blocked_call(self.pid, self.tid)
        return call is not None and call.number in calls


def is_traced_here(tid: int) -> bool:
    """Return whether the calling OS thread traces a thread; raise ``OSError`` where that cannot be read."""
    try:
        return int(procfs.read_status(tid).get("TracerPid", "0")) == threading.get_native_id()
    except OSError as error:
        if error.errno in procfs.GONE_ERRORS:
            return False
        raise


VFORK_CALLS = frozenset({56, 58, 435})
"""clone, vfork, clone3: the calls in which a thread waits for a vfork child."""
