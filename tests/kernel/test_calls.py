"""Both ends of calls in the guest's kernel: data of each call, recursion, and durations."""

import os
import threading
import time

import pytest

import anyprobe
from anyprobe import Count, Hist, Map

TIMES = 400
KERNEL_WAYS = ["fentry", pytest.param("kprobe", marks=pytest.mark.thorough)]


@pytest.fixture
def session():
    with anyprobe.kernel() as opened:
        yield opened


def write(sizes):
    with open("/dev/null", "wb", buffering=0) as file:
        file.writelines(b"x" * size for size in sizes)


@pytest.mark.parametrize("mechanism", KERNEL_WAYS)
def test_what_entry_stores_return_finds(session, mechanism):
    equal, other = Count("equal", by=("size",)), Count("other")
    mine = os.getpid()

    @session.call("kernel::vfs_write", mechanism=mechanism)
    def entered(ctx, count):
        ctx.data.size = count
        ctx.data.began = ctx.now

    @entered.ret
    def left(ctx):
        size = ctx.data.size
        if ctx.pid == mine and size is not None:
            if ctx.retval == size:
                equal.add(key=(size,))
            else:
                other.add()

    assert not session.refused
    threads = [threading.Thread(target=write, args=([size] * TIMES,)) for size in (101, 202, 303)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    snapshot = session.snapshot()
    entries = snapshot.aggregation("equal").entries
    assert {size: entries[size,].count for size in (101, 202, 303)} == dict.fromkeys((101, 202, 303), TIMES)
    assert not snapshot.aggregation("other").entries
    assert not snapshot.dropped


@pytest.mark.parametrize("mechanism", KERNEL_WAYS)
def test_calls_within_calls_have_data_of_their_own(session, mechanism):
    """The guest's root is an overlay: what it is asked of a file, it asks by the same function of the layer below."""
    depths, right, wrong = Map("depths", by=("thread",)), Count("right", by=("depth",)), Count("wrong")
    mine = os.getpid()

    @session.call("kernel::vfs_getattr_nosec", mechanism=mechanism)
    def entered(ctx):
        depth = depths.get(ctx.tid, 0) + 1
        depths[ctx.tid] = depth
        ctx.data.depth = depth

    @entered.ret
    def left(ctx):
        depth = depths.get(ctx.tid, 0)
        depths[ctx.tid] = depth - 1
        if ctx.pid == mine:
            if ctx.data.depth == depth:
                right.add(key=(depth,))
            else:
                wrong.add()

    assert not session.refused
    for _ in range(TIMES):
        os.stat("/etc/passwd")
    snapshot = session.snapshot()
    entries = snapshot.aggregation("right").entries
    assert entries[1,].count >= TIMES
    assert entries[2,].count >= TIMES
    assert not snapshot.aggregation("wrong").entries
    assert not snapshot.dropped


@pytest.mark.parametrize("_", range(4))
def test_data_that_an_entry_did_not_store_is_missing(session, _):
    """Whatever this process has in its memory beside what it tells the kernel."""
    missing, found = Count("missing"), Count("found", by=("first", "second", "third"))
    mine = os.getpid()

    @session.call("kernel::vfs_write")
    def entered(ctx, count):
        if count == 777:
            ctx.data.first = count
            ctx.data.second = count
            ctx.data.third = count

    @entered.ret
    def left(ctx):
        first, second, third = ctx.data.first, ctx.data.second, ctx.data.third
        if ctx.pid == mine and ctx.retval < 1000:
            if first is None and second is None and third is None:
                missing.add()
            else:
                found.add(key=(first, second, third))

    assert not session.refused
    write([776, 777] * 10)
    snapshot = session.snapshot()
    assert snapshot.aggregation("missing").entries[()].count == 10
    assert {key: each.count for key, each in snapshot.aggregation("found").entries.items()} == {(777, 777, 777): 10}


@pytest.mark.parametrize("mechanism", KERNEL_WAYS)
def test_durations_of_a_call_that_sleeps(session, mechanism):
    session.time("kernel::hrtimer_nanosleep", mechanism=mechanism)
    assert not session.refused
    for _ in range(5):
        time.sleep(0.05)
    (timing,) = session.snapshot().functions
    assert timing.function == "hrtimer_nanosleep"
    assert timing.count >= 5
    assert timing.max_ns >= 50e6
    assert timing.percentile(0.5) > 1e6
    assert sum(count for *_, count in timing.buckets) == timing.count
    assert len(timing.places) == 2


@pytest.mark.thorough
def test_an_entry_without_a_return(session):
    seen = Hist("seen")
    mine = os.getpid()

    @session.call("kernel::vfs_write", when=lambda ctx, count: ctx.pid == mine and count == 777)
    def entered(ctx, count):
        seen.add(count)

    session.snapshot()
    write([777] * TIMES)
    assert session.snapshot().aggregation("seen").entries[()].count == TIMES
