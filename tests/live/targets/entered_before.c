/* A function most of whose time passes between the instructions at its entry: one of them waits for memory.
 * A signal comes every 500 microseconds: after a stop one is due before the thread has gone on. */
#include "protocol.h"
#include "interrupted.h"
TALLY(fetches);
enum { LONGS = 1 << 23 };
static long *far_away;
long fetches(long *from);
asm(".p2align 4\n" FUNCTION(fetches)
    "push %rbx\n"
    "mov (%rdi),%rax\n"
    "inc %rax\n" /* a jump takes all three */
    "pop %rbx\n"
    "ret\n" END(fetches) ".p2align 4\n");
static void one_round(void) {
    static unsigned long at;
    for (int i = 0; i < 2000; i++) {
        at = (at * 2862933555777941757ul + 3037000493ul);
        COUNTED(fetches, check(fetches(far_away + (at >> 20) % LONGS) == 1, "what was fetched"));
    }
}
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    far_away = calloc(LONGS, sizeof *far_away);
    for (long i = 0; i < LONGS; i += 512) far_away[i] = 0;
    be_interrupted_every(500);
    USE_TALLY(fetches);
}
