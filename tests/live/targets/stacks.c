/* Calls of every depth and kind of frame; the innermost function also asks glibc who has called it. */
#include "protocol.h"
#include <alloca.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
TALLY(leaf);
static int telling;
PROBED long leaf(long n) {
    CALLED(leaf);
    void *found[64];
    if (telling) {
        int count = backtrace(found, 64);
        char line[1200];
        int used = 0;
        /* without ourselves: from our caller on */
        for (int at = 1; at < count; at++) used += snprintf(line + used, sizeof line - (size_t)used, " %lx", (long)found[at]);
        char out[1300];
        int length = snprintf(out, sizeof out, "stack%s\n", line);
        ssize_t written = write(1, out, (size_t)length);
        (void)written;
    }
    RETURNED(leaf);
    return n + 1;
}
PROBED long plain(long n) { return leaf(n) + 1; }
PROBED long deep(long n) { volatile long kept = n; long below = n ? deep(n - 1) : plain(0); return below + kept; }
__attribute__((optimize("no-omit-frame-pointer"))) PROBED long framed(long n) { volatile long kept = n; return plain(n) + kept; }
PROBED long growing(long n) {
    volatile char *room = alloca((size_t)(n * 16 + 16));
    room[0] = 1;
    return framed(n) + room[0];
}
PROBED long aligned(long n) {
    _Alignas(64) volatile char room[128];
    room[n & 63] = 2;
    return growing(n) + room[n & 63];
}
PROBED long many(long a, long b, long c, long d, long e, long f, long g, long h) { return aligned(a) + b + c + d + e + f + g + h; }
static int compare(const void *left, const void *right) {
    (void)left; (void)right;
    plain(1);
    return 0;
}
static volatile int handled;
static void handler(int number) { (void)number; plain(2); handled = 1; }
static void *thread(void *unused) { (void)unused; many(1, 2, 3, 4, 5, 6, 7, 8); return 0; }
static void one_round(void) {
    long numbers[2] = {2, 1};
    plain(1);
    deep(30);
    many(1, 2, 3, 4, 5, 6, 7, 8);
    qsort(numbers, 2, sizeof *numbers, compare);
    raise(SIGUSR1);
    pthread_t other;
    check(!pthread_create(&other, 0, thread, 0), "pthread_create");
    pthread_join(other, 0);
}
static void setup(int argc, char **argv) {
    (void)argv;
    telling = argc > 1;
    signal(SIGUSR1, handler);
    void *found[4];
    backtrace(found, 4); /* has it loaded what it needs */
    USE_TALLY(leaf);
}
