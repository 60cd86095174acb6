/* A function that calls itself ten deep, and one whose every third call longjmp leaves at the same depth. */
#include <setjmp.h>
#include "protocol.h"
TALLY(deep); TALLY(leaper);
static jmp_buf back;

PROBED long deep(long n) {
    CALLED(deep);
    long below = n > 1 ? deep(n - 1) : 0;
    RETURNED(deep);
    return below + 1;
}

PROBED long leaper(long n) {
    CALLED(leaper);
    if (n % 3 == 0) longjmp(back, 1);
    RETURNED(leaper);
    return n;
}

static void one_round(void) {
    static volatile long n;
    n++;
    check(deep(10) == 10, "deep");
    if (!setjmp(back)) check(leaper(n) == n, "leaper");
}

static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(deep); USE_TALLY(leaper); }
