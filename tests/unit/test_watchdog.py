"""A test that does not end: its programs are killed; where that does not help, the process that runs it ends."""

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
START = "from support import watchdog; watchdog.MARGIN = {}; watch = watchdog.Watchdog(); watch.begin('a test', 0.1);"


def run(rest, margin=0.3):
    command = [sys.executable, "-c", f"import subprocess, time; {START.format(margin)} {rest}"]
    return subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=180)


def test_its_programs_are_killed():
    outcome = run("status = subprocess.call(['sleep', '1000']); watch.end(); time.sleep(1); print(status)", margin=3)
    assert (outcome.returncode, outcome.stdout) == (0, "-9\n")
    assert "a test does not end" in outcome.stderr
    assert "sleep 1000" in outcome.stderr
    assert "subprocess.py" in outcome.stderr  # where it waited


def test_its_process_ends_where_that_does_not_help():
    outcome = run("time.sleep(1000)")
    assert outcome.returncode == 3
    assert "though its programs have been killed" in outcome.stderr


def test_what_ends_in_time_is_left_alone():
    outcome = run("watch.end(); subprocess.run(['sleep', '4']); watch.begin('another', 60); print('well')", margin=2)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "well\n", "")
