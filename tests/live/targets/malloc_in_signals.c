/* A malloc of the program's own that may be called anywhere, also in signal handlers, and is all the time. */
#include "protocol.h"
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/time.h>
TALLY(malloc);
static char heap[1 << 22], scratch[1 << 16];
static unsigned long used, passing;
static void *kept(size_t size) {
    unsigned long at = __atomic_fetch_add(&used, (size + 47) & ~15ul, __ATOMIC_RELAXED);
    check(at < sizeof heap - size - 64, "the heap is full");
    return heap + ((at + 15) & ~15ul);
}
/* What is small is used for a moment only, so that its memory can come back. */
PROBED void *malloc(size_t size) {
    CALLED(malloc);
    void *found = size < 256 ? scratch + (__atomic_fetch_add(&passing, 256, __ATOMIC_RELAXED) & 0xff00) : kept(size);
    RETURNED(malloc);
    return found;
}
void free(void *p) { (void)p; }
void *calloc(size_t number, size_t size) { return kept(number * size); }
void *realloc(void *old, size_t size) { char *found = kept(size); if (old) memcpy(found, old, size); return found; }
static volatile long signals;
static void alarmed(int number) {
    (void)number;
    signals++;
    for (int n = 0; n < 4; n++) check(malloc(33) != 0, "malloc in a signal handler");
}
static void *work(void *unused) {
    (void)unused;
    for (int n = 0; n < 20000; n++) check(malloc((size_t)(n & 255)) != 0, "malloc");
    return 0;
}
static void every(long microseconds) {
    struct itimerval interval = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_PROF, &interval, 0);
    setitimer(ITIMER_REAL, &interval, 0);
}
static void one_round(void) {
    pthread_t other;
    every(300);
    check(!pthread_create(&other, 0, work, 0), "pthread_create");
    work(0);
    pthread_join(other, 0);
    while (!signals) work(0);
    every(0);
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(malloc);
    struct sigaction action = {0};
    action.sa_handler = alarmed;
    action.sa_flags = SA_RESTART;
    sigaction(SIGPROF, &action, 0);
    sigaction(SIGALRM, &action, 0);
}
