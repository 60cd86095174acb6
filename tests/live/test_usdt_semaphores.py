"""Semaphores of USDT markers: up by one while a session listens, and down exactly once, however it ends."""

import os
from contextlib import ExitStack

import pytest

import anyprobe
from support.asked_controller import Controller
from support.driver import build, started, wait_until
from support.markers import semaphores, write_semaphore
from support.plugins import loading

pytestmark = pytest.mark.live
FORKS = """
#include "protocol.h"
#include "markers.h"
SEMAPHORE(forked_guard);
static int child;
static void work(void) {
    for (int n = 0; n < 100; n++)
        if (*(volatile unsigned short *)&forked_guard) MARKER("forks", "work", "forked_guard", "-4@%0", "r"(n));
}
TALLY(child);
static void one_round(void) {
    work();
    if (child) return;
    child = fork();
    if (!child) { for (;;) { work(); usleep(1000); } }
    child_tally.calls = child;
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(child); }
"""
LIBRARY = """
#include "markers.h"
SEMAPHORE(plugin_guard);
int plugin_work(int n) {
    if (*(volatile unsigned short *)&plugin_guard) MARKER("plugin", "work", "plugin_guard", "-4@%0", "r"(n));
    return n + 1;
}
"""


class Marked:
    """The program with guarded markers."""

    def __init__(self, running):
        self.path, self.running, self.pid = build("marked.c"), running, running.pid

    @property
    def values(self):
        found = semaphores(self.pid, self.path)
        assert found.pop("closed") == 0
        assert found["first"] == found["second"]
        return found["alone"], found["first"]


@pytest.fixture
def marked():
    with started(build("marked.c")) as running:
        yield Marked(running)


@pytest.fixture(scope="module")
def controller():
    running = Controller()
    yield running
    running.close()


def test_a_semaphore_is_up_while_its_probe_is_enabled(marked):
    with anyprobe.attach(marked.pid) as session:
        assert marked.values == (0, 0)
        (probe,) = session.count("usdt:guards:alone")
        assert marked.values == (1, 0)
        counts = marked.running.go(50)
        assert session.snapshot().hits == counts.calls["guarded"] == 50
        session.remove(probe)
        assert marked.values == (0, 0)
        marked.running.go(50)
        session.enable(probe)
        assert marked.values == (1, 0)
        counts = marked.running.go(7)
        assert session.snapshot().hits == counts.calls["guarded"] == 57
    assert marked.values == (0, 0)
    assert marked.running.go(5).calls["guarded"] == 57
    marked.running.finish()


def test_a_shared_semaphore_is_counted_once_and_stays_for_who_is_left(marked):
    with anyprobe.attach(marked.pid) as session:
        first, second = session.count("usdt:guards:first", "usdt:guards:second")
        again = session.count("usdt:guards:second")
        assert marked.values == (0, 1)
        session.remove(second, *again)
        assert marked.values == (0, 1)
        marked.running.go(10)
        session.remove(first)
        assert marked.values == (0, 0)
        assert {site.label: site.hits for site in session.snapshot().distinct().sites} == {
            "guards:first": 10,
            "guards:second": 0,
        }
    assert marked.values == (0, 0)
    marked.running.finish()


def test_without_a_stop_it_goes_up_and_down_as_well(marked):
    with anyprobe.attach(marked.pid, live=True) as session:
        session.count("usdt:guards:*")
        assert marked.values == (1, 1)
        marked.running.go(10)
        assert session.snapshot().hits == 30
    assert marked.values == (0, 0)
    marked.running.finish()


@pytest.mark.parametrize(("others", "then", "left"), [(0, 3, 2), (2, 3, 2), (2, 1, 0), (0, 0, 0)])
def test_what_others_count_is_left_to_them(marked, others, then, left):
    """Others had counted it to ``others``; while the session listens it is set to ``then``."""
    write_semaphore(marked.pid, marked.path, "alone", others)
    with anyprobe.attach(marked.pid) as session:
        session.count("usdt:guards:alone")
        assert marked.values == (others + 1, 0)
        write_semaphore(marked.pid, marked.path, "alone", then)
    assert marked.values == (left, 0)
    marked.running.finish()


