"""Telling the user of ``attach_self`` that something takes long."""

import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

Progress = Callable[[str, float, bool], None]
"""Called with what is being done, for how many seconds, and whether it is done."""
EVERY = 0.5
"""Seconds between two calls; what is done before is not told of."""
_CLEAR = "\r\x1b[K"
_DOING = {
    "open": "attaching",
    "count": "arming",
    "time": "arming",
    "remove": "disarming",
    "detach": "removing",
    "close": "removing",
    "explain": "planning",
}


def await_with_progress(answer: "Future[Any]", method: str, progress: Progress) -> None:
    """Wait for an answer and tell of it every half second, in the thread of the caller.

    What ``progress`` raises does not end the wait, since what was asked for happens all the same: it becomes a warning,
    and ``progress`` is not called again for this answer.
    """
    began, what, told = time.monotonic(), _DOING.get(method, method.replace("_", " ")), False
    try:
        while not wait([answer], EVERY).done:
            told = True
            progress(what, time.monotonic() - began, False)
        if told:
            progress(what, time.monotonic() - began, True)
    except Exception as error:  # noqa: BLE001 - the user's function
        warnings.warn(f"progress raised {error!r}", RuntimeWarning, stacklevel=2)


def line_on_terminal(what: str, seconds: float, done: bool) -> None:
    """Keep a line on standard error up to date, where that is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(_CLEAR + ("" if done else f"anyprobe: {what}, {seconds:.1f} s"))
        sys.stderr.flush()
