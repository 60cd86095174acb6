/* A function that takes 2 ms, one that takes no time, and one that reads the clock itself. */
#include "protocol.h"
#include <time.h>
TALLY(nap); TALLY(nothing); TALLY(reads_clock);
PROBED int nap(int x) { struct timespec t = {0, 2000000}; nanosleep(&t, 0); return x + 1; }
PROBED int nothing(int x) { __asm__ volatile("" : "+r"(x)); return x + 2; }
PROBED long reads_clock(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000 + t.tv_nsec; }
static void one_round(void) {
    static long last;
    COUNTED(nap, check(nap(1) == 2, "nap"));
    for (int i = 0; i < 100; i++) { COUNTED(nothing, check(nothing(i) == i + 2, "nothing")); }
    CALLED(reads_clock);
    long now = reads_clock();
    RETURNED(reads_clock);
    check(now > last, "the clock goes on");
    last = now;
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(nap); USE_TALLY(nothing); USE_TALLY(reads_clock); }
