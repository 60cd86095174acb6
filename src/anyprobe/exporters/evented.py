"""Timelines for speedscope (https://www.speedscope.app): of each thread, when its calls have begun and ended.

The format is https://www.speedscope.app/file-format-schema.json, of type ``evented``, in which each call has an end and
is within its caller. So one without a return ends where that was seen, and its name says so.
"""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from anyprobe.core.arrays import unique
from anyprobe.core.printable import printable
from anyprobe.data.calls.matching import UNKNOWN
from anyprobe.data.calls.recording import Recording
from anyprobe.data.calls.timeline import Calls, Gap
from anyprobe.exporters.json_document import json_text

if TYPE_CHECKING:
    pass
else:
    pass

WITHOUT_RETURN = " (no return seen)"


def write(recording: Recording, calls: Calls, gaps: Sequence[Gap], stream: TextIO) -> None:
    """Write the calls as one JSON file; those that were not seen to begin are left out."""
    calls = calls.part(calls.begins != UNKNOWN)
    count = len(recording.functions)
    frames = [{"name": printable(each.name) + more, "file": printable(each.module)}
              for more in ("", WITHOUT_RETURN) for each in recording.functions]  # fmt: skip
    frames.append({"name": "events lost", "file": ""})
    head = {"$schema": "https://www.speedscope.app/file-format-schema.json", "exporter": "anyprobe",
            "shared": {"frames": frames}}  # fmt: skip
    stream.write(json_text(head).rstrip()[:-1].rstrip() + ',\n"profiles": [')
    separator = "\n"
    for thread in unique(calls.threads).tolist():
        own = calls.part(calls.threads == thread)
        lost = [each.time for each in gaps if each.thread == thread]
        pid, tid, name = recording.threads[thread]
        events = list(_events(own, lost, count))
        first, last = int(own.begins[0]), max(events[-1][2], events[0][2])
        about = {"type": "evented", "name": f"{printable(name)} {pid}/{tid}", "unit": "nanoseconds",
                 "startValue": 0, "endValue": last - first}  # fmt: skip
        shown = ",".join(f'{{"type":"{kind}","frame":{frame},"at":{at - first}}}' for kind, frame, at in events)
        stream.write(f'{separator}{json.dumps(about)[:-1]}, "events": [{shown}]}}')
        separator = ",\n"
    stream.write("\n]}\n")
    stream.flush()


def _events(calls: Calls, lost: Sequence[int], count: int) -> Iterator[tuple[str, int, int]]:
    """Yield beginnings and ends in the order of time, each call within its caller."""
    end = int(max(calls.begins.max(), calls.ends.max(), calls.gone.max()))
    open_calls: list[tuple[int, int, int]] = []
    """The end of each among all events, its frame, its time."""

    def close(before: int) -> Iterator[tuple[str, int, int]]:
        while open_calls and open_calls[-1][0] <= before:
            _, frame, at = open_calls.pop()
            yield "C", frame, at

    columns = (calls.functions, calls.begins, calls.ends, calls.gone, calls.first, calls.last)
    for function, began, ended, gone, first, last in zip(*(each.tolist() for each in columns), strict=True):
        yield from close(first)
        known = ended != UNKNOWN
        at = ended if known else gone if gone > 0 else next((each for each in lost if each >= began), end)
        frame = function + (0 if known else count)
        yield "O", frame, began
        open_calls.append((last, frame, at))
    yield from close(1 << 63)
