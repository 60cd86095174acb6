"""nginx: requests are timed to their end, though what processes them ends in a jump; as many as its own log has."""

import http.client
import os
import shutil
import signal
import socket
import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

import anyprobe
from anyprobe import SessionGroup
from anyprobe.probes.group import merged
from support.driver import wait_until
from support.results import timing

REQUESTS = 300
CONFIGURATION = """
daemon off; worker_processes 2; pid {folder}/pid; error_log {folder}/error.log; {user}
events {{ worker_connections 64; }}
http {{
    log_format by_pid '$pid $uri'; access_log {folder}/access.log by_pid;
    client_body_temp_path {folder}/a; proxy_temp_path {folder}/b;
    fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    server {{ listen 127.0.0.1:{port}; root {folder}/pages; }}
}}
"""


@pytest.fixture
def nginx(tmp_path):
    """Return the port and the master of a server of its own, which has two workers."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("needs nginx")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.html").write_text("a page\n")
    user = "user root;" if os.getuid() == 0 else ""
    with socket.create_server(("127.0.0.1", 0)) as listening:  # as of an nginx before it, so that the port is its own
        # nginx leaves an inherited socket as it is: a worker whose sibling has accepted before it would block for ever.
        listening.setblocking(False)
        port, fd = listening.getsockname()[1], listening.fileno()
        (tmp_path / "nginx.conf").write_text(CONFIGURATION.format(folder=tmp_path, port=port, user=user))
        command = [program, "-c", str(tmp_path / "nginx.conf")]
        environment = {**os.environ, "NGINX": f"{fd};"}
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment, pass_fds=[fd]) as master:
            try:
                wait_until(lambda: len(workers(master.pid)) == 2 and answers(port), "nginx answers")
                yield port, master.pid
            finally:
                master.terminate()


def workers(master):
    return [int(pid) for pid in Path(f"/proc/{master}/task/{master}/children").read_text().split()]


def reload(master):
    """Have the configuration read again; wait until there are new workers, and the old ones have ended."""
    old = {*workers(master)}
    os.kill(master, signal.SIGHUP)
    wait_until(lambda: len({*workers(master)} - old) == 2 and not old & {*workers(master)}, "it reloads")


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


def logged(folder):
    """Return how many requests each worker has written to the log."""
    return Counter(int(line.split()[0]) for line in (folder / "access.log").read_text().splitlines())


def timed(snapshots):
    """Return the calls of each process: timed, and while their caller was not known."""
    return {
        each.process.pid: (found.count, found.learning)
        for snapshot in snapshots
        for each in snapshot.processes
        for found in each.functions
        if found.count + found.learning
    }


def timed_in(group):
    return timing(group.snapshot(), "ngx_http_process_request")


def ended_in(group, calls):
    """Return the times of so many calls once they have ended, which is after they have answered and written the log."""

    def ended():
        found = timed_in(group)
        return found.count + found.learning >= calls and not found.in_flight

    wait_until(ended, "all have ended")
    return timed_in(group)


def test_requests_are_timed_and_are_as_many_as_in_the_log(nginx, tmp_path):
    port, master = nginx
    with SessionGroup.attach(workers(master)) as group:
        group.time("nginx:ngx_http_process_request")
        asked, start = 0, timed_in(group)
        for _ in range(10):  # until no worker is called by a way that was not known yet
            for keep in (False, True):
                ask(port, REQUESTS, keep=keep)
                group.pump(0.2)
            before, start, asked = start, ended_in(group, asked + 2 * REQUESTS), asked + 2 * REQUESTS
            if start.learning == before.learning:
                break
        assert logged(tmp_path).total() == asked
        end = start
    assert end.count + end.learning == asked
    assert end.count - before.count == 2 * REQUESTS
    assert (end.tail_exits, end.unmatched, end.nmissed, end.in_flight) == (0, 0, 0, 0)
    assert end.p50_ns > 1000  # it opens a file, and sends an answer


@pytest.mark.parametrize("attached", ["master and workers", "master"])
def test_workers_old_and_new_have_what_they_have_logged(nginx, tmp_path, attached):
    """A server is told to read its configuration again: it forks new workers, and the old ones end when they are done.

    New workers have the probes of the master, from their first call on.
    """
    port, master = nginx
    old = workers(master)
    with SessionGroup.attach([master, *old] if attached == "master and workers" else [master]) as group:
        group.time("nginx:ngx_http_process_request")
        for round_ in range(3):
            ask(port, REQUESTS, keep=round_ == 1)
            reload(master)
        ask(port, REQUESTS, keep=False)
        wait_until(lambda: logged(tmp_path).total() == 4 * REQUESTS, "all is in the log")
        wait_until(lambda: group.pump(0.05) and not timed_in(group).in_flight, "all have ended")
        snapshots = group.snapshots()
        found = timed(snapshots)
    said = logged(tmp_path)
    if attached == "master":
        said = {pid: calls for pid, calls in said.items() if pid not in old}
    assert {pid: sum(calls) for pid, calls in found.items()} == said
    assert len(said) >= 3
    everything = [timing(snapshot, "ngx_http_process_request") for snapshot in snapshots]
    assert [(one.unmatched, one.nmissed, one.in_flight) for one in everything] == [(0, 0, 0)] * len(everything)


def test_what_ran_in_each_worker_is_that_of_the_log_and_is_added_up(nginx, tmp_path):
    port, master = nginx
    spec = "a.out:ngx_http_*"
    with ExitStack() as stack:
        pids = workers(master)
        sessions = [stack.enter_context(anyprobe.attach(pid)) for pid in pids]
        for each in sessions:
            each.cover(spec)
        ask(port, 1, keep=False)
        for each in sessions:
            each.pump(0.5)
        one = {pid: functions_run(each.snapshot().coverage) for pid, each in zip(pids, sessions, strict=True)}
        assert {pid for pid in pids if "ngx_http_process_request" in one[pid]} == {*logged(tmp_path)}
        both = merged([each.snapshot() for each in sessions])
        (module,) = both.coverage.modules
        assert functions_run(both.coverage) == set().union(*one.values())
        assert module.blocks.covered > 300
        assert "ngx_http_special_response_handler" not in functions_run(both.coverage)


def functions_run(coverage):
    return {each.name for module in coverage.modules for each in module.functions if each.hits}
