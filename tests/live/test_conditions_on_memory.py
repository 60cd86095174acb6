"""Conditions on memory: read in the patch where the program is about to read there itself, and no fault is ever new."""

import subprocess

import pytest

import anyprobe
from anyprobe.probes.specs.spec import parsed
from support.driver import build

pytestmark = pytest.mark.live

PROGRAM = """
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
struct leaf { long pad; int value; };
struct thing { long a; int n; struct leaf *leaf; char more[3000]; int far; };
#define KEPT __attribute__((noinline, noclone))
KEPT long work(struct thing *p, long k) { return p->n + k; }
KEPT long deep(struct thing *p, long k) { if (!p) return 1; return p->leaf->value + k; }
static volatile long faults, wrong, sink;
static void *bad, *shown;
static void handler(int number, siginfo_t *info, void *context) {
    unsigned long pc = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    faults++;
    if (pc < (unsigned long)work || pc >= (unsigned long)work + 64) wrong++;
    if (info->si_addr < bad || (char *)info->si_addr >= (char *)bad + 4096) wrong++;
    if (shown && shown != (void *)pc) wrong++;
    shown = (void *)pc;
    mprotect(bad, 4096, PROT_READ | PROT_WRITE);
}
int main(int argc, char **argv) {
    struct thing *things = calloc(2, sizeof *things);
    struct leaf leaf = {0};
    char line[32];
    bad = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    things[0].leaf = &leaf;
    if (argv[1][0] == 'h') {
        struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
        sigaction(SIGSEGV, &action, 0);
    }
    for (puts("ready"), fflush(stdout); fgets(line, 32, stdin); fflush(stdout)) {
        long count = atol(line + 1), sum = 0;
        struct timespec from, to;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
        if (line[0] == 'w')
            for (long i = 1; i <= count; i++) { things->n = (int)i; things->far = (int)i; sum += work(things, i); }
        if (line[0] == 'd')
            for (long i = 1; i <= count; i++) { leaf.value = (int)i; sum += deep(i & 7 ? things : 0, i); }
        if (line[0] == 'f')
            for (long i = 0; i < count; i++) { mprotect(bad, 4096, PROT_NONE); sum += work(bad, i); }
        if (line[0] == 'c' && !fork()) { mprotect(bad, 4096, PROT_NONE); _exit((int)work(bad, 1)); }
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
        int status = 0;
        if (line[0] == 'c') wait(&status);
        sink += sum;
        printf("%ld %ld %d %.0f\\n", faults, wrong, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
               (to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec));
    }
    return 0;
}
"""


class Target:
    """The program, told what to do line by line."""

    def __init__(self, process):
        self.process, self.pid = process, process.pid
        assert process.stdout.readline() == "ready\n"

    def run(self, line):
        """Have it do something; return faults met, those at wrong places, the signal of a child, nanoseconds."""
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return [int(word) for word in self.process.stdout.readline().split()]


