"""Programs that are executed are counted in from their first instruction on, and the old ones keep their counts."""

import os
import subprocess
import threading
import time
from contextlib import contextmanager

import pytest

from anyprobe.probes.following.followed import Followed
from anyprobe.probes.providers.function.gates import exec_gate
from anyprobe.target.process import execution
from anyprobe.target.remote.thread import Thread
from anyprobe.target.system import procfs, ptrace
from support.driver import build
from support.results import hits

pytestmark = pytest.mark.live
CALLS = ("execl", "execlp", "execle", "execv", "execvp", "execve", "execvpe")
DEEP = 2
"""How many programs each first one leads to."""
SLOW = 1.5
ROUNDS = 3
PATIENCE_OF_GATES = 100.0
"""What a thread waits in its gate, in seconds: longer than any change takes without, however busy the machine is."""


@contextmanager
def following(argv, *specs, **settings):
    """Run a command with what it executes followed, to its end."""
    folder = os.path.dirname(argv[0])
    environment = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}")
    with Followed.run(argv, env=environment, **settings) as tree:
        tree.count(*specs)
        tree.resume()
        yield tree


@contextmanager
def waiting(*argv):
    """Run a program that waits for the end of its input, where ``EXECUTES_WAITS`` is set, before it does anything."""
    environment = dict(os.environ, EXECUTES_WAITS="1")
    with subprocess.Popen([*argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as program:
        try:
            assert program.stdout.readline() == b"ready\n"
            yield program
        finally:
            program.kill()


def counted(program, how, call, generations):
    """Return the exit status of the first program, and the hits of each program by function."""
    with following(
        [str(program), how, call, str(generations)], "a.out:work", "a.out:on_the_way", "a.out:failed"
    ) as tree:
        status = os.waitstatus_to_exitcode(tree.wait(180))
        found = [tuple(hits(each, name) for name in ("work", "on_the_way", "failed")) for each in tree.snapshots()]
        assert not tree.notes()
    return status, found


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("how", ["fork", "vfork"])
def test_every_way_to_execute_in_a_child(compiled, how, call):
    """Each program's own calls are counted apart; what the child does before is its parent's program's."""
    status, found = counted(compiled("executes.c"), how, call, DEEP)
    assert status == DEEP + 1
    assert found == [(10, 1, 0)] * DEEP + [(10, 0, 0)]


def test_a_child_of_this_process_for_which_another_thread_waits(compiled):
    """It is told of stops, in this one's place, and each is found all the same: the child does not stay in any."""
    for _ in range(50):  # until it has been told of one before this thread was
        if len(ends_of_a_child_that_executes(compiled("executes.c"))) > 1:
            return
    pytest.fail("the other thread is told of no stop")


def ends_of_a_child_that_executes(program_of_ours):
    """Return what another thread is told of a child that is followed, of its end at last."""
    said = []

    def wait(pid):
        while not said or os.WIFSTOPPED(said[-1]):
            said.append(os.waitpid(pid, 0)[1])

    with waiting(program_of_ours, "here", "execv", "3") as program, Followed.attach([program.pid]) as tree:
        thread = threading.Thread(target=wait, args=[program.pid])
        thread.start()
        tree.count("a.out:work")
        program.stdin.close()
        thread.join(180)
        assert os.waitstatus_to_exitcode(said[-1]) == 1
        tree.wait(180)
        assert [hits(each, "work") for each in tree.snapshots()] == [10] * 4
        assert not tree.notes()
    return said


def test_a_thread_that_is_slow_to_stop(compiled, monkeypatch):
    """On a busy machine it may take more than a second until a thread that is interrupted runs, and stops."""

    class Slow(Thread):
        def poll(self):
            self.begin = getattr(self, "begin", time.monotonic())
            return time.monotonic() - self.begin > SLOW and super().poll()

    monkeypatch.setattr(execution, "Thread", Slow)
    status, found = counted(compiled("executes.c"), "fork", "execvp", DEEP)
    assert status == DEEP + 1
    assert found == [(10, 1, 0)] * DEEP + [(10, 0, 0)]


VFORKS = """
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile sig_atomic_t over;
static void end(int signal) { (void)signal; over = 1; }
__attribute__((noinline)) int work(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
__attribute__((noinline)) int other(int n) { __asm__ volatile("" : "+r"(n)); return n + 2; }
int main(void) {
    int programs = 0, status;
    signal(SIGTERM, end);
    puts("ready"); fflush(stdout);
    while (!over) {
        usleep(200000);
        work(1);
        if (!vfork()) { execl("/bin/true", "true", (char *)0); _exit(1); }
        wait(&status);
        programs += status == 0;
        other(1);
    }
    printf("%d\\n", programs);
    return 0;
}
"""


def test_a_stop_and_an_execution_that_wait_for_each_other(monkeypatch):
    """A thread that has just been seized waits for its child by vfork: that executes, and is followed, at once.

    It stops when the child executes, which waits in its gate until the stop is over.
    """
    monkeypatch.setattr(exec_gate, "PATIENCE", PATIENCE_OF_GATES)
    interrupt = ptrace.interrupt
    with subprocess.Popen([build("vforks.c", text=VFORKS)], stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout.readline() == "ready\n"

            def interrupt_in_vfork(tid):
                """Let a thread that has been seized go on until it waits for its child, which it may do at any time."""
                deadline = time.monotonic() + 1
                while tid == program.pid and time.monotonic() < deadline:
                    if procfs.read_stat(tid).state == "D":
                        met.append(tid)
                        break
                interrupt(tid)

            met, took = [], []
            with Followed.attach([program.pid]) as tree:
                tree.count("vforks:work")
                (first,) = tree.sessions
                unseen = hits(first.snapshot(), "work")  # threads wait before they execute from now on
                while len(met) < ROUNDS:
                    monkeypatch.setattr(ptrace, "interrupt", interrupt_in_vfork)
                    begin = time.monotonic()
                    (probe,) = first.count("vforks:other")
                    took.append(time.monotonic() - begin)
                    monkeypatch.setattr(ptrace, "interrupt", interrupt)
                    assert probe.armed
                    first.remove(probe)
                assert max(took) < PATIENCE_OF_GATES
                program.terminate()
                programs = int(program.stdout.readline())
                assert program.wait(180) == 0
                assert tree.notes() == []
                work = hits(first.snapshot(), "work")
                assert work - unseen <= len(tree.snapshots()) - 1 <= programs
        finally:
            program.kill()


@pytest.mark.parametrize("call", [*CALLS, "execveat", "fexecve"])
def test_every_way_to_execute_in_its_place(compiled, call):
    """The process goes on as another program: one more generation."""
    status, found = counted(compiled("executes.c"), "here", call, DEEP)
    assert status == 1
    assert found == [(10, 1, 0)] * DEEP + [(10, 0, 0)]


@pytest.mark.parametrize("how", ["spawn", "spawnp"])
def test_posix_spawn(compiled, how):
    status, found = counted(compiled("executes.c"), how, "none", DEEP)
    assert status == DEEP + 1
    assert found == [(10, 0, 0)] * (DEEP + 1)


@pytest.mark.parametrize("call", ["execv", "execvpe"])
def test_a_thread_that_is_not_the_first_executes(compiled, call):
    status, found = counted(compiled("executes.c"), "thread", call, DEEP)
    assert status == 1
    assert found == [(10, 1, 0)] * DEEP + [(10, 0, 0)]


@pytest.mark.parametrize("call", ["execl", "execve"])
def test_a_thread_of_a_fork_child_executes(compiled, call):
    """Of such a thread the first one, whose number it gets, is nobody's tracee before, and no child of the tracer."""
    status, found = counted(compiled("executes.c"), "child", call, DEEP)
    assert status == DEEP + 1
    assert found == [(10, 1, 0)] * DEEP + [(10, 0, 0)]


@pytest.mark.parametrize("how", ["thread", "child"])
def test_a_thread_of_a_running_program_executes(compiled, how):
    with waiting(compiled("executes.c"), how, "execv", str(DEEP)) as program, Followed.attach([program.pid]) as tree:
        tree.count("a.out:work", "a.out:on_the_way")
        program.stdin.close()
        assert os.waitstatus_to_exitcode(tree.wait(180)) == (1 if how == "thread" else DEEP + 1)
        tree.sweep()
        found = [tuple(hits(each, name) for name in ("work", "on_the_way")) for each in tree.snapshots()]
        assert found == [(10, 1)] * DEEP + [(10, 0)]
        assert not tree.notes()


@pytest.mark.parametrize("how", ["fork", "vfork", "here", "thread", "child"])
def test_a_call_that_fails_changes_nothing(compiled, how):
    """The program goes on, and counts on."""
    status, found = counted(compiled("executes.c"), how, "bad", DEEP)
    assert status == 1
    assert found == [(10, 1, 3)]


@pytest.mark.parametrize("how", ["fork", "vfork", "here", "thread", "child"])
def test_a_call_that_fails_before_one_that_does_not(compiled, how):
    status, found = counted(compiled("executes.c"), how, "bad-then-execvp", DEEP)
    assert status == (1 if how in {"here", "thread"} else DEEP + 1)
    assert found == [(10, 1, 3)] * DEEP + [(10, 0, 0)]
