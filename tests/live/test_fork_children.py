"""Fork children that are left out of counts, or relieved of all probes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anyprobe import UsageError, attach, run
from anyprobe.journal.memfds import MEMFD_PATH
from anyprobe.probes.providers.function.gates import fork_gate
from anyprobe.probes.providers.function.gates.waiting_tasks import task_that_waits
from support.driver import build, wait_until
from support.results import hits

pytestmark = pytest.mark.live
CHILDREN, CALLS = 12, 100
PROGRAM = """
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define KEPT __attribute__((noinline))
KEPT void work(void) { __asm__ volatile(""); }
KEPT void hook(void) { __asm__ volatile(""); }
static void *idle(void *n) { for (;;) pause(); return n; }
static int maps_of_ours(void)
{
    char line[4096]; int found = 0; FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) found += strstr(line, "memfd:anyprobe") != 0;
    fclose(maps);
    return found != 0;
}
int main(int argc, char **argv)
{
    int left = 0, raw = argc > 1 && !strcmp(argv[1], "raw"), many = argc > 1 && !strcmp(argv[1], "threads");
    int keep = argc > 1 && !strcmp(argv[1], "keep");
    pthread_t t;
    pthread_atfork(0, 0, hook);
    if (argc > 1 && !strcmp(argv[1], "ask")) { puts("ready"); fflush(stdout); getchar(); }
    if (many) for (int i = 0; i < 3; i++) pthread_create(&t, 0, idle, 0);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = raw ? syscall(SYS_fork) : fork();
        if (!child) {
            for (int k = 0; k < CALLS; k++) work();
            pid_t inner = raw ? 0 : fork();
            if (!raw && !inner) { work(); _exit(0); }
            if (!raw) waitpid(inner, 0, 0);
            for (int tries = 0; !keep && tries < 20000 && maps_of_ours(); tries++) usleep(1000);
            _exit(maps_of_ours());
        }
        for (int k = 0; k < CALLS; k++) work();
    }
    int status;
    while (wait(&status) > 0) left += WEXITSTATUS(status) + 1000 * WTERMSIG(status);
    printf("%d\\n", left);
    return 0;
}
""".replace("CHILDREN", str(CHILDREN)).replace("CALLS", str(CALLS))


@pytest.fixture(scope="module")
def program():
    return str(build("forks.c", "-O1", "-pthread", text=PROGRAM))


def test_ignored_children_are_left_out_of_counts(program):
    """They keep their probes and run on as they would; nothing of what they count is seen."""
    with run([program, "keep"], children="ignore", stdout=subprocess.DEVNULL) as session:
        session.count("a.out:work", "a.out:hook")
        assert session.wait(180) == 0
        found = session.snapshot()
    assert (hits(found, "work"), hits(found, "hook")) == (CHILDREN * CALLS, 0)
    assert [each.process.pid for each in found.processes] == [session.pid]
    assert found.warnings == ()


@pytest.mark.parametrize("how", ["plain", "threads"])
def test_freed_children_have_no_probes_from_the_fork_on(program, tmp_path, how):
    """Not one instruction of the program's own is counted in them, nor in their children; no memory is left."""
    with open(tmp_path / "said", "w+") as said:
        with run([program, how], children="free", stdout=said) as session:
            session.count("a.out:work", "a.out:hook")
            assert session.wait(180) == 0
            found = session.snapshot()
        said.seek(0)
        assert said.read() == "0\n"
    assert (hits(found, "work"), hits(found, "hook")) == (CHILDREN * CALLS, 0)
    assert found.warnings == ()
    assert session.host.gates.forks.freed == CHILDREN


def test_children_that_are_served_late_have_waited(program, monkeypatch):
    """The controller looks around while children wait for it, or have not begun: they came by the C library's fork."""
    pauses = [0.5, 0.5, 0.5]

    def find_slowly(*arguments):
        time.sleep(pauses.pop() if pauses else 0)
        return task_that_waits(*arguments)

    monkeypatch.setattr(fork_gate, "task_that_waits", find_slowly)
    with run([program, "threads"], children="free", stdout=subprocess.DEVNULL) as session:
        session.count("a.out:work", "a.out:hook")
        session.resume()
        session.pump(60)
        found = session.snapshot()
    assert (hits(found, "work"), hits(found, "hook")) == (CHILDREN * CALLS, 0)
    assert (session.host.gates.forks.freed, session.host.gates.forks.late) == (CHILDREN, 0)
    assert session.warnings == []


