/* Threads that call functions while another one sends each of them SIGTRAP by tgkill: each signal is seen at most once (the
 * kernel merges them), and no call goes wrong. A timer signal whose handler calls the functions on an alternate stack comes
 * every 100 microseconds. */
#include "protocol.h"
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/time.h>
enum { THREADS = 3 };
TALLY(wide); TALLY(pushing); TALLY(last_byte);
long wide(long), pushing(long), last_byte(long);
asm(".p2align 4\n" FUNCTION(wide) "lea 5(%rdi,%rdi,2),%rax\nret\n" END(wide)
    ".p2align 4\n" FUNCTION(pushing) "push %rbx\nmov %rdi,%rbx\nlea 3(%rbx),%rax\npop %rbx\nret\n" END(pushing)
    ".p2align 4\n" FUNCTION(last_byte) "lea 1(%rdi),%rax\nret\n" END(last_byte) ".p2align 4\n");
static pid_t tids[THREADS];
static volatile long seen, sent, ticks;
static int finished;
static void on_trap(int signal) { (void)signal; __atomic_fetch_add(&seen, 1, __ATOMIC_RELAXED); }
static void calls(long i) {
    COUNTED(wide, check(wide(i) == 3 * i + 5, "wide"));
    COUNTED(pushing, check(pushing(i) == i + 3, "pushing"));
    COUNTED(last_byte, check(last_byte(i) == i + 1, "last_byte"));
}
static void on_tick(int signal) { (void)signal; ticks++; calls(ticks); }
static void *caller(void *argument) {
    static char stacks[THREADS][1 << 16];
    long number = (long)argument;
    stack_t stack = {.ss_sp = stacks[number], .ss_size = sizeof stacks[number]};
    sigaltstack(&stack, 0);
    __atomic_store_n(&tids[number], (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    for (long i = 0; i < 3000; i++) calls(i);
    stack.ss_flags = SS_DISABLE;
    __atomic_fetch_add(&finished, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&finished, __ATOMIC_ACQUIRE) <= THREADS) sched_yield();
    sigaltstack(&stack, 0);
    return 0;
}
static void one_round(void) {
    struct itimerval fast = {{0, 100}, {0, 100}}, off = {{0, 0}, {0, 0}};
    pthread_t threads[THREADS];
    finished = 0;
    memset(tids, 0, sizeof tids);
    for (long i = 0; i < THREADS; i++) check(!pthread_create(&threads[i], 0, caller, (void *)i), "pthread_create");
    setitimer(ITIMER_REAL, &fast, 0);
    while (__atomic_load_n(&finished, __ATOMIC_ACQUIRE) < THREADS)
        for (int i = 0; i < THREADS; i++) {
            pid_t tid = __atomic_load_n(&tids[i], __ATOMIC_ACQUIRE);
            if (tid && !syscall(SYS_tgkill, getpid(), tid, SIGTRAP)) sent++;
            for (volatile int pause = 0; pause < 5000; pause++) {} /* no faster than the handlers */
        }
    setitimer(ITIMER_REAL, &off, 0);
    __atomic_fetch_add(&finished, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    check(seen <= sent, "more signals than were sent");
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    struct sigaction trap = {0}, tick = {0};
    trap.sa_handler = on_trap;
    trap.sa_flags = SA_RESTART | SA_ONSTACK;
    tick.sa_handler = on_tick;
    tick.sa_flags = SA_RESTART | SA_ONSTACK;
    sigaction(SIGTRAP, &trap, 0);
    sigaction(SIGALRM, &tick, 0);
    USE_TALLY(wide); USE_TALLY(pushing); USE_TALLY(last_byte);
}
