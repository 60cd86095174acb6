"""Threads that sleep in programs which filter their system calls: a stop is not the end, and no sleep begins anew."""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from anyprobe.core.errors import NoSuchProcess, PermissionDenied, TargetExited
from anyprobe.target.process import borrowing, keeper
from anyprobe.target.process.process import Process
from anyprobe.target.remote.thread import Thread
from support.driver import PATIENCE, build, has_ended, wait_until

pytestmark = [pytest.mark.live, pytest.mark.root]
PROGRAM = r"""
#include <errno.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS = 2 };
static void confine(unsigned action) {
    int known[] = {SYS_write, SYS_exit_group, SYS_clock_gettime, SYS_nanosleep, SYS_clock_nanosleep, SYS_poll,
                   SYS_ppoll, SYS_select, SYS_pselect6, SYS_futex, SYS_rt_sigreturn};
    struct sock_filter code[64];
    int count = sizeof known / sizeof *known, at = 0;
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int n = 0; n < count; n++)
        code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, known[n], count - n, 0);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {at, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) _exit(9);
}
static long sleep_in(const char *call) {
    struct timespec time = {SECONDS, 0};
    static int word;
    if (!strcmp(call, "nanosleep")) return syscall(SYS_nanosleep, &time, NULL);
    if (!strcmp(call, "clock_nanosleep")) return syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &time, NULL);
    if (!strcmp(call, "poll")) return syscall(SYS_poll, NULL, 0, 1000 * SECONDS);
    if (!strcmp(call, "ppoll")) return syscall(SYS_ppoll, NULL, 0, &time, NULL, 0);
    if (!strcmp(call, "select")) {
        struct timeval left = {SECONDS, 0};
        return syscall(SYS_select, 0, NULL, NULL, NULL, &left);
    }
    if (!strcmp(call, "futex"))
        return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &time) != -1 || errno != ETIMEDOUT;
    clock_gettime(CLOCK_MONOTONIC, &time);
    time.tv_sec += SECONDS;
    return syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}
static void *run(void *arguments) {
    char **argv = arguments;
    unsigned actions[] = {SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_TRAP, SECCOMP_RET_ERRNO | EPERM};
    confine(actions[atoi(argv[2])]);
    for (int n = 0; n < 2; n++) {
        write(1, "sleeps\n", 7);
        long result = sleep_in(argv[1]);
        write(1, result ? "bad\n" : "slept\n", result ? 4 : 6);
    }
    _exit(0);
}
int main(int argc, char **argv) {
    pthread_t thread;
    if (argc < 4) run(argv);
    pthread_create(&thread, NULL, run, argv);  /* it alone filters its calls */
    pthread_join(thread, NULL);
    return 0;
}
"""
CALLS = ["nanosleep", "clock_nanosleep", "poll", "ppoll", "futex", "select", "until"]
KILL, TRAP, ERRNO = "0", "1", "2"


def started(*arguments):
    program = build("sleeps_filtered.c", text=PROGRAM)
    return subprocess.Popen([program, *arguments], stdout=subprocess.PIPE, text=True, bufsize=1)


def stopped_until_it_has_slept(process, pid):
    """Stop it again and again, more often than a sleep lasts: one that began anew each time would never end."""
    deadline = time.monotonic() + PATIENCE
    while not select.select([process.stdout], [], [], 0.2)[0]:
        assert time.monotonic() < deadline
        with suppress(TargetExited, NoSuchProcess), closing(Process.open(pid)) as opened:
            with opened.borrow():
                pass
            with opened.stop():
                pass
    assert process.stdout.readline() == "slept\n"


@pytest.mark.parametrize("where", [(), ("in a thread",)], ids=["all", "one thread"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.sliced(2)
def test_a_sleep_goes_on_for_the_time_that_was_left(call, where):
    with started(call, KILL, *where) as process:
        try:
            assert process.stdout.readline() == "sleeps\n"
            stopped_until_it_has_slept(process, process.pid)
            assert process.stdout.readline() == "sleeps\n"
            stopped_until_it_has_slept(process, process.pid)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("call", ["clock_nanosleep", "futex", "poll"])
def test_a_thread_that_was_of_no_use_is_tried_again(call, monkeypatch):
    """It did not stop in time, say: it sleeps on, and nothing traces it when its turn comes again."""
    reasons = ["busy", "busy"]
    fitness = borrowing.fitness
    monkeypatch.setattr(borrowing, "fitness", lambda *about: reasons.pop() if reasons else fitness(*about))
    with started(call, KILL) as process:
        try:
            assert process.stdout.readline() == "sleeps\n"
            with closing(Process.open(process.pid)) as opened, opened.borrow() as remote:
                assert remote.thread.tid == process.pid
            assert not reasons
            assert process.stdout.readline() == "slept\n"
        finally:
            process.kill()


@pytest.mark.parametrize("action", [TRAP, ERRNO], ids=["trap", "errno"])
@pytest.mark.parametrize("call", ["nanosleep", "futex"])
def test_whatever_the_filter_does_to_what_it_does_not_know(call, action):
    with started(call, action) as process:
        try:
            assert process.stdout.readline() == "sleeps\n"
            stopped_until_it_has_slept(process, process.pid)
        finally:
            process.kill()


def test_without_the_right_to_suspend_filters_it_is_refused_before_anything_is_done():
    if not shutil.which("setpriv"):
        pytest.skip("there is no setpriv")
    anyprobe_command = str(Path(sys.executable).with_name("anyprobe"))
    with started("clock_nanosleep", KILL) as process:
        try:
            assert process.stdout.readline() == "sleeps\n"
            refused = subprocess.run(
                ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", anyprobe_command, "count",
                 "libc:syscall", "-p", str(process.pid)],
                capture_output=True, text=True, timeout=PATIENCE,
            )  # fmt: skip
            assert refused.returncode == 1, refused.stderr
            assert "seccomp" in refused.stderr
            assert process.stdout.read() == "slept\nsleeps\nslept\n"
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def test_a_thread_that_has_just_ended_lacks_no_right():
    """It was asleep when it was looked at, and has ended since: the kernel refuses it by the same number."""
    with started("nanosleep", KILL) as process, closing(Process.open(process.pid)) as opened:
        assert process.stdout.readline() == "sleeps\n"
        asleep = Thread(process.pid, process.pid, child=True)
        os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: has_ended(process), "its end")
        with pytest.raises(OSError, match=r"Operation not permitted|No such process") as refused:
            keeper.attach(opened, asleep, asleep=True)
        assert not isinstance(refused.value, PermissionDenied)
        opened.end_keeper()
