/* Threads parked inside the first instructions of functions: spinning there, and asleep in a system call there.
 * They are inside when "ready" is printed; the round releases them, has them come back and park again. */
#include "asleep.h"
#include <pthread.h>
#include <sys/syscall.h>
TALLY(spin_inside); TALLY(sleep_inside);
int spin_inside(volatile int *release, volatile int *arrived), sleep_inside(int fd, char *buffer, long size);
asm(".p2align 4\n"
    FUNCTION(spin_inside)                      /* parked at offsets 1 to 8 */
    "push %rbp\n1: movb $1,(%rsi)\ncmpb $0,(%rdi)\nje 1b\nmov $42,%eax\npop %rbp\nret\n" END(spin_inside)
    ".p2align 4\n"
    FUNCTION(sleep_inside)                     /* read(2), asleep with the pc at offset 4 */
    "xor %eax,%eax\nsyscall\nadd $100,%eax\nret\n" END(sleep_inside)
    ".p2align 4\n");
static volatile int release_it, arrived;
static int pipes[2];
static volatile long sleeper_tid;
static long spun, slept;
static void *spinner(void *unused) {
    for (;;) {
        CALLED(spin_inside);
        check(spin_inside(&release_it, &arrived) == 42, "spin_inside");
        RETURNED(spin_inside);
        __atomic_store_n(&release_it, 0, __ATOMIC_SEQ_CST);
        arrived = 0; /* it may have said so once more after it was told to return */
        __atomic_fetch_add(&spun, 1, __ATOMIC_SEQ_CST);
    }
    return unused;
}
static void *sleeper(void *unused) {
    char byte;
    sleeper_tid = syscall(SYS_gettid);
    for (;;) {
        CALLED(sleep_inside);
        check(sleep_inside(pipes[0], &byte, 1) == 101 && byte == 'x', "sleep_inside");
        RETURNED(sleep_inside);
        __atomic_fetch_add(&slept, 1, __ATOMIC_SEQ_CST);
    }
    return unused;
}
static void wait_parked(void) {
    while (!arrived) sched_yield();
    wait_asleep(sleeper_tid, SYS_read);
}
static void one_round(void) {
    long spun_before = spun, slept_before = slept;
    __atomic_store_n(&release_it, 1, __ATOMIC_SEQ_CST);
    check(write(pipes[1], "x", 1) == 1, "write");
    while (__atomic_load_n(&spun, __ATOMIC_SEQ_CST) == spun_before) sched_yield();
    while (__atomic_load_n(&slept, __ATOMIC_SEQ_CST) == slept_before) sched_yield();
    wait_parked();
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    pthread_t t;
    check(!pipe(pipes), "pipe");
    pthread_create(&t, 0, spinner, 0);
    pthread_create(&t, 0, sleeper, 0);
    while (!sleeper_tid) sched_yield();
    wait_parked();
    USE_TALLY(spin_inside); USE_TALLY(sleep_inside);
}
