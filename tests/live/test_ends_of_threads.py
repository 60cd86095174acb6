"""Threads that are cancelled, that leave, a thousand of them, and tasks that share memory without being threads."""

import os
import random
import subprocess
from contextlib import suppress

import pytest

import anyprobe
from anyprobe import Count, i32
from anyprobe.core.errors import TargetError
from anyprobe.probes.following.followed import Followed
from anyprobe.target.process import permission
from anyprobe.target.process.attaching import ATTACHMENTS
from anyprobe.target.remote.thread import Thread
from anyprobe.target.system import procfs, ptrace
from support.driver import PATIENCE, build, has_ended, wait_until
from support.results import hits

pytestmark = pytest.mark.live
ROUNDS, SESSIONS = 20, 4
THREADS, CALLS = 1000, 20


def functions(snapshot):
    return {each.function: each for each in snapshot.functions}


def is_traced(pid):
    """Return whether a process is traced; one that has ended is its parent's, whom /proc shows as its tracer."""
    return bool(permission.tracer_of(pid)) and not procfs.read_stat(pid).ended


def test_cancelled_threads_are_counted_and_cleaned_up_after(run_target):
    """Cancelled in a system call, or at any instruction of a patch; by pthread_exit from within probed functions."""
    target = run_target("cancelled.c")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:work", "a.out:waits", "a.out:leaves", "a.out:work_anywhere")
        session.time("a.out:waits", "a.out:work", "a.out:leaves")
        counts = target.go(ROUNDS)
        snapshot = session.snapshot()
        timed = functions(snapshot)
        for name in ("work", "waits", "leaves"):
            assert hits(snapshot, name, kind="entry") == counts.calls[name], name
            assert timed[name].count + timed[name].tail_exits == counts.returns[name], name
        assert timed["waits"].in_flight == counts.calls["waits"]  # none has come back
        assert timed["leaves"].in_flight == counts.calls["leaves"]
        assert timed["work"].in_flight == 0
    target.finish()


def test_calls_of_threads_that_are_cancelled_at_any_instruction(run_target):
    """As many as they have begun, or as they have ended: one of each thread was under way at most."""
    target = run_target("cancelled.c")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:work_anywhere")
        session.time("a.out:work_anywhere")
        target.start(ROUNDS)
        began, ended = map(int, target.wait_for("anywhere").split()[1:])
        target.wait_done()
        snapshot = session.snapshot()
    assert ended <= hits(snapshot, "work_anywhere") <= began
    assert ended <= functions(snapshot)["work_anywhere"].count <= began
    target.finish()


@pytest.mark.parametrize("live", [False, True], ids=["stops", "live"])
def test_probes_come_and_go_while_threads_are_cancelled(run_target, live):
    target = run_target("cancelled.c")
    target.run_freely()
    chance = random.Random(27)
    sizes = Count("calls", by=("n",))

    def on_call(n: i32):
        sizes.add(key=(n,))

    for _ in range(SESSIONS):
        with anyprobe.attach(target.pid, live=live) as session:
            session.count("a.out:work_anywhere%insn", "libc:pthread_exit", "libc:*cancel*")
            session.time("a.out:waits", "a.out:leaves", "a.out:work")
            session.entry("a.out:work_anywhere")(on_call)
            target.idle(chance.uniform(0.0, 0.05))
            snapshot = session.snapshot()
            assert snapshot.target.alive
        target.check_alive()
    target.halt()
    target.finish()


def test_a_thousand_threads_that_execute(compiled):
    """Counted from the first instruction on, through two executions by a thread that is not the first."""
    program = str(compiled("thousand_threads.c"))
    reads, writes = os.pipe()
    with Followed.run([program, "2"], stdin=reads, stdout=subprocess.DEVNULL) as tree:
        tree.count("a.out:work", "libc:pause", "a.out:main")
        tree.resume()
        assert os.waitstatus_to_exitcode(tree.wait(PATIENCE)) == 0
        snapshots = tree.snapshots()
        assert [hits(each, "work") for each in snapshots] == [THREADS * CALLS] * 3
        assert [hits(each, "main") for each in snapshots] == [1] * 3
        assert tree.notes() == []
    os.close(reads)
    os.close(writes)


def test_a_thousand_threads_are_attached_to_and_left_again_and_again(compiled):
    """While they call and sleep; where a session meets an execution, no thread stays traced."""
    program = str(compiled("thousand_threads.c"))
    with subprocess.Popen([program, "3", "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline().startswith("ready")
            for _ in range(3):
                with anyprobe.attach(process.pid) as session:
                    session.count("a.out:work", "libc:usleep%insn")
                    session.time("a.out:work")
                    assert session.pump(0.1)
                    assert len(session.process.threads()) > THREADS
            process.stdin.write("end\n")
            process.stdin.flush()
            while not has_ended(process):
                with suppress(TargetError), anyprobe.attach(process.pid) as session:
                    session.count("a.out:work")
                    session.pump(0.05)
                assert not is_traced(process.pid)
            assert process.wait() == 0
            assert process.stdout.read().endswith("ok\n")
        finally:
            process.kill()


EXECUTES = """
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *sleeps(void *p) { for (;;) pause(); return p; }
static void *executes(void *p) {
    char line[10];
    puts("ready"); fflush(stdout);
    fgets(line, sizeof line, stdin);
    execl("/bin/echo", "echo", "executed", (char *)0);
    return p;
}
int main(void) {
    pthread_t one, other;
    pthread_create(&one, 0, sleeps, 0); pthread_setname_np(one, "sleeps");
    pthread_create(&other, 0, executes, 0); pthread_setname_np(other, "executes");
    for (;;) pause();
}
"""


def test_an_execution_that_waits_for_a_traced_thread_is_not_waited_for():
    """The kernel lets nobody attach until the thread has ended, which its tracer has to take note of: this process."""
    command = [build("executes_in_a_thread.c", text=EXECUTES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        wait_until(lambda: {"sleeps", "executes"} <= set(threads_by_name(process.pid)), "the threads have no names")
        tids = threads_by_name(process.pid)
        traced = Thread(process.pid, tids["sleeps"])
        ptrace.seize(traced.tid)
        process.stdin.write("go\n")
        process.stdin.flush()
        wait_until(lambda: procfs.read_stat(process.pid, traced.tid).ended, "the thread does not end")
        with suppress(ProcessLookupError, PermissionError):  # it has the first one's number by then, or has ended
            ATTACHMENTS.seize(tids["executes"], [traced])
        assert traced.ended
        assert process.stdout.read() == "executed\n"
        assert process.wait(PATIENCE) == 0


def threads_by_name(pid):
    return {procfs.read_stat(pid, tid).comm: tid for tid in procfs.read_tasks(pid)}


def test_tasks_that_share_memory_and_are_no_threads(run_target):
    """They are there before, while and after probes come, count into the session, and are left unharmed."""
    target = run_target("shares_memory.c", "4")
    for number in range(SESSIONS):
        with anyprobe.attach(target.pid) as session:
            session.count("a.out:work")
            before = target.counts.calls.get("work", 0)
            calls = target.go(ROUNDS).calls["work"] - before
            snapshot = session.snapshot()
            assert calls == ROUNDS * (1 + 4 * 100)
            assert hits(snapshot, "work") == calls, number
    target.run_freely()
    for _ in range(SESSIONS):
        with anyprobe.attach(target.pid) as session:
            session.count("a.out:work%insn")
            target.idle(0.02)
        target.check_alive()
    target.halt()
    target.finish()
