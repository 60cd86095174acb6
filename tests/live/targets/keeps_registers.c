/* Code that leaves registers alone which functions may change: thread-local variables found by descriptors, in which all
 * registers but rax survive a call, and contexts that begin with arguments in six registers. -DBYTES makes the library. */
#ifdef BYTES
__thread char variable[BYTES] = {1};
__asm__(".globl registers_changed\n.type registers_changed,@function\nregisters_changed:\n.cfi_startproc\n"
        "sub $8,%rsp\n.cfi_adjust_cfa_offset 8\n"
        "mov $0x1001,%ecx\nmov $0x1002,%edx\nmov $0x1003,%esi\nmov $0x1004,%edi\n"
        "mov $0x1005,%r8d\nmov $0x1006,%r9d\nmov $0x1007,%r10d\nmov $0x1008,%r11d\n"
        "lea variable@tlsdesc(%rip),%rax\ncall *variable@tlscall(%rax)\n"
        "cmpb $1,%fs:(%rax)\nmov $0,%eax\nsetne %al\n"
        "xor $0x1001,%rcx\nxor $0x1002,%rdx\nxor $0x1003,%rsi\nxor $0x1004,%rdi\n"
        "xor $0x1005,%r8\nxor $0x1006,%r9\nxor $0x1007,%r10\nxor $0x1008,%r11\n"
        "or %rcx,%rax\nor %rdx,%rax\nor %rsi,%rax\nor %rdi,%rax\n"
        "or %r8,%rax\nor %r9,%rax\nor %r10,%rax\nor %r11,%rax\n"
        "add $8,%rsp\n.cfi_adjust_cfa_offset -8\nret\n.cfi_endproc\n.size registers_changed,.-registers_changed\n");
/* GCC knows of this function that it changes rax and flags only, and keeps everything else in registers. */
static __thread long counter;
__attribute__((noinline)) static void bump(void) { if (++counter & 1) __asm__ volatile("" ::: "memory"); }
long kept_across(long a, long b, long c, long d, long e, long f) {
    long g = a * 3, h = b * 5, i = c * d, j = e ^ f;
    bump();
    return a + b * 3 + c * 5 + d * 7 + e * 11 + f * 13 + g * 17 + h * 19 + i * 23 + j * 29;
}
#else
#include "protocol.h"
#include <dlfcn.h>
#include <ucontext.h>
TALLY(begin);
static ucontext_t home, other;
static char stack[65536];
static long (*changed[2])(void);
static long (*across[2])(long, long, long, long, long, long);
/* Indirect calls by way of thunks that end in a return: arguments and the number of vector registers pass through. */
__attribute__((noinline)) static long passed(long a, long b, long c, long d, double x, ...) {
    va_list rest;
    va_start(rest, x);
    double y = va_arg(rest, double);
    va_end(rest);
    return a + 10 * b + 100 * c + 1000 * d + (long)(x * 10) + (long)(y * 100);
}
static long (*volatile by_pointer)(long, long, long, long, double, ...) = passed;
__attribute__((noinline)) long through_thunk(long a, long d, double x) {
    if (a & 1) d *= 2; else d ^= 3;
    return by_pointer(1, 2, 3, d, x, x + 1) + 1;
}
PROBED static void begin(int a, int b, int c, int d, int e, int f) {
    CALLED(begin);
    check(a == 11 && b == 12 && c == 13 && d == 14 && e == 15 && f == 16, "arguments of a context");
    RETURNED(begin);
}
static void one_round(void) {
    for (int which = 0; which < 2; which++) check(changed[which]() == 0, "a register has changed");
    for (int which = 0; which < 2; which++) {
        check(across[which](1, 2, 3, 4, 5, 6) == 1 + 6 + 15 + 28 + 55 + 78 + 51 + 190 + 276 + 87, "kept across a call");
        check(through_thunk(which, 4, 5) == 322 + 1000 * (which ? 8 : 7) + 50 + 600, "passed through a thunk");
    }
    check(getcontext(&other) == 0, "getcontext");
    other.uc_stack.ss_sp = stack;
    other.uc_stack.ss_size = sizeof stack;
    other.uc_link = &home;
    makecontext(&other, (void (*)(void))begin, 6, 11, 12, 13, 14, 15, 16);
    check(swapcontext(&home, &other) == 0, "swapcontext");
}
static void setup(int argc, char **argv) {
    for (int which = 0; which < 2; which++) {
        void *library = dlopen(argc > 2 ? argv[1 + which] : "", RTLD_NOW);
        check(library != 0, "dlopen");
        changed[which] = (long (*)(void))dlsym(library, "registers_changed");
        across[which] = (long (*)(long, long, long, long, long, long))dlsym(library, "kept_across");
    }
    USE_TALLY(begin);
}
#endif
