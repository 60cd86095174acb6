/* A program that nearly always waits in vfork for a child, which has signal actions of its own. */
#include "protocol.h"
#include <sys/wait.h>
#include <time.h>
TALLY(work);
PROBED long work(long x) { volatile long y = x; return y * 5; }
static void pass(int microseconds) {
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begin.tv_sec) * 1000000 + (now.tv_nsec - begin.tv_nsec) / 1000 < microseconds);
}
static void one_round(void) {
    int status = -1;
    COUNTED(work, check(work(7) == 35, "work"));
    pid_t child = vfork();
    if (!child) {
        pass(150000);
        _exit(0);
    }
    check(child > 0 && waitpid(child, &status, 0) == child && !status, "the child");
    pass(5000);
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(work); }
