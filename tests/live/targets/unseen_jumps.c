/* unseen_jumps: calls that __builtin_longjmp leaves: no function is called for it. Each round leaves some, deep on the
 * stack, and then calls the same function again. Its record: "calls NAME N", the calls that return. */
#include "protocol.h"
TALLY(work);
TALLY(outer);
static void *back[5];
static volatile int spin;
static void burn(int n) { for (int i = 0; i < n; i++) spin++; }
__attribute__((noipa)) static void leaves(void) { __builtin_longjmp(back, 1); }
PROBED void work(int fails) {
    burn(2000);
    if (fails) leaves();
    work_tally.calls++;
}
__attribute__((noipa)) static void deep(int depth) {
    volatile char room[256];
    room[0] = (char)depth;
    if (depth) deep(depth - 1);
    else work(1);
    spin += room[0];
}
__attribute__((noipa)) static void tries(void) {
    if (!__builtin_setjmp(back)) deep(10);
    spin++;
}
PROBED void outer(void) {
    for (int i = 0; i < 20; i++) work(0);
    outer_tally.calls++;
}
static void one_round(void) { tries(); outer(); }
static void setup(int argc, char **argv) {
    (void)argc; (void)argv;
    USE_TALLY(work);
    USE_TALLY(outer);
}
