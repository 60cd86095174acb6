"""Names of threads, and how deep they are in traced calls."""

import os
import threading
from pathlib import Path

from anyprobe.cli.events.threads import DEEPEST, Threads

BOTH = ("pid:a:f:entry", "pid:a:f:return", "pid:a:g:entry", "pid:a:g:return", "pid:a:h:entry", "pid:a:h:insn")


def depths(threads, *specs, tid=1):
    return [threads.depth(7, tid, f"pid:a:{spec}") for spec in specs]


def traced(*specs):
    threads = Threads()
    threads.see(specs)
    return threads


def test_calls_are_further_in_than_those_around_them():
    entered = ("f:entry", "g:entry", "h:entry", "h:insn", "g:return", "f:return", "f:entry")
    assert depths(traced(*BOTH), *entered) == [0, 1, 2, 2, 1, 0, 0]


def test_each_thread_has_calls_of_its_own():
    threads = traced(*BOTH)
    assert depths(threads, "f:entry", "f:entry") == [0, 1]
    assert depths(threads, "f:entry", tid=2) == [0]


def test_returns_that_were_missed_do_not_stay():
    assert depths(traced(*BOTH), "f:entry", "g:entry", "g:entry", "f:return", "f:entry") == [0, 1, 2, 0, 0]
    assert depths(traced(*BOTH), "g:return", "f:entry") == [0, 0]


def test_entries_alone_say_nothing_of_depth():
    assert depths(traced("pid:a:f:entry", "pid:a:g:return"), "f:entry", "f:entry", "g:return") == [0, 0, 0]


def test_endless_recursion_is_not_shown_endlessly_far_in():
    assert max(depths(traced(*BOTH), *["f:entry"] * 1000)) == DEEPEST


def test_a_thread_keeps_the_name_that_it_had_last():
    threads, ready, leave = Threads(), threading.Event(), threading.Event()
    found = []

    def run():
        found.append(threading.get_native_id())
        with open(f"/proc/self/task/{found[0]}/comm", "w") as comm:
            comm.write("worker 1")
        ready.set()
        leave.wait()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()
    threads.know(os.getpid())
    leave.set()
    thread.join()
    threads.look()
    assert threads.name(os.getpid(), os.getpid()) == Path("/proc/self/comm").read_text().strip()
    assert threads._names[os.getpid(), found[0]] == "worker 1"
    assert threads.name(999_999_999, 5) == "?"
