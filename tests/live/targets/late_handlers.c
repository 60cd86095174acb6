/* Signal handlers that come while the program runs: one in the first round, another in its stead in the 102nd. */
#include "protocol.h"
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>
TALLY(busy);
static volatile unsigned long samples[2];
static volatile unsigned long strange;
static int rounds;
static unsigned long known[64][2];
static int texts;
PROBED long busy(long x) { volatile long y = x; return y * 7; }
static void seen(int number, void *context) {
    unsigned long pc = (unsigned long)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    samples[number]++;
    for (int i = 0; i < texts; i++) if (pc >= known[i][0] && pc < known[i][1]) return;
    strange = pc;
}
static void first_handler(int signal, siginfo_t *info, void *context) { (void)signal; (void)info; seen(0, context); }
static void second_handler(int signal, siginfo_t *info, void *context) { (void)signal; (void)info; seen(1, context); }
static void one_round(void) {
    struct itimerval fast = {{0, 100}, {0, 100}}, off = {{0, 0}, {0, 0}};
    rounds++;
    if (rounds == 1 || rounds == 102) {
        struct sigaction action = {0};
        action.sa_sigaction = rounds == 1 ? first_handler : second_handler;
        action.sa_flags = SA_RESTART | SA_SIGINFO;
        sigaction(SIGALRM, &action, 0);
        return;
    }
    int number = rounds > 102;
    unsigned long before = samples[number];
    setitimer(ITIMER_REAL, &fast, 0);
    for (long i = 0; samples[number] < before + 10; i++) { COUNTED(busy, check(busy(i) == 7 * i, "busy")); }
    setitimer(ITIMER_REAL, &off, 0);
    if (strange) { say("BAD handler %d saw the pc %#lx\n", number, strange); _exit(1); }
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        char permissions[8];
        if (sscanf(line, "%lx-%lx %7s", &known[texts][0], &known[texts][1], permissions) == 3 && strchr(permissions, 'x')) texts++;
    }
    fclose(maps);
    USE_TALLY(busy);
}
