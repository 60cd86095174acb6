/* Functions whose first instructions have one byte, three, and seven. */
#include "protocol.h"
TALLY(pushes); TALLY(short_first); TALLY(long_first);
long pushes(long), short_first(long), long_first(long);
asm(".p2align 4\n"
    FUNCTION(pushes) "push %rbx\nmov %rdi,%rbx\nlea 1(%rbx),%rax\npop %rbx\nret\n" END(pushes)
    ".p2align 4\n"
    FUNCTION(short_first) "mov %rdi,%rax\nadd $2,%rax\nret\n" END(short_first)
    ".p2align 4\n"
    FUNCTION(long_first) "lea 0x1000(%rdi),%rax\nsub $0xffd,%rax\nret\n" END(long_first));

static void one_round(void) {
    static long n;
    n++;
    CALLED(pushes); check(pushes(n) == n + 1, "pushes");
    CALLED(short_first); check(short_first(n) == n + 2, "short_first");
    CALLED(long_first); check(long_first(n) == n + 3, "long_first");
}

static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(pushes); USE_TALLY(short_first); USE_TALLY(long_first); }
