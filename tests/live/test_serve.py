"""Metrics for Prometheus: a real one scrapes what the program has counted itself."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from anyprobe.cli import main
from support.driver import wait_until
from support.image import Image

pytestmark = pytest.mark.live

NAMES = ("outer", "middle", "deep", "fib")


def fetched(url):
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - a server of this test's own
        return answer.read().decode()


@contextmanager
def serving(*arguments):
    """Run the command; give its process and the address that it serves, and let it end by Ctrl-C."""
    command = [sys.executable, "-m", "anyprobe", "serve", "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            yield server, re.search(r"serving (\S+)", server.stderr.readline())[1]
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 130
        finally:
            server.kill()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def samples(text, metric):
    """Return the numbers of a metric by function, from its text."""
    found = re.findall(rf'^{metric}{{function="([^"]*)",module="[^"]*"}} (\S+)$', text, re.MULTILINE)
    return {name: float(value) for name, value in found}


@contextmanager
def prometheus(folder, url, *options):
    """Run a Prometheus that scrapes an address; give what asks it, and returns numbers by function."""
    host = url.removeprefix("http://").partition("/")[0]
    scrapes = {"job_name": "a", "scrape_interval": "200ms", "static_configs": [{"targets": [host]}]}
    scrapes["scrape_timeout"] = "200ms"
    (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": [scrapes]}))
    place = f"127.0.0.1:{free_port()}"
    settings = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={place}"]

    def asked(query):
        try:
            found = json.loads(fetched(f"http://{place}/api/v1/query?query={urllib.parse.quote(query)}"))
        except OSError:
            return {}
        return {each["metric"]["function"]: float(each["value"][1]) for each in found["data"]["result"]}

    with subprocess.Popen(["prometheus", *settings, *options], cwd=folder, stderr=subprocess.DEVNULL) as server:
        try:
            yield asked
        finally:
            server.kill()


@pytest.mark.skipif(not shutil.which("prometheus"), reason="needs prometheus")
def test_a_prometheus_has_the_program_s_own_counts(run_target, tmp_path):
    target = run_target("nested_calls.c", options=("-pthread",))
    before = Image.of(target.pid)
    with serving(*(f"a.out:{name}" for name in NAMES), "-p", str(target.pid)) as (_, url):
        calls = target.go(20).calls
        wanted = {name: calls[name] for name in NAMES}
        with prometheus(tmp_path, url) as asked:
            wait_until(lambda: asked("anyprobe_call_duration_seconds_count") == wanted, "it has them")
            assert asked('anyprobe_call_duration_seconds_bucket{le="+Inf"}') == wanted
            means = asked("anyprobe_call_duration_seconds_sum / anyprobe_call_duration_seconds_count")
            assert means["outer"] > 2 * means["middle"] > 2 * means["deep"] > 0
        (tmp_path / "native").mkdir()
        with prometheus(tmp_path / "native", url, "--enable-feature=native-histograms") as asked:
            calls_now, times = (f"histogram_{each}(anyprobe_call_duration_seconds)" for each in ("count", "sum"))
            wait_until(lambda: asked(calls_now) == wanted, "it has them natively")
            assert asked(f"{times} / {calls_now}") == pytest.approx(means, rel=1e-5)  # a tick is measured anew
            middle = asked("histogram_quantile(0.5, anyprobe_call_duration_seconds)")
            assert middle["outer"] > 2 * middle["middle"] > 2 * middle["deep"] > 0
            classic = samples_of_buckets(fetched(url), "outer")
            below = next(number for bound, number in classic if bound >= middle["outer"] * 1.1)
            assert below >= wanted["outer"] / 2
    before.assert_restored(target.pid)
    target.finish()


def samples_of_buckets(text, function):
    """Return the bounds and numbers of a function's buckets."""
    found = re.findall(rf'_bucket{{function="{function}",le="([^"]*)",module="[^"]*"}} (\S+)$', text, re.MULTILINE)
    return [(float(bound), float(number)) for bound, number in found]


