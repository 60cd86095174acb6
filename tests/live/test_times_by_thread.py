"""Times by thread: the calls that each thread says of itself, and sums that are those of all threads to the tick."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

import anyprobe
from anyprobe.data.archives import archive
from anyprobe.data.layouts import layout
from support.driver import wait_until
from support.results import timing

pytestmark = pytest.mark.live
PATIENCE = 180
NUMBERS = ("count", "tail_exits", "learning", "unmatched", "nmissed", "in_flight", "left")


@pytest.fixture
def program(compiled):
    return str(compiled("calls_by_thread.c", "-O1", "-pthread"))


def told(text):
    """Return what each thread says of its calls, by process and thread: of ``outer`` and of ``inner``."""
    found = {}
    for line in text.splitlines():
        pid, tid, _, *calls = line.split()
        assert (int(pid), int(tid)) not in found
        found[int(pid), int(tid)] = tuple(map(int, calls))
    return found


def names(text):
    return {int(tid): name for _, tid, name, *_ in map(str.split, text.splitlines())}


def counted(snapshot):
    """Return the same of the results."""
    found = {}
    for each in snapshot.threads:
        calls = {timing.function: timing.count for timing in each.functions}
        assert (each.process.pid, each.tid) not in found
        found[each.process.pid, each.tid] = (calls.get("outer", 0), calls.get("inner", 0))
    return found


def check_sums(snapshot):
    """See that the numbers of all threads are those of the function: counts, ticks, buckets."""
    for name in ("outer", "inner"):
        whole = timing(snapshot, name)
        parts = [each for thread in snapshot.threads for each in thread.functions if each.function == name]
        for field in NUMBERS:
            assert sum(getattr(each, field) for each in parts) == getattr(whole, field), (name, field)
        assert sum(each.sum_ns for each in parts) == pytest.approx(whole.sum_ns, rel=1e-12)
        if whole.nested is not None:
            for field in ("self_ns", "outermost_ns", "root_ns"):
                sums = sum(getattr(each.nested, field) for each in parts)
                assert sums == pytest.approx(getattr(whole.nested, field), rel=1e-12)
        buckets = Counter()
        for low, _, count in (bucket for each in parts for bucket in each.buckets):
            buckets[low] += count
        assert buckets == {low: count for low, _, count in whole.buckets}
        by_process = [each for process in snapshot.processes for each in process.functions if each.function == name]
        assert sum(each.count for each in by_process) == whole.count
        assert (min(each.min_ns for each in parts), max(each.max_ns for each in parts)) == (whole.min_ns, whole.max_ns)


def run(program, *arguments, **options):
    """Run the program to its end; return what it says, and the results."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cat:
        with anyprobe.run([program, *map(str, arguments)], stdout=cat.stdin, by_thread=True, **options) as session:
            session.time("a.out:outer", "a.out:inner")
            session.resume()
            cat.stdin.close()
            wait_until(lambda: not session.pump(0.1), "the program ends")
            assert session.wait(PATIENCE) == 0
            snapshot = session.snapshot()
        return cat.stdout.read(), snapshot


@pytest.mark.parametrize("options", [{}, {"self_time": True}, {"call_tree": True}, {"clock": "monotonic"}])
def test_each_thread_has_the_calls_that_it_says(program, options):
    """Threads that get the stack of one that has ended are others; so are those of fork children."""
    said, snapshot = run(program, 8, 5, 3, **options)
    assert len(told(said)) == 4 * 41
    assert counted(snapshot) == told(said)
    check_sums(snapshot)
    restored = archive.load(archive.dump(snapshot))
    assert restored.threads == snapshot.threads
    if "self_time" in options:
        own = sum(each.nested.self_ns for thread in snapshot.threads for each in thread.functions)
        assert own == pytest.approx(sum(each.nested.root_ns for each in snapshot.functions), rel=1e-9)


def test_thousands_of_threads_at_a_time_and_one_after_another(program):
    said, snapshot = run(program, 1500, 2, 0)
    assert len(told(said)) == 3001
    assert counted(snapshot) == told(said)
    check_sums(snapshot)


def test_threads_for_which_there_is_no_room_are_not_told_apart(program, monkeypatch):
    """None is lost, and no thread gets the calls of another: their sum is known, of threads without a number."""
    monkeypatch.setattr(layout, "THREADS_APART", layout.THREADS)
    said, snapshot = run(program, 20, 100, 0)
    own, found = told(said), counted(snapshot)
    assert len(own) == 2001
    (rest,) = (calls for (_, tid), calls in found.items() if tid == 0)
    known = {thread: calls for thread, calls in found.items() if thread[1]}
    assert len(known) > 1000
    assert all(own[thread] == calls for thread, calls in known.items())
    assert rest == tuple(sum(each[n] for thread, each in own.items() if thread not in known) for n in (0, 1))
    check_sums(snapshot)
    assert timing(snapshot, "inner").nmissed == 0


def test_threads_of_a_running_process_and_of_its_children_have_names(program):
    command = [program, "3", "2", "1", "!"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        with anyprobe.attach(process.pid, by_thread=True, self_time=True) as session:
            session.time("a.out:outer", "a.out:inner")
            said = process.communicate("\n", timeout=PATIENCE)[0]
            session.wait(180)
            snapshot = session.snapshot()
    assert counted(snapshot) == told(said)
    check_sums(snapshot)
    assert {each.name for each in snapshot.threads} <= {"", *names(said).values(), "calls_by_thread"}
    (main,) = (each for each in snapshot.threads if (each.process.pid, each.tid) == (process.pid, process.pid))
    assert main.name == "calls_by_thread"


def test_the_command_line_tells_threads_apart(program, tmp_path):
    results = tmp_path / "results"
    command = [sys.executable, "-m", "anyprobe", "time", "--self", "a.out:*ter", "a.out:inner", "--by", "tid"]
    command += ["--top", "0", "-o", str(results)]
    outcome = subprocess.run(
        [*command, "--json", "--every", "0.2", "--", program, "6", "3", "1"],
        stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    said = {tid: calls for (_, tid), calls in told(outcome.stdout).items()}
    documents = [json.loads(line) for line in results.read_text().splitlines()]
    last = documents[-1]
    for number, name in enumerate(("outer", "inner")):
        (function,) = (each for each in last["functions"] if each["function"] == name)
        assert {int(tid): each["count"] for tid, each in function["by_tid"].items()} == {
            tid: calls[number] for tid, calls in said.items()
        }
        assert sum(each["self_ns"] for each in function["by_tid"].values()) == pytest.approx(
            function["self_ns"], abs=len(said)
        )
    assert {each["tid"] for each in last["threads"]} == set(said)
    wide = {**os.environ, "COLUMNS": "200"}
    outcome = subprocess.run(
        [*command, "--", program, "6", "3", "1"],
        stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True, env=wide,
    )  # fmt: skip
    said = told(outcome.stdout)
    rows = [line.split() for line in results.read_text().splitlines()]
    rows = [row for row in rows if row[-2:] == ["inner", "calls_by_thread"]]
    assert {(int(row[1]), int(row[2])): int(row[0].replace(",", "")) for row in rows} == {
        thread: calls[1] for thread, calls in said.items()
    }
