/* A timer signal every 100 microseconds, whose handler calls the probed function as well. */
#include "protocol.h"
#include <signal.h>
#include <sys/time.h>
TALLY(ticked); TALLY(from_handler); TALLY(both_sides);
static volatile long ticks;
PROBED long ticked(long x) { volatile long y = x; return y + (x >> 1); }
PROBED long from_handler(long x) { volatile long y = x; return y ^ 5; }
long both_sides(long);
asm(".p2align 4\n" FUNCTION(both_sides) "push %rbx\nmov %rdi,%rbx\nlea 3(%rbx),%rax\npop %rbx\nret\n" END(both_sides) ".p2align 4\n");
static void on_tick(int signal) {
    (void)signal;
    ticks++;
    COUNTED(from_handler, check(from_handler(ticks) == (ticks ^ 5), "from_handler"));
    COUNTED(both_sides, check(both_sides(ticks) == ticks + 3, "both_sides in the handler"));
}
static void one_round(void) {
    struct itimerval fast = {{0, 100}, {0, 100}}, off = {{0, 0}, {0, 0}};
    long before = ticks;
    setitimer(ITIMER_REAL, &fast, 0);
    for (long i = 0; i < 20000 || ticks < before + 3; i++) {
        COUNTED(ticked, check(ticked(i) == i + (i >> 1), "ticked"));
        COUNTED(both_sides, check(both_sides(i) == i + 3, "both_sides"));
    }
    setitimer(ITIMER_REAL, &off, 0);
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    struct sigaction action = {0};
    action.sa_handler = on_tick;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, 0);
    USE_TALLY(ticked); USE_TALLY(from_handler); USE_TALLY(both_sides);
}
