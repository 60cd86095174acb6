/* A function that ends in a branch's target too short for a jump, with padding behind it. */
#include "protocol.h"
TALLY(ends);
long ends(long, long);
asm(".p2align 4\n"
    FUNCTION(ends) "mov %rsi,-8(%rsp)\nadd %rsi,%rdi\ntest %edi,%edi\njns 1f\nneg %rdi\njmp 1f\nint3\n1: mov %rdi,%rax\nret\n"
    END(ends) ".p2align 4\n");
static void one_round(void) {
    for (long i = -5; i < 5; i++) { COUNTED(ends, check(ends(i, 1) == (i + 1 < 0 ? -i - 1 : i + 1), "ends")); }
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(ends);
}
