"""Recorded calls as spans of OpenTelemetry: requests of OTLP, each call within its caller, in the trace of its request.

A value that is called ``trace_id`` or ``traceparent`` says which trace a call is of: 32 hexadecimal digits, or what
https://www.w3.org/TR/trace-context has in a header, whose span is then the parent. What the call calls belongs to the
same trace. An outermost call without one is a trace of its own.
"""

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

from anyprobe.core.errors import UsageError
from anyprobe.core.printable import printable
from anyprobe.data.calls.matching import UNKNOWN
from anyprobe.data.calls.recording import Recording
from anyprobe.data.calls.timeline import Calls, values_of
from anyprobe.exporters.monitoring.attributes import attributes

TRACE = ("trace_id", "traceparent")
"""Labels of values that say which trace a call belongs to."""
_HEADER = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_ID = re.compile(r"[0-9a-f]{32}")
_NONE = re.compile(r"[0-]*")
SPANS = 1000
"""In one request."""
_INTERNAL = Span.SpanKind.SPAN_KIND_INTERNAL


class _Open(NamedTuple):
    """A call that others may be in."""

    last: int
    trace: bytes
    span: bytes


def requests(recording: Recording, calls: Calls, version: str) -> Iterator[tuple[bytes, int]]:
    """Yield requests, and how many spans each has; those that follow one another are one request, too.

    Calls without a beginning or an end are left out.

    Raises:
        UsageError: the recording does not say what time of day it was.
    """
    if recording.unix_ahead_ns is None:
        raise UsageError(f"{recording.path} does not say what time of day it was: an earlier anyprobe has written it")
    request, resources, count = ExportTraceServiceRequest(), dict[int, ResourceSpans](), 0
    for pid, span in _spans(recording, calls, recording.unix_ahead_ns):
        if pid not in resources:
            resources[pid] = _resource(request.resource_spans.add(), recording, pid, version)
        resources[pid].scope_spans[0].spans.append(span)
        count += 1
        if count == SPANS:
            yield bytes(request.SerializeToString()), count
            request, resources, count = ExportTraceServiceRequest(), {}, 0
    if count:
        yield bytes(request.SerializeToString()), count


def _resource(whole: ResourceSpans, recording: Recording, pid: int, version: str) -> ResourceSpans:
    name = next((each.name for each in recording.threads if each.pid == pid), "")
    whole.resource.attributes.extend(attributes({"service.name": printable(name), "process.pid": pid}.items()))
    scope = whole.scope_spans.add().scope
    scope.name, scope.version = "anyprobe", version
    return whole


def _spans(recording: Recording, calls: Calls, ahead: int) -> Iterator[tuple[int, Span]]:
    """Yield the process of each call, and its span."""
    open_calls: dict[int, list[_Open]] = {}
    values = values_of(recording, calls)
    columns = (calls.threads, calls.functions, calls.begins, calls.ends, calls.gone, calls.first, calls.last)
    for row, (thread, function, began, ended, gone, first, last) in enumerate(
        zip(*(each.tolist() for each in columns), strict=True)
    ):
        if began == UNKNOWN:
            continue
        callers = open_calls.setdefault(thread, [])
        while callers and callers[-1].last <= first:
            callers.pop()
        pid, tid, name = recording.threads[thread]
        given = values[row] if values is not None else {}
        number = blake2b(f"{pid} {tid} {began + ahead} {first}".encode(), digest_size=24).digest()
        own, parent = number[16:], callers[-1].span if callers else b""
        trace = callers[-1].trace if callers else number[:16]
        if (named := trace_of(given)) is not None:
            if named[0] != trace or not callers:
                parent = named[1]
            trace = named[0]
        callers.append(_Open(last, trace, own))
        until = ended if ended != UNKNOWN else gone
        if until <= UNKNOWN:
            continue
        about: dict[str, Any] = {
            "code.function.name": printable(recording.functions[function].name),
            "anyprobe.module": printable(recording.functions[function].module),
            "thread.id": tid,
            "thread.name": printable(name),
        }
        if ended == UNKNOWN:
            about["anyprobe.end"] = "left without a return, by this time"
        span = Span(
            trace_id=trace, span_id=own, parent_span_id=parent, name=about["code.function.name"], kind=_INTERNAL,
            start_time_unix_nano=began + ahead, end_time_unix_nano=until + ahead,
            attributes=attributes((about | {printable(label): each for label, each in given.items()}).items()),
        )  # fmt: skip
        yield pid, span


def trace_of(values: Mapping[str, Any]) -> tuple[bytes, bytes] | None:
    """Return the trace that some values name, and the span in it that is the parent, if they name one."""
    for label in TRACE:
        text = str(values.get(label) or "").lower()
        found = _HEADER.match(text)
        if found is not None and not _NONE.fullmatch(found[1]):
            return bytes.fromhex(found[1]), b"" if _NONE.fullmatch(found[2]) else bytes.fromhex(found[2])
        if _ID.fullmatch(text) and not _NONE.fullmatch(text):
            return bytes.fromhex(text), b""
    return None
