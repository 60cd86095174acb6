"""Programs whose first thread has ended while others run on: all commands are right about them."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

import anyprobe
from anyprobe.data.readers.reader import ForkChild
from anyprobe.probes.providers.function.forks.children import Children
from anyprobe.target.system import procfs
from live.test_command_line import anyprobe as command
from support.driver import build, wait_until
from support.results import hits, timing

NAME = "first_thread_ends.c"


class Program:
    """A program that answers, and one end of the socket that is its input and output."""

    def __init__(self, lines, ours):
        self.lines, self.ours, self.pid = lines, ours, 0

    def told(self, word, answer):
        self.ours.send(word)
        assert self.lines.readline() == answer

    def work(self, sum_now):
        self.told(b"w", f"{sum_now}\n")


@contextmanager
def talking():
    ours, theirs = socket.socketpair()
    with ours, ours.makefile() as lines, theirs:
        ours.settimeout(60)
        yield Program(lines, ours), {"stdin": theirs, "stdout": theirs}


@contextmanager
def running(*arguments, executable=None):
    argv = [executable or build(NAME), *arguments]
    with talking() as (program, streams), subprocess.Popen(argv, **streams) as process:
        program.pid = process.pid
        try:
            assert program.lines.readline() == ("ready\n" if arguments else "alone\n")
            if not arguments:  # others are told of its end a moment before it is over
                wait_until(lambda: procfs.read_stat(process.pid).ended, "the first thread has ended")
            yield program
        finally:
            program.ours.shutdown(socket.SHUT_WR)
            assert process.wait(180) == 0


def test_what_doctor_says():
    with running() as program:
        found = command("doctor", "-p", str(program.pid))
        assert found.returncode == 0
        assert "first_thread_ends, 1 thread\n" in found.stdout
        for line in ("permission +may be traced", "seccomp +no filter", r"per-thread counters +glibc 2\.\d+",
                     "text +private mappings of 4 files", "namespaces +the same as anyprobe's"):  # fmt: skip
            assert re.search(f"ok +{line}\n", found.stdout), found.stdout
        program.work(10)


def test_commands_that_touch_nothing(tmp_path):
    name = f"ends-{os.getpid()}"  # which no other test's program has
    (tmp_path / name).symlink_to(build(NAME))
    with running(executable=tmp_path / name) as program:
        pid = str(program.pid)
        assert "work:entry" in command("list", "work", "-p", pid).stdout
        assert "chosen" in command("explain", "work", "-p", pid).stdout
        assert command("probes", "-p", pid).stdout == "nothing is installed\n"
        assert command("detach", "-p", pid).stdout == "nothing was installed\n"
        assert "1 hit" not in command("count", "work", "-n", name, "--for", "0.1").stdout
        program.work(10)


def test_sessions():
    """Counted, timed and handled, with each way to arm."""
    with running() as program:
        for number, settings in enumerate(({}, {"live": True}, {"strategy": "trap"})):
            with anyprobe.attach(program.pid, **settings) as session:
                session.count("work")
                session.time("work")
                program.work(10 + 10 * number)
                snapshot = session.snapshot()
            assert hits(snapshot, "work") == timing(snapshot, "work").count == 10


@pytest.mark.parametrize("started", [False, True], ids=["attached", "started"])
def test_the_first_thread_ends_while_probes_are_armed(started):
    """More are armed after that, also in a library that has been loaded since."""
    with talking() as (program, streams):
        process = None if started else subprocess.Popen([build(NAME), "later"], **streams)
        argv = [str(build(NAME)), "later"]
        with anyprobe.run(argv, **streams) if started else anyprobe.attach(process.pid) as session:
            session.count("work")
            session.resume()
            assert program.lines.readline() == "ready\n"
            program.told(b"x", "alone\n")
            program.told(b"l", "10\n")
            session.count("libm:cos")
            session.time("work")
            program.work(20)
            snapshot = session.snapshot()
            assert hits(snapshot, "work") == 20
            assert timing(snapshot, "work").count == 10
            assert not snapshot.warnings
            assert snapshot.target.exited is None
        program.work(30)
        program.ours.shutdown(socket.SHUT_WR)
        assert (os.waitpid(session.pid, 0)[1] if started else process.wait(180)) == 0


def test_what_a_killed_controller_left_is_removed():
    with running() as program:
        argv = [
            sys.executable,
            "-m",
            "anyprobe",
            "count",
            "work",
            "-p",
            str(program.pid),
            "--every",
            "0.1",
            "--json",
            "--zero",
        ]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as controller:
            assert json.loads(controller.stdout.readline())["sites"]
            controller.send_signal(signal.SIGKILL)
        program.work(10)
        assert "work" in command("probes", "-p", str(program.pid)).stdout
        assert command("detach", "-p", str(program.pid)).returncode == 0
        wait_until(lambda: "nothing" in command("probes", "-p", str(program.pid)).stdout, "all is removed")
        program.work(20)


def test_a_fork_child_is_not_taken_for_ended_while_others_run_on():
    """What its handlers keep would be given to others, while its threads use it."""
    children, bank, child = Children(0, "parent"), SimpleNamespace(arena=SimpleNamespace(inode=0)), None
    with running() as program:
        child = ForkChild(0, program.pid, has_copy=True)
        children.note(bank, [child])
        assert [pid for pid, _ in children.alive()] == [program.pid]
        assert children.ended(bank, [child]) == []
        program.work(10)
    assert children.alive() == []
    assert children.ended(bank, [child]) == [child]
