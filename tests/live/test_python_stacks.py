"""Python's functions on stacks of handlers, of waits and of locks, beside what the programs say that they execute."""

import os
import select
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

import anyprobe
from anyprobe.data.aggregates.aggregations import Count
from anyprobe.data.findings.offcpu import ASLEEP, Cause, State
from anyprobe.data.findings.waiting import locks_of
from anyprobe.data.layouts.unwinding import NO_PART, OF_INTERPRETER
from anyprobe.data.snapshots.last_results import results_at_end
from anyprobe.probes.waiting.locks import place_locks
from anyprobe.probes.waiting.offcpu import place_offcpu
from live.test_profile_python import KNOWN, OTHERS, pythons
from support.driver import PATIENCE, build, wait_until

pytestmark = pytest.mark.live
PROGRAM = """
import os, socket, sys, threading, traceback
from functools import partial
here, there = socket.socketpair()
lock = threading.Lock()
def told():
    for each in reversed(traceback.extract_stack()[:-1]):
        print(each.name, end=" ")
    print(flush=True)
class Asks:
    def __init__(self): self.deep(3)
    def deep(self, n):
        if n: return self.deep(n - 1)
        self.asks()
    def asks(self):
        for _ in range(100): os.getppid()
        told()
def from_c(_): Asks()
def receives():
    for _ in range(20): here.recv(1)
def in_thread(): receives()
def holds(taken):
    with lock:
        taken.set()
        here.recv(1)
def contends():
    taken = threading.Event()
    threads = [threading.Thread(target=holds, args=(taken,)), threading.Thread(target=waits_for_lock)]
    threads[0].start()
    taken.wait()
    threads[1].start()
    sys.stdin.readline()
    there.send(b"x")
    for each in threads: each.join()
def waits_for_lock():
    with lock: pass
def sends():
    worker = threading.Thread(target=in_thread)
    worker.start()
    for _ in range(20):
        sys.stdin.readline()
        there.send(b"x")
    worker.join()
print("ready", flush=True)
for line in sys.stdin:
    {"asks": partial(list, map(from_c, [1])), "receives": sends, "contends": contends}[line.strip()]()
    print("done", flush=True)
"""


