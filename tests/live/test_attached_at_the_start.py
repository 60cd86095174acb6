"""Sessions that come while the loader is still at work: before the C library is there, and before it has threads."""

import os
import signal
import subprocess
import threading
from contextlib import ExitStack

import pytest

import anyprobe
from anyprobe.probes.parts import modules
from anyprobe.splice.apply import preparation
from support.driver import build, wait_until

pytestmark = pytest.mark.live
CALLS = 1_000
PROGRAM = """
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) int work(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
int main(void) {
    puts("ready"); fflush(stdout);
    getchar();
    for (int n = 0; n < 1000; n++) { work(n); getppid(); }
    return 7;
}
"""
STARTER = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>
static pid_t begin(char **argv) {
    pid_t pid = fork();
    if (!pid) { ptrace(PTRACE_TRACEME, 0, 0, 0); execv(argv[1], argv + 1); _exit(99); }
    waitpid(pid, 0, 0);
    ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_EXITKILL);
    return pid;
}
static void step(pid_t pid) { ptrace(PTRACE_SYSCALL, pid, 0, 0); waitpid(pid, 0, 0); }
/* Start a program and leave it stopped after its last system call before arch_prctl(ARCH_SET_FS). */
int main(int argc, char **argv) {
    struct user_regs_struct registers;
    int status, stops = 0;
    pid_t pid = begin(argv);
    (void)argc;
    do { step(pid); stops++; ptrace(PTRACE_GETREGS, pid, 0, &registers); }
    while (registers.orig_rax != 158 || registers.rdi != 0x1002);
    kill(pid, SIGKILL); waitpid(pid, 0, 0);
    pid = begin(argv);
    while (--stops) step(pid);
    ptrace(PTRACE_DETACH, pid, 0, SIGSTOP);
    fprintf(stderr, "%d\\n", pid);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
"""


@pytest.fixture(scope="module")
def program():
    return str(build("begins.c", "-O1", text=PROGRAM))


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """On a busy machine the loader takes long to go on."""
    monkeypatch.setattr(modules, "_STARTING", 60.0)
    monkeypatch.setattr(preparation, "_PATIENCE", 60.0)


@pytest.fixture
def without_library(program, tmp_path):
    """A program whose loader waits for a library to preload; what lets it go on."""
    waits = tmp_path / "waits"
    os.mkfifo(waits)
    pipe, environment = subprocess.PIPE, os.environ | {"LD_PRELOAD": str(waits)}
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen([program], env=environment, stdin=pipe, stdout=pipe, stderr=pipe)
        )
        stack.callback(process.kill)
        wait_until(lambda: "ld-linux" in maps(process.pid), "the loader is there")

        def go_on():
            os.close(os.open(waits, os.O_WRONLY))  # what is empty is no library: the loader says so and goes on
            assert process.stdout.readline() == b"ready\n"

        yield process, go_on


def maps(pid):
    with open(f"/proc/{pid}/maps") as content:
        return content.read()


USES = {
    "count": (lambda session: session.count("libc:getppid", "a.out:work"), 2 * CALLS),
    "time": (lambda session: session.time("libc:getppid", "a.out:work"), 2 * CALLS),
    "handler": (lambda session: session.entry("libc:getppid")(lambda ctx: None), CALLS),
}


@pytest.mark.parametrize("use", USES)
def test_what_is_asked_for_after_the_library_has_come(without_library, use):
    process, go_on = without_library
    place, calls = USES[use]
    with anyprobe.attach(process.pid) as session:
        assert "libc.so" not in maps(process.pid)
        go_on()
        place(session)
        process.communicate(b"\n", timeout=180)
        found = session.snapshot()
    assert found.refused == ()
    assert total(found) == calls
    assert process.returncode == 7


@pytest.mark.parametrize("use", USES)
def test_what_is_asked_for_before_the_library_has_come(without_library, use):
    process, go_on = without_library
    place, calls = USES[use]
    with anyprobe.attach(process.pid, pending="modules") as session:
        released = threading.Timer(0.2, go_on)
        released.start()
        place(session)
        released.join()
        process.communicate(b"\n", timeout=180)
        found = session.snapshot()
    assert found.refused == ()
    assert total(found) == calls
    assert process.returncode == 7


@pytest.mark.parametrize("use", [*USES, "loader"])
def test_before_threads_have_control_blocks(program, use):
    """What times and handles calls waits until the loader has made the first; functions of the loader do, too."""
    starter = str(build("starts_stopped.c", "-O1", text=STARTER))
    pipe = subprocess.PIPE
    place, calls = USES.get(use) or (lambda session: session.time("ld-linux*:*"), None)
    with subprocess.Popen([starter, program], stdin=pipe, stdout=pipe, stderr=pipe, process_group=0) as process:
        pid = int(process.stderr.readline())
        try:
            assert "libc.so" in maps(pid)
            with anyprobe.attach(pid) as session:
                threading.Timer(0.3, os.kill, (pid, signal.SIGCONT)).start()
                place(session)
                process.communicate(b"\n", timeout=180)
                found = session.snapshot()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if calls is not None:
        assert found.refused == ()
        assert total(found) == calls
    assert process.returncode == 7


def total(found):
    return sum(each.hits for each in found.sites) + sum(each.count for each in found.functions)
