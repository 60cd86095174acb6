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
TALLY(dumps);
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
/* Sets all registers and flags, makes a call, and has another function, if that is called instead, say what they were. */
long before[17], after[17];
void hollow(void);
void dump(void);
void set_and_call(void);
__asm__(".text\n" FUNCTION(hollow) "nopl 0x100(%rax,%rax,1)\nmovl $1, %eax\nret\n" END(hollow)
        FUNCTION(dump)
        "mov %rax, after(%rip)\npushfq\npop %rax\nmov %rax, after+128(%rip)\nmov after(%rip), %rax\n"
        "mov %rcx, after+8(%rip)\nmov %rdx, after+16(%rip)\nmov %rbx, after+24(%rip)\nmov %rsp, after+32(%rip)\n"
        "mov %rbp, after+40(%rip)\nmov %rsi, after+48(%rip)\nmov %rdi, after+56(%rip)\nmov %r8, after+64(%rip)\n"
        "mov %r9, after+72(%rip)\nmov %r10, after+80(%rip)\nmov %r11, after+88(%rip)\nmov %r12, after+96(%rip)\n"
        "mov %r13, after+104(%rip)\nmov %r14, after+112(%rip)\nmov %r15, after+120(%rip)\nret\n" END(dump)
        FUNCTION(set_and_call)
        "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\nlea -8(%rsp), %rax\n"
        "mov %rax, before+32(%rip)\npush before+128(%rip)\npopfq\nmov before(%rip), %rax\nmov before+8(%rip), %rcx\n"
        "mov before+16(%rip), %rdx\nmov before+24(%rip), %rbx\nmov before+40(%rip), %rbp\nmov before+48(%rip), %rsi\n"
        "mov before+56(%rip), %rdi\nmov before+64(%rip), %r8\nmov before+72(%rip), %r9\nmov before+80(%rip), %r10\n"
        "mov before+88(%rip), %r11\nmov before+96(%rip), %r12\nmov before+104(%rip), %r13\nmov before+112(%rip), %r14\n"
        "mov before+120(%rip), %r15\ncall hollow\ncld\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n"
        END(set_and_call));
static void compare_state(long n) {
    for (int at = 0; at < 16; at++) before[at] = (long)(0x0101010101010101ul * (unsigned long)(at + 1)) + n;
    before[16] = (n & 1 ? 0x4d5 : 0) | (n & 2 ? 0x800 : 0) | 0x202; /* status flags, direction, interrupts */
    memset(after, 0, sizeof after);
    set_and_call();
    if (!after[4]) return;
    CALLED(dumps);
    check(!memcmp(before, after, sizeof before), "registers and flags");
}
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
        compare_state(n);
        result = ignoring(n, 2, 5000);
        if (result == 5000) CALLED(thirds);
        else check(result == n, "ignoring");
        if (configured(&setting) == 6) CALLED(written);
    }
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(mallocs); USE_TALLY(nulls); USE_TALLY(opens); USE_TALLY(refused); USE_TALLY(originals);
    USE_TALLY(replacements); USE_TALLY(doubled); USE_TALLY(steps); USE_TALLY(stepped_over); USE_TALLY(written); USE_TALLY(thirds); USE_TALLY(dumps);
    kept = chained;
}
