"""Two sessions on one process: both work, or the second is told about the first; never corruption."""

import subprocess
import sys

import pytest

import anyprobe
from anyprobe.target.process.exclusion import exclusive
from anyprobe.target.process.process import Process
from support.image import Image
from support.results import hits


@pytest.mark.parametrize("functions", [("work", "side"), ("work", "work")], ids=["different", "same"])
def test_two_at_once(run_target, functions):
    """The second session from another process, on other functions and on the same one."""
    target = run_target("counts.c", "2")
    before = Image.of(target.pid)
    first, second = functions
    with anyprobe.attach(target.pid) as session:
        session.count(f"a.out:{first}")
        command = [
            sys.executable,
            "-m",
            "anyprobe",
            "count",
            "-p",
            str(target.pid),
            "--json",
            "--for",
            "0.3",
            f"a.out:{second}",
        ]
        outcome = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while outcome.poll() is None:
            target.go(1000)
        _, error = outcome.communicate()
        assert outcome.returncode in (0, 1), error
        if outcome.returncode == 1:
            assert len(error.strip().splitlines()) == 1, error
            assert "session" in error
        counts = target.go(1000)
        assert hits(session.snapshot(), first) == counts.calls[first]
    before.assert_restored(target.pid)
    target.go(100)
    target.finish()


def test_two_in_one_process(run_target):
    """Two sessions of one controller, ended in either order."""
    target = run_target("counts.c", "2")
    before = Image.of(target.pid)
    one = anyprobe.attach(target.pid)
    one.count("a.out:work")
    try:
        two = anyprobe.attach(target.pid)
        two.count("a.out:side")
    except anyprobe.SessionConflict as conflict:
        assert "session" in str(conflict)  # noqa: PT017 - either outcome is right
    else:
        counts = target.go(500)
        assert hits(two.snapshot(), "side") == counts.calls["side"]
        one.detach()
        target.go(500)
        two.detach()
    one.detach()
    before.assert_restored(target.pid)
    target.finish()


LOCKS = """
import sys
from anyprobe.target.process import exclusion
from anyprobe.target.process.process import Process
with exclusion.exclusive(Process.open(int(sys.argv[1])), patience=0.1):
    print("locked")
"""
ANOTHER_PROC = ("unshare", "--mount", "sh", "-c", 'mount -t proc proc /proc && exec "$@"', "sh")


@pytest.mark.parametrize("prefix", [(), pytest.param(ANOTHER_PROC, marks=pytest.mark.root)], ids=["", "another /proc"])
def test_one_at_a_time_changes_a_process(run_target, prefix):
    """Wherever the others see its files in /proc."""
    target = run_target("counts.c", "2")
    command = [*prefix, sys.executable, "-c", LOCKS, str(target.pid)]
    process = Process.open(target.pid)
    try:
        free = subprocess.run(command, capture_output=True, text=True)
        if prefix and "locked" not in free.stdout:
            pytest.skip(f"no other /proc can be had: {free.stderr.splitlines()[-1]}")
        assert free.stdout == "locked\n", free.stderr
        with exclusive(process):
            kept_out = subprocess.run(command, capture_output=True, text=True)
        assert "another anyprobe is changing process" in kept_out.stderr
        assert not kept_out.stdout
    finally:
        process.close()
    target.finish()
