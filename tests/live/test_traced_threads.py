"""A traced thread that executes a program goes on under another number; it is let go under that one."""

import subprocess
import threading
import time
from contextlib import contextmanager

import pytest

from anyprobe.cli import main
from anyprobe.target.process import execution
from anyprobe.target.remote.thread import Thread
from anyprobe.target.system import procfs, ptrace
from support.driver import PATIENCE, build, wait_until

pytestmark = pytest.mark.live
PROGRAM = """
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static char **own;
static void *execute(void *unused) {
    char byte;
    if (read(0, &byte, 1) == 1) execl(own[0], own[0], "again", (char *)0);
    return unused;
}
int main(int argc, char **argv) {
    pthread_t one;
    own = argv;
    if (argc == 1) pthread_create(&one, 0, execute, 0);
    puts(argc == 1 ? "ready" : "again");
    fflush(stdout);
    for (;;) pause();
}
"""
OWN_TRACER = """
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline, noclone)) long probed(long n) { __asm__ volatile("" : "+r"(n)); return n; }
int main(void) {
    for (int round = 0; round < 3; round++) {
        int status;
        pid_t child = fork();
        if (!child) {
            ptrace(PTRACE_TRACEME, 0, 0, 0);
            raise(SIGSTOP);
            for (int n = 0; n < 100; n++) probed(n);
            execl("/bin/true", "true", (char *)0);
            _exit(1);
        }
        while (waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
            probed(0);
            ptrace(PTRACE_CONT, child, 0, 0);
        }
        if (status) return 2;
    }
    puts("traced");
    return 0;
}
"""


@contextmanager
def program():
    pipe = subprocess.PIPE
    with subprocess.Popen([build("executes_in_thread.c", text=PROGRAM)], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            wait_until(lambda: len(procfs.read_tasks(process.pid)) == 2, "there is a second thread")
            yield process
        finally:
            process.kill()


def tracer(pid):
    return int(procfs.read_status(pid)["TracerPid"])


def executed(process):
    process.stdin.write("x")
    process.stdin.flush()
    wait_until(lambda: len(procfs.read_tasks(process.pid)) == 1, "the thread executes")


@pytest.mark.parametrize("asked", [False, True], ids=["not asked to stop", "asked to stop"])
def test_a_thread_that_has_executed_is_let_go(asked):
    with program() as process:
        (tid,) = set(procfs.read_tasks(process.pid)) - {process.pid}
        ptrace.seize(tid)
        thread = Thread(process.pid, tid)
        executed(process)
        assert tracer(process.pid) == threading.get_native_id()
        if asked:
            ptrace.interrupt(process.pid)
        assert thread.release(time.monotonic() + PATIENCE)
        assert tracer(process.pid) == 0
        assert process.stdout.readline() == "again\n"


@pytest.mark.parametrize("child", [False, True], ids=["another's", "child"])
def test_the_first_thread_is_given_up_when_another_one_has_its_number(child):
    """It was stopped; the other was not traced."""
    with program() as process:
        ptrace.seize(process.pid)
        thread = Thread(process.pid, process.pid, child=child)
        ptrace.interrupt(process.pid)
        assert thread.wait(time.monotonic() + PATIENCE)
        thread.settle()
        executed(process)
        begin = time.monotonic()
        assert thread.release(begin + PATIENCE)
        assert time.monotonic() - begin < PATIENCE / 2
        assert tracer(process.pid) == 0
        assert process.stdout.readline() == "again\n"
        assert process.poll() is None


def test_a_child_that_its_parent_traces_does_not_wait_to_be_followed(monkeypatch, capfd):
    """The parent waits for it, and lets go of it at its end only: nothing is gained by waiting for that."""
    monkeypatch.setattr(execution, "_STOPPING", 10 * PATIENCE)
    assert main(["count", "a.out:probed", "--", str(build("own_tracer.c", text=OWN_TRACER))]) == 0
    told = capfd.readouterr()
    assert told.out == "traced\n"
    assert "306 hits" in told.err  # the SIGSTOP and the SIGTRAP of the execution, each round
    assert "a process has one tracer at a time" in told.err
