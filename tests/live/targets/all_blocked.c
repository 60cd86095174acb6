/* A thread with all signals blocked. */
#include "protocol.h"
#include <pthread.h>
#include <signal.h>
TALLY(quietly);
PROBED long quietly(long x) { volatile long y = x; return y * 3; }
static long todo, finished;
static void *blocked(void *unused) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, 0);
    for (long n = 0;; n++) {
        while (__atomic_load_n(&todo, __ATOMIC_ACQUIRE) <= n) sched_yield();
        for (int i = 0; i < 100; i++) { COUNTED(quietly, check(quietly(n + i) == 3 * (n + i), "quietly")); }
        __atomic_store_n(&finished, n + 1, __ATOMIC_RELEASE);
    }
    return unused;
}
static void one_round(void) {
    long n = __atomic_add_fetch(&todo, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&finished, __ATOMIC_ACQUIRE) < n) sched_yield();
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; pthread_t t; pthread_create(&t, 0, blocked, 0); USE_TALLY(quietly); }
