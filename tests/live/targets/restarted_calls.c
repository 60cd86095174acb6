/* System calls that signals interrupt and the kernel restarts, each in a function of its own: read and futex behind a
 * handler with SA_RESTART, on both doors of the kernel, and a sleep that only a stop of the whole program interrupts.
 * With an argument each round is half of one: the first leaves the threads in their calls, the second lets them go. */
#include "protocol.h"
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
TALLY(reads); TALLY(waits); TALLY(old_waits); TALLY(sleeps); TALLY(polls);
long reads(int fd, void *to, long size), waits(int *word, int value), old_waits(int *word, int value), sleeps(struct timespec *time), polls(struct pollfd *);
#define ALIGNED(name) ".p2align 4\n" FUNCTION(name)
asm(ALIGNED(reads) "xor %eax,%eax\nsyscall\nret\n" END(reads)
    ALIGNED(waits) "mov %esi,%edx\nmov $0,%esi\nxor %r10d,%r10d\nmov $202,%eax\nsyscall\nret\n" END(waits)
    ALIGNED(old_waits) "push %rbx\nmov %edi,%ebx\nmov %esi,%edx\nxor %ecx,%ecx\nxor %esi,%esi\nmov $240,%eax\nint $0x80\npop %rbx\nret\n" END(old_waits)
    ALIGNED(sleeps) "xor %esi,%esi\nmov $35,%eax\nsyscall\nret\n" END(sleeps)
    ALIGNED(polls) "mov $1,%esi\nmov $20,%edx\nmov $7,%eax\nsyscall\nret\n" END(polls)
    ".p2align 4\n");

enum { WORKERS = 4, SIGNALS = 5 };
static struct worker { pthread_t thread; int handled, tid, word, done; int pipe[2]; } workers[WORKERS];
static __thread struct worker *mine;
static void on_signal(int signal) { (void)signal; __atomic_fetch_add(&mine->handled, 1, __ATOMIC_SEQ_CST); }

/* Whether a wait has ended well: one that is restarted between the change of its word and the waking finds the change. */
static int woken(long got) { return got == 0 || got == -EAGAIN; }

static void *work(void *argument) {
    mine = argument;
    __atomic_store_n(&mine->tid, (int)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    long number = mine - workers, got = 0;
    char byte = 0;
    sigset_t quiet;
    struct timespec time = {0, 20000000};
    struct pollfd nothing = {-1, 0, 0};
    switch (number) {
    case 0: COUNTED(reads, got = reads(mine->pipe[0], &byte, 1)); check(got == 1 && byte == 'x', "read"); break;
    case 1: COUNTED(waits, got = waits(&mine->word, 0)); check(woken(got), "futex"); break;
    case 2:
        if (old_waits_tally.name) { COUNTED(old_waits, got = old_waits(&mine->word, 0)); check(woken(got), "old futex"); }
        break;
    case 3:
        sigemptyset(&quiet);
        sigaddset(&quiet, SIGUSR1);
        pthread_sigmask(SIG_BLOCK, &quiet, 0);
        COUNTED(sleeps, got = sleeps(&time)); check(got == 0, "nanosleep");
        COUNTED(polls, got = polls(&nothing)); check(got == 0, "poll");
    }
    __atomic_store_n(&mine->done, 1, __ATOMIC_SEQ_CST);
    return 0;
}

/* Whether a worker is asleep in its call, not in a page fault or on its way there. */
static int is_asleep(struct worker *one) {
    static const char *const calls[] = {"0 ", "202 ", "240 "};
    char path[64], state[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", one->tid);
    FILE *file = fopen(path, "r");
    if (file) { size_t n = fread(state, 1, sizeof state - 1, file); state[n] = 0; fclose(file); }
    return !strncmp(state, calls[one - workers], strlen(calls[one - workers]));
}

static void wait_asleep(struct worker *one) { while (!__atomic_load_n(&one->tid, __ATOMIC_SEQ_CST) || !is_asleep(one)) usleep(100); }

static int wakes(long number) { return number < 2 || (number == 2 && old_waits_tally.name); }

static void interrupt_all(void) {
    for (int i = 0; i < SIGNALS; i++)
        for (long n = 0; n < WORKERS; n++)
            if (wakes(n)) {
                struct worker *one = &workers[n];
                wait_asleep(one);
                int before = __atomic_load_n(&one->handled, __ATOMIC_SEQ_CST);
                check(!pthread_kill(one->thread, SIGUSR1), "pthread_kill");
                while (__atomic_load_n(&one->handled, __ATOMIC_SEQ_CST) == before) usleep(50);
                check(!__atomic_load_n(&one->done, __ATOMIC_SEQ_CST), "a call came back by a signal");
            }
}

static void begin(void) {
    for (long n = 0; n < WORKERS; n++) {
        workers[n].tid = workers[n].handled = workers[n].word = workers[n].done = 0;
        check(!pthread_create(&workers[n].thread, 0, work, &workers[n]), "pthread_create");
    }
    interrupt_all();
    for (long n = 0; n < WORKERS; n++) if (wakes(n)) wait_asleep(&workers[n]); /* again, once their handlers have returned */
}

static void end(void) {
    interrupt_all();
    check(write(workers[0].pipe[1], "x", 1) == 1, "write");
    for (long n = 1; n < 3; n++)
        if (wakes(n)) {
            __atomic_store_n(&workers[n].word, 1, __ATOMIC_SEQ_CST);
            while (syscall(SYS_futex, &workers[n].word, FUTEX_WAKE, 1, 0, 0, 0) == 0 && !workers[n].done) usleep(50);
        }
    for (long n = 0; n < WORKERS; n++) pthread_join(workers[n].thread, 0);
}

static int by_halves;
static void one_round(void) {
    static int halves;
    if (!by_halves || !(halves++ & 1)) begin();
    if (!by_halves || !(halves & 1)) end();
}

/* Whether the kernel has the system calls of old. */
static int has_old_calls(void) {
    pid_t child = fork();
    if (!child) {
        long result;
        asm volatile("int $0x80" : "=a"(result) : "a"(20) : "memory", "r8", "r9", "r10", "r11");
        _exit(result != getpid());
    }
    int status;
    waitpid(child, &status, 0);
    return status == 0;
}

static void setup(int argc, char **argv) {
    (void)argv;
    by_halves = argc > 1;
    USE_TALLY(reads); USE_TALLY(waits); USE_TALLY(sleeps); USE_TALLY(polls);
    if ((unsigned long)workers < 1UL << 32 && has_old_calls()) USE_TALLY(old_waits); else old_waits_tally.name = 0;
    check(!pipe(workers[0].pipe), "pipe");
    struct sigaction action = {0};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, 0);
}
