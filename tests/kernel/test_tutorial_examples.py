"""The examples of the kprobes tutorial on the guest's kernel: what they print of a workload that is known."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough
EXAMPLES = Path(__file__).parents[2] / "examples" / "kernel"
OPENS = 20
CLOCK_NANOSLEEP, PATIENCE = 230, 60


@pytest.fixture(params=[[], ["splice"]], ids=["cheapest", "splice"])
def mechanism(request):
    """Return the mechanism that an example is given, with the driver loaded where it is needed."""
    if request.param:
        request.getfixturevalue("loaded")
    return request.param


@contextmanager
def example(name, mechanism):
    """Run an example until the end of the block, by Ctrl-C; what it has printed is in the list that one is given."""
    said = []
    command = [sys.executable, str(EXAMPLES / name), "600", *mechanism]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        first = child.stdout.readline()
        said.append(first.rstrip("\n"))
        assert "registered" in first.lower(), first + child.stdout.read()
        yield said
        # a signal that comes before the call that it is to interrupt is not seen until that returns
        state, deadline = Path(f"/proc/{child.pid}/syscall"), time.monotonic() + PATIENCE
        while not state.read_text().startswith(f"{CLOCK_NANOSLEEP} "):
            assert time.monotonic() < deadline, state.read_text()
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        said += child.stdout.read().splitlines()
    assert child.returncode == 0, said


def test_kprobe_on_schedule(mechanism):
    with example("kprobe_schedule.py", mechanism) as said:
        for _ in range(OPENS):  # each gives up the processor at least once
            subprocess.run(["/bin/true"], check=True)
    assert said[0] == "kprobe registered"
    pattern = r"current task on CPU#\d+: .+ \((before|after) scheduling\), pid = \d+"
    shown = [re.fullmatch(pattern, line) for line in said[1:10]]
    assert all(shown), said
    assert {match[1] for match in shown} == {"before", "after"}
    (total,) = (
        int(match[1]) for line in said if (match := re.match(r"Scheduling times is (\d+) during of \d+ mill", line))
    )
    assert total >= OPENS
    assert said[-1] == "kprobe unregistered"


def test_jprobe_on_open(tmp_path, mechanism):
    path = tmp_path / "opened"
    with example("jprobe_open.py", mechanism) as said:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o640))
    assert said[0] == "Registered a jprobe."
    flags = os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC
    (line,) = (line for line in said if str(path) in line)
    found = re.fullmatch(r"process '(.+)' call open\('(.+)', (\d+), (\d+)\)", line)
    assert (found[1], found[2]) == (Path("/proc/self/comm").read_text().strip(), str(path))
    assert int(found[3]) & flags == flags
    assert int(found[4]) & 0o777 == 0o640
    assert said[-1] == "jprobe unregistered"


def test_kretprobe_on_open(tmp_path, mechanism):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with example("kretprobe_open.py", mechanism) as said:
        for number in range(OPENS):
            assert not os.path.exists(f"/no-such-file-{number}")
            try:
                os.open(f"/no-such-file-{number}", os.O_RDONLY)
            except FileNotFoundError:
                continue
        waiting = subprocess.Popen(["cat", fifo], stdout=subprocess.DEVNULL)  # its open lasts until there is a writer
        state = Path(f"/proc/{waiting.pid}/syscall")
        while not state.read_text().startswith("257 "):
            os.sched_yield()
        for _ in range(OPENS):
            os.close(os.open("/dev/null", os.O_RDONLY))
        os.close(os.open(fifo, os.O_WRONLY))
        assert waiting.wait() == 0
    assert said[0] == "Registered a return probe."
    errors = [line for line in said if line.startswith("sys_open returns ")]
    assert 1 <= len(errors) <= 12
    assert "sys_open returns -2" in errors
    (missed,) = (int(match[1]) for line in said if (match := re.match(r"Missed (\d+) sys_open probe inst", line)))
    assert missed >= OPENS
