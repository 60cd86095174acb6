"""What requests of a real server take, as both return points and a uretprobe have it: nginx under wrk."""

import http.client
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from measure import call_target
from peers import Bpftrace, Missing
from rows import Report

import anyprobe

FUNCTION = "ngx_http_process_request"
ROUNDS = 5
SECONDS = 3.0
CONFIGURATION = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log; {user}
events {{ worker_connections 64; }}
http {{
    keepalive_requests 10000000; access_log {folder}/access.log;
    client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
    fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    server {{ listen 127.0.0.1:{port}; root {folder}; }}
}}
"""


def server_rows(report: Report, scale: float) -> None:
    """Print the rows of the latency beside bpftrace's, in windows that take turns under one load."""
    name = f"nginx: {FUNCTION}"
    try:
        with _nginx() as (port, worker), _load(port):
            ours, theirs = [], []
            for _ in range(max(2, round(ROUNDS * scale))):
                ours.append(_ours(worker))
                theirs.append(_theirs(worker, os.readlink(f"/proc/{worker}/exe"), FUNCTION, SECONDS))
        floors = _floor()
    except Missing as missing:
        report.skip(name, missing)
        return
    for which, kind in enumerate(("mean", "median")):
        own, peer = (statistics.median(each[which] for each in all_) for all_ in (ours, theirs))
        off = abs(own / (peer - floors[which]) - 1)
        report.add(
            f"{name}, {kind}",
            f"{own / 1e3:.2f} µs; uretprobe {peer / 1e3:.2f} µs",
            "within 5 % of the uretprobe's",
            off <= 0.05,
            f"{100 * off:.1f} %, without the {floors[which] / 1e3:.2f} µs that an empty function takes by a uretprobe",
        )


@contextmanager
def _nginx() -> Iterator[tuple[int, int]]:
    """Run a server for the length of a ``with`` block; yield its port and its worker."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None or not shutil.which("wrk"):
        raise Missing("nginx or wrk is not installed")
    with tempfile.TemporaryDirectory() as name, socket.socket() as free:
        folder = Path(name)
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        (folder / "page.html").write_text("a page\n")
        user = "user root;" if os.getuid() == 0 else ""
        (folder / "nginx.conf").write_text(CONFIGURATION.format(folder=folder, port=port, user=user))
        with subprocess.Popen([program, "-c", folder / "nginx.conf"], stderr=subprocess.DEVNULL) as master:
            try:
                yield port, _worker(master.pid, port)
            finally:
                master.terminate()


def _worker(master: int, port: int) -> int:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        workers = Path(f"/proc/{master}/task/{master}/children").read_text().split()
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/page.html")
            connection.getresponse().read()
            connection.close()
        except OSError:
            time.sleep(0.05)
        else:
            return int(workers[0])
    raise Missing("nginx did not answer")


@contextmanager
def _load(port: int) -> Iterator[None]:
    command = ["wrk", "-t1", "-c2", "-d600", f"http://127.0.0.1:{port}/page.html"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as client:
        try:
            yield
        finally:
            client.kill()


def _ours(pid: int) -> tuple[float, float]:
    """Return mean and median of the calls of some seconds, from when the callers are known."""
    with anyprobe.attach(pid) as session:
        probes = session.time(f"nginx:{FUNCTION}")
        session.pump(0.5)
        (before,) = session.snapshot().functions
        session.pump(SECONDS)
        (after,) = session.snapshot().functions
        assert len(probes) == 1
    if after.count == before.count or after.p50_ns is None:
        raise Missing("nginx has worked on no request")
    return (after.sum_ns - before.sum_ns) / (after.count - before.count), after.p50_ns


def _theirs(pid: int, program: str, function: str, seconds: float) -> tuple[float, float]:
    """Return bpftrace's mean and median."""
    Bpftrace()
    entry, exit_ = f"uprobe:{program}:{function}", f"uretprobe:{program}:{function}"
    value = "$t = nsecs - @s[tid]; @t = stats($t); @h = lhist($t, 0, 200000, 200); delete(@s[tid]);"
    command = ["bpftrace", "-p", str(pid), "-e", f"{entry} {{ @s[tid] = nsecs; }} {exit_} /@s[tid]/ {{ {value} }}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        time.sleep(seconds + 2)  # it says that it attaches before it does
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    found = re.search(r"@t: count (\d+), average (\d+), total (\d+)", said)
    if not found or not int(found[1]):
        raise Missing("bpftrace has seen no call: " + " ".join(said.split())[-200:])
    return int(found[3]) / int(found[1]), _median(re.findall(r"\[(\S+), (\S+)\)\s+(\d+) \|", said))


def _median(buckets: list[tuple[str, str, str]]) -> float:
    """Return the median of a printed histogram, interpolated in its bucket."""
    rank = sum(int(count) for *_, count in buckets) / 2
    for low, high, count in buckets:
        if rank <= int(count):
            start, end = (float(bound.replace("K", "e3")) for bound in (low, high))
            return start + (end - start) * rank / int(count)
        rank -= int(count)
    raise Missing("half of the calls took longer than bpftrace was asked to tell apart")


def _floor() -> tuple[float, float]:
    """Return what bpftrace says that an empty function takes."""
    with call_target() as target:
        target.process.stdin.write("work 100000000\n")  # type: ignore[union-attr] # it is a pipe
        target.process.stdin.flush()  # type: ignore[union-attr]
        return _theirs(target.pid, os.readlink(f"/proc/{target.pid}/exe"), "work", 2.0)
