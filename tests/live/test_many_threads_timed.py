"""Thousands of functions timed in dozens of threads, for each of which there is a block."""

import subprocess

import pytest

import anyprobe
from live.targets.many_functions import source

CASES = [
    pytest.param(100, 64, {}, id="a-hundred"),
    pytest.param(5000, 64, {}, id="five-thousand", marks=pytest.mark.torture),
    pytest.param(5000, 64, {"self_time": True}, id="five-thousand-self-times", marks=pytest.mark.torture),
]


@pytest.mark.parametrize(("functions", "threads", "options"), CASES)
def test_each_call_of_each_thread_is_timed(run_target, functions, threads, options):
    text = source(functions)
    target = run_target(f"many_functions_{functions}.c", "0", str(threads), text=text, options=("-O1", "-pthread"))
    with anyprobe.attach(target.pid, **options) as session:
        session.time("a.out:busy_*")
        refused = len(session.refused)  # where bytes cross a page, which depends on where the program lies
        assert refused <= functions // 100
        calls = target.go(2, patience=500).calls["passes"]
        assert calls == 2 * threads
        found = session.snapshot().functions
        assert len(found) == functions - refused
        assert {(each.count, each.nmissed, each.in_flight) for each in found} == {(calls, 0, 0)}
    target.finish()


LATER = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
__attribute__((noipa)) int work(int x) { return x + 1; }
static pthread_barrier_t all;
static void *run(void *unused) {
    pthread_barrier_wait(&all);
    for (int i = 0; i < 10; i++) work(i);
    pthread_barrier_wait(&all);
    return unused;
}
int main(int argc, char **argv) {
    int count = atoi(argv[1]);
    pthread_t *threads = calloc(count, sizeof *threads);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    pthread_barrier_init(&all, 0, count);
    for (int i = 0; i < count; i++) if (pthread_create(threads + i, &small, run, 0)) return 1;
    for (int i = 0; i < count; i++) pthread_join(threads[i], 0);
    puts("done");
}
"""


def test_hundreds_of_threads_that_come_later_are_timed(compiled):
    """All alive at once, with thousands of functions timed, none of which takes memory until it is called."""
    program = compiled("later_threads.c", "-O1", "-pthread", text=LATER)
    with anyprobe.run([str(program), "700"], stdout=subprocess.DEVNULL, self_time=True) as session:
        session.time("a.out:*", "libc:*")
        session.resume()
        assert session.wait(500) == 0
        snapshot = session.snapshot()
    counts = {each.function: each.count for each in snapshot.functions}
    assert (counts["work"], counts["run"]) == (7000, 700)
    assert sum(each.nmissed for each in snapshot.functions) == 0
