"""Programs are followed however they execute: by musl, in static programs, by the system call itself."""

import os
import shutil
import subprocess

import pytest

from anyprobe.probes.following.followed import Followed
from anyprobe.probes.following.watches import Connector
from support.driver import build
from support.results import hits

pytestmark = pytest.mark.live
PROGRAM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) void work(void) { __asm__ volatile(""); }
extern char **environ;
static inline __attribute__((always_inline)) long raw(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
static inline __attribute__((always_inline)) void execute(const char *how, const char *path, char **argv)
{
    if (!strcmp(how, "raw")) raw(59, (long)path, (long)argv, (long)environ);
    else if (!strcmp(how, "syscall")) syscall(SYS_execve, path, argv, environ);
    else if (!strcmp(how, "at")) syscall(SYS_execveat, AT_FDCWD, path, argv, environ, 0);
    else execve(path, argv, environ);
}
int main(int argc, char **argv)
{
    const char *how = argv[1], *fork_by = argv[2];
    int left = atoi(argv[3]);
    for (int i = 0; i < 10; i++) work();
    if (left == 0) { printf("well\n"); fflush(stdout); return 0; }
    char next[8]; snprintf(next, sizeof next, "%d", left - 1);
    char *given[] = {argv[0], argv[1], argv[2], next, argc > 4 ? argv[4] : 0, 0};
    execute(how, "/nowhere/at/all", given);
    if (argc > 4) { char *of[] = {argv[4], 0}; if (!fork()) { execute(how, argv[4], of); _exit(9); } wait(0); }
    if (!strcmp(fork_by, "here")) { execute(how, argv[0], given); return 9; }
    pid_t child = !strcmp(fork_by, "vfork") ? vfork() : fork();
    if (!child) { execute(how, argv[0], given); _exit(9); }
    int status; waitpid(child, &status, 0);
    return WEXITSTATUS(status);
}
"""
KINDS = {
    "glibc": ((), None),
    "glibc-static": (("-static",), None),
    "glibc-stripped": (("-static", "-s"), None),
    "musl": ((), "musl-gcc"),
    "musl-static": (("-static",), "musl-gcc"),
    "musl-stripped": (("-static", "-s"), "musl-gcc"),
}


def program(kind):
    options, compiler = KINDS[kind]
    if compiler is not None and shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    return str(build(f"executes_{kind}.c", "-O1", *options, compiler=compiler, text=PROGRAM))


def run(argv, *specs):
    """Return the exit status, the hits of each program's work, and what is told."""
    with Followed.run(argv, stdout=subprocess.DEVNULL) as tree:
        if specs:
            tree.count(*specs)
        tree.resume()
        status = os.waitstatus_to_exitcode(tree.wait(180))
        found = tree.snapshots()
        told = [*tree.notes(), *(each for snapshot in found for each in snapshot.warnings)]
    return status, [hits(each, "work") if each.sites else 0 for each in found], told


UNEXPECTED = "its execution was not seen beforehand"
WAYS = [("library", "vfork"), ("raw", "here"), ("raw", "vfork"), ("syscall", "fork"), ("at", "here")]
CASES = [(kind, *way) for kind in KINDS for way in WAYS if way[0] in {"library", "raw"} or "stripped" not in kind]
"""A function that makes all system calls and has no name is not known."""


@pytest.mark.parametrize(("kind", "how", "fork_by"), CASES)
def test_each_generation_is_counted(kind, how, fork_by):
    """Three programs, ten calls each, after a call that fails in each but the last."""
    stripped = "stripped" in kind
    found = run([program(kind), how, fork_by, "2"], *([] if stripped else ["a.out:work"]))
    assert found == (0, [0 if stripped else 10] * 3, [])


@pytest.mark.parametrize("how", ["library", "raw", "syscall"])
def test_what_must_not_be_traced_is_left_alone_however_it_is_executed(tmp_path, how):
    """A set-uid program gets its rights, and is told of by name; it is looked at where the call is made."""
    other = tmp_path / "of-another"
    shutil.copy(os.path.realpath("/bin/true"), other)
    other.chmod(0o4755)
    status, counts, told = run([program("glibc"), how, "fork", "1", str(other)], "a.out:work")
    assert (status, counts) == (0, [10, 10])
    note, *balance = told
    assert balance in ([], ["2 executions seen by the kernel: 1 probed, 1 refused, 0 missed"])
    assert note.startswith(f"{other} was executed once without probes: it is set-uid")


FILTERS = r"""
#define _GNU_SOURCE
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
struct filter { unsigned short code; unsigned char jt, jf; unsigned k; };
struct program { unsigned short len; struct filter *filter; };
enum { LOAD = 0x20, IF_EQUAL = 0x15, RETURN = 6, NO_NEW_PRIVS = 38, SET_SECCOMP = 22, MODE_FILTER = 2 };
int prctl(int option, ...);
static inline __attribute__((always_inline)) long raw(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
int main(int argc, char **argv)
{
    struct filter code[] = {
        {LOAD, 0, 0, 0},
        {IF_EQUAL, 1, 0, SYS_gettid},
        {RETURN, 0, 0, 0x7fff0000},
        {RETURN, 0, 0, 0x80000000},
    };
    struct program program = {sizeof code / sizeof *code, code};
    char *next[] = {"/bin/echo", "well", 0};
    prctl(NO_NEW_PRIVS, 1, 0, 0, 0);
    if (!strcmp(argv[1], "prctl")) prctl(SET_SECCOMP, MODE_FILTER, &program, 0, 0);
    else if (!strcmp(argv[1], "syscall")) syscall(SYS_seccomp, 1, 0, &program);
    else if (!strcmp(argv[1], "raw")) raw(SYS_seccomp, 1, 0, (long)&program);
    else raw(SYS_prctl, SET_SECCOMP, MODE_FILTER, (long)&program);
    execv(next[0], next);
    return 1;
}
"""


@pytest.mark.parametrize("how", ["prctl", "syscall", "raw", "raw prctl"])
@pytest.mark.parametrize("kind", ["glibc", "glibc-static", "glibc-stripped", "musl", "musl-stripped"])
def test_a_program_that_filters_its_calls_is_not_made_to_wait(kind, how, tmp_path):
    """It would be killed; what it executes is not seen, and that is said."""
    if how == "syscall" and "stripped" in kind:
        how = "raw"
    options, compiler = KINDS[kind]
    filters = str(build(f"filters_{kind}.c", "-O1", *options, compiler=compiler, text=FILTERS))
    with open(tmp_path / "said", "w+") as said:
        with Followed.run([filters, how], stdout=said) as tree:
            tree.resume()
            status = os.waitstatus_to_exitcode(tree.wait(180))
            told = tree.notes()
        said.seek(0)
        assert (status, said.read()) == (0, "well\n")
    if tells_of_executions():
        assert told[-1] == "1 execution seen by the kernel: 0 probed, 0 refused, 1 missed"
        assert [UNEXPECTED in each for each in told[:-1]] == [True]
    else:
        assert told[0] == "once a program may have been executed that could not be held at its start"


def tells_of_executions():
    """Return whether the kernel tells this user of programs that are executed."""
    try:
        Connector().close()
    except OSError:
        return False
    return True


GO = """
package main
import ("fmt"; "os"; "os/exec"; "sync"; "syscall")
func main() {
    var all sync.WaitGroup
    for routine := 0; routine < 4; routine++ {
        all.Add(1)
        go func() {
            defer all.Done()
            for n := 0; n < 3; n++ {
                if exec.Command("/bin/true").Run() != nil { os.Exit(2) }
                if exec.Command("/etc/passwd").Run() == nil { os.Exit(3) }
            }
        }()
    }
    all.Wait()
    fmt.Println(syscall.Exec("/bin/echo", []string{"echo", "well"}, os.Environ()))
}
"""
ROUTINES, TIMES = 4, 3


@pytest.mark.parametrize("flags", ["", "-s -w"], ids=["plain", "stripped"])
def test_a_go_program_is_followed(tmp_path, flags):
    """By ``os/exec``, where the child borrows a goroutine's stack, by several at once, and by ``syscall.Exec``."""
    if shutil.which("go") is None:
        pytest.skip("there is no go")
    program = str(build("runs.go", f"-ldflags={flags}", text=GO))
    with open(tmp_path / "said", "w+") as said:
        with Followed.run([program], stdout=said) as tree:
            tree.count("*main")
            tree.resume()
            status = os.waitstatus_to_exitcode(tree.wait(100))
            found = [(os.path.basename(each.target.exe), hits(each, "__libc_start_main")) for each in tree.snapshots()]
            told = [*tree.notes(), *(warning for each in tree.sessions for warning in each.warnings)]
        said.seek(0)
        assert (status, said.read()) == (0, "well\n")
    assert told == []
    assert found == [("runs", 0), *[("true", 1)] * (ROUTINES * TIMES), ("echo", 1)]
