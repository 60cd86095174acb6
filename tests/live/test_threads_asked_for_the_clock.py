"""Every thread is asked whether it may read the time stamp counter, whatever stack it is on; none dies of it."""

import os
import signal

import pytest

import anyprobe
from anyprobe.core.refusal import Reason
from anyprobe.target.process import timestamps
from anyprobe.target.remote.spare_stack import SpareStacks
from support.driver import wait_until
from support.results import refusals, timing

pytestmark = [pytest.mark.live, pytest.mark.root]
KINDS = ("thread", "given", "locked", "coroutine", "signal", "vfork", "vfork-child")


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_that_has_forbidden_it_is_not_timed(run_target, kind, stopped):
    target = run_target("clock_of_threads.c", kind, "forbids")
    if stopped:
        os.kill(target.pid, signal.SIGSTOP)
    with anyprobe.attach(target.pid) as session:
        session.time("a.out:work")
        assert [why.reason for _, why in session.refused] == [Reason.TSC_FORBIDDEN]
        session.count("a.out:work")
        if stopped:
            os.kill(target.pid, signal.SIGCONT)
        wait_until(lambda: sum(site.hits for site in session.snapshot().sites) > 100, "the thread has worked")
    target.go(1)
    target.finish()


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_may_read_it_is_timed(run_target, kind):
    target = run_target("clock_of_threads.c", kind, "permits")
    with anyprobe.attach(target.pid) as session:
        session.time("a.out:work")
        assert refusals(session.refused) == {}
        wait_until(lambda: timing(session.snapshot(), "work").count > 100, "the thread has worked")
    target.go(1)
    target.finish()


def test_where_none_is_on_a_stack_of_its_own(run_target, monkeypatch):
    monkeypatch.setattr(SpareStacks, "own", lambda self, thread: 0)
    target = run_target("clock_of_threads.c", "thread", "forbids")
    with anyprobe.attach(target.pid) as session:
        session.time("a.out:work")
        assert [why.reason for _, why in session.refused] == [Reason.TSC_FORBIDDEN]
    target.go(1)
    target.finish()


def test_one_that_cannot_be_asked_is_named(run_target, monkeypatch):
    target = run_target("clock_of_threads.c", "thread", "permits")
    monkeypatch.setattr(
        timestamps, "fitness", lambda thread, process: "" if thread.tid == process.pid else "in a restartable sequence"
    )
    with anyprobe.attach(target.pid) as session:
        session.time("a.out:work")
        ((_, why),) = session.refused
        assert why.reason == Reason.TSC_UNKNOWN
        assert "cannot be asked" in why.detail
        assert "restartable sequence" in why.detail
        session.count("a.out:work")
        wait_until(lambda: sum(site.hits for site in session.snapshot().sites) > 100, "the thread has worked")
    target.go(1)
    target.finish()
