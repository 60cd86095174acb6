"""Recordings: files of recorded calls, read line by line."""

import binascii
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from anyprobe.core.errors import UsageError
from anyprobe.data.calls.recorded import END_BITS, GAP, Events, Function, Lost, Thread, joined
from anyprobe.data.calls.values import Instant, Kept, Values, instants_of

_ENDS = ("entry", "return")


@dataclass(slots=True)
class Recording:
    """What is known of recorded calls besides the events; it grows as their file is read."""

    path: str
    threads: list[Thread] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    jumping: set[int] = field(default_factory=set)
    """The numbers of those that may end by a jump to another one."""
    lost: list[Lost] = field(default_factory=list)
    ended: bool = False
    """Whether the file has its end."""
    damage: str = ""
    """Why nothing more could be read, if that was before its end."""
    has_values: bool = False
    """Whether values were recorded with calls; that is known before the first event is."""
    at_entry: Kept = field(default_factory=Kept)
    """Values that were recorded where calls begin."""
    at_return: Kept = field(default_factory=Kept)
    """Values that were recorded where they return."""
    instants: list[Instant] = field(default_factory=list)
    """Markers and events of the kernel, in the order in which they were read."""
    unix_ahead_ns: int | None = None
    """By how much Unix time is ahead of the times of events; None in files of earlier versions."""
    left_out: int = 0
    """How many values and instants are lost."""

    @property
    def overwritten(self) -> int:
        """How many events there were before the first one."""
        return sum(each.events for each in self.lost if each.overwritten)

    def whole(self) -> Events:
        """Return all events, with what belongs to them assigned; raise what ``events`` raises."""
        events = joined(list(self.events()))
        self.at_entry.assign(events, entries=True)
        self.at_return.assign(events, entries=False)
        self.instants.sort(key=lambda each: each.time)
        return events

    def events(self) -> Iterator[Events]:
        """Yield the events line by line; what they are of is known by then.

        Raises:
            UsageError: it is no recording.
            OSError: the file cannot be read.
        """
        from zstandard import ZstdDecompressor, ZstdError

        found = False
        with open(self.path, "rb") as file:
            reader = io.BufferedReader(ZstdDecompressor().stream_reader(file, read_across_frames=True))
            try:
                for line in _lines(reader):
                    events = self._see(json.loads(line))
                    found = True
                    if events is not None:
                        yield events
            except (ZstdError, ValueError, KeyError, TypeError, RecursionError, MemoryError, binascii.Error) as error:
                if not found:
                    raise UsageError(f"{self.path} is no archive of anyprobe: anyprobe record -o RUN.aprobe") from None
                self.damage = f"{type(error).__name__}: {error}".splitlines()[0][:120]

    def _see(self, document: Any) -> Events | None:  # noqa: ANN401 - from a file
        """Take one line in; return the events that it has."""
        for name, value in document.items():
            match name:
                case "threads":
                    self.threads += [Thread(int(pid), int(tid), str(called)) for pid, tid, called in value]
                case "functions":
                    for module, called, jumps in value:
                        self.jumping |= {len(self.functions)} if jumps else set()
                        self.functions.append(Function(str(module), str(called), bool(jumps)))
                case "lost":
                    self.lost.append(Lost(int(value["pid"]), int(value["count"]), bool(value.get("overwritten"))))
                case "clock":
                    monotonic, unix = map(int, value)
                    self.unix_ahead_ns = unix - monotonic
                case "with":
                    self.has_values = True
                    self.at_entry.labels, self.at_return.labels = (tuple(map(str, value[each])) for each in _ENDS)
                case "values":
                    kept = {"entry": self.at_entry, "return": self.at_return}[value["at"]]
                    kept.parts.append(Values.of(value, len(kept.labels)))
                case "instants":
                    self.instants += instants_of(value, len(self.threads))
                case "left_out":
                    self.left_out += int(value)
                case "end":
                    self.ended = True
                case "events":
                    events = Events.of(value)
                    if len(events) and (
                        int(events.threads.max()) >= len(self.threads)
                        or int(events.what[events.what & 3 != GAP].max(initial=0)) >> END_BITS >= len(self.functions)
                    ):
                        raise ValueError("events of a thread or function that was not named")
                    return events
        return None


def _lines(reader: IO[bytes]) -> Iterator[bytes]:
    """Yield the whole lines of a file."""
    from anyprobe.data.archives.runs import LONGEST_LINE

    while (line := reader.readline(LONGEST_LINE)).endswith(b"\n"):
        yield line
