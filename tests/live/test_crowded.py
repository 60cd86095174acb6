"""Instructions in lines too short for a jump: each alone and all at once, exact counts, whatever comes and goes."""

import random
from collections import Counter

import pytest

import anyprobe
from live.test_offsets import boundaries
from support.changes import patiently

THREADS = 8


def hits_by_construction(counts, before, offsets):
    """Return how often each instruction of ``loop`` ran since ``before``."""
    calls, turns = (counts.calls[name] - before.get(name, 0) for name in ("loop", "loop_turns"))
    each, after_the_test = {}, False
    zero = calls  # one call in seven has nothing to do; it is known by its turns only
    for offset, text in offsets.items():
        if text.startswith(("dec", "jne")):
            each[offset] = turns
        elif after_the_test and not text.startswith("ret"):
            each[offset] = None
        else:
            each[offset] = zero
        after_the_test = after_the_test or text.startswith("je ")
    return each


def check_loop(hits, expected):
    inner = {hits[offset] for offset in hits if expected[offset] is None}
    assert len(inner) <= 1
    assert all(hits[offset] == expected[offset] for offset in hits if expected[offset] is not None)


def totals(session):
    """Return the hits of each instruction, by whatever probe of it."""
    found = Counter()
    for site in session.snapshot().sites:
        found[site.function, site.offset] += site.hits
    return found


@pytest.mark.parametrize("function", ["loop", "table", "last_byte"])
def test_every_instruction_alone_and_all_at_once(run_target, function):
    target = run_target("crowded.c", "2")
    offsets = boundaries(f"/proc/{target.pid}/exe", function)
    with anyprobe.attach(target.pid) as session:
        alone = {}
        for offset in offsets:
            (probe,) = session.count(f"a.out:{function}+{offset:#x}")
            assert probe.armed, session.refused
            target.go(700)
            alone[offset] = next(site.hits for site in session.snapshot().sites if site.offset == offset)
            session.remove(probe)
    with anyprobe.attach(target.pid) as session:
        session.count(*(f"a.out:{function}+{offset:#x}" for offset in offsets))
        before = dict(target.counts.calls)
        counts = target.go(700)
        snapshot = session.snapshot()
        assert not session.refused
        assert {site.offset: site.hits for site in snapshot.sites} == alone
        if function == "loop":
            check_loop(alone, hits_by_construction(counts, before, offsets))
    target.go(10)
    target.finish()


def test_sites_come_and_go_in_any_order_while_threads_run(run_target):
    chance = random.Random(7)
    target = run_target("crowded.c", str(THREADS))
    names = {name: boundaries(f"/proc/{target.pid}/exe", name) for name in ("loop", "table", "last_byte")}
    specs = [f"a.out:{name}+{offset:#x}" for name, offsets in names.items() for offset in offsets]
    with anyprobe.attach(target.pid) as session:
        held = {}
        for _ in range(12):
            target.run_freely()
            for _ in range(4):
                for spec in chance.sample(specs, 6):
                    if spec in held:
                        patiently(session.remove, held.pop(spec))
                    else:
                        (held[spec],) = patiently(session.count, spec)
            target.halt()
            start, before = totals(session), dict(target.counts.calls)
            counts = target.go(70)
            since = totals(session) - start
            assert all(probes.armed for probes in held.values()), session.refused
            expected = hits_by_construction(counts, before, names["loop"])
            check_loop({o: since["loop", o] for o in expected if f"a.out:loop+{o:#x}" in held}, expected)
            for name, offset in (("table", 0), ("last_byte", 0)):
                if f"a.out:{name}+{offset:#x}" in held:
                    assert since[name, offset] == counts.calls[name] - before[name]
            gone = [(n, o) for n, offsets in names.items() for o in offsets if f"a.out:{n}+{o:#x}" not in held]
            assert not any(since[each] for each in gone)
    target.go(10)
    target.finish()


def test_ends_of_functions_that_touch(run_target):
    """One byte is all that an exit has, and the next function jumps back to the entry of the one in front: a call."""
    target = run_target("crowded.c", str(THREADS))
    names = ("loop", "table", "last_byte", "right_behind")
    with anyprobe.attach(target.pid) as session:
        session.count(*(f"a.out:{name}{end}" for name in names for end in ("", "%return")))
        assert not session.refused
        before = dict(target.counts.calls)
        counts = target.go(1000)
        hits = Counter()
        for site in session.snapshot().sites:
            hits[site.function, site.kind == "entry"] += site.hits
        for name in names:
            calls = counts.calls[name] - before.get(name, 0)
            assert (hits[name, True], hits[name, False]) == (calls, calls)
    target.go(10)
    target.finish()
