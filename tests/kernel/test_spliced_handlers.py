"""Handlers that splices run in the kernel: machine code, and what it collects is as other mechanisms have it."""

import json
import os
import subprocess
import sys

import pytest

import anyprobe
from anyprobe import Count, Reason, Sum, UnsupportedTarget, u64
from support import spliced_handlers

SIZE, CALLS = 7777, 3000


@pytest.fixture
def session(splicing):
    return splicing


def read(times, size=SIZE):
    zero = os.open("/dev/zero", os.O_RDONLY)
    for _ in range(times):
        os.read(zero, size)
    os.close(zero)


def test_a_predicate_and_a_sum_without_a_compiler(session):
    some, total = Count("some"), Sum("total")

    @session.entry("kernel::vfs_read")
    def counted(file: u64, buffer: u64, size: u64):
        if size == SIZE:
            some.add()

    @session.entry("kernel::ksys_read")
    def summed(number: u64, buffer: u64, size: u64):
        if size == SIZE:
            total.add(size)

    assert session.refused == []
    read(CALLS)
    assert some.result().entries[()].count == CALLS
    cell = total.result().entries[()]
    assert (cell.count, cell.sum) == (CALLS, CALLS * SIZE)
    (probe,) = session.probes_of(counted)
    (site,) = probe.results()
    assert (site.strategy, site.nmissed) == ("splice", 0)
    assert site.hits >= CALLS
    session.remove(probe)
    read(10)
    assert some.result().entries[()].count == CALLS
    assert session.snapshot().aggregation("total").entries[()].count == CALLS + 10


@pytest.mark.thorough
def test_each_block_and_call_of_a_function_is_counted_or_refused_by_name(session):
    probes = session.count("kernel::ksys_read:block", "kernel::ksys_read:call", "kernel::ksys_read:*")
    read(CALLS)
    for probe in probes:
        assert len(probe.sites) > 2
        assert len(probe.refused) < len(probe.sites) / 2
        assert max(site.hits for site in probe.results()) >= CALLS
    blocks, calls, every = ({site.offset: site.hits for site in probe.results()} for probe in probes)
    # who reads meanwhile is seen, too: what is counted at one place is the same for all probes, up to what is under way
    for offset in every.keys() & (blocks.keys() | calls.keys()):
        found = [each[offset] for each in (blocks, calls, every) if offset in each]
        assert max(found) - min(found) <= 100, (hex(offset), found)


def test_several_handlers_at_one_place_see_the_same_hits_and_go_one_by_one(session):
    seen, again = Count("seen"), Count("again")

    @session.entry("kernel::ksys_read")
    def first(number: u64, buffer: u64, size: u64):
        if size == SIZE:
            seen.add()

    @session.entry("kernel::ksys_read")
    def second(number: u64, buffer: u64, size: u64):
        if size == SIZE:
            again.add()

    assert session.refused == []
    read(CALLS)
    session.remove(*session.probes_of(first))
    read(10)
    session.enable(*session.probes_of(first))
    read(20)
    assert seen.result().entries[()].count == CALLS + 20
    assert again.result().entries[()].count == CALLS + 30


def test_a_histogram_by_process_and_records(session, reads_sizes):
    session.entry("kernel::vfs_read")(spliced_handlers.measured)
    assert session.refused == []
    with subprocess.Popen([reads_sizes, "3"]) as child:
        assert child.wait(600) == 0
    cell = session.snapshot().aggregation("sizes").entries[(child.pid,)]
    wanted = [1 << power for power in range(10, 17) for _ in range(9, power)] * 3
    assert (cell.count, cell.sum, cell.max) == (len(wanted), sum(wanted), 1 << 16), "the loader reads less"
    rows = [row["size"] for row in session.records()["large"] if row["pid"] == child.pid]
    assert rows == [1 << 16] * wanted.count(1 << 16)


@pytest.mark.thorough
def test_counts_by_name(session):
    session.entry("kernel::vfs_read")(spliced_handlers.named)
    read(CALLS)
    with open("/proc/self/comm") as file:
        name = file.read().strip()
    assert spliced_handlers.by_comm.result().entries[(name,)].count >= CALLS


