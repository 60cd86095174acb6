/* In one round, four threads make tasks that share memory and the thread pointer, all at once, and all call `work`.
   Argument: which round that is. */
#define _GNU_SOURCE
#include "protocol.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { THREADS = 4, CALLS = 100, STACK = 1 << 16 };
static int last_round, rounds;
static pthread_barrier_t together;
TALLY(work);
TALLY(other);

PROBED int work(int x) { volatile int y = x * 3; return y + 1; }
PROBED int other(int x) { volatile int y = x * 5; return y + 2; }

static int task(void *unused) {
    (void)unused;
    for (int i = 0; i < CALLS; i++) { COUNTED(work, check(work(i) == 3 * i + 1, "work")); }
    return 0;
}

static void *thread(void *unused) {
    int status = 1;
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    for (int i = 0; i < CALLS; i++) { COUNTED(work, check(work(i) == 3 * i + 1, "work")); }
    pthread_barrier_wait(&together);
    int made = clone(task, stack + STACK, CLONE_VM | SIGCHLD, NULL);
    task(NULL);
    check(made > 0 && waitpid(made, &status, __WALL) == made && status == 0, "the task");
    return unused;
}

static void one_round(void) {
    pthread_t made[THREADS];
    for (int i = 0; i < CALLS; i++) {
        COUNTED(work, check(work(i) == 3 * i + 1, "work"));
        COUNTED(other, check(other(i) == 5 * i + 2, "other"));
    }
    if (++rounds != last_round) return;
    for (int i = 0; i < THREADS; i++) pthread_create(&made[i], NULL, thread, NULL);
    for (int i = 0; i < THREADS; i++) pthread_join(made[i], NULL);
}

static void setup(int argc, char **argv) {
    if (argc < 2) exit(2);
    last_round = atoi(argv[1]);
    pthread_barrier_init(&together, NULL, THREADS);
    USE_TALLY(work);
    USE_TALLY(other);
}
