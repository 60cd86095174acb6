"""The processes whose hits count: named by numbers that the kernel knows, or not at all."""

import os
from types import SimpleNamespace

import pytest

from anyprobe.core.errors import NoSuchProcess, UnsupportedTarget
from anyprobe.probes.providers.kernel import chosen
from anyprobe.probes.providers.kernel.chosen import Chosen


def test_without_processes_all_count():
    assert not Chosen()
    assert not Chosen(children=True).children


def test_a_process_is_named_once():
    made = Chosen([os.getpid(), os.getpid()])
    assert made
    assert (made.pids, made.table, made.lost()) == ((os.getpid(),), None, 0)


def test_a_process_that_there_is_not():
    with pytest.raises(NoSuchProcess):
        Chosen([4194303])


def test_this_process_may_be_left_out_where_all_count(monkeypatch):
    made = Chosen(include_self=False)
    assert made
    assert (made.pids, made.without) == ((), (os.getpid(),))
    assert Chosen([os.getpid()], include_self=False).without == ()
    assert Chosen().without == ()


def test_in_a_pid_namespace_processes_are_not_told_apart(monkeypatch):
    stat = os.stat
    other = SimpleNamespace(st_ino=4026532000)
    monkeypatch.setattr(chosen.os, "stat", lambda path: other if path.endswith("ns/pid") else stat(path))
    with pytest.raises(UnsupportedTarget, match="other numbers in the kernel than in this pid namespace"):
        Chosen([os.getpid()])
    assert not Chosen(include_self=False), "its number there is not known"
