"""Handlers that are done in the patch itself: exact from eight threads with signals, in children, inside handlers."""

import pytest

import anyprobe
from anyprobe import Count, Max, Min, Sum, i64, u64
from anyprobe.isa import disassemble
from support.driver import build, started

pytestmark = pytest.mark.live
HALF = 1 << 30
BITS = 1 << 64


def calls_of_the_routine(session):
    """Return how often the patches call a handler's routine, but for rare cases behind the jump back."""
    splices = [splice for module in session.engine.modules for splice in module.splices()]
    patches = [
        each.patch for each in splices if any(want.tag.handler and not want.internal for want in each.planned.wants)
    ]
    hot = [patch.code[: patch.copies[-1][1] - patch.address] for patch in patches]
    return sum(text.startswith("call") for code in hot for _, _, text in disassemble.format(code, 0))


@pytest.mark.parametrize("mode", ["", "timer"])
def test_eight_threads_count_exactly(mode):
    large, rest, every = Count("large"), Sum("rest"), Count("every")
    with started(build("aggregated.c"), *([mode] if mode else [])) as target, anyprobe.attach(target.pid) as session:

        @session.entry("a.out:work", when=lambda value: u64(value) >= HALF)
        def on_large(value: u64):
            large.add()

        @session.entry("a.out:work", when=lambda value: u64(value) < HALF)
        def on_rest(value: u64):
            rest.add(value)

        @session.ret("a.out:work")
        def on_return():
            every.add()

        assert calls_of_the_routine(session) == 0
        own = target.go(20).calls["work"]
        snapshot = session.snapshot()
        target.finish()
    assert {(site.hits, site.nmissed) for site in snapshot.sites} == {(own, 0)}
    assert large.result().total.count + rest.result().total.count == own == every.result().total.count
    assert 0 < rest.result().total.sum < HALF * own


def mixed(step):
    z = (step + 1) * 0x9E3779B97F4A7C15 % BITS
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % BITS
    z = (z ^ z >> 27) * 0x94D049BB133111EB % BITS
    return (z ^ z >> 31) >> step % 64


@pytest.mark.parametrize("mode", ["", "timer"])
def test_extremes_of_eight_threads_are_those_of_a_recomputation(mode):
    largest, least, narrow, returned = Max("largest"), Min("least"), Min("narrow"), Max("returned")
    with started(build("aggregated.c"), *([mode] if mode else [])) as target, anyprobe.attach(target.pid) as session:

        @session.entry("a.out:work", when=lambda value: value >= HALF)
        def on_entry(value: u64):
            least.add(value)

        @session.entry("a.out:work")
        def on_every(value: u64):
            largest.add(value)

        @session.entry("a.out:work")
        def on_signed(value: i64):
            narrow.add(value)

        assert calls_of_the_routine(session) == 0

        @session.ret("a.out:work")
        def on_return(ctx):
            returned.add(ctx.retval)

        own = target.go(3).calls["work"]
        snapshot = session.snapshot()
        target.finish()
    assert {site.hits + site.nmissed for site in snapshot.sites} == {own}
    missed = sum(site.nmissed for site in snapshot.sites)
    assert missed <= (8 * len(snapshot.sites) if mode else 0)  # a first hit is a call, which a signal may interrupt
    values = [mixed(step) for step in range(3 * 8 * 3500)]
    signed = [value - (value >> 63) * BITS for value in values]
    found = least.result().total.min, largest.result().total.max, narrow.result().total.min
    wanted = min(value for value in values if value >= HALF), max(values), min(signed)
    if mode:
        assert found[0] <= wanted[0]
        assert found[1] >= wanted[1]
        assert found[2] <= wanted[2]
    else:
        assert found == wanted
    counts = [each.result().total.count for each in (largest, narrow, returned)]
    assert own - missed <= min(counts) <= max(counts) <= own


def test_children_count_too():
    calls = Count("calls")
    with started(build("forks.c")) as target, anyprobe.attach(target.pid) as session:

        @session.entry("a.out:forked")
        def on_forked():
            calls.add()

        own = target.go(3).calls["forked"]
        target.finish()
        assert calls.result().total.count == own


def test_they_miss_nothing_where_they_interrupt_other_handlers():
    calls, odd, sums = Count("calls"), Count("odd"), Max("sums")
    with started(build("malloc_in_signals.c")) as target, anyprobe.attach(target.pid) as session:
        before = target.go(1).calls["malloc"]

        @session.entry("a.out:malloc")
        def on_malloc():
            calls.add()

        @session.entry("a.out:malloc")
        def long_enough(size: u64):
            total = 0
            for n in range(1000):
                total = (total * 5 + size) ^ n
            sums.add(total)

        @session.entry("a.out:malloc")
        def on_odd(size: u64):
            if size < 1 << 30:
                odd.add()

        rounds, missed = 0, 0
        while rounds < 40 and (rounds < 3 or not missed):
            after = target.go(1).calls["malloc"]
            own, other, again = session.snapshot().sites
            missed, rounds = other.nmissed, rounds + 1
        target.finish()
    assert missed
    assert other.hits + missed == after - before
    assert (own.hits, own.nmissed) == (again.hits, again.nmissed) == (after - before, 0)
    assert calls.result().total.count == odd.result().total.count == after - before


def banks_of(session, *handlers):
    return {place.hook.bank.index for each in handlers for probe in session.probes_of(each) for place in probe.places}


@pytest.mark.parametrize("full", [False, True])
def test_threads_that_come_by_different_banks_do_not_share_a_row(full):
    calls, data = Count("calls"), Count("data")
    with started(build("apart.c")) as target, anyprobe.attach(target.pid) as session:

        def on_left():
            calls.add()

        def on_right():
            calls.add()

        session.entry("a.out:left")(on_left)
        session.time("a.out:between")  # records need a bank of their own
        if full:
            first = session.splicing.holdings.banks[0].layout
            for _ in range(first.counters_left()):
                first.new_counter()
        session.entry("a.out:right")(on_right)

        @session.call("a.out:right")
        def enter(ctx, x: u64):
            ctx.data.x = x

        @enter.ret
        def leave(ctx):
            if ctx.data.x * 5 == ctx.retval:
                data.add()

        own = target.go(3).calls
        target.finish()
    assert len(session.splicing.holdings.banks) == 2
    assert banks_of(session, on_left, on_right) == ({0, 1} if full else {0})
    assert calls.result().total.count == own["left"] + own["right"]
    rows = [int(row[8]) for row in calls.views[0]._rows()]
    assert (rows[0] == own["right"]) is full  # who has no row by the second bank counts in the one for all
    assert data.result().total.count == own["right"]
