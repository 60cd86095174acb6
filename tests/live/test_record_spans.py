"""Recorded calls as spans: in the traces that the program's requests name, at the times that it has read itself."""

import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from anyprobe.cli import main
from support.driver import build

trace_service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="opentelemetry-proto is optional, not installed"
)
pytestmark = pytest.mark.live

PROGRAM = r"""
#include <stdio.h>
#include <time.h>
#define NOINLINE __attribute__((noinline))
volatile long sink;
static long long now(void) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    return at.tv_sec * 1000000000LL + at.tv_nsec;
}
NOINLINE void query(int n) { sink += n; }
NOINLINE int handle(const char *header, int n) { for (int i = 0; i < n; i++) query(i); return n; }
NOINLINE void idle(void) { sink++; }
int main(void) {
    char header[64];
    for (int n = 1; n <= 40; n++) {
        snprintf(header, sizeof header, "00-%032x-%016x-01", n * 7, n * 3);
        long long before = now();
        handle(header, n % 3);
        printf("%d %lld %lld\n", n, before, now());
        idle();
    }
    return 0;
}
"""


@contextmanager
def collecting(status=200):
    """Run a collector that keeps the spans it is sent."""
    found = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            data = self.rfile.read(int(self.headers["Content-Length"]))
            found.append(trace_service.ExportTraceServiceRequest.FromString(data))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", found
        server.shutdown()
        thread.join()


def spans_of(requests):
    return [
        span
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def attributes(span):
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@pytest.fixture(scope="module")
def program():
    return str(build("recorded_requests.c", "-O1", text=PROGRAM))


def test_spans_are_in_the_traces_of_their_requests_and_at_their_times(program, tmp_path, capfd):
    path = tmp_path / "run.aprobe"
    given = ["record", "a.out:handle", "--with", "traceparent=cstr(header, 64), n, retval", "-o", str(path), "--quiet"]
    assert main([*given, "--", program]) == 0
    told = [tuple(map(int, line.split())) for line in capfd.readouterr().out.splitlines()]
    with collecting() as (url, requests):
        assert main(["replay", str(path), "--push", url]) == 0
    assert "has taken 40 spans" in capfd.readouterr().err
    spans = spans_of(requests)
    assert [int(each.trace_id.hex(), 16) for each in spans] == [n * 7 for n, *_ in told]
    assert [int(each.parent_span_id.hex(), 16) for each in spans] == [n * 3 for n, *_ in told]
    assert len({each.span_id for each in spans}) == 40
    for each, (n, before, after) in zip(spans, told, strict=True):
        about = attributes(each)
        assert (each.name, about["n"], about["retval"]) == ("handle", n % 3, n % 3)
        slack = 200_000  # of the two clocks' readings, one after the other
        assert before - slack <= each.start_time_unix_nano <= each.end_time_unix_nano <= after + slack


def test_calls_within_others_are_their_children_in_the_same_trace(program, tmp_path):
    path, written = tmp_path / "run.aprobe", tmp_path / "spans"
    given = ["record", "a.out:handle", "a.out:query", "a.out:idle", "-o", str(path), "--quiet"]
    assert main([*given, "--", program]) == 0
    assert main(["replay", str(path), "--format", "otlp", "-o", str(written)]) == 0
    spans = spans_of([trace_service.ExportTraceServiceRequest.FromString(written.read_bytes())])
    assert Counter(each.name for each in spans) == {"handle": 40, "idle": 40, "query": sum(n % 3 for n in range(1, 41))}
    by_id = {each.span_id: each for each in spans}
    assert len(by_id) == len(spans)
    for each in spans:
        if each.name == "query":
            caller = by_id[each.parent_span_id]
            assert (caller.name, caller.trace_id) == ("handle", each.trace_id)
            assert caller.start_time_unix_nano <= each.start_time_unix_nano
            assert each.end_time_unix_nano <= caller.end_time_unix_nano
        else:
            assert not each.parent_span_id
    assert len({each.trace_id for each in spans}) == 80


def test_a_collector_that_refuses_is_said(program, tmp_path, capfd):
    path = tmp_path / "run.aprobe"
    assert main(["record", "a.out:idle", "-o", str(path), "--quiet", "--", program]) == 0
    with collecting(status=503) as (url, _):
        assert main(["replay", str(path), "--push", url]) == 1
    assert "503" in capfd.readouterr().err
    assert main(["replay", str(path), "--push", "http://127.0.0.1:1/"]) == 1
    assert main(["replay", str(path), "--push", "nowhere"]) == 2
