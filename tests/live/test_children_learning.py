"""Return points that become known when workers have long been forked are spliced in them, too."""

import json
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import pytest

import anyprobe
from anyprobe.data.layouts.layout import CALLER_SINCE
from anyprobe.journal.memfds import MEMFD_PATH, is_ours
from anyprobe.target.process.exclusion import exclusive
from anyprobe.target.process.process import Process
from anyprobe.target.system.procfs import read_mappings
from support.driver import wait_until
from support.results import timing

pytestmark = pytest.mark.live
WORKERS, LONG = 3, 100.0


@pytest.fixture
def program(compiled):
    return str(compiled("workers.c", "-O1", "-pthread"))


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return list(map(int, children.read().split()))


def child_of(pid):
    (child,) = children_of(pid)
    return child


class Workers:
    """The program, which waits for what it is told."""

    def __init__(self, process, pid):
        self._process = process
        self.pid, self.pids = pid, []

    def fork(self):
        self._write("\n")
        word, *pids = self._process.stdout.readline().split()
        assert word == "pids"
        self.pids = list(map(int, pids))

    def call(self, times, *, parent=False):
        self._write(f"{times}{'+' * parent}\n")
        assert self._process.stdout.readline() == "done\n"

    def own(self, mapping, prot):
        """Have each worker map memory of its own where the parent has some."""
        self._write(f"own {mapping.start} {mapping.end - mapping.start} {prot}\n")
        assert self._process.stdout.readline() == "done\n"

    def _write(self, text):
        self._process.stdin.write(text)
        self._process.stdin.flush()


