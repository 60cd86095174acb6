/* Threads that open files, some of which are not there, and give up their processors. */
#include "protocol.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
static void *work(void *unused) {
    (void)unused;
    for (int n = 0; n < 20; n++) {
        int there = open("/dev/null", O_WRONLY | O_CLOEXEC), missing = open("/no/such/file", O_RDONLY);
        check(there > 2 && missing == -1 && errno == ENOENT, "open");
        close(there);
        sched_yield();
    }
    return 0;
}
static void one_round(void) {
    pthread_t threads[4];
    for (int n = 0; n < 4; n++) check(!pthread_create(&threads[n], 0, work, 0), "pthread_create");
    for (int n = 0; n < 4; n++) pthread_join(threads[n], 0);
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; }
