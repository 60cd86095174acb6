"""nginx: requests are timed to their end, though what processes them ends in a jump; as many as its own log has."""

import http.client
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

import anyprobe
from support.driver import wait_until
from support.results import timing

REQUESTS = 300
CONFIGURATION = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log; {user}
events {{ worker_connections 64; }}
http {{
    access_log {folder}/access.log; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
    fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    server {{ listen 127.0.0.1:{port}; root {folder}/pages; }}
}}
"""


@pytest.fixture
def nginx(tmp_path):
    """Return the port and the worker of a server of its own."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("needs nginx")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.html").write_text("a page\n")
    user = "user root;" if os.getuid() == 0 else ""
    (tmp_path / "nginx.conf").write_text(CONFIGURATION.format(folder=tmp_path, port=port, user=user))
    with subprocess.Popen([program, "-c", str(tmp_path / "nginx.conf")], stderr=subprocess.DEVNULL) as master:
        try:
            wait_until(lambda: workers(master.pid) and answers(port), "nginx answers")
            yield port, workers(master.pid)[0]
        finally:
            master.terminate()


def workers(master):
    return [int(pid) for pid in Path(f"/proc/{master}/task/{master}/children").read_text().split()]


def answers(port):
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def ask(port, times, *, keep):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for _ in range(times):
        connection.request("GET", "/index.html")
        assert connection.getresponse().read() == b"a page\n"
        if not keep:
            connection.close()
    connection.close()


def test_requests_are_timed_and_are_as_many_as_in_the_log(nginx, tmp_path):
    port, worker = nginx
    with anyprobe.attach(worker) as session:
        session.time("nginx:ngx_http_process_request")
        for keep in (False, True):
            ask(port, 20, keep=keep)  # by two ways, whose callers may not be known yet
            session.pump(0.2)
        start = timing(session.snapshot(), "ngx_http_process_request")
        for keep in (False, True):
            ask(port, REQUESTS, keep=keep)
        log = tmp_path / "access.log"
        wait_until(lambda: len(log.read_text().splitlines()) == 2 * (REQUESTS + 20), "all is in the log")
        end = timing(session.snapshot(), "ngx_http_process_request")
    assert end.count + end.learning == 2 * (REQUESTS + 20)
    assert end.count - start.count == 2 * REQUESTS
    assert (end.tail_exits, end.unmatched, end.nmissed, end.in_flight) == (0, 0, 0, 0)
    assert end.p50_ns > 1000  # it opens a file, and sends an answer