def test_scrapes_grow_and_the_rest_is_one_series(run_target):
    target = run_target("nested_calls.c", options=("-pthread",))
    with serving(*(f"a.out:{name}" for name in NAMES), "--top", "1", "-p", str(target.pid)) as (_, url):
        first = dict(target.go(20).calls)
        assert samples(fetched(url), "anyprobe_call_duration_seconds_count") == {
            "fib": first["fib"], "other": sum(first[name] for name in NAMES if name != "fib"),
        }  # fmt: skip
        calls = target.go(5).calls
        text = fetched(url)
        assert samples(text, "anyprobe_call_duration_seconds_count")["fib"] == calls["fib"]
        assert f'anyprobe_target_up{{executable="nested_calls",pid="{target.pid}"}} 1.0' in text
    target.finish()


def test_hits_are_counted_instead(run_target):
    target = run_target("nested_calls.c", options=("-pthread",))
    with serving("--hits", "a.out:fib", "-p", str(target.pid)) as (_, url):
        assert samples(fetched(url), "anyprobe_hits_total") == {}
        calls = target.go(5).calls
        assert samples(fetched(url), "anyprobe_hits_total") == {"fib": calls["fib"]}
    target.finish()


@contextmanager
def collecting():
    """Run a collector of OpenTelemetry that keeps what it is sent; give its address and the requests."""
    requests = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            assert self.headers["Content-Type"] == "application/x-protobuf"
            data = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append(ExportMetricsServiceRequest.FromString(data))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/metrics", requests
        server.shutdown()
        thread.join()


def sent(request):
    """Return the calls of each function in a request."""
    metrics = {each.name: each for each in request.resource_metrics[0].scope_metrics[0].metrics}
    points = metrics["anyprobe_call_duration_seconds"].histogram.data_points
    for each in points:
        assert each.count == sum(each.bucket_counts)
    return {{one.key: one.value.string_value for one in each.attributes}["function"]: each.count for each in points}


def test_a_collector_is_sent_the_program_s_own_counts(run_target):
    target = run_target("nested_calls.c", options=("-pthread",))
    specs = [f"a.out:{name}" for name in NAMES]
    with collecting() as (url, requests):
        with serving(*specs, "--push", url, "--push-every", "0.2", "-p", str(target.pid)):
            calls = dict(target.go(20).calls)
            wanted = {name: calls[name] for name in NAMES}
            wait_until(lambda: requests and sent(requests[-1]) == wanted, "it has them")
            calls = target.go(5).calls
        assert sent(requests[-1]) == {name: calls[name] for name in NAMES}
    target.finish()


def test_a_collector_that_is_not_there_is_said_once(run_target):
    target = run_target("nested_calls.c", options=("-pthread",))
    url = f"http://127.0.0.1:{free_port()}/"
    with serving("a.out:fib", "--push", url, "--push-every", "0.1", "-p", str(target.pid)) as (server, place):
        assert server.stderr.readline() == f"anyprobe: {url}: Connection refused\n"
        calls = target.go(5).calls
        assert samples(fetched(place), "anyprobe_call_duration_seconds_count") == {"fib": calls["fib"]}
        server.send_signal(signal.SIGINT)
        assert url not in server.stderr.read()
    target.finish()
    assert main(["serve", "libc:malloc", "-p", str(os.getpid()), "--push", "localhost:4318"]) == 2


def test_a_limit_and_what_probes_cost_are_served(run_target):
    target = run_target("nested_calls.c", options=("-pthread",))
    with serving("a.out:fib", "--max-overhead", "40", "-p", str(target.pid)) as (_, url):
        assert "anyprobe_overhead_limit_ratio 0.4\n" in fetched(url)
        assert "anyprobe_overhead_ratio " in fetched(url)
    target.finish()


@pytest.mark.parametrize("place", ["nowhere", "127.0.0.1", "127.0.0.1:70000", "localhost:1", "127.0.0.1:-1"])
def test_what_is_no_address_is_said(place, capsys):
    assert main(["serve", "libc:malloc", "-p", str(os.getpid()), "--listen", place]) == 2
    assert "is no address with a port" in capsys.readouterr().err


def test_a_port_that_is_taken_is_said_before_anything_is_probed(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["serve", "libc:malloc", "-p", str(os.getpid()), "--listen", place]) == 2
    assert f"cannot listen at {place}: Address already in use" in capsys.readouterr().err


def test_what_cannot_be_placed_is_said(capsys, run_target):
    target = run_target("nested_calls.c", options=("-pthread",))
    assert main(["serve", "a.out:_start", "-p", str(target.pid), "--listen", "127.0.0.1:0"]) == 1
    assert "refused: pid:nested_calls:_start:entry" in capsys.readouterr().out
    target.finish()
