"""Functions in pieces: each block in a section of its own, endings shared, cold parts by other names."""

import subprocess

import pytest

import anyprobe
from anyprobe.core.refusal import Reason
from support.results import run_as_unprobed

CALLS = 3000
SWITCHED = r"""
#include <stdio.h>
#include <stdlib.h>
long calls;
__attribute__((noinline)) int classify(int x) {
    calls++;
    switch (x % 7) {
    case 0: if (x & 64) return printf("%s", "") + 3; return 11;
    case 1: return x / 3;
    case 2: if (x > 100000000) abort(); return 5;
    case 3: { int sum = 0; for (int i = 0; i < x % 13; i++) sum += i * x; return sum; }
    case 4: return x ^ 5;
    default: return -x;
    }
}
int main(void) {
    long sum = 0;
    for (int i = 1; i <= 3000; i++) sum += classify(i);
    printf("%ld %ld\n", sum, calls);
    return 0;
}
"""
SHARED = r"""
#include <stdio.h>
long calls, first(long), second(long), lone(long);
__attribute__((noinline, used)) long work(long a, long b) { calls++; __asm__ volatile(""); return a ^ b; }
#define FUNCTION(name, code) ".type " name ", @function\n" name ":" code ".size " name ", .-" name "\n"
#define TAIL " add %rbx, %rax\n pop %rbx\n ret\n"
__asm__(".text\n.globl first, second, lone\n"
    FUNCTION("first", " push %rbx\n mov %rdi, %rbx\n mov $3, %esi\n call work\n jmp OUTLINED_FUNCTION_0\n")
    FUNCTION("second", " push %rbx\n mov %rdi, %rbx\n call work\n test $1, %bl\n jne OUTLINED_FUNCTION_0\n" TAIL)
    FUNCTION("lone", " push %rbx\n mov %rdi, %rbx\n test $1, %dil\n jne lonely\n pop %rbx\n ret\n")
    FUNCTION("lonely", " mov $5, %esi\n call work\n jmp lonelier\n")
    FUNCTION("lonelier", TAIL)
    FUNCTION("OUTLINED_FUNCTION_0", TAIL));
int main(void) {
    long sum = 0;
    for (long i = 0; i < 3000; i++) sum += first(i) + second(i) + lone(i);
    printf("%ld %ld\n", sum, calls);
    return 0;
}
"""


@pytest.fixture
def built(tmp_path):
    def build(compiler, source, *flags, language="c"):
        path = tmp_path / "program"
        subprocess.run([compiler, "-x", language, "-", "-o", str(path), *flags], input=source, text=True, check=True)
        return str(path)

    return build


def run(path, *probes):
    """Return the snapshot of a run with probes of some kinds, and why some of them were refused."""

    def place(session):
        for kind, *specs in probes:
            getattr(session, kind)(*specs)

    return run_as_unprobed(path, place)


@pytest.mark.parametrize(
    "flags",
    [
        ("-O2",),
        ("-O1", "-no-pie", "-fno-omit-frame-pointer"),
        ("-O2", "-s", "-rdynamic"),
    ],
    ids=["optimised", "fixed address", "stripped"],
)
def test_a_function_whose_blocks_are_scattered_is_one_function(built, flags):
    path = built("clang", SWITCHED, "-fbasic-block-sections=all", *flags)
    snapshot, refused = run(path, ("count", "a.out:classify", "a.out:classify%return"), ("time", "a.out:classify"))
    assert not refused
    assert {site.kind: site.hits for site in snapshot.sites if site.kind != "return"}["entry"] == CALLS
    assert sum(site.hits for site in snapshot.sites if site.kind == "return") == CALLS
    (timed,) = snapshot.functions
    assert (timed.count, timed.tail_exits, timed.unmatched, timed.in_flight) == (CALLS, 0, 0, 0)


def test_a_function_whose_blocks_lie_in_two_clusters_is_one_function(built, tmp_path):
    """As Propeller makes them: the table in the first one leads to blocks in the second."""
    clusters = tmp_path / "clusters"
    clusters.write_text("!classify\n!!0 1 2\n", encoding="ascii")
    path = built("clang", SWITCHED, f"-fbasic-block-sections=list={clusters}", "-O2")
    snapshot, refused = run(path, ("count", "a.out:classify%return"), ("time", "a.out:classify"))
    assert not refused
    assert sum(site.hits for site in snapshot.sites if site.kind == "return") == CALLS
    assert [(each.count, each.unmatched) for each in snapshot.functions] == [(CALLS, 0)]


