"""What a program that probes itself says to Yama, which stands in the gateway's place."""

import os

import pytest

import anyprobe
from anyprobe.core.errors import TargetError
from anyprobe.probes.selfattach.client import Line
from anyprobe.target.system import gateway

pytestmark = pytest.mark.live


@pytest.fixture
def said(monkeypatch):
    """Record the order in which tracers are declared and requests are made."""
    found, send, declare = [], Line._pass_on, gateway.declare_tracer

    def passed_on(line, request, answer):
        found.append((request.method, line.attendant))
        send(line, request, answer)

    def declared(pid):
        found.append(("declared", pid))
        declare(pid)

    monkeypatch.setattr(Line, "_pass_on", passed_on)
    monkeypatch.setattr(gateway, "declare_tracer", declared)
    return found


def test_the_attendant_is_declared_before_it_attaches_and_nobody_at_the_end(said):
    with anyprobe.attach_self() as session:
        attendant = session.attendant
        session.count("libc:labs")
    assert said[:2] == [("declared", attendant), ("open", attendant)]
    assert said[-2:] == [("close", attendant), ("declared", 0)]
    assert [each for each in said if each[0] == "declared"] == [("declared", attendant), ("declared", 0)]


def test_so_is_the_one_that_cleans_up(said):
    session = anyprobe.attach_self()
    session.count("libc:labs")
    first = session.attendant
    os.kill(first, 9)
    with pytest.raises(TargetError, match="has ended"):
        session.snapshot()
    del said[:]
    session.close()
    declared = [pid for what, pid in said if what == "declared" and pid]
    assert len(declared) == 1
    assert declared[0] != first
    order = [each for each in said if each[1] == declared[0]]
    assert order == [("declared", declared[0]), ("remove_leftovers", declared[0])]
