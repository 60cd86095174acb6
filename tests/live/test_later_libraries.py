"""Probes that follow what a program loads: libraries that come, go, and come again."""

import time

import pytest

import anyprobe
from support.driver import PATIENCE, build
from support.plugins import loading

pytestmark = pytest.mark.live
LIBRARY = '__attribute__((noinline)) int plugin_work(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }'


@pytest.fixture
def program():
    with loading(build("plugin.c", "-shared", "-fPIC", text=LIBRARY)) as do:
        yield do


def pump_until(session, condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        session.pump(0.05)


def test_a_probe_follows_a_library_that_comes_and_goes(program):
    with anyprobe.attach(program.pid) as session:
        (probe,) = session.count("plugin:plugin_work", follow=True)
        assert not probe.armed
        assert session.reconcile() == []
        program("l")
        assert probe.armed
        assert session.reconcile() == []  # it is there already
        program("w")
        assert session.snapshot().hits == 1000
        program("u")
        session.reconcile()
        assert session.snapshot().hits == 1000
        assert not probe.armed
        program("l")
        assert probe.armed
        program("w")
        assert session.snapshot().hits == 2000


def test_pumping_arms_what_follows(program):
    with anyprobe.attach(program.pid) as session:
        (counted,) = session.count("plugin:plugin_work", follow=True)
        (timed,) = session.time("plugin:plugin_work", follow=True)
        program("l")
        pump_until(session, lambda: counted.armed and timed.armed)
        program("w")
        snapshot = session.snapshot()
        assert (snapshot.hits, snapshot.functions[0].count) == (1000, 1000)


def test_what_is_loaded_again_counts_on_in_one_row(program):
    """In a group, too, in which specs that overlap are each counted once."""
    with anyprobe.SessionGroup.attach([program.pid]) as group:
        (session,) = group
        session.count("plugin:plugin_work", follow=True)
        session.count("plugin:plugin_w*", follow=True)
        session.time("plugin:plugin_work", follow=True)
        places = []
        for round_ in range(1, 4):
            program("l")
            session.reconcile()
            program("w")
            places.append({site.address for site in session.snapshot().sites})
            program("u")
            session.reconcile()
            for snapshot in (session.snapshot(), group.snapshot()):
                if (
                    places == [places[0]] * round_
                ):  # else the loader has chosen another address, which has a row of its own
                    assert {site.hits for site in snapshot.sites} == {1000 * round_}
                assert sum(timing.count for timing in snapshot.functions) == 1000 * round_
            assert sum(site.hits for site in group.snapshot().sites) == 1000 * round_


def test_what_does_not_follow_is_a_mistake_where_it_means_nothing(program):
    with anyprobe.attach(program.pid) as session:
        with pytest.raises(anyprobe.SpecError):
            session.count("plugin:plugin_work")
        program("l")
        session.count("plugin:plugin_work")
        program("w")
        assert session.snapshot().hits == 1000
