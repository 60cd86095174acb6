"""Keeping Ctrl-C out of a scope."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_DEFERRED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


class DeferredInterrupts:
    """Within this scope no Python signal handler runs, so that ``KeyboardInterrupt`` cannot tear it.

    Masking signals would not do: with other threads about, one of those takes the signal, and Python runs the handler
    in the main thread all the same. So the handlers are replaced by ones that take note.
    """

    def __init__(self) -> None:
        """Prepare."""
        self._previous: list[tuple[signal.Signals, Any]] = []
        self._met: list[int] = []

    def __enter__(self) -> Self:
        """Replace Python's handlers; only the main thread runs any."""
        if threading.current_thread() is threading.main_thread():
            for number in _DEFERRED:
                handler = signal.getsignal(number)
                if callable(handler):
                    signal.signal(number, self._note)
                    self._previous.append((number, handler))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the handlers back and let them have what came."""
        for number, handler in self._previous:
            signal.signal(number, handler)
        self._previous.clear()
        met, self._met = self._met, []
        for missed in met:
            signal.raise_signal(missed)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._met.append(number)
