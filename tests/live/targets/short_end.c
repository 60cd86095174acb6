/* A function that ends between two branches' targets too close for a jump, with padding in front of them. */
#include "protocol.h"
TALLY(ends);
long ends(long, long);
asm(".p2align 4\n"
    FUNCTION(ends) "mov %rsi,-8(%rsp)\nadd %rsi,%rdi\njo 2f\ntest %edi,%edi\njns 1f\nneg %rdi\njmp 1f\n"
    ".fill 8,1,0xcc\n1: mov %rdi,%rax\nret\n2: xor %edi,%edi\njmp 1b\n"
    END(ends) ".p2align 4\n");
static void one_round(void) {
    for (long i = -5; i < 5; i++) { COUNTED(ends, check(ends(i, 1) == (i + 1 < 0 ? -i - 1 : i + 1), "ends")); }
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(ends);
}
