"""nginx: a master whose workers come and go, reloaded while it serves; what is counted equals its access log."""

import http.client
import shutil
import signal
import socket
import subprocess
import threading
from contextlib import closing
from pathlib import Path

import pytest

import anyprobe
from support.driver import PATIENCE, wait_until
from support.results import hits

pytestmark = pytest.mark.live
WORKERS, CLIENTS = 2, 3
CONFIGURATION = """
daemon off; pid {0}/pid; error_log {0}/errors; worker_processes {1};
events {{ worker_connections 64; }}
http {{
    access_log {0}/log; client_body_temp_path {0}; proxy_temp_path {0}; fastcgi_temp_path {0}; uwsgi_temp_path {0};
    scgi_temp_path {0};
    server {{ listen unix:{0}/socket; location / {{ return 200 "served by $pid"; }} }}
}}
"""


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(str(self._path))


class Clients:
    """Threads that ask for a page again and again."""

    def __init__(self, socket):
        self._socket, self._enough = socket, threading.Event()
        self.served, self._guard = {}, threading.Lock()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for each in self._threads:
            each.start()

    def _ask(self):
        while not self._enough.is_set():
            with closing(Connection(self._socket)) as connection:
                connection.request("GET", "/")
                worker = int(connection.getresponse().read().split()[-1])
            with self._guard:
                self.served[worker] = self.served.get(worker, 0) + 1

    def end(self):
        self._enough.set()
        for each in self._threads:
            each.join(PATIENCE)


@pytest.fixture
def server(tmp_path):
    nginx = shutil.which("nginx") or "/usr/sbin/nginx"
    if not Path(nginx).exists():
        pytest.skip("nginx is not installed")
    (tmp_path / "conf").write_text(CONFIGURATION.format(tmp_path, WORKERS))
    command = [nginx, "-p", tmp_path, "-c", tmp_path / "conf", "-e", tmp_path / "errors"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as master:
        try:
            wait_until((tmp_path / "socket").exists, "the server listens")
            yield master
        finally:
            master.terminate()


def test_requests_are_those_of_the_access_log_though_workers_are_replaced(server, tmp_path):
    """The master and its workers are attached to; workers that the reload forks have the probes of the master."""
    log = tmp_path / "log"
    wait_until(lambda: len(children(server.pid)) == WORKERS, "the workers")
    before = children(server.pid)
    with anyprobe.SessionGroup.attach([server.pid, *before]) as group:
        group.count("nginx:ngx_http_process_request")
        clients = Clients(tmp_path / "socket")
        wait_until(lambda: set(before) <= set(clients.served), "each worker has served")
        server.send_signal(signal.SIGHUP)
        wait_until(lambda: len(clients.served) >= 2 * WORKERS, "each new worker has served")
        wait_until(lambda: not set(before) & set(children(server.pid)), "the old workers end")
        clients.end()
        wait_until(lambda: len(log.read_text().splitlines()) == sum(clients.served.values()), "the log is whole")
        together = group.snapshot()
        by_pid = {each.process.pid: sum(each.hits.values()) for each in together.processes}
    assert hits(together, "ngx_http_process_request") == sum(clients.served.values())
    assert {pid: count for pid, count in by_pid.items() if count} == clients.served
    assert set(before) < set(clients.served)
    assert "alert" not in (tmp_path / "errors").read_text()


def children(pid):
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
