"""Callbacks with a condition: only hits for which it holds wait for Python."""

import pytest

import anyprobe
from anyprobe import Count, HandlerError, cstr, f64, i32, i64, ptr
from support.driver import build, started

pytestmark = pytest.mark.live
CALLS = 40
"""Calls of each function in one round, half of them of each number below 20."""


@pytest.fixture
def target():
    with started(build("waits.c")) as running:
        yield running


def test_only_hits_for_which_it_holds_wait(target):
    seen, names, results, looked = [], [], [], Count("looked at")

    def large(n: i64):
        looked.add()
        return n > 16

    with anyprobe.attach(target.pid) as session:

        @session.callback("a.out:asked", timeout=60, when=large)
        def on_asked(hit):
            seen.append(hit.regs.rdi)

        @session.callback("a.out:asked:return", timeout=60, when=lambda ctx: ctx.retval == 6)
        def on_result(hit):
            results.append(hit.retval)

        def is_other(name: ptr):
            return cstr(name, 16) == "another"

        @session.callback("a.out:named", timeout=60, when=is_other)
        def on_named(hit):
            names.append(hit)

        target.go(3)
        snapshot = session.snapshot()
        assert [(site.hits, site.nmissed) for site in snapshot.sites] == [(3 * CALLS, 0)] * 3
        assert session.callbacks.served == len(seen) + len(results)
        assert looked.result().total.count == 3 * CALLS
    assert sorted(seen) == sorted([17, 18, 19] * 6)
    assert results == [6] * 6
    assert names == []
    assert target.finish().calls["changed"] == 0


def test_what_is_missing_does_not_hold_and_floats_may_be_computed_with(target):
    seen, found = [], []

    def at_nothing(n: i64):
        return ptr[i32](ptr(n))[0] == 0

    def by_halves(n: i64):
        return f64(n) / 2 > 9

    with anyprobe.attach(target.pid, unsafe=True) as session:
        session.callback("a.out:asked", timeout=60, when=at_nothing)(seen.append)

        @session.callback("a.out:asked", timeout=60, when=by_halves)
        def on_nineteen(hit):
            found.append(hit.regs.rdi)
            hit.regs.rdi = 5

        target.go(1)
        assert session.snapshot().missing == {"fault": CALLS, "abandoned": CALLS}
    assert (seen, found) == ([], [19, 19])
    assert target.finish().calls["changed"] == 2


def test_conditions_that_cannot_be_compiled_are_refused_before_anything_is_placed(target):
    with anyprobe.attach(target.pid) as session:
        for when, why in (
            (lambda n: [n], "list"), (lambda ctx: ctx.data.t0 > 0, "ctx.data"), (print, "no Python function"),
        ):  # fmt: skip
            with pytest.raises(HandlerError, match=why):
                session.callback("a.out:asked", when=when)(print)

        def first(n: i64):
            return n > 0

        with pytest.raises(HandlerError, match="parameters are gone"):
            session.callback("a.out:asked:return", when=first)(print)
        assert session.snapshot().sites == ()
        assert session.splicing.holdings.arenas == []  # nothing of ours is in the program
    target.finish()
