/* Recursion 200 deep. */
#include "protocol.h"
TALLY(descend);
PROBED long descend(long n) {
    CALLED(descend);
    volatile long kept = n;
    long below = n ? descend(n - 1) : 0;
    RETURNED(descend);
    return below + kept;
}
static void one_round(void) { check(descend(200) == 200 * 201 / 2, "descend"); }
static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(descend); }
