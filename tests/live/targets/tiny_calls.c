/* A million calls that do next to nothing, and the same work without calls; each round says what it took of a processor.
 * Its record: "calls many_ns N", "calls alone_ns N": nanoseconds of the rounds so far. */
#include "protocol.h"
#include <time.h>
TALLY(many); TALLY(alone); TALLY(fib); TALLY(many_ns); TALLY(alone_ns); TALLY(fib_ns);
static long kept;
static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
PROBED long tiny(long x) { return x * 3 + 1; }
PROBED long many(int n) { long x = kept; CALLED(many); for (int i = 0; i < n; i++) x = tiny(x); return x; }
PROBED long alone(int n) {
    long x = kept;
    CALLED(alone);
    for (int i = 0; i < n; i++) { x = x * 3 + 1; __asm__ volatile("" : "+r"(x)); }
    return x;
}
PROBED long fib(long n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
static long took(struct tally *of, long since) { long t = now(); of->calls += t - since; return t; }
static void one_round(void) {
    long t = now();
    kept += many(20000);
    t = took(&many_ns_tally, t);
    kept += alone(20000);
    t = took(&alone_ns_tally, t);
    kept += fib(20);
    CALLED(fib);
    took(&fib_ns_tally, t);
}
static void setup(int argc, char **argv) {
    (void)argc, (void)argv;
    USE_TALLY(many); USE_TALLY(alone); USE_TALLY(fib); USE_TALLY(many_ns); USE_TALLY(alone_ns); USE_TALLY(fib_ns);
}