def test_children_of_an_attached_process_are_freed(program):
    with subprocess.Popen([program, "ask"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        with attach(process.pid, children="free") as session:
            session.count("a.out:work")
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"0\n"
            session.wait(180)
            assert hits(session.snapshot(), "work") == CHILDREN * CALLS


def test_times_of_freed_children_are_not_taken(program):
    with run([program], children="free", stdout=subprocess.DEVNULL) as session:
        session.time("a.out:work")
        assert session.wait(180) == 0
        assert [each.count for each in session.snapshot().functions] == [CHILDREN * CALLS]


def test_children_that_come_another_way_are_freed_at_the_next_look(program):
    """By the system call itself: they have probes for a moment, which is said; what they count is left out."""
    with run([program, "raw"], children="free", stdout=subprocess.DEVNULL) as session:
        session.count("a.out:work")
        session.resume()
        session.pump(60)
        found = session.snapshot()
        forks = session.host.gates.forks
    assert hits(found, "work") == CHILDREN * CALLS
    assert forks.late == CHILDREN
    assert any("did not come by the C library's fork" in each for each in session.warnings)


TRACED = """
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>
__attribute__((noinline)) void work(void) { __asm__ volatile(""); }
int main(void) {
    int child, traced[2];
    char byte;
    if (pipe(traced)) return 1;
    getchar();
    child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (!child) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0) || write(traced[1], "", 1) != 1) _exit(1);
        for (;;) pause();
    }
    if (read(traced[0], &byte, 1) != 1) return 1;
    puts("forked"); fflush(stdout);
    getchar();
    kill(child, SIGKILL);
    return 0;
}
"""


def test_a_child_that_cannot_be_relieved_is_told_of_once():
    program = build("traced_child.c", "-O1", text=TRACED)
    pipe = subprocess.PIPE
    with subprocess.Popen([program], stdin=pipe, stdout=pipe) as process:
        with attach(process.pid, children="free") as session:
            session.count("a.out:work")
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"forked\n"
            forks = session.host.gates.forks
            wait_until(lambda: session.pump(0.05) and forks.failed, "it is tried")
            for _ in range(8):
                time.sleep(fork_gate.LOOKS / 2)
                session.pump(0)
            assert list(forks.failed.values()) == [1]
        process.communicate(b"\n", timeout=180)
    assert [each for each in session.warnings if "fork children" in each] == [
        f"1 fork children kept their probes: {next(iter(forks.failed))}"
    ]


def test_what_cannot_be_told_apart_is_refused():
    with subprocess.Popen(["sleep", "100"]) as process:
        while not os.readlink(f"/proc/{process.pid}/exe").endswith("sleep"):
            pass
        with attach(process.pid, children="ignore") as session, pytest.raises(UsageError, match="only counts"):
            session.time("libc:malloc")
        with pytest.raises(UsageError, match="'leave'"):
            attach(process.pid, children="leave")
        assert MEMFD_PATH not in Path(f"/proc/{process.pid}/maps").read_text()
        process.kill()


@pytest.mark.parametrize(("what", "expected"), [("count", 2), ("ignore", 1), ("free", 1)])
def test_the_command_line(program, tmp_path, what, expected):
    results = tmp_path / "results"
    options = ("--children", what, "--json", "-o", results)
    how = "plain" if what == "free" else "keep"
    command = [sys.executable, "-m", "anyprobe", "count", "a.out:work", *options, "--", program, how]
    outcome = subprocess.run(command, timeout=180, check=True, capture_output=True, text=True)
    assert outcome.stdout == ("0\n" if what == "free" else f"{CHILDREN}\n")
    grandchildren = CHILDREN if what == "count" else 0
    assert json.loads(results.read_text())["sites"][0]["hits"] == expected * CHILDREN * CALLS + grandchildren


@pytest.mark.parametrize(
    "command",
    [
        ("time", "a.out:work"),
        ("hist", "libc:waitpid", "--of", "arg0"),
        ("trace", "libc:waitpid", "--print", "arg0"),
        ("count", "libc:waitpid", "--when", "arg0 > 1"),
        ("script", "handles.py"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_that_cannot_leave_children_out_says_so(program, tmp_path, command):
    (tmp_path / "handles.py").write_text(
        "from anyprobe import session\n@session.entry('a.out:work')\ndef on(ctx):\n    pass\n"
    )
    whole = [sys.executable, "-m", "anyprobe", *command, "--children", "ignore", "--", program, "plain"]
    outcome = subprocess.run(whole, cwd=tmp_path, timeout=180, check=False, capture_output=True, text=True)
    assert outcome.returncode == 2
    assert "of fork children only counts can be ignored" in outcome.stderr
