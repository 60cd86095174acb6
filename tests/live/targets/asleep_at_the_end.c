/* A thread asleep in a system call whose instruction ends where a jump over the function's first bytes ends. */
#include "asleep.h"
#include <pthread.h>
#include <sys/syscall.h>
TALLY(sleep_at_end);
long sleep_at_end(int fd, char *buffer, long size, long number);
asm(".p2align 4\n" FUNCTION(sleep_at_end) "mov %rcx,%rax\nsyscall\nadd $100,%rax\nret\n" END(sleep_at_end) ".p2align 4\n");
static int pipes[2];
static volatile long slept, tid;
static void *sleeper(void *unused) {
    char byte;
    tid = syscall(SYS_gettid);
    for (;;) {
        CALLED(sleep_at_end);
        check(sleep_at_end(pipes[0], &byte, 1, SYS_read) == 101 && byte == 'x', "sleep_at_end");
        RETURNED(sleep_at_end);
        slept++;
    }
    return unused;
}
static void one_round(void) {
    long before = slept;
    check(write(pipes[1], "x", 1) == 1, "write");
    while (slept == before) usleep(1000);
    wait_asleep(tid, SYS_read);
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    pthread_t t;
    check(!pipe(pipes), "pipe");
    pthread_create(&t, 0, sleeper, 0);
    USE_TALLY(sleep_at_end);
}
