"""Fork children are timed from their first call, each process by itself, and what they have counted is kept."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest

import anyprobe
from anyprobe import Count, Hist, i32, ptr, u64
from anyprobe.data.archives import archive
from anyprobe.journal.memfds import MEMFD_PATH
from anyprobe.target.system import procfs
from support.driver import wait_until, waits_for_input
from support.forking import fork, ready, told
from support.results import timing

pytestmark = pytest.mark.live
PATIENCE = 180


@pytest.fixture
def program(compiled):
    return str(compiled("forks_timed.c", "-O1", "-pthread"))


def timed(snapshot, name):
    """Return the calls of a function by process: how many, and how many took a millisecond."""
    found = {}
    for each in snapshot.processes:
        for calls in each.functions:
            if calls.function == name:
                slow = sum(count for low, _, count in calls.buckets if low > 900_000)
                assert each.process.pid not in found
                found[each.process.pid] = (calls.count, slow)
    return found


def run(program, mode, count, *specs):
    """Run the program to its end with some functions timed; return what it says, and the results."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cat:
        with anyprobe.run([program, mode, str(count)], stdout=cat.stdin) as session:
            session.time(*(specs or ["a.out:work"]))
            session.resume()
            cat.stdin.close()
            deadline = time.monotonic() + PATIENCE
            while session.pump(0.2) and time.monotonic() < deadline:
                pass
            assert session.wait(1) == 0
            snapshot = session.snapshot()
        return told(cat.stdout.read()), snapshot


@pytest.mark.parametrize(("mode", "count"), [("plain", 6), ("threads", 4), ("deep", 2), ("vfork", 3)])
def test_each_process_has_the_calls_that_it_says(program, mode, count):
    said, snapshot = run(program, mode, count)
    found = timed(snapshot, "work")
    assert {pid: calls for pid, (calls, _) in found.items()} == {pid: calls for pid, (calls, _) in said.items()}
    assert all(found[pid][1] >= slept for pid, (_, slept) in said.items())
    work = timing(snapshot, "work")
    assert (work.count, work.nmissed, work.unmatched, work.in_flight) == (sum(c for c, _ in said.values()), 0, 0, 0)
    restored = archive.load(archive.dump(snapshot))
    assert timed(restored, "work") == found


def test_children_of_an_attached_process_are_timed(program):
    with ready(program, "plain", 5) as process, anyprobe.attach(process.pid) as session:
        session.time("a.out:work")
        said = told(process.communicate("\n", timeout=PATIENCE)[0])
        session.wait(180)
        snapshot = session.snapshot()
    assert {pid: calls for pid, (calls, _) in timed(snapshot, "work").items()} == {
        pid: calls for pid, (calls, _) in said.items()
    }
    assert len(said) == 6


def test_a_call_in_which_a_child_is_forked_is_its_parents(program):
    """It ends in both. It is counted once, where it began; the child's return has no entry."""
    said, snapshot = run(program, "inside", 4, "a.out:work", "a.out:held")
    held = timing(snapshot, "held")
    assert (held.count, held.unmatched, held.nmissed) == (4, 4, 0)
    (parent,) = (pid for pid, calls in timed(snapshot, "held").items() if calls[0])
    assert parent == snapshot.target.pid
    assert timing(snapshot, "work").count == sum(calls for calls, _ in said.values())


def test_calls_that_a_child_leaves_do_not_disturb_others(program):
    said, snapshot = run(program, "thrown", 3, "a.out:work", "a.out:left")
    assert timing(snapshot, "work").count == sum(calls for calls, _ in said.values())
    left = timing(snapshot, "left")
    assert (left.count, left.in_flight + left.nmissed) == (0, 15)


def test_signal_handlers_in_children_are_timed_too(program):
    said, snapshot = run(program, "signals", 2)
    work = timing(snapshot, "work")
    assert work.count + work.nmissed == sum(calls for calls, _ in said.values())
    assert work.nmissed <= len(said)


def test_killed_children_keep_what_they_have_counted(program):
    with ready(program, "killed", 3) as process, anyprobe.attach(process.pid) as session:
        session.time("a.out:work", "a.out:hangs")
        lines = fork(process, 3)
        session.pump(0.3)
        for line in lines:
            os.kill(int(line.split()[0]), signal.SIGKILL)
        said = told("".join(lines) + process.communicate(timeout=PATIENCE)[0])
        session.wait(180)
        snapshot = session.snapshot()
    assert {pid: calls for pid, (calls, _) in timed(snapshot, "work").items()} == {
        pid: calls for pid, (calls, _) in said.items()
    }
    assert timing(snapshot, "hangs").in_flight == 3


