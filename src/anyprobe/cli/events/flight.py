"""The last seconds of a recording, in memory until they are wanted: at the end, by a signal, or by a slow call."""

import os
import re
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from anyprobe.cli.syntax import helping
from anyprobe.cli.terminal import output
from anyprobe.data.archives.runs import RunInfo, Writer
from anyprobe.data.calls.matching import UNKNOWN, Matcher
from anyprobe.data.calls.recorded import END_BITS, ENTRY, GAP, Events

if TYPE_CHECKING:
    import numpy as np
else:
    from anyprobe.core.later import np

_CONDITION = re.compile(r"\s*latency_ns\s*(>=?)\s*(\d[\d_]*)\s*")
DUMP_SIGNAL = signal.SIGUSR1


def least_latency(text: str) -> int:
    """Return from how many nanoseconds on a call is slow: that is what ``--dump-when`` says."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise click.UsageError(f"--dump-when {text!r}: what it can ask for is latency_ns > 50_000_000, with any number")
    return int(found[2]) + (found[1] == ">")


@dataclass(slots=True)
class Flight:
    """Lines of the last seconds, as they will be written."""

    seconds: float
    path: str
    """Where the last ones are written at the end; others get a number before ``.aprobe``."""
    slow_ns: int | None = None
    """A call that has taken so long has what there is then written."""
    overwritten: int = 0
    """Events that were let go."""
    dumps: int = 0
    asked: bool = False
    """Whether a signal has asked for what there is."""
    _lines: deque[tuple[int, int, bytes]] = field(default_factory=deque)
    """The lines: the time of the last event of each, how many it has, and what is written of it."""
    _matchers: dict[int, Matcher] = field(default_factory=dict)
    _dumped: int = 0
    """The time of the last event that was written because of a slow call."""
    _slow_end: int | None = None
    """When the first slow call ended that is in no file yet."""

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Have the signal ask for what there is."""

        def ask(*_: object) -> None:
            self.asked = True

        before = signal.signal(DUMP_SIGNAL, ask)
        try:
            yield
        finally:
            signal.signal(DUMP_SIGNAL, before)

    def keep(self, until: int, count: int, frame: bytes) -> None:
        """Keep a line; ``let_go`` has the old ones go, when it is known whether a call among its events was slow."""
        self._lines.append((until, count, frame))

    def let_go(self) -> None:
        """Let the lines go whose events are too old: before the last seconds, and before those of a slow call."""
        if not self._lines:
            return
        oldest = self._lines[-1][0] - self._span
        if self._slow_end is not None:
            oldest = min(oldest, max(self._slow_end - self._span, self._dumped))
        while self._lines[0][0] < oldest:
            _, count, _ = self._lines.popleft()
            self.overwritten += count

    @property
    def _span(self) -> int:
        """The nanoseconds that are kept."""
        return round(self.seconds * 1e9)

    def is_due(self, events: Events, jumping: set[int]) -> bool:
        """Return whether what there is is to be written: a signal has asked for it, or a call among these was slow.

        Slow calls have that done once in so many seconds as there are; one that ends sooner is in the next file.
        """
        asked, self.asked = self.asked, False
        if self.slow_ns is None or not len(events):
            return asked
        order = np.argsort(events.threads, kind="stable")
        for chosen in np.split(order, np.flatnonzero(np.diff(events.threads[order])) + 1):
            own = events.part(chosen)
            matcher = self._matchers.setdefault(int(own.threads[0]), Matcher(jumping))
            ends = own.what & np.uint32((1 << END_BITS) - 1)
            others = matcher.match(own.times, own.what, own.frames).others
            known = (ends != ENTRY) & (ends != GAP) & (others != UNKNOWN)
            slow = own.times[known & (own.times - others >= self.slow_ns)]
            if len(slow):
                self._slow_end = min(int(slow[0]), self._slow_end or int(slow[0]))
        return asked or (self._slow_end is not None and int(events.times[-1]) - self._dumped >= self._span)

    def dump(self, info: RunInfo, names: list[dict[str, Any]]) -> None:
        """Write what there is to a file of its own; a failure is said, and the recording goes on."""
        self.dumps += 1
        if self._slow_end is not None:
            self._slow_end, self._dumped = None, self._lines[-1][0]
        path = f"{self.path.removesuffix(helping.ARCHIVES)}-{self.dumps}{helping.ARCHIVES}"
        try:
            with open(f"{path}.part", "wb") as file:
                writer = Writer(file, info)
                self.write(writer, names)
                writer.put({"end": {"builds": {}}})
            os.replace(f"{path}.part", path)
        except OSError as error:
            output.warn(f"cannot write {path}: {error.strerror}")
        else:
            output.warn(f"the last {self.seconds:g} s are in {path}")

    def write(self, writer: Writer, names: list[dict[str, Any]]) -> None:
        """Write what there is, after the names of functions and threads."""
        for line in names:
            writer.put(line)
        if self.overwritten:
            writer.put({"lost": {"pid": 0, "count": self.overwritten, "overwritten": True}})
        for _, _, frame in self._lines:
            writer.put_frame(frame)
