"""Executions that nothing has waited for: told of where they are of a followed tree, whatever number a process has."""

from types import SimpleNamespace

import pytest

from anyprobe.probes.following import strays
from anyprobe.probes.following.strays import Strays


@pytest.fixture
def machine(monkeypatch):
    """Processes, when they began and by whom, and who has executed something."""
    made = SimpleNamespace(starts={}, parents={}, executed=[], told=[])

    def read_stat(pid):
        if pid not in made.starts:
            raise FileNotFoundError(pid)
        return SimpleNamespace(start_time=made.starts[pid], parent=made.parents.get(pid, 1))

    def read(_):
        found, made.executed = made.executed, []
        return found

    events = SimpleNamespace(wait=lambda _: None, read=read, close=lambda: None)
    monkeypatch.setattr(strays, "ProcEvents", lambda: events)
    monkeypatch.setattr(strays.procfs, "read_stat", read_stat)
    monkeypatch.setattr(strays.procfs, "now", lambda: 100)
    return made


@pytest.fixture
def watch(machine):
    made = Strays(machine.told.append)
    yield made
    made.end()


def test_what_a_followed_process_executes_and_what_its_children_do(machine, watch):
    machine.starts = {500: 50, 501: 150, 502: 90, 503: 160}
    machine.parents = {501: 500, 502: 500, 503: 501}
    watch.follow(500, from_start=False)
    machine.executed = [500, 501, 502, 503]
    watch.catch_up()
    assert len(machine.told) == 3  # 502 was there before


def test_what_was_expected_is_not_told(machine, watch):
    machine.starts = {500: 50}
    watch.follow(500, from_start=True)
    watch.expect(500)
    machine.executed = [500, 500]
    watch.catch_up()
    assert len(machine.told) == 1


def test_the_number_of_one_that_has_ended_is_another_ones(machine, watch):
    machine.starts = {500: 50}
    watch.follow(500, from_start=True)
    machine.starts = {500: 170, 501: 180}
    machine.parents = {501: 500}
    machine.executed = [500, 501]
    watch.catch_up()
    assert machine.told == []


def test_one_that_has_just_ended_is_told_of(machine, watch):
    machine.starts = {500: 50}
    watch.follow(500, from_start=True)
    machine.starts = {}
    machine.executed = [500, 777]
    watch.catch_up()
    assert len(machine.told) == 1


def test_one_that_is_followed_no_more_is_not(machine, watch):
    machine.starts = {500: 50}
    watch.follow(500, from_start=True)
    watch.forget(500)
    machine.starts = {}
    machine.executed = [500]
    watch.catch_up()
    assert machine.told == []
