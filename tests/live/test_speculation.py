"""``ctx.speculate()``: the records of a call are kept only if its end says so."""

from collections import Counter

import pytest

import anyprobe
from anyprobe import HandlerError, emit, i64
from support.driver import build, started

pytestmark = pytest.mark.live
THREADS, CALLS = 3, 40


def speculating(session):
    """Place handlers: what outer and inner calls do is kept if they return something else than 0."""

    @session.entry("a.out:step")
    def on_step(n: i64):
        emit("step", n=n)

    def begin(ctx):
        ctx.speculate()

    def decide(ctx):
        if ctx.retval != 0:
            ctx.commit()
        else:
            ctx.discard()

    for name in ("outer", "inner", "left", "ended"):
        session.call(f"a.out:{name}")(begin).ret(decide)


def of_call(n):
    """Return what is kept of a call of ``outer``."""
    return [n, *([n + 1000] if n & 1 else []), n + 2000] if n % 3 == 0 else []


def steps(session, *, final=True):
    return Counter(session.records(final=final)["step"]["n"].tolist())


def test_what_is_kept_is_what_the_ends_of_calls_say():
    expected = Counter()
    for base in range(0, 10000 * THREADS, 10000):
        for n in range(base, base + CALLS):
            expected.update([n + 7000, *of_call(n)])
    with started(build("speculative.c", "-pthread"), "w") as target, anyprobe.attach(target.pid) as session:
        speculating(session)
        found = Counter()
        for _ in range(5):
            target.go(1)
            found += steps(session, final=False)
        found += steps(session)
        assert found == Counter({n: 5 * count for n, count in expected.items()})
        assert session.snapshot().dropped == {}


def test_calls_that_are_left_are_discarded_and_counted():
    with started(build("speculative.c", "-pthread"), "-") as target, anyprobe.attach(target.pid) as session:
        speculating(session)
        target.go(4)
        found = steps(session)
        expected = Counter()
        for base in range(0, 10000 * THREADS, 10000):
            for n in range(base, base + CALLS):
                expected.update([n + 7000, *of_call(n)])
            expected.update([*of_call(base), base + 8000])
        # a thread that has the number of one that has ended undecided is known by its first mark: one record later
        missing = Counter({n: 4 * count for n, count in expected.items()}) - found
        assert not found - Counter({n: 4 * count for n, count in expected.items()})
        assert {n % 10000 for n in missing} <= {7000}
        lost = session.snapshot().dropped["speculation"]
        # two calls of each thread, with one record each
        calls = 2 * 4 * THREADS
        assert lost == {"calls left undecided": calls, "their records": calls + missing.total()}


def test_what_cannot_be_is_refused_by_name():
    with started(build("speculative.c", "-pthread"), "w") as target, anyprobe.attach(target.pid) as session:

        def named(n: i64):
            emit("speculation", n=n)

        def given(ctx):
            ctx.commit(1)

        for handler, said in ((named, "those of ctx.speculate"), (given, "takes nothing")):
            with pytest.raises(HandlerError, match=said):
                session.entry("a.out:step")(handler)
