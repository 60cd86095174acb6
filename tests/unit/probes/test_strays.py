"""Executions that nothing has waited for: told of where they are of a followed tree, whatever number a process has."""

from types import SimpleNamespace

import pytest

from anyprobe.probes.following import strays
from anyprobe.probes.following.strays import Strays
from anyprobe.target.system.proc_events import Happened, ProcEvent

NOW = 1000
FORKED, EXECUTED, ENDED = Happened.FORKED, Happened.EXECUTED, Happened.ENDED


@pytest.fixture
def machine(monkeypatch):
    """What happens to processes, and what is told of it."""
    made = SimpleNamespace(happened=[], told=[])

    def events(_):
        found, made.happened = made.happened, []
        return found

    source = SimpleNamespace(wait=lambda _: None, events=events, close=lambda: None, overflows=0)
    monkeypatch.setattr(strays, "ProcEvents", lambda **_: source)
    monkeypatch.setattr(strays.time, "monotonic_ns", lambda: NOW)
    return made


@pytest.fixture
def watch(machine):
    made = Strays(machine.told.append)
    yield made
    made.end()


def happens(machine, watch, *events):
    machine.happened = [ProcEvent(what, pid, when, *parent) for what, pid, when, *parent in events]
    watch.catch_up()
    return len(machine.told), watch.seen


def test_what_a_followed_process_executes_and_what_its_children_do(machine, watch):
    watch.follow(500, from_start=False)
    before = (FORKED, 502, NOW - 1, 500)
    children = (FORKED, 501, NOW + 1, 500), (FORKED, 503, NOW + 2, 501)
    executed = [(EXECUTED, pid, NOW + 3) for pid in (500, 501, 502, 503)]
    assert happens(machine, watch, before, *children, *executed) == (3, 3)


def test_children_that_have_ended_before_anybody_looked_are_told_of(machine, watch):
    watch.follow(500, from_start=True)
    life = (FORKED, 501, 5, 500), (EXECUTED, 501, 6), (ENDED, 501, 7)
    assert happens(machine, watch, *life, *life) == (2, 2)


def test_what_was_expected_is_not_told(machine, watch):
    watch.follow(500, from_start=True)
    watch.expect(500)
    assert happens(machine, watch, (EXECUTED, 500, 1), (EXECUTED, 500, 2)) == (1, 2)


def test_what_was_expected_and_failed_is_none(machine, watch):
    watch.follow(500, from_start=True)
    watch.expect(500)
    watch.expect_no_more(500)
    assert happens(machine, watch) == (0, 0)


def test_the_number_of_one_that_has_ended_is_another_ones(machine, watch):
    watch.follow(500, from_start=True)
    after = (FORKED, 500, 3, 1), (EXECUTED, 500, 4), (FORKED, 501, 5, 500), (EXECUTED, 501, 6)
    assert happens(machine, watch, (ENDED, 500, 2), *after) == (0, 0)


def test_fork_children_are_none_of_the_users_where_they_are_not_counted(machine):
    watch = Strays(machine.told.append, of_children=False)
    watch.follow(500, from_start=True)
    assert happens(machine, watch, (FORKED, 501, 1, 500), (EXECUTED, 501, 2), (EXECUTED, 500, 3)) == (1, 1)
    watch.end()
