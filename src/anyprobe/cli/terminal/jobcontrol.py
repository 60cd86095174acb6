"""A started command's process group: what the terminal and the shell do to anyprobe's reaches it, and not the reverse.

The command has a group of its own, since a program may send a signal to all of its group (``kill(0, ...)``), in which
anyprobe would be, too. So a messenger in anyprobe's group passes on what that group is sent: Ctrl-C, Ctrl-Z, the signal
of ``timeout``. What is sent to anyprobe alone is for anyprobe alone.

Only one group may read the terminal. The command's gets it when the command asks for it, which stops it; with that come
Ctrl-C and Ctrl-Z, and anyprobe stops itself when the command has been stopped by the latter.
"""

import ctypes
import mmap
import os
import signal
import warnings
from contextlib import suppress

_ASKING = frozenset({signal.SIGTTIN, signal.SIGTTOU})
_PASSED_ON = frozenset({
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
    signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT,
})  # fmt: skip
_PR_SET_PDEATHSIG = 1


class JobControl:
    """Serves one command, which leads a process group of its own; ``end`` it."""

    def __init__(self, pid: int) -> None:
        """Begin to pass signals on."""
        self._group = pid
        self._lent = False
        self._is_continuing = mmap.mmap(-1, 1)
        """For the messenger: whether it leaves it to this process to let the command go on, the next time."""
        self._terminal = -1
        with suppress(OSError):  # there may be none
            self._terminal = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
        # What is written to the terminal while the command has it would stop us where the user has set `stty tostop`.
        self._before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        self._messenger = _messenger(pid, self._terminal, self._is_continuing)

    def look(self) -> None:
        """Lend the terminal to the command if it has asked for it; stop as it does if it was stopped there."""
        number = _stopped_by(self._group) if self._terminal >= 0 else None
        if number is None:
            return
        if number == signal.SIGTSTP and self._lent and self._foreground() == self._group:
            # Were the messenger to let the command go on, too, it could do so when the next Ctrl-Z has just stopped it.
            self._is_continuing[0] = 1
            os.killpg(0, signal.SIGTSTP)  # here the shell has its turn
        elif number not in _ASKING or self._foreground() not in {os.getpgrp(), self._group}:
            return
        with suppress(OSError):  # it has just ended
            if self._foreground() in {os.getpgrp(), self._group}:
                os.tcsetpgrp(self._terminal, self._group)
                self._lent = True
            os.killpg(self._group, signal.SIGCONT)

    def end(self) -> None:
        """Pass on nothing any more, and take the terminal back."""
        os.kill(self._messenger, signal.SIGKILL)
        os.waitpid(self._messenger, 0)
        if self._terminal >= 0:
            if self._lent:
                with suppress(OSError):
                    os.tcsetpgrp(self._terminal, os.getpgrp())
            os.close(self._terminal)
        signal.signal(signal.SIGTTOU, self._before)

    def _foreground(self) -> int:
        try:
            return os.tcgetpgrp(self._terminal)
        except OSError:  # it has hung up
            return -1


def _stopped_by(pid: int) -> int | None:
    """Return the signal that has stopped a child, as far as that was job control; other events stay."""
    with suppress(ChildProcessError):
        found = os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        if found is not None and found.si_code == os.CLD_STOPPED:
            return found.si_status
    return None


def _messenger(group: int, terminal: int, is_continuing: mmap.mmap) -> int:
    """Start the process that passes signals on; it ends with this one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other threads: the child waits for none of them
        pid = os.fork()
    if pid == 0:
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.closerange(0, terminal)
            os.closerange(max(terminal, -1) + 1, os.sysconf("SC_OPEN_MAX"))
            while os.getppid() == parent:
                number = signal.sigwait(_PASSED_ON)
                if number == signal.SIGCONT and is_continuing[0]:
                    is_continuing[0] = 0
                else:
                    _pass_on(number, group, terminal)
        finally:
            os._exit(0)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _pass_on(number: int, group: int, terminal: int) -> None:
    with suppress(OSError):
        if number == signal.SIGTSTP and terminal >= 0 and os.tcgetpgrp(terminal) == group:
            return  # it has stopped, and we do because of that
    with suppress(OSError):
        os.killpg(group, number)
