"""A target in another mount, pid or user namespace."""

import os
import subprocess

import pytest

import anyprobe
from support.driver import Target
from support.results import hits

pytestmark = pytest.mark.root


def inside(*options, hide):
    """Start the program in new namespaces; its file is visible there under another name only."""
    script = f"mount -t tmpfs none /mnt && cp {hide} /mnt/program && exec /mnt/program 2"
    return Target(["unshare", *options, "sh", "-c", script])


@pytest.mark.parametrize(
    "options", [("--mount",), ("--mount", "--pid", "--fork"), ("--mount", "--uts", "--ipc")], ids=" ".join
)
def test_in_another_namespace(compiled, options):
    """Files are read through /proc/PID/root, pids are ours, not the target's."""
    probe = subprocess.run(["unshare", *options, "true"], capture_output=True)
    if probe.returncode:
        pytest.skip(f"unshare is not permitted here: {probe.stderr.decode().strip()}")
    target = inside(*options, hide=compiled("counts.c"))
    try:
        pid = target.pid
        if "--fork" in options:
            with open(f"/proc/{pid}/task/{pid}/children") as children:
                pid = int(children.read().split()[0])
            assert target.own_pid != pid
        assert os.readlink(f"/proc/{pid}/exe") == "/mnt/program"
        with anyprobe.attach(pid) as session:
            session.count("a.out:work", "a.out:leaf4%return")
            counts = target.go(2000)
            assert hits(session.snapshot(), "work") == counts.calls["work"]
            assert hits(session.snapshot(), "leaf4", "return") == counts.calls["leaf4"]
        target.finish()
    finally:
        target.close()


def test_calls_by_thread_in_another_pid_namespace(compiled):
    """A thread knows itself by another id than the one that it has here."""
    options = ("--pid", "--fork")
    probe = subprocess.run(["unshare", *options, "true"], capture_output=True)
    if probe.returncode:
        pytest.skip(f"unshare is not permitted here: {probe.stderr.decode().strip()}")
    program = str(compiled("calls_by_thread.c", "-O1", "-pthread"))
    command = ["unshare", *options, program, "3", "2", "0", "!"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
            pid = int(children.read().split()[0])
        with anyprobe.attach(pid, by_thread=True) as session:
            session.time("a.out:outer")
            said = process.communicate("\n", timeout=180)[0]
            session.wait(180)
            snapshot = session.snapshot()
    calls = {int(tid): int(count) for _, tid, _, count, _ in map(str.split, said.splitlines())}
    assert {each.tid: each.functions[0].count for each in snapshot.threads} == calls
    assert 1 in calls