def test_removing_says_where_somebody_else_has_counted_down(marked):
    with anyprobe.attach(marked.pid) as session:
        (probe,) = session.count("usdt:guards:alone")
        write_semaphore(marked.pid, marked.path, "alone", 0)
        session.remove(probe)
        assert any("another process has counted down the semaphore" in each for each in session.warnings)
        assert marked.values == (0, 0)


def test_one_that_is_at_its_highest_stays_there(marked):
    write_semaphore(marked.pid, marked.path, "alone", 0xFFFF)
    with anyprobe.attach(marked.pid) as session:
        session.count("usdt:guards:alone")
        assert any("at its highest" in each for each in session.warnings)
        assert marked.values == (0xFFFF, 0)
        marked.running.go(3)
        assert session.snapshot().hits == 3
    assert marked.values == (0xFFFF, 0)


def test_one_that_cannot_be_written_is_refused_and_nothing_is_changed(marked):
    with anyprobe.attach(marked.pid) as session:
        session.count("usdt:guards:closed")
        ((spec, why),) = session.refused
        assert spec == "usdt:marked/guards:closed"
        assert why.reason.value == "semaphore-not-writable"
        assert not session.splicing.upkeep.is_installed
    assert marked.values == (0, 0)


def test_it_is_down_after_sigkill_and_detach(controller, marked):
    for _ in range(3):
        controller.ask("hold", marked.pid, "usdt:guards:*")
        assert marked.values == (1, 1)
        controller.ask("drop")
        assert marked.values == (1, 1)
        assert controller.ask("cli", "detach", "-p", marked.pid)["exit"] == 0
        assert marked.values == (0, 0)
    marked.running.finish()


def test_it_is_down_after_sigkill_and_the_next_attach(controller, marked):
    controller.ask("hold", marked.pid, "usdt:guards:*")
    controller.ask("drop")
    with anyprobe.attach(marked.pid) as session:
        assert marked.values == (0, 0)
        session.count("usdt:guards:first")
        assert marked.values == (0, 1)
    assert marked.values == (0, 0)
    marked.running.finish()


@pytest.mark.timeout(1800)
def test_killed_at_every_call_it_is_down_after_detach(controller, marked, request):
    """The controller is killed before each of its calls on the target; in the torture at all of them."""
    specs = ("auto", "usdt:guards:*", "usdt:places:*")
    marked.running.go(1)
    total = controller.ask("session", marked.pid, "none", *specs)["calls"]
    step = 1 if request.config.getoption("--torture") else max(total // 24, 1)
    for number in range(1, total + 1, step):
        answer = controller.ask("session", marked.pid, f"kill-before:{number}", *specs)
        assert "untyped" not in answer
        assert controller.ask("cli", "detach", "-p", marked.pid)["exit"] == 0
        assert marked.values == (0, 0), (number, total)
    marked.running.go(1)
    marked.running.finish()


@pytest.mark.parametrize("kills", [False, True])
def test_fork_children_have_it_up_and_are_relieved_of_it_too(controller, kills):
    with ExitStack() as stack:
        target = stack.enter_context(started(build("guarded_forks.c", text=FORKS)))
        path = build("guarded_forks.c", text=FORKS)
        if kills:
            controller.ask("hold", target.pid, "usdt:forks:work")
        else:
            session = stack.enter_context(anyprobe.attach(target.pid))
            session.count("usdt:forks:work")
        child = target.go(1).calls["child"]
        stack.callback(os.kill, child, 9)
        assert semaphores(target.pid, path) == semaphores(child, path) == {"work": 1}
        if kills:
            controller.ask("drop")
            assert controller.ask("cli", "detach", "-p", target.pid)["exit"] == 0
        else:
            wait_until(lambda: session.snapshot().hits > 1000, "the child has been counted")
            session.detach()
        assert semaphores(target.pid, path) == semaphores(child, path) == {"work": 0}


def test_a_library_that_comes_later_and_goes():
    library = build("guarded_plugin.c", "-shared", "-fPIC", text=LIBRARY)
    with loading(library) as do:
        with anyprobe.attach(do.pid) as session:
            (probe,) = session.count("usdt:plugin:work", follow=True)
            assert not probe.armed
            for round_ in range(1, 4):
                do("l")
                assert probe.armed
                assert semaphores(do.pid, library) == {"work": 1}
                do("w")
                do("u")
                assert session.snapshot().hits == 1000 * round_
            do("l")
            assert semaphores(do.pid, library) == {"work": 1}
        assert semaphores(do.pid, library) == {"work": 0}