THROWING = r"""
#include <cstdio>
#include <stdexcept>
#include <string>
long caught;
__attribute__((noinline)) int thrower(int x) { if (x % 5 == 0) throw std::runtime_error("five"); return x * 2; }
extern "C" __attribute__((noinline)) int guarded(int x) {
    std::string text = "abc" + std::to_string(x);
    try {
        int found = thrower(x);
        if (found % 3 == 0) return found + text.size();
        for (found += thrower(x + 1); found > 100;) found -= 7;
        return found;
    } catch (std::exception &error) { caught++; return -(int)text.size(); }
}
int main() {
    long sum = 0;
    for (int i = 1; i <= 3000; i++) sum += guarded(i);
    printf("%ld %ld\n", sum, caught);
}
"""


def test_blocks_that_catch_exceptions_are_parts_too(built):
    path = built("clang++", THROWING, "-fbasic-block-sections=all", "-O2", language="c++")
    snapshot, refused = run(path, ("count", "a.out:guarded", "a.out:guarded%return"), ("time", "a.out:guarded"))
    assert not refused
    assert sum(site.hits for site in snapshot.sites if site.kind == "return") == CALLS
    assert [(each.count, each.unmatched, each.in_flight) for each in snapshot.functions] == [(CALLS, 0, 0)]


def test_a_glob_means_no_scattered_block(built):
    path = built("clang", SWITCHED, "-fbasic-block-sections=all", "-O2")
    snapshot, _ = run(path, ("count", "a.out:*"))
    assert not [site.function for site in snapshot.sites if "+0x" in site.function]


def test_an_ending_that_functions_share_is_no_tail_call(built):
    path = built("gcc", SHARED, "-O2", "-fno-asynchronous-unwind-tables")
    names = ("first", "second", "lone", "OUTLINED_FUNCTION_0")
    snapshot, refused = run(path, ("count", *(f"a.out:{name}" for name in names)), ("time", "a.out:lone"))
    assert not refused
    hits = {site.function: site.hits for site in snapshot.sites if site.kind == "entry"}
    assert hits == dict(zip(names, (CALLS, CALLS, CALLS, CALLS * 3 // 2), strict=True))
    (timed,) = snapshot.functions
    assert (timed.count, timed.tail_exits, timed.unmatched, timed.in_flight) == (CALLS, 0, 0, 0)
    _, refused = run(path, ("time", *(f"a.out:{name}" for name in names if name != "lone")))
    assert [refusal.reason for _, refusal in refused] == [
        Reason.CONTROL_FLOW_UNKNOWN,
        Reason.CONTROL_FLOW_UNKNOWN,
        Reason.PART_OF_FUNCTION,
    ]


SPLIT = r"""
#include <pthread.h>
#include <stdio.h>
#include <string.h>
long calls;
__attribute__((noinline)) long deep(long n, char *above) {
    char kept[3000];
    calls++;
    memset(kept, (int)n, sizeof kept);
    if (above) kept[1] += above[0];
    if (n == 0) return kept[1];
    return deep(n - 1, kept) + kept[7];
}
static void *run(void *ignored) {
    long sum = 0;
    for (int i = 0; i < 60; i++) sum += deep(49, 0);
    return (void *)sum;
}
int main(void) {
    pthread_attr_t small;
    pthread_t thread;
    void *sum;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    pthread_create(&thread, &small, run, 0);
    pthread_join(thread, &sum);
    printf("%ld %ld\n", (long)sum, calls);
    return 0;
}
"""


def test_functions_that_go_on_on_another_stack_return_once(built):
    path = built("gcc", SPLIT, "-O2", "-fsplit-stack", "-pthread")
    snapshot, refused = run(path, ("count", "a.out:deep", "a.out:deep%return"))
    assert not refused
    assert sum(site.hits for site in snapshot.sites if site.kind == "entry") == CALLS
    assert sum(site.hits for site in snapshot.sites if site.kind == "return") == CALLS
    snapshot, refused = run(path, ("count", "a.out:deep%insn"), ("time", "a.out:deep"))
    assert [refusal.reason for _, refusal in refused] == [Reason.SPLIT_STACK]
    resumed = [site for site in snapshot.sites if site.hits not in (0, CALLS, CALLS - 60, 60)]
    assert resumed, "the function has been given more stack"


def test_handlers_at_their_returns_are_refused(built):
    path = built("gcc", SPLIT, "-O2", "-fsplit-stack", "-pthread")
    with open(path + ".out", "w", encoding="ascii") as stdout, anyprobe.run([path], stdout=stdout) as session:
        returns = anyprobe.Count()

        @session.ret("a.out:deep")
        def left():
            returns.add()

        session.resume()
        assert session.wait(180) == 0
        assert [refusal.reason for _, refusal in session.refused] == [Reason.SPLIT_STACK]
        assert not session.snapshot().sites
