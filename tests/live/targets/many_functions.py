"""Write a C program of many functions that several threads call, checking the results.

Arguments: how many threads call them for ever; how many more do so once, all at the same time, in each round.
"""

import sys


def source(functions: int) -> str:
    """Return the program; ``busy_N`` are its functions."""
    bodies = "\n".join(
        f"PROBED long busy_{n}(long x) {{ volatile long y = x + {n}; return y * {n % 7 + 1}; }}"
        for n in range(functions)
    )
    table = ", ".join(f"busy_{n}" for n in range(functions))
    return f"""#include "protocol.h"
#include <pthread.h>
{bodies}
static long (*const table[])(long) = {{{table}}};
enum {{ COUNT = sizeof table / sizeof *table }};
TALLY(passes);
static volatile int working = 1;
static void pass(long x) {{
    for (long n = 0; n < COUNT; n++) check(table[n](x) == (x + n) * (n % 7 + 1), "a busy function");
    CALLED(passes);
}}
static void *worker(void *a) {{ for (long x = 0; working; x++) pass(x); return a; }}
static int at_once;
static pthread_barrier_t all;
static void *wait_and_pass(void *a) {{
    for (;;) {{ pthread_barrier_wait(&all); pass(1); pthread_barrier_wait(&all); }}
    return a;
}}
static void one_round(void) {{
    if (!at_once) {{ pass(1); return; }}
    pthread_barrier_wait(&all);
    pthread_barrier_wait(&all);
}}
static void setup(int argc, char **argv) {{
    pthread_t t;
    for (int i = argc > 1 ? atoi(argv[1]) : 0; i > 0; i--) check(!pthread_create(&t, 0, worker, 0), "pthread_create");
    at_once = argc > 2 ? atoi(argv[2]) : 0;
    pthread_barrier_init(&all, 0, at_once + 1);
    for (int i = 0; i < at_once; i++) check(!pthread_create(&t, 0, wait_and_pass, 0), "pthread_create");
    USE_TALLY(passes);
}}
"""


if __name__ == "__main__":
    sys.stdout.write(source(int(sys.argv[1])))
