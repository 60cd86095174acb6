/* A program that says what became of its own calls, so that it can be seen what handlers have made of them. */
#include "protocol.h"
#include <fcntl.h>
#include <pthread.h>
TALLY(mallocs);
TALLY(nulls);
TALLY(opens);
TALLY(refused);
TALLY(originals);
TALLY(replacements);
TALLY(doubled);
TALLY(steps);
TALLY(stepped_over);
TALLY(written);
TALLY(thirds);
static volatile int setting = 5;
static long (*volatile kept)(long, long);
PROBED long replacement(long a, long b);
PROBED long original(long a, long b) {
    CALLED(originals);
    return a + b;
}
/* Calls what it replaces. */
PROBED long replacement(long a, long b) {
    CALLED(replacements);
    return original(a, b) * 1000 + 1;
}
PROBED long doubled(long n, double x, long on_stack[]) {
    on_stack[0] = n;
    return 2 * n + (long)x;
}
/* Its instructions are known, so that one of them can be left out. */
long step(long n);
__asm__(".text\n" FUNCTION(step) "lea 1(%rdi), %rax\nadd $100, %rax\nadd $0x1000000, %rax\nxor %ecx, %ecx\nret\n" END(step));
/* Overwrites its third parameter unread, and reads all other registers that a call may change. */
long ignoring(long a, long b, long c);
__asm__(".text\n" FUNCTION(ignoring) "xor %edx, %edx\ntest %rax, %rcx\ntest %rsi, %r8\ntest %r9, %r10\n"
        "test %r11, %rdi\nmov %rdi, %rax\nret\n" END(ignoring));
PROBED long third(long a, long b, long c) { return c + 0 * (a + b); }
/* Replaces by jumping to what it replaces. */
PROBED long chained(long a, long b) { return original(a + 1, b); }
PROBED int configured(volatile int *where) { return *where; }
static void *work(void *unused) {
    (void)unused;
    for (long n = 0; n < 250; n++) {
        CALLED(mallocs);
        errno = 0;
        void *volatile room = malloc((size_t)n + 1);
        if (!room) {
            CALLED(nulls);
            check(errno == ENOMEM, "errno of malloc");
        } else {
            check(!errno, "errno of a malloc that worked");
            memset(room, 1, (size_t)n + 1);
        }
        free(room);
        CALLED(opens);
        errno = 0;
        int file = open("/dev/null", O_RDONLY);
        if (file == -1) {
            CALLED(refused);
            check(errno == EMFILE, "errno of open");
        } else {
            check(file > 2 && !errno, "open");
            close(file);
        }
    }
    return 0;
}
static void one_round(void) {
    pthread_t threads[4];
    for (int n = 0; n < 4; n++) check(!pthread_create(&threads[n], 0, work, 0), "pthread_create");
    for (int n = 0; n < 4; n++) pthread_join(threads[n], 0);
    for (long n = 0; n < 100; n++) {
        long found = original(n, 7);
        check(found == n + 7 || found == (n + 7) * 1000 + 1 || found == -n, "original");
        long seen = 0, result = doubled(n, 3.5, &seen);
        if (seen != n) CALLED(doubled);
        check(result == 2 * seen + 3, "doubled");
        result = step(n);
        if (result != n + 0x1000065) CALLED(stepped_over);
        CALLED(steps);
        result = ignoring(n, 2, 5000);
        if (result == 5000) CALLED(thirds);
        else check(result == n, "ignoring");
        if (configured(&setting) == 6) CALLED(written);
    }
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(mallocs); USE_TALLY(nulls); USE_TALLY(opens); USE_TALLY(refused); USE_TALLY(originals);
    USE_TALLY(replacements); USE_TALLY(doubled); USE_TALLY(steps); USE_TALLY(stepped_over); USE_TALLY(written); USE_TALLY(thirds);
    kept = chained;
}
