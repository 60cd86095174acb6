/* open_calls: very deep recursions, functions that jump to each other and all return at once, and longjmp. */
#include "protocol.h"
#include <setjmp.h>
TALLY(outer_deep);
TALLY(outer_chain);
PROBED int deep(int n) {
    int r = n ? deep(n - 1) + 1 : 0;
    __asm__ volatile("" : "+r"(r));
    return r;
}
PROBED int is_odd(int n);
PROBED int is_even(int n) { return n ? is_odd(n - 1) : 1; } /* jumps, with optimization */
PROBED int is_odd(int n) { return n ? is_even(n - 1) : 0; }
PROBED int outer_deep(int n) {
    CALLED(outer_deep);
    int r = deep(n) == n;
    RETURNED(outer_deep);
    return r;
}
PROBED int outer_chain(int n) {
    CALLED(outer_chain);
    int r = is_even(n) == 1 - n % 2;
    RETURNED(outer_chain);
    return r;
}
static jmp_buf back;
PROBED int inner(int n) { return n + 1; }
PROBED void leaves(void) { longjmp(back, 1); }
PROBED int caught(int n) {
    if (setjmp(back)) return n; /* its end is the first that is seen after that */
    for (int i = 0; i < n; i++) inner(i);
    leaves();
    return 0;
}
static void one_round(void) {
    check(caught(100) == 100, "caught");
    check(outer_deep(6000), "deep");
    check(outer_chain(3000), "chain");
}
static void setup(int argc, char **argv) {
    USE_TALLY(outer_deep);
    USE_TALLY(outer_chain);
}
