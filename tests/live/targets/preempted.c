/* A user-level thread that a signal handler leaves in the middle of a function: its stack is no thread's meanwhile. */
#include "protocol.h"
#include <pthread.h>
#include <signal.h>
#include <ucontext.h>
TALLY(worked);
long worked(long value);
asm(".p2align 4\n" FUNCTION(worked) "push %rbx\ncpuid\nnop\nnop\nnop\nmov %rdi,%rax\npop %rbx\nret\n" END(worked) ".p2align 4\n");
extern char __executable_start, etext;
static ucontext_t scheduler, coroutine;
static volatile int inside, parked, resume;
static void preempt(int signal, siginfo_t *info, void *context) {
    (void)signal; (void)info;
    char *pc = (char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    int in_patch = pc < &__executable_start || pc >= &etext;
    if (!inside || !(in_patch || (pc > (char *)worked && pc < (char *)worked + 5))) return;
    inside = 0;
    swapcontext(&coroutine, &scheduler);
    inside = 1;
}
static void work(void) {
    inside = 1;
    for (long i = 0;; i++) {
        worked_tally.calls++;
        if (worked(i) != i) { say("BAD result\n"); _exit(1); }
        worked_tally.returns++;
    }
}
static void *schedule(void *unused) {
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = malloc(65536);
    coroutine.uc_stack.ss_size = 65536;
    makecontext(&coroutine, work, 0);
    for (;;) {
        while (!resume) usleep(1000);
        resume = 0;
        swapcontext(&scheduler, &coroutine);
        parked = 1;
    }
    return unused;
}
static pthread_t thread;
static void one_round(void) {
    parked = 0;
    resume = 1;
    while (!parked) { pthread_kill(thread, SIGUSR1); usleep(300); }
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    struct sigaction a = {0};
    a.sa_sigaction = preempt;
    a.sa_flags = SA_SIGINFO | SA_RESTART;
    sigaction(SIGUSR1, &a, 0);
    pthread_create(&thread, 0, schedule, 0);
    USE_TALLY(worked);
}
