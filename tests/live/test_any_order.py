"""Probes so close that their jumps meet, added and removed in any order: no hit is lost or counted twice."""

from collections import Counter
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anyprobe
from support.driver import build, started
from support.instruction_counts import expected, listing

FUNCTIONS = ("counts_ecx", "conditional", "asks_rcx", "pops_to_stack", "frames", "no_operations", "own_address",
             "masked", "jumps_no_track", "calls_stack", "undefined")  # fmt: skip
KINDS = ("entry", "return", "insn", "block", "call")
CALLERS = ("own_address", "calls_stack")
"""The others have no call to probe."""
ASKED = [(name, kind) for name in FUNCTIONS for kind in KINDS if kind != "call" or name in CALLERS]

toggles = st.lists(
    st.lists(st.sampled_from(ASKED), min_size=1, max_size=6, unique=True),
    min_size=2,
    max_size=8,
)


@pytest.fixture(scope="module")
def target():
    with started(build("instruction_classes.c", "-no-pie"), "2") as running:
        running.go(1)
        yield running
        running.go(1)
        running.finish()


@pytest.fixture(scope="module")
def times(target):
    """Return how often each instruction runs when its function is tallied once, by function and offset."""
    lines = listing(f"/proc/{target.pid}/exe")
    return {(name, offset): count for name in FUNCTIONS for offset, count in expected(name, lines[name]).items()}


class Toggled:
    """Probes of one session, by function and kind; those that are there count, and are compared with the program."""

    def __init__(self, session, target, times):
        self.session, self.target, self.times = session, target, times
        self.held = {}

    def toggle(self, several):
        """Add those that are not there, remove those that are, each in one change."""
        fresh = [one for one in several if one not in self.held]
        gone = [self.held.pop(one) for one in several if one in self.held]
        added = self.session.count(*(f"pid:a.out:{name}:{kind}" for name, kind in fresh)) if fresh else []
        self.held.update(zip(fresh, added, strict=True))
        if gone:
            self.session.remove(*gone)

    def hits(self):
        """Return the hits so far by function, kind and offset, of removed probes, too."""
        found = Counter()
        for site in self.session.snapshot().sites:
            found[site.function, site.kind, site.offset] += site.hits
        return found

    def armed(self):
        return {(site.function, site.kind, site.offset) for site in self.session.snapshot().sites if site.armed}

    @contextmanager
    def compared(self, armed, *, alone=False):
        """Compare what the given sites count meanwhile with what the program does; ``alone``: no others count."""
        hits, calls = self.hits(), dict(self.target.counts.calls)
        yield
        grown = self.hits() - hits
        made = Counter(self.target.counts.calls)  # of what the processor does not know, no call is made
        made.subtract(calls)
        right = {key: made[key[0]] * self.times[key[0], key[2]] for key in armed}
        wrong = {key: (grown[key], number) for key, number in right.items() if grown[key] != number}
        assert not wrong
        assert not (alone and set(grown) - armed)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(orders=toggles)
def test_in_any_order(target, times, orders):
    with anyprobe.attach(target.pid) as session:
        probes = Toggled(session, target, times)
        for several in orders:
            probes.toggle(several)
            with probes.compared(probes.armed(), alone=True):
                target.go(2)
        session.remove(*probes.held.values())
        assert probes.armed() == set()


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(orders=toggles, kept=st.sampled_from(KINDS))
def test_while_the_program_runs(target, times, orders, kept):
    """What stays armed misses nothing while its neighbours come and go."""
    with anyprobe.attach(target.pid) as session:
        probes = Toggled(session, target, times)
        probes.toggle([one for one in ASKED if one[1] == kept])
        armed = probes.armed()
        with probes.compared(armed):
            target.run_freely()
            for several in orders:
                probes.toggle([(name, kind) for name, kind in several if kind != kept])
                target.check_alive()
            target.halt()
        assert armed <= probes.armed()
