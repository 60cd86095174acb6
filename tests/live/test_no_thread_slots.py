"""Programs whose threads have no slots of their own: everything placed in them does without, or is refused by name."""

import json
import os
import socket
import subprocess
from contextlib import ExitStack

import pytest

from anyprobe import attach, run
from anyprobe.core.refusal import Reason
from live.test_command_line import anyprobe
from support.driver import build

WAYS = ("clone", "shared", "syscall", "raw", "clone3")
COMPILERS = {
    "O0": ("gcc", "-O0"),
    "O2": ("gcc",),
    "no-pie": ("gcc", "-O1", "-no-pie"),
    "static": ("gcc", "-static"),
    "musl": ("musl-gcc",),
    "musl-static": ("musl-gcc", "-static"),
}


CASES = [(name, way) for name in COMPILERS for way in WAYS if way in {"clone", "shared", "raw"} or "musl" not in name]
"""musl's own ``syscall`` does not work without a thread pointer."""


@pytest.mark.parametrize(("name", "way"), CASES)
def test_children_end_as_they_would(tmp_path, name, way):
    """Counted from the first instruction on, hooks for signal handlers and filters included."""
    compiler, *options = COMPILERS[name]
    program = build("makes_tasks.c", *options, compiler=compiler)
    results = tmp_path / "results.json"
    found = anyprobe(
        "count",
        "a.out:work",
        "a.out:main",
        "--json",
        "-o",
        str(results),
        "--exit-status",
        "--",
        str(program),
        way,
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "1275\n", "")
    hits = {site["function"]: site["hits"] for site in json.loads(results.read_text())["sites"]}
    assert hits == {"main": 1, "work": 50}


@pytest.mark.parametrize("attempt", ["planned anew", "planned before"])
def test_handlers_are_refused_by_name(tmp_path, monkeypatch, attempt):
    """Also where a plan for a counter at the same place has been kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    argv = [str(build("makes_tasks.c", "-O0")), "clone"]
    if attempt == "planned before":
        anyprobe("count", "a.out:work", "--", *argv)
    output = tmp_path / "output"
    with output.open("w") as stdout, run(argv, stdout=stdout) as session:
        session.count("a.out:main")
        session.time("a.out:work")
        session.resume()
        assert session.wait(180) == 0
        (refused,) = session.snapshot().refused
    assert refused.reason == Reason.NO_THREAD_SLOT
    assert output.read_text() == "1275\n"


LATE_HANDLER = """
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
static volatile int caught;
static void handler(int number) { caught += number; }
static int child(void *unused) { return 0; }
int main(int argc, char **argv) {
    static char stack[1 << 14];
    char byte;
    if (argc == 99) clone(child, stack + sizeof stack, 0, 0);
    puts("ready");
    fflush(stdout);
    while (read(0, &byte, 1) == 1) {
        if (byte == 's') signal(SIGUSR1, handler);
        if (byte == 'r') raise(SIGUSR1);
        getppid();
        puts(byte == 's' ? "set" : "raised");
        fflush(stdout);
    }
    return caught;
}
"""


@pytest.mark.parametrize("started", [False, True], ids=["attached", "started"])
def test_a_handler_far_from_all_that_is_counted(started):
    """Its module has no counters, and needs none."""
    program = str(build("late_handler.c", text=LATE_HANDLER))
    ours, theirs = socket.socketpair()
    streams = {"stdin": theirs, "stdout": theirs}
    with ours, theirs, ours.makefile() as lines, ExitStack() as ending:
        if not started:
            process = ending.enter_context(subprocess.Popen([program], **streams))
            assert lines.readline() == "ready\n"
        session = ending.enter_context(run([program], **streams) if started else attach(process.pid))
        session.count("libc:getppid")
        if started:
            session.resume()
            assert lines.readline() == "ready\n"
        for word, answer in ((b"s", "set\n"), (b"r", "raised\n")):
            ours.send(word)
            assert lines.readline() == answer
            snapshot = session.snapshot()
            assert not snapshot.warnings
        assert [site.hits for site in snapshot.sites] == [2]
        ours.shutdown(socket.SHUT_WR)
        status = session.wait(180) if started else process.wait(180) << 8
        assert os.waitstatus_to_exitcode(status) == 10
