"""Ctrl-C and SIGTERM ask for the results; they never break into a change of the target.

A script's own code is interrupted, since it may run for ever. Where it stands in anyprobe's code, that code is left to
finish, and the script is interrupted when it goes on.
"""

import _thread
import math
import os
import select
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from anyprobe.cli.terminal import streams
from anyprobe.core.errors import Interrupted

if TYPE_CHECKING:
    from anyprobe.cli.terminal.jobcontrol import JobControl

ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SCRIPT = "__anyprobe__"
"""The ``__name__`` of scripts."""
_FROM_KERNEL = 0x80
"""How ``siginfo_t`` has it where a terminal or the kernel sends a signal."""
_WAITING = frozenset({"wait", "__next__"})
"""Functions of anyprobe that only wait for something, and may be left at any point."""
_PRINTING = "anyprobe.cli.terminal.streams"
"""What a script prints goes through here."""


class Interrupts:
    """While entered, the first signal is only remembered and ends ``wait``; the third one raises KeyboardInterrupt.

    A signal may arrive while sites are being armed. Planning ends at the next ``check``, before anything is changed;
    the transaction is left to finish (it is short). Then results are printed and everything is removed, as always.
    """

    def __init__(self) -> None:
        """Remember nothing yet."""
        self.count, self._first = 0, 0
        self._before: dict[signal.Signals, Any] = {}
        self._reader = self._writer = -1
        self._job: JobControl | None = None
        self._in_functions = False
        self._mask: set[signal.Signals | int] = set()

    @property
    def requested(self) -> bool:
        """Whether the user or a signal asked for the end."""
        return self.count > 0

    @property
    def by_user(self) -> bool:
        """Whether it was Ctrl-C that asked for the end."""
        return self._first == signal.SIGINT

    def check(self) -> None:
        """Raise ``Interrupted`` if the user or a signal asked for the end."""
        if self.requested:
            raise Interrupted("interrupted before these probes were placed")

    @contextmanager
    def ending_functions(self) -> Iterator[None]:
        """Have functions of a script's, which are called in this scope, end by the first signals, and nothing else."""
        self._in_functions = True
        try:
            yield
        except KeyboardInterrupt:
            if self.count > 2:  # the user insists
                raise
        finally:
            self._in_functions = False

    def __enter__(self) -> Self:
        """Install the handlers."""
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Without a wake-up descriptor, a signal between the test of `requested` and poll() would be slept through.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        ignored = {number for number in ASKING if signal.getsignal(number) == signal.SIG_IGN}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        if signal.SIGINT in ignored:
            _heed_what_is_sent()
        for number in ASKING:
            if number == signal.SIGINT or number not in ignored:  # as under nohup
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the former handlers back."""
        if self._job is not None:
            self._job.end()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._before.get(signal.SIGINT) == signal.SIG_IGN:  # what comes from now on is ignored once more
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        signal.set_wakeup_fd(-1)
        os.close(self._reader)
        os.close(self._writer)

    def serve(self, pid: int) -> None:
        """Let a started command, which has a process group of its own, take part in job control."""
        from anyprobe.cli.terminal.jobcontrol import JobControl

        self._job = JobControl(pid)

    def wait(self, descriptors: Iterable[int], timeout: float | None) -> set[int]:
        """Wait for a signal, for one of the descriptors, or for the time to pass; return those ready."""
        if self.requested:
            return set()
        if self._job is not None:
            self._job.look()
        poll = select.poll()
        for descriptor in (self._reader, *descriptors):
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(None if timeout is None else math.ceil(1000 * max(timeout, 0)))
        return {descriptor for descriptor, _ in ready} - {self._reader}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        streams.Asked.count += 1
        self._first = self._first or number
        if self.count > 2 or _in_script(frame):
            raise KeyboardInterrupt
        while frame is not None and _is_left_to_finish(frame):
            frame = frame.f_back
        if frame is not None and _in_script(frame) and (self._in_functions or _is_under_way(frame)):
            _interrupt_when_back(frame)


def _heed_what_is_sent() -> None:
    """Have SIGINT be met where a process has sent it, though this one was started with it ignored.

    So background jobs of scripts are started, which Ctrl-C is not for; who sends it to such a job means that job.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # for threads to come, too
    threading.Thread(target=_hand_on_what_is_sent, name="interrupts", daemon=True).start()


def _hand_on_what_is_sent() -> None:
    while True:
        if signal.sigwaitinfo({signal.SIGINT}).si_code != _FROM_KERNEL:
            _thread.interrupt_main(signal.SIGINT)


def _in_script(frame: FrameType | None) -> bool:
    """Return whether a script is running its own code, or code that is not anyprobe's."""
    while frame is not None:
        if _name(frame) == SCRIPT:
            return True
        if _is_left_to_finish(frame):
            return False
        frame = frame.f_back
    return False


def _is_under_way(frame: FrameType | None) -> bool:
    """Return whether a script itself is running, and not only functions of it that are called at their moments."""
    while frame is not None and not (_name(frame) == SCRIPT and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    return frame is not None


def _is_left_to_finish(frame: FrameType) -> bool:
    name = _name(frame)
    own = name.partition(".")[0] == "anyprobe" and name != _PRINTING
    return own and frame.f_code.co_name not in _WAITING


def _name(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _interrupt_when_back(frame: FrameType) -> None:
    """Raise KeyboardInterrupt in a frame of a script, which may go on for ever, as soon as what it has called ends."""
    before = sys.gettrace()

    def interrupt(frame: FrameType, event: str, argument: object) -> None:  # noqa: ARG001 - the signature of tracers
        frame.f_trace = None
        sys.settrace(before)
        raise KeyboardInterrupt

    frame.f_trace = interrupt
    sys.settrace(_trace_no_other)


def _trace_no_other(frame: FrameType, event: str, argument: object) -> None:
    """Have no frame traced that begins now."""