def test_calls_are_timed_from_end_to_end(session):
    session.time("kernel::ksys_read")
    session.time("kernel::__do_sys_getppid")
    assert session.refused == []
    read(CALLS)
    for _ in range(CALLS):
        os.getppid()
    reads, small = session.snapshot().functions
    assert reads.count >= CALLS
    assert reads.unmatched + reads.in_flight < 100
    assert 0 < reads.min_ns < 1e6
    assert (small.count, small.unmatched, small.in_flight) == (CALLS, 0, 0)


@pytest.mark.thorough
def test_calls_that_go_on_in_another_function_have_no_duration(session):
    session.time("kernel::__x64_sys_read")  # which jumps to ksys_read
    assert session.refused == []
    read(CALLS)
    (timing,) = session.snapshot().functions
    assert timing.count == 0
    assert timing.tail_exits >= CALLS


@pytest.mark.thorough
def test_a_function_that_does_not_return_has_no_end_and_no_beginning(session):
    (entry, returns) = session.time("kernel::do_exit")
    assert [why.reason for _, why in (*entry.refused, *returns.refused)] == [Reason.NO_EXIT] * 2
    assert (entry.armed, returns.armed) == (False, False)


def test_handlers_run_in_some_processes_alone(loaded, reads_sizes):
    with anyprobe.kernel(mechanism="splice", pids=[os.getpid()]) as session:
        some = Count("some", by=("pid",))

        @session.entry("kernel::vfs_read")
        def counted(ctx):
            some.add(key=(ctx.pid,))

        session.time("kernel::ksys_read")
        assert session.refused == []
        read(CALLS)
        subprocess.run([reads_sizes, str(CALLS)], check=True)
        ((pid, cell),) = some.result().entries.items()
        assert pid == (os.getpid(),)
        (calls,) = session.snapshot().functions
        assert CALLS <= calls.count <= cell.count < 2 * CALLS


@pytest.mark.parametrize("asked", ["stack", "cgroup"])
def test_what_splices_do_not_tell_is_refused_with_what_does(session, asked):
    seen = Count("seen", by=("what",))

    def by_stack(ctx):
        seen.add(key=(ctx.kstack(3),))

    def by_group(ctx):
        seen.add(key=(ctx.cgroup,))

    with pytest.raises(UnsupportedTarget, match="fentry and kprobe do"):
        session.entry("kernel::vfs_read")({"stack": by_stack, "cgroup": by_group}[asked])


@pytest.mark.thorough
def test_commands_have_handlers_run_by_splices(loaded):
    def told(*arguments):
        run = [
            sys.executable,
            "-m",
            "anyprobe",
            *arguments,
            "--mechanism",
            "splice",
            "--json",
            "--",
            sys.executable,
            "-c",
            f"import os; [os.read(os.open('/dev/zero', 0), {SIZE}) for _ in range(9)]",
        ]
        done = subprocess.run(run, capture_output=True, text=True, check=True)
        return json.loads(done.stderr or done.stdout)

    found = told("count", "kernel::vfs_read", "--when", f"count == {SIZE}")
    (site,) = found["sites"]
    assert site["strategy"] == "splice"
    assert site["hits"] == 9


def test_each_hit_of_a_busy_kernel_runs_the_handler_or_is_told_of(session):
    # in tasks, softirqs and interrupts; the last is what the handler itself reads memory by
    functions = "try_to_wake_up", "kmem_cache_free", "__hrtimer_run_queues", "pipe_write", "copy_from_kernel_nofault"
    session.entry(*(f"kernel::{name}" for name in functions))(spliced_handlers.looked)
    placed = [probe for probe in session.probes_of(spliced_handlers.looked) if probe.armed]
    assert len(placed) >= 4, session.refused
    subprocess.run(["sh", "-c", "for n in 1 2 3; do seq 20000 | cat | cat | tail -1; done"], check=True, timeout=600)
    session.remove(*placed)
    runs = {str(place): cell.count for (place,), cell in spliced_handlers.looked_at.result().entries.items()}
    failed = session.misses().get("abandoned", 0)
    hits = {site.function: (site.hits, site.nmissed) for probe in placed for site in probe.results()}
    assert sum(map(sum, hits.values())) > 0
    assert hits["copy_from_kernel_nofault"][1] > 0, "it is hit inside each handler"
    lost = {name: count - runs.get(name, 0) for name, (count, _) in hits.items()}
    assert min(lost.values()) >= 0, lost
    assert sum(lost.values()) == failed, (lost, failed)
