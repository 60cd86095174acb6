/* A function that pushes, with flags that are read later: a handler that moves the stack pointer must not disturb it. */
#include "protocol.h"
TALLY(pushes); TALLY(thousands);
long pushes(long n);
asm(".p2align 4\n" FUNCTION(pushes)
    "push %rbx\n"         /* +0 */
    "mov %rdi,%rbx\n"     /* +1 */
    "push $7\n"           /* +4 */
    "stc\n"               /* +6 */
    "lea 1(%rbx),%rax\n"  /* +7 */
    "sbb $0,%rax\n"       /* +b */
    "pop %rcx\n"          /* +f */
    "add %rcx,%rax\n"     /* +10 */
    "pop %rbx\n" "ret\n" END(pushes));
static void one_round(void) {
    for (long n = 0; n < 50; n++) {
        long found;
        COUNTED(pushes, found = pushes(n));
        check(found == n + 7 || found == n + 1000, "what it returns");
        if (found == n + 1000) CALLED(thousands);
    }
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(pushes); USE_TALLY(thousands);
}
