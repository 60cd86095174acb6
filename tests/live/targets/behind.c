/* Every way in which control leaves an instruction, hand-written, for handlers behind them. */
#include "protocol.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
long behind_step(long), behind_branch(long), behind_loop(long), behind_jump(long), behind_through(long);
long behind_call(long), behind_pointer(long), behind_slot(long), behind_pop(long, long), behind_getpid(void);
long behind_callee(long), behind_load(long *), behind_wait(void);
__asm__(
    ".text\n"
    FUNCTION(behind_step)
    "lea 5(%rdi), %rax\n"
    "ret\n" END(behind_step)
    FUNCTION(behind_branch)
    "mov $1, %eax\n"
    "test %rdi, %rdi\n"
    "je 1f\n"
    "mov $2, %eax\n"
    "nopl 0(%rax)\n"
    "1: add $10, %rax\n"
    "ret\n" END(behind_branch)
    FUNCTION(behind_loop)
    "mov %rdi, %rcx\n"
    "xor %eax, %eax\n"
    "1: add $7, %rax\n"
    "nopl 0(%rax)\n"
    "loop 1b\n"
    "nopl 0(%rax)\n"
    "ret\n" END(behind_loop)
    FUNCTION(behind_jump)
    "mov %rdi, %rax\n"
    "jmp 1f\n"
    ".skip 200, 0xcc\n"
    "1: inc %rax\n"
    "ret\n" END(behind_jump)
    FUNCTION(behind_through)
    "mov %rdi, %rax\n"
    "lea 1f(%rip), %r11\n"
    "jmp *%r11\n"
    "nopl 0(%rax)\n"
    "nopl 0(%rax)\n"
    "1: inc %rax\n"
    "ret\n" END(behind_through)
    FUNCTION(behind_call)
    "sub $8, %rsp\n"
    "call behind_callee\n"
    "add $8, %rsp\n"
    "ret\n" END(behind_call)
    FUNCTION(behind_pointer)
    "sub $8, %rsp\n"
    "lea behind_callee(%rip), %rax\n"
    "call *%rax\n"
    "add $8, %rsp\n"
    "ret\n" END(behind_pointer)
    FUNCTION(behind_slot)
    "lea behind_callee(%rip), %rax\n"
    "sub $24, %rsp\n"
    "mov %rax, 16(%rsp)\n"
    "call *16(%rsp)\n"
    "add $24, %rsp\n"
    "ret\n" END(behind_slot)
    FUNCTION(behind_callee)
    "lea 3(%rdi), %rax\n"
    "ret\n" END(behind_callee)
    FUNCTION(behind_popping)
    "mov 8(%rsp), %rax\n"
    "add %rdi, %rax\n"
    "ret $8\n" END(behind_popping)
    FUNCTION(behind_pop)
    "push %rsi\n"
    "call behind_popping\n"
    "ret\n" END(behind_pop)
    FUNCTION(behind_load)
    "mov (%rdi), %rax\n"
    "nopl 0(%rax)\n"
    "ret\n" END(behind_load)
    FUNCTION(behind_wait)
    "mov $34, %eax\n"
    "syscall\n"
    "nopl 0(%rax)\n"
    "ret\n" END(behind_wait)
    FUNCTION(behind_getpid)
    "mov $39, %eax\n"
    "syscall\n"
    "nopl 0(%rax)\n"
    "ret\n" END(behind_getpid)
);
static sigjmp_buf back;
static void leave(int number) { siglongjmp(back, number); }
static int leaving;
/* Instructions that are not completed: a load that faults, and a system call that a signal handler leaves. */
static void leaving_round(void) {
    long value = 5;
    for (int n = 0; n < 20; n++) {
        if (!sigsetjmp(back, 1)) {
            check(behind_load(n & 1 ? &value : (long *)8) == 5, "load");
        } else check(!(n & 1), "a good load has faulted");
        if (!sigsetjmp(back, 1)) {
            struct itimerval soon = {{0, 0}, {0, 1000}};
            setitimer(ITIMER_REAL, &soon, 0);
            for (;;) behind_wait();
        }
    }
}
static int sleeping;
static void woken(int number) { (void)number; }
static void one_round(void) {
    if (sleeping) { say("sleeps\n"); check(behind_wait() == -4, "an interrupted call"); return; }
    if (leaving) { leaving_round(); return; }
    for (long n = 0; n < 100; n++) {
        check(behind_step(n) == n + 5, "step");
        check(behind_branch(n & 1) == (n & 1 ? 12 : 11), "branch");
        check(behind_loop(3) == 21, "loop");
        check(behind_jump(n) == n + 1, "jump");
        check(behind_through(n) == n + 1, "through");
        check(behind_call(n) == n + 3, "call");
        check(behind_pointer(n) == n + 3, "pointer");
        check(behind_slot(n) == n + 3, "slot");
        check(behind_pop(n, 9) == n + 9, "pop");
        check(behind_getpid() == getpid(), "getpid");
    }
}
static void setup(int argc, char **argv) {
    sleeping = argc > 1 && !strcmp(argv[1], "sleeping");
    leaving = argc > 1 && !sleeping;
    if (sleeping) signal(SIGUSR1, woken);
    if (leaving) { signal(SIGSEGV, leave); signal(SIGALRM, leave); }
}
