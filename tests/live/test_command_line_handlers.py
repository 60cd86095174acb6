"""The commands that run handlers, as programs, on real processes."""

import json
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import anyprobe
from live.driver import build, started
from live.test_command_line import BUSY, PATIENCE, installed, start
from live.test_command_line import anyprobe as run_command

pytestmark = pytest.mark.live

CONTRACT = """
from anyprobe import Hist, Map, cstr, i32, ptr, session, u64   # `session`: what `anyprobe script` opened

sizes = Hist("malloc sizes")                                   # named: appears under that name in the output
slow = Hist("read ns", by=("tid",))

@session.entry("libc:malloc")
def on_malloc(size: u64):
    if size > 64:
        sizes.add(size)

@session.call("libc:read")                                    # entry and return of one call; ctx.data is the call's own
def on_read(ctx, fd: i32, buf: ptr, n: u64):
    ctx.data.t0 = ctx.now

@on_read.ret
def on_read_done(ctx):
    if ctx.retval > 0:
        slow.add(ctx.now - ctx.data.t0, key=(ctx.tid,))
"""
"""The script that users are promised, as it is."""
READER = """
import os
print('ready', flush=True)
while os.read(0, 100): bytearray(9000)
"""


@pytest.fixture
def reader():
    """A process that reads what it is given, and allocates memory each time."""
    command = [sys.executable, "-X", "importtime", "-c", READER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdout.readline()
        yield process
        process.kill()


@pytest.fixture
def busy():
    """A process that calls getppid a thousand times a second."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        assert process.poll() is None, "the target died"
        process.kill()


@pytest.fixture
def script(tmp_path):
    """Write a script and return its path."""

    def write(text):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


# -- script


def test_the_promised_script_runs_on_a_running_process(reader, script):
    controller = start("script", script(CONTRACT), "-p", str(reader.pid), "--json")
    wait_for(lambda: len(installed(reader.pid)) >= 3, "never armed")
    for _ in range(50):
        reader.stdin.write(b"hello")
        reader.stdin.flush()
        time.sleep(0.002)
    controller.send_signal(signal.SIGINT)
    out, err = controller.communicate(timeout=PATIENCE)
    assert controller.returncode == 0, err
    aggregations = json.loads(out)["aggregations"]
    assert set(aggregations) == {"malloc sizes", "read ns"}
    assert aggregations["malloc sizes"]["min"] > 64
    (cell,) = aggregations["read ns"]
    assert cell["key"] == [reader.pid]
    assert sum(count for _, _, count in cell["buckets"]) == cell["count"] > 0
    assert installed(reader.pid) == []


def test_the_promised_script_runs_from_the_first_instruction(script, tmp_path):
    shown = run_command("script", script(CONTRACT), "--", "/bin/cat", script(CONTRACT))
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout == CONTRACT
    assert "malloc sizes (hist)" in shown.stderr
    assert "read ns (hist)" in shown.stderr
    assert "tid=" in shown.stderr


def test_the_promised_script_runs_unchanged_from_the_interface(script):
    import runpy

    with started(build("handled.c", "-O2", "-pthread")) as target, anyprobe.attach(target.pid) as session:
        names = runpy.run_path(script(CONTRACT))
        target.go(2)
        target.finish()
        assert {each.name for each in session.snapshot().aggregations} == {"malloc sizes", "read ns"}
        # the target's own reading of commands
        assert names["slow"].result()[(target.pid,)].count >= 1
