"""Several processes of one program: what is known of its files is found out once."""

import collections
import subprocess
from contextlib import ExitStack

import pytest

from anyprobe.binary.objects import cache, elf, functions
from anyprobe.cli.programs.targets import Target, open_sessions
from support.driver import build

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
__attribute__((noinline)) long work(long n) { free(malloc(n & 31)); return n + 1; }
int main(void) { long n = 0; puts("ready"); fflush(stdout); for (;;) { n = work(n); usleep(1000); } return n == 0; }
"""
SPECS = ("a.out:work", "libc:malloc")
MANY = 6


@pytest.fixture
def pids():
    with ExitStack() as stack:
        found = []
        for _ in range(MANY):
            process = subprocess.Popen([build("many_processes.c", text=PROGRAM)], stdout=subprocess.PIPE, text=True)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdout.readline() == "ready\n"
            found.append(process.pid)
        yield tuple(found)


@pytest.fixture
def work(monkeypatch, tmp_path):
    """Return how often what costs time is done: tables read from the cache, symbol tables, unpacked tables."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # others may fill the usual one, so that something has to go
    done = collections.Counter()

    def counting(name, original):
        def call(*arguments, **named):
            done[name] += 1
            return original(*arguments, **named)

        return call

    monkeypatch.setattr(functions.FunctionTable, "__init__", counting("tables", functions.FunctionTable.__init__))
    monkeypatch.setattr(cache, "_unpack", counting("read from the cache", cache._unpack))
    monkeypatch.setattr(elf.ElfFile, "section", counting("sections", elf.ElfFile.section))
    return done


def counted(work, pids):
    """Return what counting in some processes takes, all files being known from earlier sessions."""
    work.clear()
    with ExitStack() as stack:
        sessions = open_sessions(stack, Target(pids))
        for session in sessions:
            session.count(*SPECS)
        assert all(site.armed for session in sessions for site in session.snapshot().sites)
        assert sum(len(session.snapshot().sites) for session in sessions) == len(SPECS) * len(pids)
    return dict(work)


def test_many_processes_of_a_program_cost_little_more_than_one(work, pids):
    counted(work, pids[:1])
    one, all_of_them = counted(work, pids[:1]), counted(work, pids)
    assert one["tables"] > 0
    assert all_of_them["tables"] == one["tables"]
    for what in ("read from the cache", "sections"):  # plans are each session's own
        assert all_of_them.get(what, 0) <= one.get(what, 0) + 2 * MANY * len(SPECS), what


def test_sessions_of_their_own_share_nothing(work, pids):
    """What one session knows of a file does not outlive it: the file may be another one by then."""
    counted(work, pids[:1])  # what the cache has is known from here on
    one = counted(work, pids[:1])
    assert counted(work, pids[1:2])["tables"] == one["tables"]
