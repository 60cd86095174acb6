/* Calls that say at their end whether they were of interest, nested, in three threads; some are left by longjmp, or with
 * their thread. What is expected is worked out by the test. */
#include "protocol.h"
#include <pthread.h>
#include <setjmp.h>

#define THREADS 3
#define CALLS 40
TALLY(step);
static __thread jmp_buf back;
static int only_whole;

PROBED long step(long n) { CALLED(step); RETURNED(step); return n; }
PROBED long inner(long n) { step(n + 1000); return n & 1; }
PROBED long outer(long n) { step(n); inner(n); step(n + 2000); return n % 3 == 0; }
PROBED long left(long n) { step(n + 5000); longjmp(back, 1); return n; }
PROBED long ended(long n) { step(n + 6000); pthread_exit(0); return n; }

static void *run(void *argument) {
    long base = 10000 * (long)argument;
    for (long n = base; n < base + CALLS; n++) {
        step(n + 7000);
        outer(n);
    }
    if (!only_whole) {
        if (!setjmp(back)) left(base);
        outer(base); /* which shows that the call before is over */
        step(base + 8000);
        ended(base);
    }
    return argument;
}

void setup(int argc, char **argv) { only_whole = argc > 1 && argv[1][0] == 'w'; USE_TALLY(step); }

void one_round(void) {
    pthread_t threads[THREADS];
    for (long t = 0; t < THREADS; t++) pthread_create(&threads[t], 0, run, (void *)t);
    for (long t = 0; t < THREADS; t++) pthread_join(threads[t], 0);
}