@pytest.fixture
def program(request):
    command = [getattr(request, "param", sys.executable), "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()


def functions_of(stack):
    """Return the names of Python's functions on a stack, innermost first, without their files and classes."""
    own = [each.rpartition(":") for each in stack.split(" < ")]
    return [name.rpartition(".")[2] for file, _, name in own if file.endswith((".py", "<string>", "bin/gunicorn"))]


@pytest.mark.parametrize("program", [pythons()[each] for each in KNOWN], ids=KNOWN, indirect=True)
def test_a_handler_has_the_functions_that_the_program_says_it_executes(program):
    hits = Count("hits", by=("stack",))
    with anyprobe.attach(program.pid) as session:

        @session.entry("libc:getppid")
        def asked(ctx):
            hits.add(key=(ctx.ustack(python=True),))

        program.stdin.write("asks\n")
        told = program.stdout.readline().split()
        assert program.stdout.readline() == "done\n"
        (((stack,), cell),) = session.snapshot().aggregation("hits").entries.items()
    assert cell.count == 100
    assert functions_of(str(stack)) == told == ["asks", *["deep"] * 4, "__init__", "from_c", "<module>"]
    places = str(stack).split(" < ")
    assert places[0] == "libc.so.6:getppid"
    between = places[places.index(next(each for each in places if each.endswith("from_c"))) + 1 :]
    assert not between[0].endswith("<module>")  # what is written in C, map and list, is there as it is


@pytest.mark.skipif(not OTHERS, reason="there is no other Python")
@pytest.mark.parametrize("program", [pythons()[each] for each in OTHERS[:1]], indirect=True)
def test_of_another_python_it_is_said_that_functions_are_not_known(program):
    hits = Count("hits", by=("stack",))
    with anyprobe.attach(program.pid) as session:

        @session.entry("libc:getppid")
        def asked(ctx):
            hits.add(key=(ctx.ustack(python=True),))

        program.stdin.write("asks\n")
        assert program.stdout.readline().split()[0] == "asks"
        assert program.stdout.readline() == "done\n"
        (((stack,), cell),) = session.snapshot().aggregation("hits").entries.items()
    assert (cell.count, functions_of(str(stack))) == (100, [])
    assert any("Python's functions are not known" in each for each in session.warnings)


def waits_of(pid, act):
    """Return the waits of a process while ``act`` runs: cause, stack, descriptor and state, and how long each was."""
    causes, windows = {}, {}
    with anyprobe.attach(pid, returns="exits") as session:
        place_offcpu(session, causes, windows)
        act()
        session.detach()
        found = windows[pid].results(results_at_end(session))
    return next(each for each in found if each.name == ASLEEP).entries


def test_waits_have_them_too(program):
    def receives():
        program.stdin.write("receives\n")
        for _ in range(20):
            time.sleep(0.005)  # for which it waits
            program.stdin.write("go on\n")
        assert program.stdout.readline() == "done\n"

    found = {
        tuple(functions_of(str(key[1]))): (key, cell)
        for key, cell in waits_of(program.pid, receives).items()
        if key[0] == Cause.SOCKET  # on a busy machine it waits for the interpreter as well
    }
    key, cell = next(each for names, each in found.items() if names[:2] == ("receives", "in_thread"))
    assert key[3] == State.WHOLE
    assert 10 <= cell.count <= 20


def test_who_waits_for_a_lock_and_who_held_it_is_told_by_functions_of_python(program):
    with anyprobe.attach(program.pid, returns="exits") as session:
        place_locks(session)
        program.stdin.write("contends\n")
        time.sleep(0.05)  # the wait is this long, or longer
        program.stdin.write("go on\n")
        assert program.stdout.readline() == "done\n"
        locks = locks_of(session.snapshot().aggregations)
    waiters = [functions_of(" < ".join(each.stack)) for lock in locks for each in lock.waiters]
    assert ["waits_for_lock"] in [each[:1] for each in waiters]


BACKEND_S = 0.03
SELECT = ("23", "270")
"""The numbers of ``select`` and ``pselect6``."""
APP = """
import os, socket
def asks_backend():
    with socket.create_connection(("127.0.0.1", int(os.environ["BACKEND"]))) as connection:
        connection.sendall(b"q")
        return connection.recv(100)
def app(environ, start_response):
    data = asks_backend()
    start_response("200 OK", [("Content-Length", str(len(data)))])
    return [data]
"""


@pytest.mark.skipif(not shutil.which("gunicorn"), reason="gunicorn is not installed")
def test_a_worker_of_gunicorn_waits_for_a_socket(tmp_path):
    """For a server that answers after 30 ms, and idle for the next request."""
    (tmp_path / "app.py").write_text(APP)
    with socket.create_server(("127.0.0.1", 0)) as backend, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()

        def answers():
            while True:
                try:
                    connection, _ = backend.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1)
                    time.sleep(BACKEND_S)
                    connection.sendall(b"answer")

        threading.Thread(target=answers, daemon=True).start()
        environment = {**os.environ, "BACKEND": str(backend.getsockname()[1])}
        arguments = ["gunicorn", "-w", "1", "-b", f"127.0.0.1:{port}", "app:app"]
        with subprocess.Popen(arguments, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as master:
            try:
                ask = lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10).read()  # noqa: E731
                wait_until(lambda: succeeds(ask), "the server answers")
                children = f"/proc/{master.pid}/task/{master.pid}/children"
                (worker,) = Path(children).read_text().split()

                def ten():
                    for _ in range(10):
                        assert ask() == b"answer"
                    asleep = Path(f"/proc/{worker}/syscall")
                    wait_until(lambda: asleep.read_text().split()[0] in SELECT, "the worker is idle")

                found = waits_of(int(worker), ten)
            finally:
                master.terminate()
    named = [(functions_of(str(key[1])), key, cell) for key, cell in found.items()]
    asked = next(each for each in named if each[0][:2] == ["asks_backend", "app"] and "recv" in str(each[1][1]))
    assert (asked[1][0], asked[2].count) == (Cause.SOCKET, 10)
    assert asked[2].sum >= 10 * 0.95e9 * BACKEND_S
    idle = next(key for names, key, _ in named if names[:2] == ["wait", "run_for_one"] and key[3] == State.OPEN)
    assert idle[0] == Cause.POLL


def succeeds(act):
    try:
        return act() is not None
    except OSError:
        return False


RING = """
#include <stdio.h>
struct frame { long code; struct frame *previous; long kind; } ring = { 0, &ring, KIND };
struct { struct frame *current; } state = { &ring };
__thread void *own = &state;
__attribute__((noipa)) int hit(int number) { return number * 3 + (number >> 2); }
int main(void) {
    char *thread;
    __asm__("mov %%fs:0, %0" : "=r"(thread));
    printf("%ld\\n", (long)((char *)&own - thread));
    fflush(stdout);
    for (int each; (each = getchar()) > 0; fflush(stdout)) { hit(each); puts("back"); }
}
"""


@pytest.mark.parametrize("kind", [0, OF_INTERPRETER])
def test_frames_that_lead_to_each_other_do_not_hold_the_program(kind):
    stacks = Count("stacks", by=("stack",))
    command = [build("ring_of_frames.c", f"-DKIND={kind}", text=RING)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            place = int(process.stdout.readline()) % (1 << 64)
            with anyprobe.attach(process.pid) as session:

                @session.entry("a.out:hit")
                def taken(ctx):
                    stacks.add(key=(ctx.ustack(8, python=True),))

                session.handling._stack_tables.tell_python((place - (1 << 64), 0, NO_PART, 0, 8, 16, 0, 0, 8))
                process.stdin.write("h")
                process.stdin.flush()
                is_back = select.select([process.stdout], [], [], PATIENCE)[0]
                if not is_back:
                    process.kill()
                assert is_back
                (cell,) = session.snapshot().aggregation("stacks").entries.values()
                assert cell.count == 1
        finally:
            process.kill()
