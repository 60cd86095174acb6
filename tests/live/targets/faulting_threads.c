/* Threads whose loads fault every other time; nobody but a probe handles the faults. Timer signals come. */
#include "protocol.h"
#include <signal.h>
#include <sys/time.h>
#include "in_threads.h"
TALLY(reads);
long reads(long *from);
asm(".p2align 4\n" FUNCTION(reads) "mov (%rdi),%rax\nret\nmov $77,%eax\nret\n" END(reads));
static volatile long ticks;
static void on_tick(int signal) { ticks += signal; }
static void *caller(void *number) {
    long value = 5 + (long)number;
    for (long i = 0; i < rounds_of_each; i++) {
        COUNTED(reads, check(reads(i & 1 ? (long *)8 : &value) == (i & 1 ? 77 : value), "what a load yields"));
    }
    return 0;
}
static void one_round(void) { in_threads(caller, 1000); }
static void setup(int argc, char **argv) {
    set_threads(argc, argv);
    struct sigaction action = {0};
    action.sa_handler = on_tick;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = {{0, 300}, {0, 300}};
    setitimer(ITIMER_REAL, &often, 0);
    USE_TALLY(reads);
}
