"""A running server of Go's net/http: requests by path and their times, against its own log."""

import http.client
import threading
from collections import Counter

import pytest

import anyprobe
from anyprobe import emit
from anyprobe.core.refusal import Reason
from support.driver import PATIENCE
from support.results import timing

pytestmark = pytest.mark.timeout(1200)  # a busy machine takes minutes to plan all of a server
SPEC = "a.out:main.(*Server).ServeHTTP"
CLIENTS, EACH = 8, 40
PATHS = ("/fast", "/slow", "/fast", "/panics")


@pytest.fixture
def server(run_target):
    return run_target("go_server.go")


def asked(port, paths=PATHS):
    """Send requests from several connections; return how many were sent of each path."""
    each_sent = [Counter() for _ in range(CLIENTS)]

    def client(sent):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        for number in range(EACH):
            path = paths[number % len(paths)]
            sent[path] += 1
            try:
                connection.request("GET", path)
                assert connection.getresponse().read() == f"{path}\n".encode()
            except (http.client.RemoteDisconnected, ConnectionResetError):
                connection.close()  # the server has given the connection up: its handler has panicked
        connection.close()

    clients = [threading.Thread(target=client, args=[sent]) for sent in each_sent]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    return sum(each_sent, Counter())


def test_requests_and_their_times_are_those_of_the_server_s_log(server):
    port = server.go(1).calls["port"]
    with anyprobe.attach(server.pid) as session:
        session.time(SPEC)

        @session.call(SPEC)
        def on_request(ctx, s, w, r):
            ctx.data.slow = 1 if r.URL.Path == "/slow" else 0
            ctx.data.begun = ctx.now

        @on_request.ret
        def on_answer(ctx):
            emit("answer", slow=ctx.data.slow, took=ctx.now - ctx.data.begun)

        assert not session.refused
        sent = asked(port)
        log = server.go(1)
        answers = [row for kind, row in session.rows(final=True) if kind == "answer"]
        found = timing(session.snapshot(), "main.(*Server).ServeHTTP")
    assert {path: log.calls[path] for path in sent} == sent
    assert (found.count, found.left + found.in_flight) == (sent["/fast"] + sent["/slow"], sent["/panics"])
    for path, slow in (("/fast", 0), ("/slow", 1)):
        took = sorted(row["took"] for row in answers if row["slow"] == slow)
        assert len(took) == sent[path]
        middle, late = took[len(took) // 2], took[len(took) * 99 // 100]
        inside = f"{path}/inside"
        told = path, middle, late, log.returns[path], log.tails[path], log.returns[inside], log.tails[inside]
        # each request's time lies between two of the log's, and so does each percentile of them
        assert 0.99 * log.returns[inside] <= middle <= 1.01 * log.returns[path], told
        assert 0.99 * log.tails[inside] <= late <= 1.01 * log.tails[path], told
        assert not slow or middle >= 0.99 * 20_000_000, told
    server.finish()


def test_all_of_a_server_is_timed_while_threads_come_and_go(server):
    """C functions among Go's, which begin threads, have no goroutine at hand."""
    port = server.go(1).calls["port"]
    with anyprobe.attach(server.pid, self_time=True) as session:
        session.time("a.out:*")
        refused = " ".join(spec for spec, why in session.refused if why.reason is Reason.GO_TIMING)
        assert "x_cgo_thread_start" in refused
        sent = asked(port, ("/thread", "/fast"))
        found = timing(session.snapshot(), "main.(*Server).ServeHTTP")
        assert found.count == sum(sent.values())
    assert asked(port, ("/fast",))["/fast"] == CLIENTS * EACH
    server.finish()