def test_what_children_have_not_called_costs_nothing(program):
    """Each one has a record of each function, of which there are thousands: a snapshot does not look at them."""
    few, many = 2, 12
    calls = {}
    for count in (few, many):
        with ready(program, "killed", count) as process, anyprobe.attach(process.pid) as session:
            session.time("a.out:work", "libc.so.6:*")
            children = [int(line.split()[0]) for line in fork(process, count)]
            session.pump(0.3)
            session.snapshot()
            calls[count], snapshot = profiled(session.snapshot)
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            process.communicate(timeout=PATIENCE)
        assert {each.process.pid for each in snapshot.processes if each.functions} >= {*children}
    assert len(snapshot.functions) > 1500
    assert calls[many] - calls[few] < (many - few) * len(snapshot.functions)


def profiled(act):
    """Return how many functions of Python are called while ``act`` runs, and what it returns."""
    calls = Counter()
    sys.setprofile(lambda _frame, event, _what: calls.update([event]))
    try:
        found = act()
    finally:
        sys.setprofile(None)
    return calls["call"] + calls["c_call"], found


def test_more_children_than_there_are_copies(program):
    """What ended children have counted is kept elsewhere, and their memory is given to others."""
    count = 800
    said, snapshot = run(program, "many", count)
    work = timing(snapshot, "work")
    assert sum(calls for calls, _ in said.values()) == 1
    assert (work.count, work.nmissed) == (count + 1, 0)
    assert len([each for each in snapshot.processes if each.functions]) == count + 1
    assert Counter(timing.count for each in snapshot.processes for timing in each.functions) == Counter({1: count + 1})


def test_a_child_that_filters_its_system_calls_is_not_harmed(program):
    """It would be killed for the system call by which children come to memory of their own."""
    said, snapshot = run(program, "filters", 2)
    work = timing(snapshot, "work")
    assert len(said) == 3
    assert work.count + work.nmissed == 3


def test_probes_are_taken_out_of_children_that_live(program):
    """Their text and their memory are as before, and they run on."""
    with ready(program, "killed", 3) as process:
        with anyprobe.attach(process.pid) as session:
            session.time("a.out:work", "a.out:hangs")
            children = [int(line.split()[0]) for line in fork(process, 3)]
            session.pump(0.1)
        for pid in children:
            with open(f"/proc/{pid}/maps") as maps:
                assert MEMFD_PATH not in maps.read()
            wait_until(lambda pid=pid: procfs.read_stat(pid).state == "S", "it sleeps on")
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0


