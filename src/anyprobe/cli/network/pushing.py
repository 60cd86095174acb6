"""Metrics that are sent to a collector of OpenTelemetry again and again, by a thread of their own."""

import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from functools import partial
from http.client import HTTPException
from importlib.metadata import version
from typing import TYPE_CHECKING

from anyprobe.cli.terminal import output
from anyprobe.core.errors import UsageError
from anyprobe.core.printable import printable

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PATIENCE = 10.0
"""Seconds that a collector has for its answer."""


def send(url: str, data: bytes) -> str:
    """Send a request of OTLP to a collector; return why it has not been taken, empty if it has."""
    try:
        headers = {"Content-Type": "application/x-protobuf"}
        request = urllib.request.Request(url, data, headers, method="POST")  # noqa: S310 - a URL of HTTP
        with urllib.request.urlopen(request, timeout=PATIENCE):  # noqa: S310
            return ""
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.reason}"
    except urllib.error.URLError as error:
        return getattr(error.reason, "strerror", None) or str(error.reason)
    except (OSError, HTTPException) as error:
        return str(error)


class Pusher:
    """Sends all metrics every so many seconds, and once more at the end."""

    def __init__(
        self, url: str, every: float, collect: "Callable[[], Iterable[Metric]]", *, exponential: bool = False
    ) -> None:
        """Be ready to send what ``collect`` returns; ``exponential``: whether histograms are exponential ones."""
        try:
            from anyprobe.exporters.monitoring.otlp import request_of
        except ImportError:
            raise UsageError("--push needs opentelemetry-proto: pip install 'anyprobe[otlp]'") from None
        self._request_of = partial(request_of, exponential=exponential)
        self._collect, self._url, self._every = collect, url, every
        self._resource = {"service.name": "anyprobe", "host.name": os.uname().nodename}
        self._started = time.time_ns()
        self._over = threading.Event()
        self._failed = ""
        self._thread = threading.Thread(target=self._run, name="push", daemon=True)

    def begin(self) -> None:
        """Send from now on."""
        self._thread.start()

    def end(self) -> None:
        """Send the numbers at the end, and no more."""
        if self._thread.is_alive():
            self._over.set()
            self._thread.join(2 * PATIENCE)

    def _run(self) -> None:
        while not self._over.wait(self._every):
            self._push()
        self._push()

    def _push(self) -> None:
        """Send the metrics; a collector that does not take them is said once, until it takes them again."""
        try:
            data = self._request_of(self._collect(), self._resource, version("anyprobe"), self._started, time.time_ns())
            failed = send(self._url, data)
        except OSError as error:  # there were no results in time
            failed = str(error)
        if failed != self._failed:
            output.warn(printable(f"{self._url}: {failed}" if failed else f"{self._url} takes metrics again"))
        self._failed = failed
