/* backtrace() and __builtin_return_address inside a probed function and below it. */
#include "protocol.h"
#include <execinfo.h>
TALLY(outer); TALLY(inner);
static void *outer_return, *expected_inner, *expected_outer;
static void *frames[64], *expected[64];
static int depth, expected_depth;
extern char inner_called[], outer_called[];
PROBED int inner(int x) {
    CALLED(inner);
    depth = backtrace(frames, 64);
    void *here = __builtin_return_address(0);
    if (!expected_inner) expected_inner = here;
    check(here == expected_inner, "return address in inner");
    RETURNED(inner);
    return x + 1;
}
PROBED int outer(int x) {
    CALLED(outer);
    outer_return = __builtin_return_address(0);
    int r = inner(x) * 2;
    RETURNED(outer);
    return r;
}
PROBED static void observed(int x) {
    check(outer(x) == (x + 1) * 2, "outer");
    if (!expected_outer) expected_outer = outer_return;
    check(outer_return == expected_outer, "return address in outer");
    if (!expected_depth) { expected_depth = depth; memcpy(expected, frames, sizeof expected); return; }
    /* frame 0 is in inner itself, 1 in outer, 2 here: the three that matter, whoever called this. */
    check(depth >= 4, "backtrace is too short");
    check(!memcmp(frames, expected, 3 * sizeof *frames), "backtrace changed");
}
static int next;
static void one_round(void) { observed(++next); }
static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(outer); USE_TALLY(inner); observed(1); observed(2); }
