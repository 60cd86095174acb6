"""The three examples that everyone learns from, on a program that does what they look for."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.driver import build, started

pytestmark = pytest.mark.live
EXAMPLES = Path(__file__).parents[3] / "examples" / "kprobes"


def run(name, is_enough):
    """Run an example on a busy program, again and longer where too little has happened; return its lines."""
    with started(build("opening.c", "-pthread")) as target:
        target.run_freely()
        for seconds in ("0.3", "0.3", "1", "3", "10", "30"):
            command = [sys.executable, EXAMPLES / f"{name}.py", str(target.pid), seconds]
            done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
            if "did not stop in time" in done.stderr:  # a busy machine may let a thread wait for long
                continue
            assert done.returncode == 0, done.stderr
            if is_enough(done.stdout):
                break
        target.halt()
        target.finish()
        return done.stdout.splitlines()


def test_kprobe_example():
    lines = run("kprobe_example", lambda shown: int(re.search(r"times is (\d+)", shown)[1]) > 10)
    assert lines[0] == "kprobe registered"
    assert lines[-1] == "kprobe unregistered"
    shown = r"current task on CPU#\d+: opening \((before|after) scheduling\), pid = \d+"
    assert len(lines[1:-3]) == 10
    assert all(re.fullmatch(shown, line) for line in lines[1:-3])
    found = re.fullmatch(r"Scheduling times is (\d+) during of (\d+) milliseconds\.", lines[-2])
    assert int(found[1]) > 10
    assert int(found[2]) >= 300


def test_jprobe_example():
    lines = run("jprobe_example", lambda shown: "/dev/null" in shown and "/no/such/file" in shown)
    assert (lines[0], lines[-1]) == ("Registered a jprobe.", "jprobe unregistered")
    shown = {re.sub(r", -?\d+\)$", ")", line) for line in lines[1:-1]}
    flags = 0o2000001
    assert shown == {
        f"process 'opening' call open('/dev/null', {flags})",
        "process 'opening' call open('/no/such/file', 0)",
    }


def test_kretprobe_example():
    def missed(shown):
        return int(re.search(r"^Missed (\d+) open probe instances\.$", shown, re.MULTILINE)[1])

    # until two threads were in it at a time
    lines = run("kretprobe_example", lambda shown: missed(shown) and shown.count("open returns -1\n") >= 12)
    assert lines[0] == "Registered a return probe."
    assert lines[1:13] == ["open returns -1"] * 12
    assert lines[-2] == "kretprobe unregistered"
    assert missed(lines[-1]) > 0


@pytest.mark.parametrize("name", ["kprobe_example", "jprobe_example", "kretprobe_example"])
def test_what_is_wrong_is_said_in_a_line(name):
    def said(*arguments):
        command = [sys.executable, EXAMPLES / f"{name}.py", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 1
        return done.stderr

    assert f"python examples/kprobes/{name}.py PID [SECONDS]" in said()
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    assert said(str(gone.pid), "0") == f"there is no process {gone.pid}\n"
