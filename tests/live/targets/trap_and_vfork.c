/* A program with one thread and a SIGTRAP handler, which waits in vfork for a child that takes its time. */
#include "protocol.h"
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
TALLY(work);
static volatile long traps;
static void on_trap(int signal) { (void)signal; traps++; }
PROBED long work(long x) { volatile long y = x; return y * 5; }
static void one_round(void) {
    int status = -1;
    COUNTED(work, check(work(7) == 35, "work"));
    say("waiting\n");
    pid_t child = vfork();
    if (!child) {
        struct timespec begin, now;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        do clock_gettime(CLOCK_MONOTONIC, &now);
        while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < 400);
        execl("/bin/true", "true", (char *)0);
        _exit(99);
    }
    check(child > 0 && waitpid(child, &status, 0) == child && !status, "the child");
    long before = traps;
    raise(SIGTRAP);
    check(traps == before + 1, "a SIGTRAP of the program's own was lost");
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; signal(SIGTRAP, on_trap); USE_TALLY(work); }
