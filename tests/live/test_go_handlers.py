"""Handlers in Go programs: they run on stacks of their own, since a goroutine's may end anywhere below."""

import pytest

import anyprobe
from anyprobe import Count, Max, Sum, emit
from anyprobe.core.refusal import Reason

pytestmark = pytest.mark.live


@pytest.fixture
def target(run_target):
    return run_target("go_program.go")


def test_every_call_is_seen_with_its_parameter_and_result(target):
    given, results = Sum("given"), Sum("results")
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:main.Work")
        def on_work(ctx):
            given.add(ctx.regs.rax)

        @session.ret("a.out:main.Work")
        def on_return(ctx):
            results.add(ctx.retval)

        before = target.go(0).calls["main.Work"]
        calls = target.go(20).calls["main.Work"] - before
        found, returned = session.snapshot().aggregations
        assert found.count == returned.count == calls == 20 * 8 * 200
        arguments = 20 * sum(200 * g + 199 * 100 for g in range(8))
        assert found.sum == arguments
        assert returned.sum == 3 * arguments + calls
        assert session.misses() == {"fault": 0, "abandoned": 0, "division": 0}
    target.finish()


def test_goroutines_whose_stacks_grow_run_handlers_to_the_end_of_their_stacks(target):
    """Each level takes more than half a kilobyte, so some are entered with next to no stack left."""
    levels, deepest = Count("levels"), Max("deepest")
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:main.Deep")
        def on_deep(ctx):
            levels[ctx.regs.rax & 1].add()
            deepest.add(ctx.regs.rax)

        target.go(30)
        snapshot = session.snapshot()
        (site,) = snapshot.sites
        assert site.nmissed == 0
        assert sum(each.count for _, each in snapshot.aggregations[0].ordered()) == 30 * 8 * 501
        assert snapshot.aggregations[1].max == 500
    target.go(1)
    target.finish()


def test_records_of_threads_have_their_ids(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:main.Work")
        def on_work(ctx):
            emit("work", tid=ctx.tid, pid=ctx.pid, x=ctx.regs.rax)

        target.go(1)
        target.finish()
        found = session.records(final=True)["work"]
    assert len(found) == 1600
    assert set(found["pid"].tolist()) == {target.pid}
    assert all(tid >= target.pid for tid in found["tid"].tolist())
    assert sorted(found["x"].tolist()) == sorted(i + g for g in range(8) for i in range(200))


def test_all_functions_run_a_handler_or_say_why_not(target):
    """The runtime included, with its collector and its scheduler."""
    entered = Count("entered")
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:*")
        def on_entry(ctx):
            entered.add()

        before = target.go(1).calls["main.Work"]
        refused = {why.reason for _, why in session.refused}
        assert Reason.NO_STACK in refused
        assert len(refused) <= 3, refused
        at_first = session.snapshot()
        calls = target.go(5).calls["main.Work"] - before
        after = session.snapshot()
        hits = [next(s.hits for s in each.sites if s.function == "main.Work") for each in (at_first, after)]
        assert hits[1] - hits[0] == calls
        assert sum(s.armed for s in after.sites) > 1000
    target.go(2)
    target.finish()


def test_what_handlers_in_go_cannot_do_is_refused(target):
    with anyprobe.attach(target.pid, unsafe=True) as session:

        @session.entry("a.out:main.Work")
        def skips(ctx):
            ctx.skip(0)

        @session.after("a.out:main.Work+0x0")
        def after(ctx):
            emit("after", ip=ctx.ip)

        @session.entry("a.out:runtime.memmove")
        def on_assembly(ctx):
            emit("moved", n=ctx.regs.rcx)

        reasons = [why.reason for _, why in session.refused]
        assert set(reasons) == {Reason.NO_THREAD_SLOT, Reason.NO_STACK}, session.refused
    target.go(1)
    target.finish()
