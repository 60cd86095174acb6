/* Functions for what the kprobes document promises: values that wrap, tail exits, jumps away, several threads. */
#include "protocol.h"
#include <pthread.h>
#include <setjmp.h>
#include <sys/wait.h>
#include <ucontext.h>
TALLY(stepped);
TALLY(chosen);
TALLY(leaves);
TALLY(recursive);
TALLY(asked);
static volatile long sink;
/* mov $7, %eax; add %edi, %eax; jmp; ... with instructions that tests name by their offsets. */
long chosen(long n);
__asm__(".text\n" FUNCTION(chosen)
        "mov $7, %eax\n"      /* +0 */
        "add %rdi, %rax\n"    /* +5 */
        "test %rdi, %rdi\n"   /* +8 */
        "je 1f\n"             /* +b */
        "add $100, %rax\n"    /* +d */
        "1: lea 1(%rax), %rax\n" /* +11 */
        "ret\n" END(chosen)); /* +15 */
/* For djprobes: what each of the original's assumptions forbids, by offsets. */
long shapes(long n);
__asm__(".text\n" FUNCTION(shapes)
        "lea 3(%rdi), %rax\n"   /* +0: 4 bytes */
        "add %rdi, %rax\n"      /* +4: 3 bytes */
        "test %rdi, %rdi\n"     /* +7 */
        "2: je 1f\n"            /* +a */
        "mov $1, %ecx\n"        /* +c */
        "call other\n"          /* +11 */
        "1: xor %edi, %edi\n"   /* +16 */
        "mov known(%rip), %rcx\n" /* +18 */
        "add %rcx, %rax\n"      /* +1f */
        "ret\n" END(shapes));
long known = 5;
/* Every register gets a value of its own. */
long patterned(void);
__asm__(".text\n" FUNCTION(patterned)
        "push %rbx\n" "push %rbp\n" "push %r12\n" "push %r13\n" "push %r14\n" "push %r15\n" /* 10 bytes */
        "movabs $0x0101010101010101, %rax\n"
        "movabs $0x0202020202020202, %rbx\n"
        "movabs $0x0303030303030303, %rcx\n"
        "movabs $0x0404040404040404, %rdx\n"
        "movabs $0x0505050505050505, %rsi\n"
        "movabs $0x0606060606060606, %rdi\n"
        "movabs $0x0707070707070707, %rbp\n"
        "movabs $0x0808080808080808, %r8\n"
        "movabs $0x0909090909090909, %r9\n"
        "movabs $0x0a0a0a0a0a0a0a0a, %r10\n"
        "movabs $0x0b0b0b0b0b0b0b0b, %r11\n"
        "movabs $0x0c0c0c0c0c0c0c0c, %r12\n"
        "movabs $0x0d0d0d0d0d0d0d0d, %r13\n"
        "movabs $0x0e0e0e0e0e0e0e0e, %r14\n"
        "movabs $0x0f0f0f0f0f0f0f0f, %r15\n"
        "xor %eax, %eax\n" /* behind them */
        "movabs $0x0f0f0f0f0f0f0f0f, %rax\n" "xor %r15, %rax\n" "movabs $0x0303030303030303, %rdx\n" "xor %rdx, %rcx\n" "or %rcx, %rax\n"
        "pop %r15\n" "pop %r14\n" "pop %r13\n" "pop %r12\n" "pop %rbp\n" "pop %rbx\n" "ret\n" END(patterned));
PROBED long stepped(long n) {
    CALLED(stepped);
    return n * 3;
}
PROBED long other(long n) { return -n; }
static inline __attribute__((always_inline)) long folded(long n) {
    sink += n;
    return n * 7;
}
PROBED long folds(long n) { return folded(n) + folded(n + 1); }
PROBED long folds_too(long n) { return n > 2 ? folded(n) : n; }
PROBED long tails(long n) { return n > 5 ? other(n) : n; }
PROBED long recursive(long n) {
    CALLED(recursive);
    volatile long kept = n;
    return n ? recursive(n - 1) + kept : 0;
}
static jmp_buf back;
PROBED long leaves(long n) {
    CALLED(leaves);
    if (n & 1) longjmp(back, 1);
    return n;
}
/* Calls from different depths leave; then what they have left on the stack is overwritten. */
PROBED long leaves_from_below(long depth, long n) {
    volatile char room[256];
    room[0] = (char)depth;
    return (depth ? leaves_from_below(depth - 1, n) : leaves(n)) + room[0] - room[0];
}
PROBED void wipe(void) {
    volatile char room[8192];
    for (int n = 0; n < (int)sizeof room; n++) room[n] = 0;
}
PROBED void *asked(void) {
    CALLED(asked);
    return __builtin_return_address(0);
}
PROBED void *caller_of(void **where) {
    *where = asked();
    return __builtin_return_address(0);
}
PROBED long forked(void) {
    pid_t child = vfork();
    if (!child) _exit(3);
    int status = 0;
    check(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3, "vfork");
    return 3;
}
static ucontext_t here, there;
PROBED long switched(long n) {
    swapcontext(&there, &here);
    return n + 5;
}
static void on_another_stack(void) { sink += switched(1); }
PROBED long ends(long n) {
    if (n) pthread_exit((void *)n);
    return n;
}
static void *thread(void *unused) {
    (void)unused;
    ends(4);
    return 0;
}
static void *work(void *unused) {
    (void)unused;
    for (long n = 0; n < 1000; n++) check(stepped(n) == n * 3, "stepped");
    return 0;
}
static int rounds_of_leaving;
static void one_round(void) {
    pthread_t threads[4];
    for (int n = 0; n < 4; n++) check(!pthread_create(&threads[n], 0, work, 0), "pthread_create");
    for (int n = 0; n < 4; n++) pthread_join(threads[n], 0);
    for (long n = 0; n < 100; n++) {
        long found = chosen(n);
        check(found == (n ? n + 108 : 8) || found == -n, "chosen");
        CALLED(chosen);
    }
    check(recursive(10) == 55, "recursive");
    check(folds(1) == 21 && folds_too(3) == 21 && folds_too(1) == 1, "folded");
    check(patterned() == 0, "patterned");
    check(shapes(0) == 8 && shapes(3) == 2, "shapes");
    for (long n = 0; n < 10; n++) check(tails(n) == (n > 5 ? -n : n), "tails");
    for (volatile long n = 0; n < 100; n++)
        if (!setjmp(back)) {
            wipe();
            sink += leaves_from_below(n % 7, n);
        }
    void *seen;
    check(caller_of(&seen) != 0 && (char *)seen > (char *)caller_of && (char *)seen < (char *)caller_of + 256,
          "the return address");
    check(forked() == 3, "forked");
    static char stack[65536];
    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = sizeof stack;
    there.uc_link = &here;
    makecontext(&there, on_another_stack, 0);
    swapcontext(&here, &there);
    if (rounds_of_leaving++ % 2) swapcontext(&here, &there);
    pthread_t one;
    void *result;
    check(!pthread_create(&one, 0, thread, 0) && !pthread_join(one, &result) && result == (void *)4, "pthread_exit");
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(stepped); USE_TALLY(chosen); USE_TALLY(leaves); USE_TALLY(recursive); USE_TALLY(asked);
}