def test_children_live_on_without_the_controller(program):
    """It is killed; they go on, are timed into memory that nobody reads, and ``detach`` takes the probes out."""
    code = (
        "import anyprobe, sys, time\n"
        "session = anyprobe.attach(int(sys.argv[1])); session.time('a.out:work', 'a.out:hangs')\n"
        "print('armed', flush=True); time.sleep(100)"
    )
    with ready(program, "killed", 2) as process:
        command = [sys.executable, "-c", code, str(process.pid)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as controller:
            assert controller.stdout.readline() == b"armed\n"
            controller.kill()
        children = [int(line.split()[0]) for line in fork(process, 2)]
        detach = [sys.executable, "-m", "anyprobe", "detach", "-p", str(process.pid)]
        subprocess.run(detach, check=True, timeout=PATIENCE, capture_output=True)
        for pid in (process.pid, *children):
            with open(f"/proc/{pid}/maps") as maps:
                assert MEMFD_PATH not in maps.read()
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0


def test_two_thousand_threads_are_timed(compiled):
    """They are there when the probes come; each is timed, and has data of its own calls."""
    latencies = Hist("latencies")
    program = str(compiled("two_thousand_threads.c", "-O1", "-pthread"))
    with subprocess.Popen([program, "20"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        answer = process.stdout.readline()
        if answer != b"ready\n":
            process.communicate()
            pytest.skip(answer.decode())
        try:
            with anyprobe.attach(process.pid) as session:
                session.time("a.out:work")

                @session.call("a.out:work")
                def called(ctx):
                    ctx.data.began = ctx.now

                @called.ret
                def returned(ctx):
                    latencies.add(ctx.now - ctx.data.began)

                process.stdin.write(b"go\n")
                process.stdin.flush()
                calls = int(process.stdout.readline())
                work = timing(session.snapshot(), "work")
                assert (work.count, work.nmissed, work.unmatched) == (calls, 0, 0)
                assert (latencies.result().total.count, session.snapshot().missing) == (calls, {})
        finally:
            process.kill()


def test_the_command_line_tells_processes_apart(program, tmp_path):
    results = tmp_path / "results"
    command = [sys.executable, "-m", "anyprobe", "time", "a.out:work", "--by", "pid", "-o", str(results)]
    outcome = subprocess.run(
        [*command, "--json", "--", program, "plain", "4"], stdout=subprocess.PIPE, text=True, timeout=PATIENCE
    )
    said = told(outcome.stdout)
    document = json.loads(results.read_text())
    (function,) = document["functions"]
    assert {int(pid): each["count"] for pid, each in function["by_pid"].items()} == {p: c for p, (c, _) in said.items()}
    assert {each["pid"] for each in document["processes"]} == set(said)
    outcome = subprocess.run(
        [*command, "--", program, "plain", "4"], stdout=subprocess.PIPE, text=True, timeout=PATIENCE
    )
    rows = [line.split() for line in results.read_text().splitlines() if line.endswith("forks_timed")]
    assert {int(row[1]): int(row[0]) for row in rows} == {p: c for p, (c, _) in told(outcome.stdout).items()}


@pytest.mark.parametrize("times_removed", [False, True])
def test_handlers_in_children_know_their_calls_and_their_process(program, times_removed):
    """Data of calls is kept from entry to return, for each of many threads of several processes."""
    latency, pids = Hist("latency", by=("pid",)), Count("pids", by=("pid",))
    with ready(program, "threads", 4) as process, anyprobe.attach(process.pid) as session:

        @session.call("a.out:work")
        def on_work(ctx, slow: i32):
            ctx.data.slow = slow
            ctx.data.began = ctx.now
            pids.add(key=(ctx.pid,))

        @on_work.ret
        def on_return(ctx):
            if ctx.data.slow:
                latency.add(ctx.now - ctx.data.began, key=(ctx.pid,))

        if times_removed:
            session.remove(*session.time("a.out:work"))
        said = told(process.communicate("\n", timeout=PATIENCE)[0])
        session.wait(180)
        snapshot = session.snapshot()
        assert {pid: cell.count for (pid,), cell in pids.items()} == {p: c for p, (c, _) in said.items()}
        assert {pid: cell.count for (pid,), cell in latency.items()} == {p: c for p, (_, c) in said.items()}
        assert all(cell.min >= 900_000 for _, cell in latency.items())
    assert not snapshot.missing
    assert snapshot.nmissed == 0


def test_handlers_that_read_memory_have_data_in_children(program):
    """What watches for filters of system calls comes first, and calls no handler that needs blocks of its own."""
    ends = Count("ends", by=("pid",))
    with ready(program, "threads", 3) as process, anyprobe.attach(process.pid) as session:

        @session.call("a.out:work")
        def on_work(ctx):
            word = ptr[u64](ctx.regs.rsp)[0]
            if word is not None:
                ctx.data.back = word

        @on_work.ret
        def on_return(ctx):
            if ctx.data.back == ptr[u64](ctx.regs.rsp)[0]:
                ends.add(key=(ctx.pid,))

        said = told(process.communicate("\n", timeout=PATIENCE)[0])
        session.wait(180)
        assert {pid: cell.count for (pid,), cell in ends.items()} == {p: c for p, (c, _) in said.items()}
        assert not session.snapshot().missing


def test_a_call_that_a_child_inherits_has_no_data_in_it(program):
    """Its end has: in the parent."""
    ends = Count("ends", by=("pid",))
    with ready(program, "inside", 4) as process, anyprobe.attach(process.pid) as session:

        @session.call("a.out:held")
        def on_held(ctx):
            ctx.data.mark = 7

        @on_held.ret
        def on_return(ctx):
            if ctx.data.mark == 7:
                ends.add(key=(ctx.pid,))

        process.communicate("\n", timeout=PATIENCE)
        session.wait(180)
        snapshot = session.snapshot()
        assert {pid: cell.count for (pid,), cell in ends.items()} == {process.pid: 4}
    assert snapshot.missing == {"abandoned": 4}


def test_children_know_the_return_points_that_their_own_text_has(program):
    """A child that was forked before one was learnt has no jump there yet: its calls are learning, and none is lost."""
    with ready(program, "learns", 1) as process, anyprobe.attach(process.pid) as session:
        session.time("a.out:tail")
        process.stdin.write("\n")
        process.stdin.flush()
        seen = []

        def is_learnt():
            """Where calls return to has been known between two looks."""
            session.pump(0.1)
            seen.append(timing(session.snapshot(), "tail"))
            before, now = seen[-2:] if len(seen) > 1 else seen * 2
            return now.learning == before.learning and now.count > before.count

        wait_until(is_learnt, "the parent's calls are timed")
        said = told(process.communicate("\n", timeout=PATIENCE)[0])
        session.wait(180)
        snapshot = session.snapshot()
    by_process = {}
    for each in snapshot.processes:
        for calls in each.functions:
            by_process[each.process.pid] = calls
    assert {pid: each.count + each.learning for pid, each in by_process.items()} == {p: c for p, (c, _) in said.items()}
    early = next(pid for pid, (calls, _) in said.items() if calls == 3000)
    late = next(pid for pid, (calls, _) in said.items() if calls == 1000)
    assert by_process[early].learning > 0
    assert (by_process[late].count, by_process[late].learning) == (1000, 0)
    assert by_process[snapshot.target.pid].count > 0
    work = timing(snapshot, "tail")
    assert (work.nmissed, work.in_flight, work.tail_exits) == (0, 0, 0)


@pytest.mark.parametrize("way", ["longjmp", "siglongjmp", "dlsym"])
def test_what_a_child_leaves_behind_belongs_to_the_caller(compiled, way):
    """The library that does it may not have been come to in the child before."""
    program = str(compiled("left_in_children.c", "-O1"))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as cat:
        with anyprobe.run([program, way], self_time=True, stdout=cat.stdin) as session:
            session.time("a.out:loop", "a.out:outer", "a.out:inner")
            session.resume()
            cat.stdin.close()
            assert session.wait(PATIENCE) == 0
            snapshot = session.snapshot()
        elapsed, ran = map(int, cat.stdout.read().split())
    loop, outer, inner = (timing(snapshot, name) for name in ("loop", "outer", "inner"))
    left = 50 if way != "dlsym" else 0
    assert [(each.count, each.left, each.in_flight) for each in (outer, inner)] == [(50 - left, left, 0)] * 2
    # before the call's beginning and after its end the child may wait for anyprobe, or for a processor
    assert 0.9 * ran <= loop.sum_ns <= 1.01 * elapsed
    own = [each.nested.self_ns for each in (loop, outer, inner)]
    assert sum(own) == pytest.approx(loop.sum_ns, rel=0.01)
    if left:
        assert own[0] == pytest.approx(loop.sum_ns, rel=0.01)


@pytest.mark.parametrize("self_time", [False, True])
def test_calls_of_a_child_that_end_in_other_code_than_they_began(compiled, self_time):
    library = compiled("jumps_in_children.c", "-O2", "-shared", "-fPIC", "-DLIBRARY", "-Wl,-Bsymbolic")
    program = compiled("jumps_in_children.c", "-O1", str(library))
    pipe = subprocess.PIPE
    with subprocess.Popen([str(program)], stdin=pipe, stdout=pipe, text=True) as process:
        wait_until(lambda: waits_for_input(process.pid), "it waits for a line")
        with anyprobe.attach(process.pid, self_time=self_time) as session:
            session.time(f"{library.name}:jumps")
            calls = 0
            while not timing(session.snapshot(), "jumps").count:  # until it is learnt where the caller goes on
                process.stdin.write("p")
                process.stdin.flush()
                calls += 100
                session.pump(0.1)
            assert process.communicate("\n", timeout=PATIENCE)[0] == "done\n"
            session.wait(1)
            found = timing(session.snapshot(), "jumps")
    assert (found.count + found.learning, found.in_flight, found.nmissed) == (calls + 2 * 1000, 0, 0)
    assert found.count >= 2 * 1000


def test_children_of_a_static_program_that_cannot_filter_system_calls(compiled):
    text = """
        #include <sys/wait.h>
        #include <unistd.h>
        __attribute__((noipa)) int work(int n) { return n + 1; }
        int main(void) {
            work(1);
            if (!fork()) {
                for (int i = 0; i < 10; i++) work(i);
                _exit(0);
            }
            wait(0);
            return 0;
        }
    """
    with anyprobe.run([str(compiled("forks_static.c", "-static", text=text))]) as session:
        session.time("a.out:work")
        session.resume()
        assert session.wait(PATIENCE) == 0
        found = timing(session.snapshot(), "work")
    assert (found.count, found.nmissed) == (11, 0)
