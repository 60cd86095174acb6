/* Asynchronous signals show the program only pcs of its own code: a profiler that meets a pc it does not know is lost. */
#include "protocol.h"
#include <dlfcn.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>
TALLY(profiled);
static volatile unsigned long strange, samples;
static unsigned long ranges[64][2];
static int known;
#ifdef ENDS_IN_A_JUMP
PROBED long target(long x) { long y = x; asm volatile("" : "+r"(y)); return y * 11; }
__attribute__((noipa, naked)) long profiled(long x) { asm("lea (%rdi,%rdi), %rax; jmp target"); }
#else
PROBED long profiled(long x) { long y = x; asm volatile("" : "+r"(y)); return y * 11; }
#endif
static void on_tick(int signal, siginfo_t *info, void *context) {
    (void)signal; (void)info;
    unsigned long pc = (unsigned long)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    samples++;
    for (int i = 0; i < known; i++) if (pc >= ranges[i][0] && pc < ranges[i][1]) return;
    strange = pc;
}
static void one_round(void) {
    struct itimerval fast = {{0, 100}, {0, 100}}, off = {{0, 0}, {0, 0}};
    unsigned long before = samples;
    setitimer(ITIMER_REAL, &fast, 0);
    for (long i = 0; samples < before + 20; i++) { COUNTED(profiled, check(profiled(i) == 11 * i, "profiled")); }
    setitimer(ITIMER_REAL, &off, 0);
    if (strange) { say("BAD a signal handler saw the pc %#lx\n", strange); _exit(1); }
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    struct sigaction action = {0};
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        char permissions[8];
        if (sscanf(line, "%lx-%lx %7s", &ranges[known][0], &ranges[known][1], permissions) == 3 && strchr(permissions, 'x')) known++;
    }
    fclose(maps);
    action.sa_sigaction = on_tick;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    sigaction(SIGALRM, &action, 0);
    USE_TALLY(profiled);
}
