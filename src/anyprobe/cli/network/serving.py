"""Results for a Prometheus: an HTTP server beside the sessions, which are looked at anew for each scrape."""

import os
import queue
import time
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from anyprobe.cli.terminal import output
from anyprobe.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from prometheus_client import CollectorRegistry

    from anyprobe.cli.measurement.plan import Meanwhile
    from anyprobe.cli.network.pushing import Pusher
    from anyprobe.data.snapshots.snapshot import Snapshot
    from anyprobe.exporters.monitoring.prometheus import Cost
    from anyprobe.probes.parts.arming import Arming

PATIENCE = 30.0
"""Seconds that a scrape waits for results: while probes are being placed there are none."""


def _answered(
    text: "WSGIApplication", registry: "CollectorRegistry", environment: "WSGIEnvironment", start: "StartResponse"
) -> "Iterable[bytes]":
    """Answer a scrape: in the binary format if it asks for that, else as ``text`` does."""
    from anyprobe.exporters.monitoring.metricproto import CONTENT_TYPE, exposed, is_wanted

    if not is_wanted(environment.get("HTTP_ACCEPT", "")):
        return text(environment, start)
    data = exposed(registry.collect())
    start("200 OK", [("Content-Type", CONTENT_TYPE), ("Content-Length", str(len(data)))])
    return [data]


def _cost_of(all_arming: "Sequence[Arming]", limit: float) -> "Cost":
    """Return what the probes of the dearest program cost, and what was taken out in all."""
    from anyprobe.exporters.monitoring.prometheus import Cost

    now, budgets = time.monotonic(), [each.budget for each in all_arming]
    return Cost(
        max((each.overhead or 0.0 for each in all_arming), default=0.0),
        limit,
        sum(len(each.out) for each in budgets),
        sum(each.removals for each in budgets),
        sum(each.seconds(now) for each in budgets),
    )


class Server:
    """The front of ``serve``: answers each scrape with the results of that moment."""

    owns_terminal = False
    has_led = False

    def __init__(
        self,
        address: tuple[str, int],
        most: int,
        seen: "Callable[[Snapshot], Snapshot]",
        *,
        limit: float | None = None,
        push: tuple[str, float] | None = None,
        exponential: bool = False,
    ) -> None:
        """Listen at an address.

        Args:
            address: where.
            most: so many functions have series of their own.
            seen: as of plans.
            limit: of what probes may cost, in percent of one CPU.
            push: where metrics are sent to, and every so many seconds.
            exponential: whether histograms are sent as exponential ones.
        """
        try:
            from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server

            from anyprobe.exporters.monitoring.prometheus import Cost, Metrics
        except ImportError:
            raise UsageError("serve needs prometheus-client: pip install 'anyprobe[serve]'") from None
        self._seen = seen
        self._asked: queue.SimpleQueue[Future[Snapshot]] = queue.SimpleQueue()
        self._reader, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._limit = limit
        self._cost: Cost | None = None if limit is None else Cost(0.0, limit)
        self._last: Snapshot | None = None
        registry = CollectorRegistry()
        registry.register(Metrics(self._look, most, self._budget))
        self._pusher: Pusher | None = None
        if push is not None:
            from anyprobe.cli.network import pushing

            self._pusher = pushing.Pusher(
                *push, Metrics(self._look, most, self._budget).collect, exponential=exponential
            )
        host, port = address
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UsageError(f"cannot listen at {host}:{port}: {error.strerror}") from error
        self._server.set_app(partial(_answered, make_wsgi_app(registry), registry))
        self.place = f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_port}/metrics"

    def _look(self) -> "Snapshot":
        """Return the results, in the thread of a scrape: the thread that has the sessions makes them."""
        if self._last is not None:  # they are at the end
            return self._last
        asked: Future[Snapshot] = Future()
        self._asked.put(asked)
        with suppress(BlockingIOError):  # so many ask that it is awake
            os.write(self._waker, b"?")
        return asked.result(PATIENCE)

    def _budget(self) -> "Cost | None":
        """Return what probes cost, and what they may; None where there is no limit."""
        return self._cost

    def lead(self, meanwhile: "Meanwhile") -> None:
        """Answer scrapes, and do what is due, until it is over."""
        self.has_led = True
        output.warn(f"serving {self.place}")
        if self._pusher is not None:
            self._pusher.begin()
        while meanwhile.goes_on:
            until = meanwhile.work()
            self._answer(meanwhile)
            if meanwhile.has_targets:
                meanwhile.rest(until, [self._reader])

    def _answer(self, meanwhile: "Meanwhile") -> None:
        with suppress(BlockingIOError):
            os.read(self._reader, 1 << 16)
        waiting: list[Future[Snapshot]] = []
        while not self._asked.empty():
            waiting.append(self._asked.get())
        if waiting:
            from anyprobe.probes.group import merged

            found = meanwhile.sessions.results(lambda each: each.snapshot())
            together = merged([self._seen(each).distinct() for each in found])
            if self._limit is not None:
                self._cost = _cost_of([each.host.arming for each in meanwhile.sessions.processes], self._limit)
            for each in waiting:
                each.set_result(together)

    def close(self) -> None:
        """Send the results at the end, and listen no more; what was asked for is not answered."""
        if self._pusher is not None and self._last is not None:
            self._pusher.end()
        self._server.shutdown()
        self._server.server_close()
        while not self._asked.empty():
            self._asked.get().cancel()
        self._thread.join()
        os.close(self._reader)
        os.close(self._waker)

    def take(self, together: "Snapshot", last: "Snapshot | None") -> None:  # noqa: ARG002 - of fronts
        """Keep the results at the end, for what is sent; scrapes ask themselves."""
        self._last = together

    def warn(self, message: str) -> None:
        """Print a warning."""
        output.warn(message)
