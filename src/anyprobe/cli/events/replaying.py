"""What ``replay`` does: recorded calls are read, chosen, and shown."""

import fnmatch
import heapq
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

import click

from anyprobe.cli import ExitStatus
from anyprobe.cli.terminal import output, streams
from anyprobe.core.arrays import unique
from anyprobe.core.errors import UsageError
from anyprobe.data.calls import timeline
from anyprobe.data.calls.conditions import condition
from anyprobe.data.calls.matching import UNKNOWN
from anyprobe.data.calls.recorded import chosen_of
from anyprobe.data.calls.recording import Recording
from anyprobe.data.calls.timeline import Calls
from anyprobe.data.calls.values import Instant

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The command line, read."""

    slower: float | None = None
    """Nanoseconds."""
    within: str | None = None
    only: str | None = None
    depth: int | None = None
    tids: tuple[int, ...] = ()
    span: tuple[float, float] | None = None
    """Nanoseconds from the first event on."""
    where: str | None = None
    """A condition on the values that were recorded with calls."""
    form: str | None = None
    split_mib: int | None = None
    """The size of the files of a timeline for Perfetto."""
    as_json: bool = False
    push: str | None = None
    """The collector that the calls are sent to, as spans."""
    output: str | None = None

    @property
    def chooses(self) -> bool:
        """Whether not all calls are wanted."""
        what = (self.slower, self.within, self.only, self.depth, self.span, self.where)
        return bool(self.tids) or any(each is not None for each in what)


def replay(path: str, wanted: Wanted) -> int:
    """Show a recording, and return the exit status."""
    recording = Recording(path)
    try:
        with open(path, "rb"):
            pass  # before the file for what is shown is made
        if wanted.split_mib is not None:
            return _split(path, recording, wanted)
        if wanted.push is not None:
            return _push(recording, wanted, wanted.push)
        with output.results(wanted.output, program_owns_output=False) as stream:
            if wanted.form == "perfetto" and not wanted.chooses:
                from anyprobe.exporters import perfetto

                stream.flush()
                perfetto.write(path, recording, iter((stream.buffer,)))
            else:
                _show(recording, wanted, stream)
    except OSError as error:
        if error.filename != path:
            raise
        raise click.FileError(path, error.strerror) from error
    _warn(recording)
    return 0


def _show(recording: Recording, wanted: Wanted, stream: TextIO) -> None:
    calls, gaps = timeline.read(recording)
    zero = calls.zero or next((each.time for each in recording.instants), 0)
    calls = chosen(recording, calls, wanted)
    if wanted.form == "speedscope":
        from anyprobe.exporters import evented

        evented.write(recording, calls, gaps, stream)
        return
    if wanted.form in {"arrow", "parquet"}:
        from anyprobe.exporters import columns

        columns.write(recording, calls, wanted.form, stream)
        return
    if wanted.form == "otlp":
        stream.flush()
        for data, _ in _spans(recording, calls):  # which are one request, one after another
            stream.buffer.write(data)
        stream.buffer.flush()
        return
    instants = _instants(recording, wanted, zero)
    if wanted.form == "perfetto":
        from anyprobe.exporters import perfetto

        stream.flush()
        perfetto.write_chosen(recording, calls, instants, stream.buffer)
        return
    if wanted.as_json:
        documents = heapq.merge(
            _documents(recording, calls),
            _instant_documents(recording, instants),
            key=lambda each: each["ts_ns"] if each["ts_ns"] is not None else each["returned_ns"],
        )
        for each in documents:
            output.write_json(each, stream, one_line=True)
        return
    from anyprobe.reports import replay as report

    stream.write(report.HEADING + "\n")
    stream.writelines(line + "\n" for line in report.lines(recording, calls, gaps, zero, instants))
    stream.flush()


def _split(path: str, recording: Recording, wanted: Wanted) -> int:
    """Write a timeline for Perfetto in several files; return the exit status."""
    if wanted.form != "perfetto" or wanted.output is None:
        raise click.UsageError("--split-size is of a timeline for Perfetto: --format perfetto -o RUN.pftrace")
    if wanted.chooses:
        raise click.UsageError("--split-size is of all calls: --range chooses some of them instead")
    from anyprobe.exporters import perfetto

    name, ending = os.path.splitext(wanted.output)
    with ExitStack() as stack:

        def files() -> Iterator[BinaryIO]:
            """Yield the files one after another."""
            for number in itertools.count(1):
                own = f"{name}-{number}{ending}"
                output.say(own, error=True)
                yield stack.enter_context(output.results(own, program_owns_output=False)).buffer
                stack.pop_all().close()

        with open(path, "rb"):
            pass
        perfetto.write(path, recording, files(), (wanted.split_mib or 0) << 20)
    _warn(recording)
    return ExitStatus.DONE


def _spans(recording: Recording, calls: Calls) -> Iterator[tuple[bytes, int]]:
    """Yield requests of OTLP with spans, and how many each has."""
    from importlib.metadata import version

    try:
        from anyprobe.exporters.monitoring.spans import requests
    except ImportError:
        raise UsageError("spans need opentelemetry-proto: pip install 'anyprobe[otlp]'") from None
    return requests(recording, calls, version("anyprobe"))


def _push(recording: Recording, wanted: Wanted, url: str) -> int:
    """Send calls to a collector; return the exit status."""
    from anyprobe.cli.network.pushing import send

    calls, _ = timeline.read(recording)
    sent = 0
    for data, count in _spans(recording, chosen(recording, calls, wanted)):
        if failed := send(url, data):
            output.warn(f"{url}: {failed}; it has taken {sent:,} spans")
            return ExitStatus.NOT_PERMITTED
        sent += count
    output.say(f"{url} has taken {sent:,} spans", error=True)
    _warn(recording)
    return ExitStatus.DONE


def _instants(recording: Recording, wanted: Wanted, zero: int) -> list[Instant]:
    """Return the instants that are wanted: none where calls are chosen by what they are."""
    if wanted.within or wanted.only or wanted.slower is not None or wanted.depth or wanted.where:
        return []
    since, until = (-math.inf, math.inf) if wanted.span is None else (zero + each for each in wanted.span)
    tids = [each.tid for each in recording.threads]
    return [
        each
        for each in recording.instants
        if since <= each.time <= until and (not wanted.tids or tids[each.thread] in wanted.tids)
    ]


def chosen(recording: Recording, calls: Calls, wanted: Wanted) -> Calls:
    """Return the calls that are wanted."""
    take = np.ones(len(calls), np.bool_)
    if wanted.within is not None:
        take &= timeline.within(calls, _functions(recording, "--within", wanted.within))
    if wanted.only is not None:
        take &= chosen_of(calls.functions, _functions(recording, "--function", wanted.only))
    if wanted.tids:
        own = [at for at, each in enumerate(recording.threads) if each.tid in wanted.tids]
        if not own:
            raise click.UsageError(f"--tid: no recorded thread is {wanted.tids[0]}")
        take &= chosen_of(calls.threads, own)
    if wanted.where is not None:
        holds = condition(wanted.where, (*recording.at_entry.labels, *recording.at_return.labels))
        take &= np.array([bool(holds(each)) for each in timeline.values_of(recording, calls) or ()], np.bool_)
    if wanted.slower is not None:
        take &= calls.durations > wanted.slower
    if wanted.span is not None:
        since, until = (calls.zero + each for each in wanted.span)
        over = np.maximum(calls.ends, calls.gone)
        take &= (calls.begins <= until) & ((over == UNKNOWN) | (over >= since))
    if wanted.depth is not None:
        depths = calls.depths
        if wanted.within is not None and take.any():
            depths = _inner(calls, take)
        take &= depths < wanted.depth
    return calls.part(take)


def _inner(calls: Calls, take: "NDArray[np.bool_]") -> "NDArray[np.int32]":
    """Return in how many of the chosen calls each one is."""
    depths = calls.depths.copy()
    for thread in unique(calls.threads[take]).tolist():
        rows = np.flatnonzero(take & (calls.threads == thread))
        outermost = np.maximum.accumulate(np.concatenate([[0], calls.last[rows][:-1]])) < calls.first[rows]
        at = np.maximum.accumulate(np.where(outermost, np.arange(len(rows)), 0))
        depths[rows] -= calls.depths[rows][at]
    return depths


def _functions(recording: Recording, option: str, pattern: str) -> list[int]:
    """Return the numbers of the functions whose names match."""
    found = [
        at
        for at, each in enumerate(recording.functions)
        if fnmatch.fnmatchcase(each.name, pattern) or fnmatch.fnmatchcase(f"{each.module}:{each.name}", pattern)
    ]
    if not found:
        raise click.UsageError(f"{option}: no recorded function is called {streams.as_text(pattern)}")
    return found


def _documents(recording: Recording, calls: Calls) -> Iterator[dict[str, Any]]:
    """Yield the document of each call."""
    columns = (calls.threads, calls.functions, calls.begins, calls.ends, calls.gone, calls.depths)
    values = timeline.values_of(recording, calls)
    rows = zip(*(each.tolist() for each in columns), strict=True)
    for row, (thread, function, began, ended, gone, depth) in enumerate(rows):
        pid, tid, _ = recording.threads[thread]
        known = UNKNOWN not in {began, ended}
        document = {
            "ts_ns": None if began == UNKNOWN else began,
            "pid": pid,
            "tid": tid,
            "depth": depth,
            "module": recording.functions[function].module,
            "function": recording.functions[function].name,
            "duration_ns": ended - began if known else None,
        }
        if began == UNKNOWN:
            document["returned_ns"] = ended
        elif ended == UNKNOWN:
            document["gone_by_ns"] = gone if gone > 0 else None
        if values is not None:
            document["values"] = values[row]
        yield document


def _instant_documents(recording: Recording, instants: Sequence[Instant]) -> Iterator[dict[str, Any]]:
    """Yield the document of each instant."""
    for each in instants:
        pid, tid, _ = recording.threads[each.thread]
        yield {"ts_ns": each.time, "pid": pid, "tid": tid, "instant": each.name, "values": dict(each.values)}


def _warn(recording: Recording) -> None:
    """Say what the recording lacks."""
    lost = sum(each.events for each in recording.lost if not each.overwritten)
    if recording.overwritten:
        output.warn(f"{recording.overwritten:,} events before the first one were overwritten, as --last asks for")
    if lost:
        output.warn(f"{lost:,} events are lost: calls with an end among them are shown as calls without it")
    if recording.left_out:
        output.warn(f"{recording.left_out:,} values and instants are lost: calls are shown without theirs")
    if recording.damage:
        output.warn(f"{recording.path} is damaged ({recording.damage}); shown is what came before")
    elif not recording.ended:
        output.warn(
            f"{recording.path} ends early, as what wrote it was killed or it was cut; shown is what came before"
        )
