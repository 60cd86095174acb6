/* forks_timed MODE N: fork children that call work() as often as they say.
 *
 * Each process prints "PID CALLS SLEPT" when its calls are done: how often, and of these, how many slept for a
 * millisecond at least. With a MODE that ends in "!", all wait for a byte from standard input first.
 *
 *   plain      child i calls work() i + 1 times
 *   threads    the same in three threads each, of which one has made calls in the parent, too
 *   deep       each child forks another one, which forks another one
 *   inside     fork is called inside of held(), which ends in both; the child calls work() then
 *   thrown     the child leaves left() by longjmp, five times, and calls work() then
 *   vfork      a vfork child calls work(), too; it is printed as the parent's
 *   killed     the child prints after its calls and waits to be killed in the middle of held()
 *   signals    a timer interrupts the child all the time, whose handler calls work(), too
 *   many       N children one after another, each with one call
 *   learns     a child is forked before the parent has called tail() by a pointer; then both call it, the parent until
 *              there is something to read from standard input, and a second child
 *   filters    the child filters its system calls before it calls work()
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEPT __attribute__((noinline))
static jmp_buf back;
static volatile sig_atomic_t in_handlers;

KEPT void work(int slow) {
    struct timespec moment = {0, 1000000}, rest;
    if (slow)
        while (nanosleep(&moment, &rest)) moment = rest;
    __asm__ volatile("" ::: "memory");
}

KEPT int held(void) {
    int child = fork();
    __asm__ volatile("" ::: "memory");
    return child;
}

KEPT int end_of_tail(int n) {
    __asm__ volatile("" ::: "memory");
    return n + 1;
}

__attribute__((noinline, optimize("O2"))) int tail(int n) {
    __asm__ volatile("" ::: "memory");
    return end_of_tail(n);
}

static int (*volatile by_pointer)(int) = tail;

KEPT int calls_tail(int n) {
    return by_pointer(n) + 1;
}

KEPT void left(int leave) {
    if (leave) longjmp(back, 1);
    __asm__ volatile("" ::: "memory");
}

KEPT void hangs(const char *mode) {
    while (mode[0] == 'k') pause();
    __asm__ volatile("" ::: "memory");
}

static void tell(int calls, int slept) {
    char text[64];
    ssize_t size = snprintf(text, sizeof text, "%d %d %d\n", getpid(), calls, slept);
    if (write(1, text, size) != size) _exit(9);
}

static void *three_times(void *times) {
    for (long n = 0; n < (long)times; n++) work(n == 0);
    return 0;
}

static void handler(int signal) {
    (void)signal;
    in_handlers++;
    work(0);
}

static void in_child(const char *mode, long n, int depth) {
    if (!strncmp(mode, "threads", 7)) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, three_times, (void *)(n + 1));
        three_times((void *)(n + 1));
        for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
        tell(3 * (n + 1), 3);
    } else if (!strncmp(mode, "deep", 4)) {
        work(1);
        if (depth < 3 && !fork()) in_child(mode, n, depth + 1);
        while (wait(0) > 0) {}
        work(0);
        tell(2, 1);
    } else if (!strncmp(mode, "thrown", 6)) {
        for (volatile int i = 0; i < 5; i++)
            if (!setjmp(back)) left(1);
        work(1);
        tell(1, 1);
    } else if (!strncmp(mode, "vfork", 5)) {
        work(1);
        int child = vfork();
        if (!child) { work(0); _exit(0); }
        tell(2, 1);
    } else if (!strncmp(mode, "killed", 6)) {
        work(1);
        work(0);
        tell(2, 1);
        hangs(mode);
    } else if (!strncmp(mode, "signals", 7)) {
        struct itimerval often = {{0, 100}, {0, 100}}, never = {{0, 0}, {0, 0}};
        signal(SIGALRM, handler);
        setitimer(ITIMER_REAL, &often, 0);
        for (int i = 0; i < 20000; i++) work(0);
        setitimer(ITIMER_REAL, &never, 0);
        signal(SIGALRM, SIG_IGN);
        tell(20000 + in_handlers, 0);
    } else if (!strncmp(mode, "filters", 7)) {
        struct sock_filter rules[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog filter = {sizeof rules / sizeof *rules, rules};
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0)) _exit(8);
        work(1);
        tell(1, 1);
    } else {
        for (long i = 0; i <= n; i++) work(i == 0);
        tell(n + 1, 1);
    }
    _exit(0);
}

static int learns(void) {
    int told[2], status, sum = 0;
    char byte;
    if (pipe(told)) return 6;
    if (!fork()) {
        if (read(told[0], &byte, 1) != 1) _exit(5);
        for (int i = 0; i < 3000; i++) sum += calls_tail(i);
        tell(3000, sum < 0);
        _exit(0);
    }
    struct pollfd input = {0, POLLIN, 0};
    int calls = 0;
    while (!poll(&input, 1, 0)) {
        sum += calls_tail(calls++);
        usleep(500);
    }
    if (write(told[1], "", 1) != 1) return 4;
    wait(&status);
    if (!fork()) {
        for (int i = 0; i < 1000; i++) sum += calls_tail(i);
        tell(1000, sum < 0);
        _exit(0);
    }
    wait(&status);
    tell(calls, sum < 0);
    return 0;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "plain";
    int count = argc > 2 ? atoi(argv[2]) : 4, bad = 0, status;
    setvbuf(stdout, 0, _IONBF, 0);
    if (strchr(mode, '!')) {
        puts("ready");
        char byte;
        if (read(0, &byte, 1) != 1) return 7;
    }
    if (!strncmp(mode, "learns", 6)) return learns();
    work(1);
    if (!strncmp(mode, "threads", 7)) {
        pthread_t other;
        pthread_create(&other, 0, three_times, (void *)3);
        pthread_join(other, 0);
    }
    for (long n = 0; n < count; n++) {
        if (!strncmp(mode, "many", 4)) {
            if (!fork()) { work(0); _exit(0); }
            usleep(500);
            wait(&status);
            bad += status != 0;
        } else if (!(strncmp(mode, "inside", 6) ? fork() : held())) in_child(mode, n, 0);
    }
    while (wait(&status) > 0) bad += status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    tell(!strncmp(mode, "threads", 7) ? 4 : 1, !strncmp(mode, "threads", 7) ? 2 : 1);
    return bad;
}
