/* fork: the child calls the probed function too. */
#include "protocol.h"
#include <sys/wait.h>
TALLY(forked);
PROBED long forked(long x) { volatile long y = x; return y * 5; }
static void one_round(void) {
    pid_t child = fork();
    check(child >= 0, "fork");
    for (long i = 0; i < 500; i++)
        if (forked(i) != i * 5) { if (!child) _exit(7); check(0, "forked"); }
    if (!child) _exit(0);
    int status;
    check(waitpid(child, &status, 0) == child && status == 0, "the child failed");
    forked_tally.calls += 1000;
    forked_tally.returns += 1000;
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(forked); }
