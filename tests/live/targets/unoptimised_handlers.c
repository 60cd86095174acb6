/* Handlers of faults that go on behind the instruction: a large one, one of a few instructions, one that is told nothing. */
#include "protocol.h"
#include <signal.h>
#include <ucontext.h>
TALLY(touch); TALLY(large);

static void small(int number, siginfo_t *info, void *context) {
    (void)number; (void)info;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}

static void large(int number, siginfo_t *info, void *context) {
    char buffer[200];
    memset(buffer, 0, sizeof buffer);
    CALLED(large);
    (void)number; (void)info;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2 + buffer[3];
}

static void untold(int number) { (void)number; }

PROBED int touch(int x) {
    CALLED(touch);
    asm volatile("xor %%edx, %%edx\n\tmov (%%rdx), %%dl\n\tnop" ::: "rdx");
    return x + 1;
}

static void one_round(void) {
    for (int i = 0; i < 10; i++) check(touch(i) == i + 1, "touch");
}

static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(touch); USE_TALLY(large);
    struct sigaction action = {.sa_sigaction = large, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, 0);
    action.sa_sigaction = small;
    sigaction(SIGBUS, &action, 0);
    sigaction(SIGFPE, &action, 0);
    signal(SIGUSR1, untold);
    signal(SIGILL, untold);
}
