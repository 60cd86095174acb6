"""A program that a signal ends while it is probed: results say which, where that was, and in whose code."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from anyprobe.probes.providers.function.death import _displaced_at
from anyprobe.splice.emitted import EmittedPatch
from anyprobe.target.system.kernel_log import kernel_log
from support.driver import PATIENCE, build, wait_until

pytestmark = pytest.mark.live
ANYPROBE = str(Path(sys.executable).with_name("anyprobe"))
PROGRAM = r"""
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
volatile long watched;
__attribute__((noinline, noclone)) long probed(volatile long *place) { return *place + 1; }
__attribute__((noinline, noclone)) long beside(volatile long *place) { long n = *place; return n * n; }
static void *crash(void *kind) {
    if (!strcmp(kind, "probed") || !strcmp(kind, "probed in a thread")) probed(NULL);
    if (!strcmp(kind, "beside") || !strcmp(kind, "beside in a thread")) beside(NULL);
    if (!strcmp(kind, "nowhere")) ((void (*)(void))16)();
    if (!strcmp(kind, "abort")) abort();
    if (!strcmp(kind, "killed")) raise(SIGKILL);
    exit(3);
}
int main(int argc, char **argv) {
    volatile long word = 1;
    char go;
    (void)argc;
    for (int n = 0; n < 10; n++) probed(&word);
    if (argc > 2) { puts("ready"); fflush(stdout); if (read(0, &go, 1) != 1) return 9; }
    for (int n = 0; n < 10; n++) probed(&word);
    if (strstr(argv[1], "thread")) {
        pthread_t thread;
        pthread_create(&thread, NULL, crash, argv[1]);
        pthread_join(thread, NULL);
    }
    crash(argv[1]);
}
"""
FORKING = r"""
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline, noclone)) long probed(volatile long *place) { return *place + 1; }
__attribute__((noinline, noclone)) long beside(volatile long *place) { long n = *place; return n * n; }
int main(int argc, char **argv) {
    volatile long word = 1;
    (void)argc;
    probed(&word);
    for (int n = 0; n < 2; n++) {
        if (!fork()) {
            probed(&word);
            if (n && !strcmp(argv[1], "probed")) probed(NULL);
            if (n && !strcmp(argv[1], "beside")) beside(NULL);
            _exit(0);
        }
        wait(NULL);
    }
    return 0;
}
"""
KILLED = r"""
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline, noclone)) long probed(volatile long *place) { return *place + 1; }
static void forbidden(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {4, filter};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    getppid();
}
static void outside_of_a_file(void) {
    FILE *file = tmpfile();
    volatile char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fileno(file), 0);
    *page;
}
int main(int argc, char **argv) {
    volatile long word = 1;
    int status, number = argc > 1 ? atoi(argv[1]) : 0;
    probed(&word);
    if (argc > 2) forbidden();
    pid_t child = fork();
    if (!child) {
        probed(&word);
        usleep(1500000);  // until it has been seen
        if (number == SIGSYS) forbidden();
        else if (number == SIGBUS) outside_of_a_file();
        else if (number) raise(number);
        _exit(3);
    }
    waitpid(child, &status, 0);
    printf("child %d %d\n", child, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    usleep(500000);
    return 0;
}
"""
EXPECTED = {
    "probed": ("SIGSEGV", "program", "deaths:probed"),
    "probed in a thread": ("SIGSEGV", "program", "deaths:probed"),
    "beside": ("SIGSEGV", "program", "deaths:beside"),
    "beside in a thread": ("SIGSEGV", "program", "deaths:beside"),
    "nowhere": ("SIGSEGV", None, None),
    "abort": ("SIGABRT", None, None),
    "killed": ("SIGKILL", None, None),
}
needs_log = pytest.mark.skipif(kernel_log() is None, reason="the kernel's log may not be read")


def program():
    return build("deaths.c", "-O1", text=PROGRAM)


def check(document, kind):
    """Only what the kernel tells of each fault has a place: it may have told too many already."""
    name, whose, place = EXPECTED[kind]
    target = document["target"]
    assert target["exited"] == 128 + signal.Signals[name]
    assert target["killed_by"] == name
    if name == "SIGSEGV" and "died_at" in target:
        assert target["died_at"]["in"] == whose
        assert (target["died_at"]["place"] or "").partition("+")[0] == (place or "")
    else:
        assert "died_at" not in target
    return "died_at" in target


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_command(kind, tmp_path):
    results = tmp_path / "results.json"
    command = [ANYPROBE, "count", "a.out:probed", "--json", "-o", str(results), "--", program(), kind]
    assert subprocess.run(command, timeout=PATIENCE).returncode == 0
    document = json.loads(results.read_text())
    check(document, kind)
    assert document["sites"][0]["hits"] == 20 + kind.startswith("probed")
    with_status = subprocess.run([*command[:2], "--exit-status", *command[2:]], timeout=PATIENCE)
    assert with_status.returncode == 128 + signal.Signals[EXPECTED[kind][0]]


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_running_process(kind, tmp_path):
    """Its parent, which is not anyprobe, waits for it at once, or later."""
    results = tmp_path / "results.json"
    with ExitStack() as stack:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = stack.enter_context(subprocess.Popen([program(), kind, "wait"], **pipes))
        stack.callback(process.kill)
        assert process.stdout.readline() == b"ready\n"
        command = [ANYPROBE, "count", "a.out:probed", "--json", "-o", str(results), "-p", str(process.pid)]
        session = stack.enter_context(subprocess.Popen(command))
        stack.callback(session.kill)
        wait_until(lambda: is_armed(process.pid), "the probe is there")
        process.stdin.write(b"x")
        process.stdin.close()
        process.wait(PATIENCE)
        assert session.wait(PATIENCE) == 0
    document = json.loads(results.read_text())
    check(document, kind)
    assert document["sites"][0]["hits"] == 10 + kind.startswith("probed")


def is_armed(pid):
    return b"probed" in subprocess.run([ANYPROBE, "probes", "-p", str(pid)], capture_output=True).stdout


@needs_log
def test_the_heading_says_it():
    said = subprocess.run(
        [ANYPROBE, "count", "a.out:probed", "--", program(), "beside"], capture_output=True, text=True
    )
    assert "which has ended): 20 hits" in said.stderr
    assert "\nkilled by SIGSEGV at 0x" in said.stderr
    if "in the program's own code" not in said.stderr:  # the kernel tells no more than ten in five seconds
        pytest.skip("the kernel has told of too many faults just now")
    assert "(deaths:beside" in said.stderr


@needs_log
@pytest.mark.parametrize("command", ["count", "time"])
@pytest.mark.parametrize("where", ["probed", "beside", "nowhere"])
def test_of_a_fork_child(where, command):
    forking = build("forking_deaths.c", "-O1", text=FORKING)
    found = subprocess.run([ANYPROBE, command, "a.out:probed", "--", forking, where], capture_output=True, text=True)
    told = [line for line in found.stderr.splitlines() if "fork child" in line]
    if where == "nowhere":
        assert not told
    elif not told:  # the kernel tells no more than ten in five seconds
        pytest.skip("the kernel has told of too many faults just now")
    else:
        (line,) = told
        assert ": ended by a fault at 0x" in line
        assert f"(forking_deaths:{where}" in line
        assert line.endswith("in the program's own code")


def runs_since_6_15():
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    return (int(release[1]), int(release[2])) >= (6, 15)


@pytest.mark.skipif(not runs_since_6_15(), reason="before Linux 6.15 only a parent is told how its child has ended")
@pytest.mark.parametrize("number", [0, signal.SIGKILL, signal.SIGTERM, signal.SIGSYS, signal.SIGBUS], ids=str)
def test_of_a_fork_child_that_a_signal_ends(number):
    killed = build("killed_children.c", "-O1", text=KILLED)
    command = [ANYPROBE, "count", "a.out:probed", "--", killed, str(int(number))]
    found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    _, child, status = found.stdout.split()
    assert int(status) == number
    told = [line for line in found.stderr.splitlines() if "fork child" in line]
    assert len(told) == bool(number), found.stderr
    name = signal.Signals(number).name if number else ""
    if number == signal.SIGSYS and "ended by" in told[0]:  # the kernel's log has had it, too
        assert f"fork child {child}: ended by a system call that is forbidden at 0x" in told[0]
    elif number:
        assert told[0].endswith(f"fork child {child}: killed by {name}")


def test_a_forbidden_call_of_the_program_has_a_place_where_the_log_has_it(tmp_path):
    results = tmp_path / "results.json"
    killed = build("killed_children.c", "-O1", text=KILLED)
    command = [ANYPROBE, "count", "a.out:probed", "--json", "-o", str(results), "--", killed, str(int(signal.SIGSYS))]
    subprocess.run([*command, "itself"], timeout=PATIENCE, check=True)
    target = json.loads(results.read_text())["target"]
    assert target["killed_by"] == "SIGSYS"
    if "died_at" in target:  # no daemon takes audit records
        assert (target["died_at"]["in"], target["died_at"]["place"].partition("+")[0]) == (
            "program",
            "libc.so.6:getppid",
        )


def test_code_of_a_patch_is_the_programs_where_it_is_a_copy():
    patch = EmittedPatch(
        0x1000, bytes(64), [(0x500, 0x1000), (0x504, 0x1014)], [(0x500, 0x1010), (0x504, 0x1018), (0x508, 0x1020)], 0
    )
    places = {
        0x1000: None,
        0x100F: None,
        0x1010: 0x500,
        0x1013: 0x500,
        0x1014: None,
        0x1018: 0x504,
        0x1020: None,
        0x1030: None,
    }
    assert {pc: _displaced_at(patch, pc) for pc in places} == places


WITHOUT_A_HEADING = {
    "trace": ["trace", "a.out:probed"],
    "trace --json": ["trace", "a.out:probed", "--json"],
    "break": ["break", "a.out:beside"],
    "inject": ["inject", "a.out:beside", "--return", "1", "--unsafe"],
    "replace": ["replace", "a.out:beside", "--by", "a.out:probed", "--unsafe"],
    "record": ["record", "a.out:probed", "-o", "calls.aprobe"],
    "profile": ["profile"],
    "watch": ["watch", "a.out:watched"],
}


@pytest.mark.parametrize("words", WITHOUT_A_HEADING.values(), ids=WITHOUT_A_HEADING)
def test_commands_without_a_heading_say_it_too(tmp_path, words):
    command = [ANYPROBE, *words, "--exit-status", "--", program(), "abort"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path)
    assert found.returncode == 128 + signal.SIGABRT, found.stderr
    assert re.search(r"deaths \(pid \d+\): killed by SIGABRT$", found.stderr, re.MULTILINE), found.stderr
