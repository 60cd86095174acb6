/* A function called under different names of its thread. */
#include "protocol.h"
#include <pthread.h>
#include <sys/prctl.h>
TALLY(step);
PROBED long step(long n) {
    CALLED(step);
    RETURNED(step);
    return n + 1;
}
static void *work(void *name) {
    prctl(PR_SET_NAME, name);
    for (long n = 0; n < 10; n++) check(step(n) == n + 1, "step");
    return 0;
}
static void one_round(void) {
    pthread_t thread;
    work("first");
    check(!pthread_create(&thread, 0, work, "fifteen letters"), "pthread_create");
    pthread_join(thread, 0);
    work("");
    work("last");
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(step); }
