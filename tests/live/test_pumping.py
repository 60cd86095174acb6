"""Sessions that are looked after while their programs run: by calls of ``pump``, by a thread, and as a group."""

import subprocess
import threading
import time
import zlib
from contextlib import ExitStack

import pytest

import anyprobe
from anyprobe import Count, SessionGroup
from support.driver import PATIENCE, build, started

pytestmark = pytest.mark.live
HANDLER_LATER = """
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((noipa)) void work(void) {}
static void on_signal(int number) { (void)number; work(); }
int main(void) {
    puts("ready"); fflush(stdout);
    int c;
    while ((c = getchar()) != EOF) {
        if (c == 's') signal(SIGUSR1, on_signal);
        if (c == 'w') for (int n = 0; n < 1000; n++) work();
        if (c == 'x') execl("/bin/sleep", "sleep", "60", (char *)0);
        if (c != '\\n') { puts("done"); fflush(stdout); }
    }
}
"""


class Program:
    """The program above, which does one thing for each letter."""

    def __init__(self, stack):
        target = build("pumped.c", text=HANDLER_LATER)
        pipe = subprocess.PIPE
        self.process = stack.enter_context(subprocess.Popen([target], stdin=pipe, stdout=pipe, text=True))
        stack.callback(self.process.kill)
        assert self.process.stdout.readline() == "ready\n"
        self.pid = self.process.pid

    def do(self, letter, *, answers=True):
        self.process.stdin.write(letter + "\n")
        self.process.stdin.flush()
        assert not answers or self.process.stdout.readline() == "done\n"


@pytest.fixture
def program():
    with ExitStack() as stack:
        yield Program(stack)


def await_(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_pumping_does_what_is_due_and_ends_with_the_program(program):
    ticks, looks = [], []
    with anyprobe.attach(program.pid) as session:
        session.count("a.out:work")
        session.interval(0.02)(lambda: ticks.append(time.monotonic()))
        session.duties.every(0.05, lambda: looks.append(session.limit_overhead(90)))
        for seconds in (0.3, 3, 30):  # who is kept from running for long does what is due once
            ticks.clear(), looks.clear()
            assert session.pump(seconds)
            if len(ticks) >= 3 and len(looks) >= 2:
                break
        assert len(ticks) >= 3
        assert len(looks) >= 2
        program.do("w")
        assert session.pump()  # what is due now, at once
        threading.Timer(0.1, program.process.kill).start()
        began = time.monotonic()
        assert not session.pump(PATIENCE)
        assert time.monotonic() - began < PATIENCE
        assert session.snapshot().hits == 1000


def test_signal_handlers_that_are_set_meanwhile_are_followed(program, monkeypatch):
    with anyprobe.attach(program.pid) as session:
        session.count("a.out:work")
        followed = []
        follow = session.host.handler_watch.follow
        monkeypatch.setattr(session.host.handler_watch, "follow", lambda **named: followed.append(1) or follow(**named))
        program.do("s")
        assert session.pump(0.1)
        assert followed
        program.process.send_signal(10)
        await_(lambda: session.snapshot().hits == 1)


def test_a_program_that_executes_another_one_is_over(program):
    with anyprobe.attach(program.pid) as session:
        session.count("a.out:work")
        program.do("w")
        program.do("x", answers=False)
        assert not session.pump(PATIENCE)
        assert any("became" in each for each in session.warnings)
        assert not session.pump(PATIENCE)
        assert sum("became" in each for each in session.warnings) == 1


def pumps(others=()):
    """Return the threads that look after sessions, those of other tests aside."""
    return [each for each in threading.enumerate() if each.name == "anyprobe pump" and each not in others]


def test_a_thread_looks_after_the_session_until_it_ends(program):
    ticks, others = [], pumps()
    with anyprobe.attach(program.pid) as session:
        session.interval(0.01)(lambda: ticks.append(threading.current_thread().name))
        session.pump_in_background()
        session.pump_in_background()  # there is one already
        for _ in range(5):  # beside the thread
            (probe,) = session.count("a.out:work")
            program.do("w")
            session.snapshot()
            session.remove(probe)
        await_(lambda: len(ticks) >= 3)
        assert set(ticks) == {"anyprobe pump"}
        assert session.snapshot().hits == 5000
    assert pumps(others) == []
    with pytest.raises(anyprobe.UsageError):
        session.pump_in_background()


def test_a_thread_that_ends_after_its_session_does_no_more(program, monkeypatch):
    """Of a session that is over, its memory is closed: what the thread has begun meanwhile it leaves alone."""
    raised = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    monkeypatch.setattr("anyprobe.probes.duties._ENDING", 0.01)
    asked, over, others = threading.Event(), threading.Event(), pumps()
    with anyprobe.attach(program.pid) as session:
        session.count("a.out:work")

        def look_after_the_end():
            asked.set()
            over.wait(PATIENCE)
            look()

        look = session.host.child_watch.look
        monkeypatch.setattr(session.host.child_watch, "look", look_after_the_end)
        session.pump_in_background()
        assert asked.wait(PATIENCE)
        (thread,) = pumps(others)
        program.do("w")
    assert session.snapshot().hits == 1000
    assert thread.is_alive()
    over.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert raised == []


def test_several_processes_are_one_group():
    calls = Count("calls")
    with ExitStack() as stack:
        programs = [Program(stack) for _ in range(3)]
        with SessionGroup.attach([each.pid for each in programs]) as group:
            probes = group.count("a.out:work")

            @group.entry("a.out:work")
            def on_work(ctx):
                calls.add()

            for each in programs:
                each.do("w")
            assert len(probes) == 3
            assert group.pump(0.05)
            together = group.snapshot()
            assert (together.sites[0].hits, int(calls), int(together.aggregation("calls"))) == (3000, 3000, 3000)
            assert {each.pid for each in (together.target, *together.others)} == {each.pid for each in programs}
            programs[0].process.kill()
            programs[0].process.wait()
            assert group.pump(0.05)  # the others go on
            assert not group.exited
            for each in programs[1:]:
                each.process.kill()
            assert not group.pump(PATIENCE)
            assert group.exited
        assert group.snapshot().sites[0].hits == 3000


def test_a_group_is_had_whole_or_not_at_all(program):
    with pytest.raises(anyprobe.NoSuchProcess):
        SessionGroup.attach([program.pid, 1 << 22])
    with anyprobe.attach(program.pid) as session:  # nothing holds it
        session.count("a.out:work")
        program.do("w")
        assert session.snapshot().hits == 1000


def test_a_program_that_probes_itself_can_be_pumped():
    with anyprobe.attach_self() as session:
        session.count("libz:crc32")
        zlib.crc32(b"x" * 100)
        assert session.pump(0.05)
        assert session.snapshot().hits >= 1
    assert not session.pump(0.05)


def test_a_program_that_was_started_is_pumped_to_its_end():
    with started(build("aggregated.c")) as target, anyprobe.attach(target.pid) as session:
        session.count("a.out:work")
        own = target.go(1).calls["work"]
        target.finish()
        assert not session.pump(PATIENCE)
        assert session.snapshot().hits == own


def test_pumping_ends_in_time_though_something_takes_longer_than_its_own_pause(program):
    """What is due next is due already when the work is done."""
    with anyprobe.attach(program.pid) as session:
        done = []
        session.duties.every(0.02, lambda: done.append("quick"))
        session.duties.every(0.02, lambda: done.append(threading.Event().wait(0.05)))
        for seconds in (0.5, 5, 50):
            done.clear()
            assert session.pump(seconds)
            if done.count("quick") > 1:
                break
        assert done.count("quick") > 1
