"""``time --cpu`` and ``ctx.cpu_now``: time on processors is what the kernel says that the program had."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack

import pytest

import anyprobe
from anyprobe import Sum
from live.test_command_line import anyprobe as command
from support.driver import build

pytestmark = pytest.mark.live
HALF = """
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static long cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
__attribute__((noinline)) void burns(long ns) { for (long begin = cpu(); cpu() - begin < ns;) ; }
__attribute__((noinline)) void sleeps(long ns) { usleep(ns / 1000); __asm__ volatile(""); }
__attribute__((noinline)) void halves(long ns) { burns(ns); sleeps(ns); __asm__ volatile(""); }
struct large { long words[9]; };
__attribute__((noinline)) double half(double n) { __asm__ volatile(""); return n / 2; }
__attribute__((noinline)) struct large filled(long n) { return (struct large){{n, n, n, n, n, n, n, n, n}}; }
__attribute__((noinline)) int quick(int n) { __asm__ volatile(""); return n + 1; }
static long on_processors(void) {
    long ns;
    FILE *f = fopen("/proc/self/schedstat", "r");
    if (fscanf(f, "%ld", &ns) != 1) abort();
    fclose(f);
    return ns;
}
int main(void) {
    char line[8];
    int n = 0;
    puts("ready");
    fflush(stdout);
    if (!fgets(line, 8, stdin)) return 1;
    for (int i = 0; i < 20000; i++) n = quick(n) + (half(2.0) != 1.0) + (filled(i).words[8] != i);
    usleep(1000);
    long before = on_processors(); /* as of the last switch of threads: one was just now */
    for (int i = 0; i < 300; i++) halves(1000000);
    usleep(1000);
    printf("%ld\\n", on_processors() - before);
    fflush(stdout);
    while (fgets(line, 8, stdin)) ;
    return n == 1;
}
"""
CALLS, NS = 300, 1_000_000


@pytest.fixture
def program():
    return str(build("half_asleep.c", text=HALF))


@pytest.fixture
def busy_machine():
    """As many programs that never sleep as there are processors: what is measured waits for one, too."""
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            other = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(other.kill)
        yield


def measured(tmp_path, program, *specs, options=()):
    results = tmp_path / "results.json"
    found = command("time", "--cpu", *specs, *options, "--json", "-o", str(results), "--", program, input="\n")
    assert found.returncode == 0, found.stderr
    document = json.loads(results.read_text())
    return int(found.stdout.split()[-1]), {each["function"]: each for each in document["functions"]}


@pytest.mark.usefixtures("busy_machine")
def test_time_on_processors_is_what_the_kernel_says_on_a_busy_machine(tmp_path, program):
    truth, found = measured(tmp_path, program, "halves")
    halves = found["halves"]
    assert halves["count"] == CALLS
    assert abs(halves["cpu_ns"] - truth) <= 0.02 * truth
    assert halves["off_ns"] >= CALLS * NS
    assert abs(halves["cpu_ns"] + halves["off_ns"] - halves["sum_ns"]) <= 1


def test_what_sleeps_and_what_burns_is_told_apart(tmp_path, program):
    _, found = measured(tmp_path, program, "burns", "sleeps", "quick", "half", "filled")
    assert found["half"]["count"] == found["filled"]["count"] == 20_000
    burns, sleeps, quick = (found[name] for name in ("burns", "sleeps", "quick"))
    assert abs(burns["cpu_ns"] - CALLS * NS) <= 0.02 * CALLS * NS
    assert sleeps["off_ns"] >= 0.98 * CALLS * NS
    assert sleeps["cpu_ns"] < 0.2 * sleeps["sum_ns"]
    assert quick["count"] == 20_000
    assert quick["cpu_ns"] <= quick["cpu_error_ns"]  # next to nothing, so within the error that is said


def test_the_table_has_both_columns_only_where_they_were_asked_for(program):
    with_them = command("time", "--cpu", "halves", "--", program, input="\n").stderr
    without = command("time", "halves", "--", program, input="\n").stderr
    headings = [
        next(line.split() for line in text.splitlines() if line.lstrip().startswith("calls "))
        for text in (with_them, without)
    ]
    assert headings[0][:4] == ["calls", "total", "cpu", "off"]
    assert not {"cpu", "off"} & set(headings[1])


def test_handlers_read_the_clock_of_their_thread(program):
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        with anyprobe.attach(process.pid) as session:
            spent = Sum("spent")

            @session.call("a.out:burns")
            def begins(ctx):
                ctx.data.before = ctx.cpu_now

            @begins.ret
            def ends(ctx):
                spent.add(ctx.cpu_now - ctx.data.before)

            process.stdin.write("\n")
            process.stdin.flush()
            process.stdout.readline()
            assert CALLS * NS <= int(spent) <= 1.02 * CALLS * NS
            assert session.misses().get("abandoned", 0) == 0
        process.communicate()


FILTERED = """
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
__attribute__((noinline)) int work(int n) { __asm__ volatile(""); return n + 1; }
int main(void) {
    struct sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {1, all};
    char line[8];
    int n = 0;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
    if (!fgets(line, 8, stdin)) return 1;
    for (int i = 0; i < 1000; i++) n = work(n);
    puts("0");
    return n == 1;
}
"""


def test_a_program_that_filters_its_system_calls_has_times_and_nothing_of_processors(tmp_path):
    _, found = measured(tmp_path, str(build("filters_calls.c", text=FILTERED)), "work")
    assert found["work"]["count"] == 1000
    assert "cpu_ns" not in found["work"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--self", "--clock", "tsc"), "is --clock cpu, not tsc"),
        (("--when", "arg0 > 1"), "without --when"),
        (("kernel::vfs_read",), "times on processors"),
    ],
)
def test_what_cannot_be_combined_is_said_in_one_line(program, arguments, what):
    found = command("time", "--cpu", "a.out:halves", *arguments, "--for", "0.1", "--", program, input="\n")
    assert found.returncode in {1, 2}
    assert sum(what in line for line in found.stderr.splitlines()) == 1
