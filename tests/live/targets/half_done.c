/* A repeated instruction takes nearly all the time; what stands in front of it in the same line remembers where it began.
 * A timer signals every 500 microseconds: after a stop, a signal is due before the thread has gone on. */
#include "protocol.h"
#include "interrupted.h"
TALLY(fills);
enum { SIZE = 1 << 20 };
static char filled[SIZE + 2];
char *fills(char *to, long size, int with);
asm(".p2align 4\n" FUNCTION(fills)
    "push %rbx\n"
    "mov %edx,%eax\n"
    "mov %rsi,%rcx\n"
    "mov %rdi,%rbx\n" /* at 6: a jump here takes the next one, too */
    "rep stosb\n"
    "mov %rbx,%rax\n"
    "pop %rbx\n"
    "ret\n" END(fills) ".p2align 4\n");
static void one_round(void) {
    static int with;
    with = (with + 1) & 0x7f;
    COUNTED(fills, check(fills(filled + 1, SIZE, with) == filled + 1, "where it began"));
    for (long i = 1; i <= SIZE; i += 511) check(filled[i] == with, "something was not filled");
    check(filled[SIZE] == with && !filled[0] && !filled[SIZE + 1], "the ends");
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    be_interrupted_every(500);
    USE_TALLY(fills);
}