@contextmanager
def started(program, workers=WORKERS, *, under=()):
    command = [*under, program, str(workers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield Workers(process, child_of(process.pid) if under else process.pid)
            process.stdin.close()
            assert process.wait(180) == 0  # no worker has seen a wrong result
        finally:
            process.kill()


def of_each(snapshot):
    """Return the calls of each process: timed ones, and those that were not."""
    found = {}
    for each in snapshot.processes:
        for one in each.functions:
            assert (one.tail_exits, one.unmatched, one.nmissed, one.in_flight) == (0, 0, 0, 0)
            found[each.process.pid] = (one.count, one.learning)
    return found


def learnt(session, workers, *, parent=False):
    """Have calls made until none is learning any more in any worker."""

    def is_learnt():
        session.pump(0.3)
        before = of_each(session.snapshot())
        workers.call(2, parent=parent)
        after = of_each(session.snapshot())
        return before.keys() >= {*workers.pids} and all(before[pid][1] == after[pid][1] for pid in workers.pids)

    wait_until(is_learnt, "all workers know their return points")


def calls(times):
    """Return how many calls of ``tail`` two threads make."""
    return 2 * (times + times // 2 + 1)


@pytest.mark.parametrize("options", [{}, {"self_time": True}, {"by_thread": True}])
@pytest.mark.parametrize("parent", [False, True])
def test_workers_forked_before_are_timed_once_it_is_learnt(program, options, parent):
    with started(program) as workers:
        with anyprobe.attach(workers.pid, **options) as session:
            session.time("a.out:tail")
            workers.fork()
            learnt(session, workers, parent=parent)
            before = of_each(session.snapshot())
            workers.call(1000)
            after = of_each(session.snapshot())
            added = {pid: (after[pid][0] - before[pid][0], after[pid][1] - before[pid][1]) for pid in workers.pids}
            assert added == dict.fromkeys(workers.pids, (calls(1000), 0))
            slow = [count for low, _, count in timing(session.snapshot(), "tail").buckets if low > 900_000]
            assert sum(slow) >= 2 * WORKERS  # each thread's last call sleeps
            snapshot = session.snapshot()
        whole = timing(snapshot, "tail")
        assert (whole.count, whole.learning) == tuple(map(sum, zip(*after.values(), strict=True)))
        for pid in (workers.pid, *workers.pids):
            with open(f"/proc/{pid}/maps") as maps:
                assert MEMFD_PATH not in maps.read()
        workers.call(100)


def test_where_no_stops_are_wanted_no_worker_is_stopped_and_no_call_is_lost(program):
    """Calls stay learning in workers that were there before."""
    with started(program) as workers, anyprobe.attach(workers.pid, live=True) as session:
        session.time("a.out:tail")
        workers.fork()
        for _ in range(4):
            workers.call(50)
            session.pump(0.3)
        found = of_each(session.snapshot())
        assert {pid: found[pid] for pid in workers.pids} == dict.fromkeys(workers.pids, (0, 4 * calls(50)))


def test_a_worker_that_is_forked_by_then_has_inherited_it(program):
    """Those that were there before and those after have the same text, and the same counts."""
    with started(program) as workers, anyprobe.attach(workers.pid) as session:
        session.time("a.out:tail")
        workers.fork()
        learnt(session, workers)
        probes = session.time("a.out:end_of_tail")  # the parent's alone: its workers are there already
        session.remove(*probes)
        before = of_each(session.snapshot())
        workers.call(10)
        after = of_each(session.snapshot())
        assert {pid: after[pid][0] - before[pid][0] for pid in workers.pids} == dict.fromkeys(workers.pids, calls(10))


def test_the_controller_s_death_leaves_nothing_that_detach_does_not_find(program):
    """What was spliced in a worker later is in the worker's journal."""
    code = (
        "import anyprobe, sys\n"
        "session = anyprobe.attach(int(sys.argv[1])); session.time('a.out:tail'); print('armed', flush=True)\n"
        "while True:\n"
        "    session.pump(0.05)\n"
        "    print([(p.process.pid, t.count) for p in session.snapshot().processes for t in p.functions], flush=True)\n"
    )
    with started(program, 2) as workers:
        command = [sys.executable, "-c", code, str(workers.pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as controller:
            assert controller.stdout.readline() == "armed\n"
            workers.fork()

            def both_timed():
                workers.call(5)
                counts = dict(json.loads(controller.stdout.readline().replace("(", "[").replace(")", "]")))
                return all(counts.get(pid, 0) > 0 for pid in workers.pids)

            wait_until(both_timed, "calls of both workers are timed")
            controller.kill()
        workers.call(100)
        detach = [sys.executable, "-m", "anyprobe", "detach", "-p", str(workers.pid)]
        done = subprocess.run(detach, check=True, timeout=180, capture_output=True, text=True)
        assert "changed by another program" not in done.stdout + done.stderr
        for pid in (workers.pid, *workers.pids):
            with open(f"/proc/{pid}/maps") as maps:
                assert MEMFD_PATH not in maps.read()
        workers.call(100)


def tails(snapshot):
    """Return the calls of ``tail`` in each process, timed and learning."""
    return {
        each.process.pid: (one.count, one.learning)
        for each in snapshot.processes
        for one in each.functions
        if one.function == "tail"
    }


def test_a_worker_s_own_memory_where_a_later_journal_is_in_the_parent_is_not_written(program):
    with started(program) as workers, anyprobe.attach(workers.pid) as session:
        session.time("a.out:tail")
        probes = session.time("a.out:end_of_tail")
        workers.fork()
        session.remove(*probes)  # a change that all have
        session.time("libc:str*")
        first, *_, last = (bank for bank in session.splicing.holdings.banks)
        assert first.arena.inode != last.arena.inode
        (journal,) = (m for m in read_mappings(workers.pid) if m.start <= last.change < m.end)
        workers.own(journal, 0)

        def seen_to():
            workers.call(1)
            session.pump(0.3)
            return all(word(pid, first.change) == CALLER_SINCE for pid in workers.pids)

        wait_until(seen_to, "all workers have been seen to")
        session.pump(0.5)
        assert [word(pid, last.change) for pid in workers.pids] == [0] * WORKERS


def word(pid, address):
    with open(f"/proc/{pid}/mem", "rb", 0) as memory:
        memory.seek(address)
        return int.from_bytes(memory.read(8), "little")


def test_another_session_s_memory_in_a_worker_is_not_taken_for_the_parent_s(program):
    """At the same addresses, called and protected alike."""
    with started(program) as workers, anyprobe.attach(workers.pid) as session:
        session.time("a.out:tail")
        workers.fork()
        inherited = {m.start for m in read_mappings(workers.pid) if is_ours(m)}
        session.time("libc:str*")
        fresh = [m for m in read_mappings(workers.pid) if is_ours(m) and m.start not in inherited]
        assert any(m.executable for m in fresh)
        for each in fresh:
            workers.own(each, each.readable | each.writable << 1 | each.executable << 2)
        for _ in range(4):
            workers.call(50, parent=True)
            session.pump(0.3)
        found = tails(session.snapshot())
        assert {pid: found[pid] for pid in workers.pids} == dict.fromkeys(workers.pids, (0, 4 * calls(50)))


def test_workers_in_a_namespace_of_their_own_are_found(program):
    """Their own numbers are other processes' here."""
    under = ("unshare", "--pid", "--fork")
    probe = subprocess.run([*under, "true"], capture_output=True)
    if probe.returncode:
        pytest.skip(f"unshare is not permitted here: {probe.stderr.decode().strip()}")
    with started(program, under=under) as workers, anyprobe.attach(workers.pid) as session:
        session.time("a.out:tail")
        workers.fork()
        own, workers.pids = workers.pids, children_of(workers.pid)
        assert len(workers.pids) == WORKERS
        assert {*own}.isdisjoint(workers.pids)
        learnt(session, workers)
        assert of_each(session.snapshot()).keys() == {*workers.pids}


def test_a_worker_that_another_controller_holds_is_seen_to_later(program, monkeypatch):
    """Nobody waits for it meanwhile: the session's other threads could do nothing."""
    monkeypatch.setattr(exclusive.__wrapped__, "__defaults__", (LONG,))
    with started(program) as workers, anyprobe.attach(workers.pid) as session:
        session.time("a.out:tail")
        workers.fork()
        with ExitStack() as held:
            for pid in workers.pids:
                process = Process.open(pid)
                held.callback(process.close)
                held.enter_context(process.exclusive())
            for _ in range(4):
                workers.call(5, parent=True)
                session.pump(0.3)
            begun = time.monotonic()
            for _ in range(5):
                session.host.child_watch.look()
            assert time.monotonic() - begun < LONG  # what one of them would be waited for, once
            before = of_each(session.snapshot())
            assert {pid: before[pid] for pid in workers.pids} == dict.fromkeys(workers.pids, (0, 4 * calls(5)))
        learnt(session, workers)
