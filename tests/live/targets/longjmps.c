/* longjmp out of a probed function. */
#include "protocol.h"
#include <setjmp.h>
TALLY(leaper); TALLY(middle);
static jmp_buf back;
PROBED int leaper(int x) { CALLED(leaper); if (x % 3) longjmp(back, x); RETURNED(leaper); return x + 5; }
PROBED int middle(int x) { CALLED(middle); int r = leaper(x) + 1; RETURNED(middle); return r; }
static int next;
static void one_round(void) {
    volatile int x = ++next;
    int r = setjmp(back);
    if (r) { check(r == x, "longjmp's value"); return; }
    r = middle(x);
    check(x % 3 == 0 && r == x + 6, "middle");
}
static void setup(int argc, char **argv) { (void)argc; (void)argv; USE_TALLY(leaper); USE_TALLY(middle); }
