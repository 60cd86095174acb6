/* A thread calls `work` all the time, on a stack of some kind, and may have forbidden the time stamp counter.
   Arguments: the kind of stack, and "forbids" or "permits". */
#define _GNU_SOURCE
#include "protocol.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <ucontext.h>

static const char *kind;
static int forbids;
static volatile int there;
static ucontext_t back, coroutine;
TALLY(work);

PROBED int work(int x) { volatile int y = x * 3; return y + 1; }

static void one_round(void) { for (int i = 0; i < 10; i++) { COUNTED(work, check(work(i) == 3 * i + 1, "work")); } }

static void endless(void) {
    if (forbids) prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
    there = 1;
    for (int i = 0;; i++) {
        check(work(i & 255) == 3 * (i & 255) + 1, "work");
        usleep(500);
    }
}

static void handler(int number) { (void)number; endless(); }

static void *thread(void *unused) {
    (void)unused;
    if (!strcmp(kind, "coroutine")) {
        getcontext(&coroutine);
        coroutine.uc_stack.ss_sp = calloc(1, 1 << 17);
        coroutine.uc_stack.ss_size = 1 << 17;
        makecontext(&coroutine, endless, 0);
        swapcontext(&back, &coroutine);
    } else if (!strcmp(kind, "signal")) {
        stack_t stack = {.ss_sp = calloc(1, 1 << 17), .ss_size = 1 << 17};
        struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
        sigaltstack(&stack, NULL);
        sigaction(SIGUSR1, &action, NULL);
        pthread_kill(pthread_self(), SIGUSR1);
    } else if (!strncmp(kind, "vfork", 5)) {
        if (forbids && !strcmp(kind, "vfork")) prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
        if (strcmp(kind, "vfork-child")) forbids = 0;
        if (vfork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            endless();
        }
        check(0, "the child has ended");
    }
    endless();
    return NULL;
}

static void setup(int argc, char **argv) {
    pthread_t made;
    static char memory[1 << 20] __attribute__((aligned(4096)));
    pthread_attr_t how;
    pthread_attr_init(&how);
    if (argc < 3) exit(2);
    kind = argv[1];
    forbids = !strcmp(argv[2], "forbids");
    USE_TALLY(work);
    if (!strcmp(kind, "locked")) check(mlockall(MCL_CURRENT | MCL_FUTURE) == 0, "mlockall");
    if (!strcmp(kind, "given")) pthread_attr_setstack(&how, memory, sizeof memory);
    pthread_create(&made, &how, thread, NULL);
    while (!there) usleep(100);
}
