/* A function that begins with the head of its loop, and that signal handlers leave: a call counts once, however many
 * times its first instructions have run. */
#define _GNU_SOURCE
#include <setjmp.h>
#include "protocol.h"
#include <signal.h>
#include <time.h>
#include <ucontext.h>
#include <sys/time.h>
TALLY(loops);
long loops(void);
asm(".p2align 4\n" FUNCTION(loops) "nop\npause\nxor %eax,%eax\ntest %rsp,%rsp\njne loops\nret\n" END(loops) ".p2align 4\n");
static sigjmp_buf out;
static long first;
static long ran(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
/* Leaves the loop once it has run for a while: before its first pass is over, or before it has begun, that is no call. */
static void on_tick(int signal, siginfo_t *info, void *context) {
    (void)signal; (void)info;
    const long at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] - (long)loops;
    const int is_there = at >= 0 && at < 16;
    if (!is_there || !first || ran() - first < 100000) {
        struct itimerval again = {{0, 0}, {0, 100}};
        if (is_there && !first) first = ran();
        setitimer(ITIMER_REAL, &again, 0);
        return;
    }
    siglongjmp(out, 1);
}
static void one_round(void) {
    struct itimerval once = {{0, 0}, {0, 200}};
    first = 0;
    if (!sigsetjmp(out, 1)) {
        setitimer(ITIMER_REAL, &once, 0);
        CALLED(loops);
        loops();
    }
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    struct sigaction action = {0};
    action.sa_sigaction = on_tick;
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    sigaction(SIGALRM, &action, 0);
    USE_TALLY(loops);
}
