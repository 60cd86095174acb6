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
#else
#include "protocol.h"
#include <dlfcn.h>
#include <ucontext.h>
TALLY(begin);
static ucontext_t home, other;
static char stack[65536];
static long (*changed[2])(void);
PROBED static void begin(int a, int b, int c, int d, int e, int f) {
    CALLED(begin);
    check(a == 11 && b == 12 && c == 13 && d == 14 && e == 15 && f == 16, "arguments of a context");
    RETURNED(begin);
}
static void one_round(void) {
    for (int which = 0; which < 2; which++) check(changed[which]() == 0, "a register has changed");
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
    }
    USE_TALLY(begin);
}
#endif
