/* deep_among_signals DEPTH MICROSECONDS: a recursion while a timer's signals come in as often. */
#include "protocol.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
TALLY(deep);
static int depth, period;
static volatile long signals;
static void on_signal(int number) { signals += number; }
PROBED int deep(int n) {
    CALLED(deep);
    int r = n ? deep(n - 1) + 1 : 0;
    __asm__ volatile("" : "+r"(r));
    RETURNED(deep);
    return r;
}
static void every(long microseconds) {
    struct itimerval times = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &times, 0);
}
static void one_round(void) {
    every(period);
    deep(depth);
    every(0);
}
static void setup(int argc, char **argv) {
    check(argc == 3, "arguments");
    depth = atoi(argv[1]);
    period = atoi(argv[2]);
    struct rlimit stack;
    if (!getrlimit(RLIMIT_STACK, &stack) && stack.rlim_cur < 32 << 20) { /* it is as large as it is at the start */
        stack.rlim_cur = 32 << 20;
        check(!setrlimit(RLIMIT_STACK, &stack), "a larger stack");
        execv("/proc/self/exe", argv);
    }
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    check(!sigaction(SIGALRM, &action, 0), "a handler");
    USE_TALLY(deep);
}
