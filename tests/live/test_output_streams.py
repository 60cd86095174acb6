"""Results where standard output is closed, full, or knows ASCII only: an ordinary error, or what can be shown."""

import os
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

ANYPROBE = f"'{sys.executable}' -m anyprobe"
CALLS = 500
SOURCE = f"""
__attribute__((noinline)) int größe(int x) {{ __asm__ volatile(""); return x + 1; }}
__attribute__((noinline)) int 数(const char *text) {{ __asm__ volatile("" :: "r"(text)); return text[0]; }}
int main(void) {{ int sum = 0; for (int i = 0; i < {CALLS}; i++) sum += größe(i) + 数("наш"); return sum == 1; }}
"""
ASCII_STREAMS = {"PYTHONIOENCODING": "ascii"}
ASCII_LOCALE = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("names") / "größe"
    source = path.with_suffix(".c")
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-g", "-O1", "-o", path, source], check=True)
    return path


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "100"]) as process:
        yield process.pid
        assert process.poll() is None, "the target died"
        process.kill()


def shell(text, **environment):
    command = ["bash", "-c", text]
    return subprocess.run(command, capture_output=True, timeout=180, env={**os.environ, **environment}, check=False)


@pytest.mark.parametrize(("where", "why"), [(">/dev/full", "No space left on device"), (">&-", "it is closed")])
def test_results_that_cannot_be_written_are_an_error(sleeper, where, why):
    shown = shell(f"{ANYPROBE} count libc:malloc -p {sleeper} --for 0 {where}")
    assert shown.returncode == 1
    assert shown.stderr.decode() == f"anyprobe: cannot write to standard output: {why}\n"


def test_a_closed_output_is_told_before_anything_is_measured(sleeper):
    assert shell(f"{ANYPROBE} count libc:malloc -p {sleeper} >&-").returncode == 1  # without --for it would not end


@pytest.mark.parametrize("where", [">/dev/full", ">&-", "2>/dev/full", ">&- 2>&-"])
def test_results_reach_their_file_all_the_same(sleeper, tmp_path, where):
    path = tmp_path / "results"
    shown = shell(f"{ANYPROBE} count libc:malloc -p {sleeper} --for 0 -o '{path}' {where}")
    assert shown.returncode == 0
    assert "malloc" in path.read_text()


def test_a_full_file_is_an_error(sleeper):
    shown = shell(f"{ANYPROBE} count libc:malloc -p {sleeper} --for 0 -o /dev/full")
    assert shown.returncode == 1
    assert shown.stderr.decode() == "anyprobe: cannot write to /dev/full: No space left on device\n"


@pytest.mark.parametrize(
    ("command", "environment"),
    [("count", ASCII_LOCALE), ("time", ASCII_STREAMS), ("trace --print 'cstr(arg0, 64)'", ASCII_STREAMS)],
)
def test_names_that_are_not_ascii_are_replaced(program, command, environment):
    shown = shell(f"{ANYPROBE} {command} a.out:数 -- '{program}'", **environment)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr.isascii()
    assert b"\\u6570" in shown.stderr
    assert b"Traceback" not in shown.stderr
    if "cstr" in command:
        assert shown.stderr.count(b'"\\u043d\\u0430\\u0448"') == CALLS


def test_a_mistake_is_told_in_ascii_too(program):
    shown = shell(f"{ANYPROBE} count a.out:größ -- '{program}'", PYTHONIOENCODING="ascii")
    assert shown.returncode == 2
    assert b"nearest: gr\\xf6\\xdfe" in shown.stderr


BUSY = """
#include <unistd.h>
__attribute__((noinline)) int tick(int n) { __asm__ volatile(""); return n + 1; }
int main(void) { int n = 0; for (;;) { n = tick(n); usleep(100); } }
"""


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    path = tmp_path_factory.mktemp("busy") / "busy"
    subprocess.run(["gcc", "-O1", "-x", "c", "-o", path, "-"], input=BUSY, text=True, check=True)
    return path


@pytest.fixture
def busy_process(busy):
    with subprocess.Popen([busy]) as process:
        yield process.pid
        assert process.poll() is None, "the target died"
        process.kill()


def unread_pipe(_):
    return os.pipe()


def unread_terminal(_):
    return os.openpty()


def unread_fifo(folder):
    os.mkfifo(folder / "fifo")
    return os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK), os.open(folder / "fifo", os.O_WRONLY)


def wait_until_full(writer):
    """Wait until nothing can be written, for half a second on end: a terminal makes room as it goes on."""
    poll = select.poll()
    poll.register(writer, select.POLLOUT)
    since, end = time.monotonic(), time.monotonic() + 180
    while time.monotonic() - since < 0.5:
        assert time.monotonic() < end
        if poll.poll(0):
            since = time.monotonic()
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("make", [unread_pipe, unread_terminal, unread_fifo])
def test_a_trace_that_is_not_read_ends_by_the_first_signal(busy_process, tmp_path, make, number):
    reader, writer = make(tmp_path)
    command = [sys.executable, "-m", "anyprobe", "trace", "a.out:tick", "-p", str(busy_process)]
    with subprocess.Popen(command, stdout=writer, stderr=subprocess.PIPE, text=True) as tracing:
        wait_until_full(writer)
        tracing.send_signal(number)
        told = tracing.communicate(timeout=180)[1]
    os.close(reader)
    os.close(writer)
    assert tracing.returncode == 130
    assert "lines, or some of them, are lost" in told
    assert "its reader has stopped reading" in told
