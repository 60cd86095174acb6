/* Threads come and go all the time (argument 1: how many sleep beside them for ever). */
#include "protocol.h"
#include <pthread.h>
TALLY(churned);
PROBED long churned(long x) { volatile long y = x; return y * 9; }
static void *sleeper(void *a) { for (;;) pause(); return a; }
static void *brief(void *a) {
    for (long i = 0; i < 50; i++) { COUNTED(churned, check(churned(i) == 9 * i, "churned")); }
    return a;
}
static void one_round(void) {
    pthread_t t[8];
    for (int i = 0; i < 8; i++) check(!pthread_create(&t[i], 0, brief, 0), "pthread_create");
    for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
}
static void setup(int argc, char **argv) {
    pthread_attr_t small;
    pthread_t t;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (int i = argc > 1 ? atoi(argv[1]) : 0; i > 0; i--) check(!pthread_create(&t, &small, sleeper, 0), "pthread_create");
    USE_TALLY(churned);
}
