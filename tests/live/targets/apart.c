/* Two threads at once: one calls `left` and nothing else, the other `right`; both pass the number of their call. */
#include "protocol.h"
#include <pthread.h>
#define CALLS 300000
TALLY(left);
TALLY(right);
TALLY(between);
PROBED long left(long x) { CALLED(left); RETURNED(left); return x * 3; }
PROBED long right(long x) { CALLED(right); RETURNED(right); return x * 5; }
PROBED long between(long x) { CALLED(between); RETURNED(between); return x * 7; }
static pthread_barrier_t together;
static void *call_left(void *unused) {
    (void)unused;
    pthread_barrier_wait(&together);
    for (long n = 0; n < CALLS; n++) check(left(n) == n * 3, "left");
    return 0;
}
static void *call_right(void *unused) {
    (void)unused;
    pthread_barrier_wait(&together);
    for (long n = 0; n < CALLS; n++) check(right(n) == n * 5, "right");
    return 0;
}
static void one_round(void) {
    pthread_t threads[2];
    check(!pthread_create(&threads[0], 0, call_left, 0) && !pthread_create(&threads[1], 0, call_right, 0), "threads");
    for (int n = 0; n < 2; n++) pthread_join(threads[n], 0);
    check(between(1) == 7, "between");
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(left); USE_TALLY(right); USE_TALLY(between);
    check(!pthread_barrier_init(&together, 0, 2), "barrier");
}
