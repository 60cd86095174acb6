"""Calls that leave their function by a jump, and are timed to where their caller goes on."""

import statistics
import time

from measure import call_target, estimate, pairs
from per_call import CALLS, PAIRS, ours, timing
from rows import Report

import anyprobe

LEARNING_TIMES = 11


def return_rows(report: Report, share: float) -> None:
    """Timing by return points, what it costs others there, and how soon they are known."""
    timed_row(report, share)
    unrelated_row(report, share)
    learning_row(report)


def timed_row(report: Report, share: float) -> None:
    """Entry and return, beside what reading the clock twice costs."""
    with call_target() as target:
        clock = min(target.run("rdtsc", 10_000_000)[0] for _ in range(5))
    for text, options in (("", {}), (", with self times", {"self_time": True})):
        added = ours(1, "tailed", timing, share * 0.1, **options)
        above = added.median - 2 * clock
        report.add(
            "entry + return by return points" + text,
            f"{above:.1f} ns above two rdtsc",
            "<= 20 ns" if not options else "<= 25 ns",
            above <= (25 if options else 20),
            f"{added} ns added; 2 rdtsc of {clock:.1f} ns",
        )


def unrelated_row(report: Report, share: float) -> None:
    """What a call of another function costs that comes back at the same place."""
    with call_target() as target, anyprobe.attach(target.pid) as session:
        probes = session.time("a.out:tailed")
        _learn(target, session)

        def arm():
            session.enable(*probes)
            return lambda: session.remove(*probes)

        session.remove(*probes)
        added, bare, probed = pairs(target, "pointer_to_leaf4", int(CALLS * share * 0.2), PAIRS, arm)
        session.enable(*probes)
        (before,) = session.snapshot().functions
        target.run("pointer_to_tailed", 1000)
        (after,) = session.snapshot().functions
        known = after.count - before.count == 1000
    report.add(
        "an unrelated call through the same return point",
        f"{added} ns added",
        "<= 2 ns",
        known and added.median <= 2,
        f"{bare:.2f} -> {probed:.2f} ns per call; calls of the timed function end there: {known}",
    )


def learning_row(report: Report) -> None:
    """How long calls of a busy thread are learning, from the first one to the splice."""
    found = []
    for _ in range(LEARNING_TIMES):
        with call_target() as target, anyprobe.attach(target.pid) as session:
            session.time("a.out:tailed")
            each = statistics.mean(target.run("pointer_to_tailed", 100_000))
            (start,) = session.snapshot().functions
            if start.learning != 100_000:
                raise RuntimeError(f"nothing was to be learnt yet: {start.learning}")
            session.pump_in_background()
            time.sleep(0.1)
        with call_target() as target, anyprobe.attach(target.pid) as session:
            session.time("a.out:tailed")
            session.pump_in_background()
            time.sleep(0.1)  # nothing is due but looks
            target.run("pointer_to_tailed", int(0.5e9 / each))
            (timed,) = session.snapshot().functions
            if not timed.count:
                raise RuntimeError("nothing was learnt in half a second")
            found.append(timed.learning * each * 1e-6)
    took = estimate(found)
    report.add(
        "learning an unknown return point",
        f"{took} ms of calls",
        "<= 20 ms until spliced",
        took.median <= 20,
        "as many calls as were learning, by what one takes then",
    )


def _learn(target, session) -> None:
    """Have return points known: calls until none is learning any more."""
    for _ in range(100):
        (before,) = session.snapshot().functions
        target.run("pointer_to_tailed", 100)
        (after,) = session.snapshot().functions
        if after.count - before.count == 100:
            return
        session.pump(0.1)
    raise RuntimeError("the return point was not learnt")
