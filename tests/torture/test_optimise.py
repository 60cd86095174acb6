"""Thousands of functions run elsewhere: a program that was made for it gains, loses it again, and computes the same."""

import random
import subprocess
import threading

import pytest

import anyprobe
from live.test_optimise import Program
from support.driver import build

pytestmark = pytest.mark.live

FUNCTIONS, ROUNDS = 4000, 300
HEAD = "#include <stdio.h>\n#include <stdlib.h>\n#include <time.h>\nvolatile long never; long sink;\n"
MAIN = """
static double now(void) {
    struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
int main(void) {
    long x = 1; char line[16];
    printf("ready\\n"); fflush(stdout);
    while (fgets(line, 16, stdin)) {
        int rounds = atoi(line); double begin = now();
        for (int i = 0; i < rounds; i++) x = all(x);
        printf("%.3f ns, %lx\\n", (now() - begin) * 1e9 / rounds / FUNCTIONS, x); fflush(stdout);
    }
}
"""


def text() -> str:
    """Return a program that calls functions in a random order, each with code in its middle that never runs."""
    chosen = random.Random(1)
    order = list(range(FUNCTIONS))
    chosen.shuffle(order)
    functions = []
    for i in range(FUNCTIONS):
        cold = "".join(f"sink ^= never * {chosen.randrange(1 << 28, 1 << 30)}L;" for _ in range(2))
        functions.append(
            f"__attribute__((noinline)) long f{i}(long x) {{ if (never == {i} + 1) {{ {cold} }} x = x * 3 + {i}; "
            f"if (x == never - {i} - 7) {{ {cold} }} return x ^ (x >> 7); }}\n"
        )
    calls = "".join(f"x = f{i}(x);\n" for i in order)
    table = f"long (*const table[])(long) = {{{','.join(f'f{i}' for i in order)}}};\n"
    everything = f"__attribute__((noinline)) long all(long x) {{ {calls} return x; }}\n"
    return HEAD + "".join(functions) + table + everything + MAIN.replace("FUNCTIONS", str(FUNCTIONS))


def test_four_thousand_functions_become_twice_as_fast_and_slow_again():
    path = build("optimised_many.c", "-O2", text=text())
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    over = threading.Event()
    with subprocess.Popen([path], **pipes) as process, subprocess.Popen([path], **pipes) as twin:
        both = [Program(each) for each in (process, twin)]
        for each in both:
            assert each.process.stdout is not None
            assert each.process.stdout.readline() == "ready\n"

        def clock() -> float:
            took, other = (each.ask(str(ROUNDS)).split(" ns, ") for each in both)
            assert took[1] == other[1]
            return float(took[0])

        def work() -> None:
            while not over.is_set():
                clock()

        before = min(clock() for _ in range(5))
        with anyprobe.attach(process.pid, unsafe=True) as session:
            worker = threading.Thread(target=work)
            worker.start()
            try:
                found = session.optimise("a.out:*", turns=4)
            finally:
                over.set()
                worker.join()
            after = min(clock() for _ in range(5))
        again = min(clock() for _ in range(5))
        process.kill()
        twin.kill()
    print(before, after, again, found)
    assert found.kept, found.reason
    assert found.functions > FUNCTIONS * 9 // 10
    assert after * 2 <= before
    assert again >= before * 0.8
    assert found.interval is not None
    assert found.interval[0] > 1.2  # its twin has half of the caches meanwhile
