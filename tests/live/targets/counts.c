/* Threads (argument 1) that call three functions and count the calls themselves. */
static void many_rounds(long n);
#define MANY_ROUNDS 1 /* "go N" is N calls of each function on each thread, "free" goes by 20 000 */
#include "protocol.h"
#include "in_threads.h"
TALLY(work); TALLY(leaf4); TALLY(side);

PROBED int work(int x) { volatile int a[2] = {x, x ^ 0x55}; int r = x * 3 + 7; r ^= r >> 3; return r + a[0] - a[1]; }
PROBED int side(int x) { volatile int y = x + 3; return y ^ x; }
int leaf4(int x);
asm(".p2align 4\n" FUNCTION(leaf4) "lea 1(%rdi),%eax\nret\n" END(leaf4) ".p2align 4\n");

static void *caller(void *argument) {
    long n = rounds_of_each, mine = 0;
    for (long i = 0; i < n; i++) {
        int x = (int)(i + (long)argument), r = work(x);
        int expect = x * 3 + 7;
        expect ^= expect >> 3;
        if (r != expect + x - (x ^ 0x55)) check(0, "work");
        if (leaf4(x) != x + 1) check(0, "leaf4");
        if (side(x) != ((x + 3) ^ x)) check(0, "side");
        mine++;
    }
    __atomic_fetch_add(&work_tally.calls, mine, __ATOMIC_RELAXED);
    __atomic_fetch_add(&leaf4_tally.calls, mine, __ATOMIC_RELAXED);
    __atomic_fetch_add(&side_tally.calls, mine, __ATOMIC_RELAXED);
    return 0;
}

static void many_rounds(long n) {
    in_threads(caller, n);
    work_tally.returns = work_tally.calls; leaf4_tally.returns = leaf4_tally.calls; side_tally.returns = side_tally.calls;
}
static void one_round(void) { many_rounds(20000); }
static void setup(int argc, char **argv) {
    set_threads(argc, argv);
    USE_TALLY(work); USE_TALLY(leaf4); USE_TALLY(side);
}