@pytest.fixture(params=["-O2", "-O0"])
def make(request):
    """What starts the program, compiled with and without optimisation."""
    program, started = build("memory_conditions.c", request.param, "-g", text=PROGRAM), []

    def start(how):
        process = subprocess.Popen([program, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return Target(process)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def place(session, spec, condition, seen):
    session.callbacks.place(parsed((spec,)), lambda hit: seen.append(hit.regs.rsi), timeout=60, when=condition)


def test_exactly_the_hits_for_which_it_holds_wait_and_the_others_cost_next_to_nothing(make):
    target, seen = make("-"), []
    bare = min(target.run("w 300000")[3] for _ in range(3))
    with anyprobe.attach(target.pid) as session:
        place(session, "a.out:work", lambda p, k: p.n == 123456 and k > 5, seen)
        probed = min(target.run("w 300000")[3] for _ in range(3))
        assert seen == [123456] * 3
        assert (probed - bare) / 300000 < 100, "it was read by a system call"
        place(session, "a.out:deep", lambda p: p.leaf.value == 4321, seen)
        target.run("d 9999")
        assert seen[3:] == [4321]
        place(session, "a.out:work", lambda p: p.far == 77, seen)  # perhaps in another page than what is read
        target.run("w 100")
        assert seen[4:] == [77]


def test_faults_are_the_programs_own_at_its_own_instruction(make):
    target, seen = make("h"), []
    assert target.run("f 1")[:2] == [1, 0]
    with anyprobe.attach(target.pid) as session:
        place(session, "a.out:work", lambda p: p.n == 5, seen)
        assert target.run("f 50")[:2] == [51, 0]
        begin = min(target.run("d 99999")[3] for _ in range(3))
        place(session, "a.out:deep", lambda p: p.leaf.value == -1, seen)
        assert (min(target.run("d 99999")[3] for _ in range(3)) - begin) / 99999 < 100, "it was read by a system call"
        target.run("w 9")
        assert seen == [5]
    assert target.run("f 1")[:2] == [52, 0]


def test_a_program_that_dies_of_a_fault_dies_of_the_same(make):
    target, seen = make("-"), []
    with anyprobe.attach(target.pid) as session:
        place(session, "a.out:work", lambda p: p.n == 5, seen)
        assert target.run("c 1")[2] == 11
        target.run("w 9")
    assert seen == [5]


LEAVING = """
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
struct thing { long a; int n; };
#define KEPT __attribute__((noinline, noclone))
KEPT long divided(struct thing *p, int d) { return 100 / d + p->n; }
KEPT long second(struct thing *p, struct thing *q) { long v = *(volatile long *)&q->a; return v + p->n; }
KEPT long once(struct thing *p, int d) { return p->n + d; }
static sigjmp_buf back;
static volatile long met, sink;
static void handler(int number) { met++; siglongjmp(back, 1); }
int main(int argc, char **argv) {
    char line[32];
    struct thing thing = {0, 5}, *none = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct thing *cut = mmap(0, 4096, PROT_READ, MAP_SHARED, fileno(tmpfile()), 0);
    int number = argv[1][0] == 'd' ? SIGFPE : argv[1][0] == 's' ? SIGBUS : SIGSEGV;
    struct sigaction action = {.sa_handler = handler, .sa_flags = argv[1][0] == 'o' ? SA_RESETHAND : 0};
    if (argv[1][0] != '-') sigaction(number, &action, 0);
    for (puts("ready"), fflush(stdout); fgets(line, 32, stdin); fflush(stdout)) {
        int good = line[1] == 'g';
        if (!sigsetjmp(back, 1)) {
            if (line[0] == 'h') action.sa_flags = SA_RESETHAND, sigaction(SIGSEGV, &action, 0);
            if (line[0] == 'd') sink = divided(good ? &thing : none, good);
            if (line[0] == 's') sink = second(good ? &thing : none, good ? &thing : cut);
            if (line[0] == 'o') sink = once(good ? &thing : none, 1);
        }
        printf("%ld\\n", met);
    }
    return 0;
}
"""


@pytest.mark.parametrize("option", ["-O2", "-O0"])
@pytest.mark.parametrize("function", ["divided", "second", "once"])
def test_memory_that_the_programs_handler_keeps_it_from_is_not_read(function, option):
    """A division, or another fault, comes first; or the handler is there for one fault alone."""
    program, seen = build("leaving.c", option, "-g", text=LEAVING), []
    process = subprocess.Popen([program, function], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        target = Target(process)
        with anyprobe.attach(target.pid) as session:
            place(session, f"a.out:{function}", lambda p: p.n == 5, seen)
            assert target.run(f"{function[0]}g") == [0]
            assert target.run(f"{function[0]}b") == [1], "the program has died"
            assert target.run(f"{function[0]}g") == [1]
        assert len(seen) == 2
    finally:
        process.kill()
        process.communicate()


def test_a_handler_for_one_fault_that_is_set_later_is_for_the_programs_own():
    program, seen = build("leaving.c", "-O2", "-g", text=LEAVING), []
    process = subprocess.Popen([program, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        target = Target(process)
        with anyprobe.attach(target.pid) as session:
            place(session, "a.out:once", lambda p: p.n == 5, seen)
            assert target.run("h") == [0]
            session.snapshot()  # that looks for new handlers
            assert target.run("ob") == [1], "the program has died"
            assert target.run("og") == [1]
        assert len(seen) == 1
    finally:
        process.kill()
        process.communicate()
