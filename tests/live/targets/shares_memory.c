/* Processes that share the memory of the program and are not its threads, alive all the while; they count in words that
 * all share, and end when told. Argument: how many. */
#include "protocol.h"
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
enum { MOST = 16 };
static char stacks[MOST][65536] __attribute__((aligned(16)));
static pid_t pids[MOST];
static int many;
static volatile long round_, finished[MOST];
static volatile int over;
TALLY(work);
PROBED int work(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
static int child(void *number) {
    long own = (long)number;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (long seen = 0; !over;) {
        if (round_ == seen) { sched_yield(); continue; }
        seen++;
        for (int i = 0; i < 100; i++) { COUNTED(work, work(i) == i + 1 ? 0 : (over = 2)); }
        finished[own] = seen;
    }
    return over == 1 ? 0 : 1;
}
static void one_round(void) {
    round_++;
    COUNTED(work, check(work(1) == 2, "work"));
    for (int i = 0; i < many; i++) while (finished[i] != round_) sched_yield();
}
static void end(void) {
    over = 1;
    for (int i = 0; i < many; i++) {
        int status = -1;
        waitpid(pids[i], &status, 0);
        if (status != 0) say("BAD status %#x\n", status);
    }
}
static void setup(int argc, char **argv) {
    many = argc > 1 ? atoi(argv[1]) : 4;
    for (long i = 0; i < many; i++) {
        pids[i] = clone(child, stacks[i] + sizeof stacks[i], CLONE_VM | SIGCHLD, (void *)i);
        check(pids[i] > 0, "clone");
    }
    atexit(end);
    USE_TALLY(work);
}
