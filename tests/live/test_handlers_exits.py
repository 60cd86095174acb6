"""Handlers at exits alone: at returns, and at jumps to other functions, where there is no result yet."""

import pytest

import anyprobe
from anyprobe import Count, Sum, i32, u64
from support.driver import build, started
from support.results import counts

pytestmark = pytest.mark.live
ROUNDS = 40
TAILS = ("tail_long", "tail_short", "tail_indirect", "thunk", "jne_short", "jne_long")


@pytest.fixture
def target():
    with started(build("tails.c")) as running:
        yield running


def test_every_exit_is_seen_and_results_are_missing_at_tail_jumps(target):
    tails, returns, results = Count("tails"), Count("returns"), Sum("results")
    with anyprobe.attach(target.pid, returns="exits") as session:

        @session.ret(*(f"a.out:{name}" for name in (*TAILS, "second")))
        def on_exit(ctx):
            if ctx.retval is None:
                tails[ctx.func].add()
            else:
                returns[ctx.func].add()
                results.add(i32(ctx.retval), key=(ctx.func,))

        assert session.refused == []
        own = target.go(ROUNDS)
        misses = session.handling.misses()
        name = session.exe.rpartition("/")[2]
    assert counts(tails) == {(f"{name}:{each}",): own.tails[each] for each in TAILS}
    seen = {each: own.returns[each] - own.tails.get(each, 0) for each in own.returns}
    assert counts(returns) == {(f"{name}:{each}",): count for each, count in seen.items() if count}
    assert sum(cell.sum for cell in results.result().entries.values()) > 0
    assert misses == {"fault": 0, "abandoned": 0, "division": 0}
    target.finish()


def test_what_needs_a_result_ends_at_a_tail_jump(target):
    results = Sum("results")
    with anyprobe.attach(target.pid, returns="exits") as session:

        @session.ret("a.out:jne_long")
        def on_exit(ctx):
            results.add(ctx.retval)

        own = target.go(ROUNDS)
        misses = session.handling.misses()
    assert results.result().total.count == own.returns["jne_long"] - own.tails["jne_long"] == ROUNDS // 2
    assert misses["abandoned"] == own.tails["jne_long"] == ROUNDS // 2
    target.finish()


def test_a_call_that_ends_in_a_jump_gives_its_data_back(target):
    seen = Count("seen", by=("argument", "is_tail"))
    with anyprobe.attach(target.pid, returns="exits") as session:

        @session.call("a.out:jne_short")
        def on_call(ctx, x: i32):
            ctx.data.x = x & 1

        @on_call.ret
        def on_done(ctx):
            seen.add(key=(ctx.data.x, ctx.retval is None))

        own = target.go(ROUNDS)
        words = memoryview(on_call.store.view()).cast("Q")
        assert own.tails["jne_short"] == ROUNDS // 2
        assert counts(seen) == {(1, 1): ROUNDS // 2, (0, 0): ROUNDS // 2}
        assert not any(words[at] for at in range(0, len(words), 16))  # stack pointers of calls under way
    target.finish()


def test_results_cannot_be_changed_before_they_are_there(target):
    with anyprobe.attach(target.pid, unsafe=True, returns="exits") as session:

        @session.ret("a.out:tail_long")
        def on_exit(ctx):
            ctx.retval = u64(99)

        target.go(ROUNDS)  # the program checks its results
        assert session.handling.misses()["abandoned"] == ROUNDS
    target.finish()


def test_handlers_are_refused_where_returns_would_be_replaced():
    calls = Count("calls")
    with started(build("trampolines.c")) as target:
        with anyprobe.attach(target.pid, returns="trampoline") as session:
            session.count("a.out:simple%return")
            assert session.refused == []

            @session.ret("a.out:deep")
            def on_exit(ctx):
                calls.add()

            ((_, why),) = session.refused
            assert "handlers run at exits only" in why.detail
            target.go(2)
        assert calls.result().total.count == 0
        target.finish()
