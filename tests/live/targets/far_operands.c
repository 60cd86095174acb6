/* Operands nearly two gigabytes from the code: a copy of it has to lie between the two. */
#include "protocol.h"
TALLY(reads_far);
long reads_far(long);
asm(".pushsection .far,\"aw\",@progbits\n.p2align 4\nfar_word: .quad 77\n.popsection\n.p2align 4\n"
    FUNCTION(reads_far) "mov far_word(%rip),%rax\nadd %rdi,far_word(%rip)\nlea far_word(%rip),%rcx\nsub %rdi,(%rcx)\nret\n" END(reads_far));
static long next;
static void one_round(void) {
    long x = ++next;
    COUNTED(reads_far, check(reads_far(x) == 77, "far"));
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(reads_far);
}
